"""Shrink a network while it trains, and record accuracy and training FLOPs at every density on the way.

    python -m benchmarks.shrink --data-root DIR --results results/shrink.jsonl --seeds 0 1 -- \\
        "erk:0.5 40 >0.1/7:4@0.03 40" "dense 80 >0.1/10:4@0.03 40" "dense gmp>0.1:80"

A plan is a start followed by phases. Every phase is one training with its own annealed learning rate:

    dense | erk:D | gcg:D     start with all weights, with a random ERK mask, or with a PHEW mask to be grown
    N                         train N epochs with the current masks
    >D/R:N                    go to density D in R rounds of equal ratio, with N epochs after each; down by global
                              magnitude pruning, up by GCG's path-based growth (R defaults to 1)
    >D/RxK:N                  only the first K of these R rounds
    >D/R:N~S                  also rewire the fraction S of every layer in each round, by magnitude and gradient
    gmp>D:N                   prune to D within N epochs on the cubic schedule of gradual magnitude pruning;
    gmp>D:N,B,E               between the fractions B and E of the phase (default 0.2 and 0.75)

A peak learning rate can be added to any phase, as in `40@0.05`; the default is the recipe's. Plans with a common prefix
share it, and all plans train concurrently. After each phase the network is evaluated on val and test and one line of
JSON is appended. With `--plans FILE` plans are read from a file, one per line with the seeds in front ("0,1 dense 80
..."); new lines are picked up while others train, until a line says `end`.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.cifar import Lines
from pathgrow import data as datasets
from pathgrow import models
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs, sample_flops
from pathgrow.graph.scope import scope
from pathgrow.masks import Masks
from pathgrow.masks.sampling import sample_proportional, top_k
from pathgrow.methods import fixed
from pathgrow.methods.allocation import RandomInLayers
from pathgrow.methods.method import ByScore, MaskUpdate, Method, NetworkView, Pick, Progress, count_at
from pathgrow.methods.picks import all_candidates, by_walks, smallness
from pathgrow.methods.rewire import Cosine, RewireLayers, masks_with
from pathgrow.methods.schedules import PruneCubically, scaled_interval
from pathgrow.rng import derive
from pathgrow.runs.iso_flop import CostMeter, cost_logger
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.training_state import copy_model_and_optimizer
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import default_name, recipe

_MOST_PHASES = 100_000
_STARTS: dict[str, Pick] = {"dense": all_candidates, "erk": RandomInLayers("erk"), "gcg": by_walks}


@dataclass(frozen=True)
class Phase:
    """One training, and what happens to the masks before it or (`cubic`) in the course of it."""

    density: float
    """At its end."""
    epochs: int
    lr: float | None = None
    """At the peak; None: the recipe's."""
    rewire: float = 0.0
    cubic: tuple[float, float] | None = None

    def __str__(self) -> str:
        shares = "" if self.cubic is None else f",{self.cubic[0]:g},{self.cubic[1]:g}"
        return (
            f"{'gmp' if self.cubic else ''}>{self.density:.4g}:{self.epochs}{shares}"
            f"{'' if self.lr is None else f'@{self.lr:g}'}{f'~{self.rewire:g}' if self.rewire else ''}"
        )


_TOKEN = re.compile(
    r"(?:(?P<gmp>gmp)?>(?P<density>[\d.]+)(?:/(?P<rounds>\d+)(?:x(?P<only>\d+))?)?:)?"
    r"(?P<epochs>\d+)(?:,(?P<begin>[\d.]+),(?P<end>[\d.]+))?"
    r"(?:@(?P<lr>[\d.]+))?(?:~(?P<rewire>[\d.]+))?"
)


def parse(plan: str) -> tuple[str, float, tuple[Phase, ...]]:
    """Start, start density and phases.

    >>> start, density, phases = parse("erk:0.4 8 >0.1/2:4@0.03")
    >>> start, density, [str(phase) for phase in phases]
    ('erk', 0.4, ['>0.4:8', '>0.2:4@0.03', '>0.1:4@0.03'])
    """
    first, *tokens = plan.split()
    start, _, at = first.partition(":")
    now = begun = float(at) if at else 1.0
    if start not in _STARTS:
        raise SystemExit(f"plan {plan!r} begins with {start!r}: must be one of {', '.join(_STARTS)}")
    phases: list[Phase] = []
    for token in tokens:
        if (found := _TOKEN.fullmatch(token)) is None:
            raise SystemExit(f"plan {plan!r} has an invalid phase {token!r}")
        given = found.groupdict()
        lr = float(given["lr"]) if given["lr"] else None
        epochs, rewire = int(given["epochs"]), float(given["rewire"] or 0)
        goal, rounds = float(given["density"] or now), int(given["rounds"] or 1)
        if given["gmp"]:
            phases.append(Phase(goal, epochs, lr, cubic=(float(given["begin"] or 0.2), float(given["end"] or 0.75))))
        else:
            only = int(given["only"] or rounds)
            steps = [goal if k == rounds else now * (goal / now) ** (k / rounds) for k in range(1, only + 1)]
            phases += [Phase(round(density, 6), epochs, lr, rewire) for density in steps]
        now = phases[-1].density
    return start, begun, tuple(phases)


@dataclass
class Goal:
    """A schedule that asks for the density set here, in one update."""

    density: float = 1.0
    rewire: float = 0.0

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        missing = count_at(self.density, progress.num) - progress.num_on
        return MaskUpdate(num_drop=max(0, -missing), num_grow=max(0, missing)) if missing else None

    def update(self, net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        """Prune by magnitude over all layers; grow along paths; where asked, rewire inside the layers."""
        if change.num_grow:
            grow = ByScore(NetworkView.path_scores, sample_proportional)
            return net.masks | grow(net, net.masks.missing(), change.num_grow, draw)
        on = net.masks.present()
        pruned = on - top_k(smallness(net), on, change.num_drop, draw)
        if not self.rewire:
            return masks_with(net, pruned)
        layers = RewireLayers(
            drop_fraction=Cosine(first=self.rewire, last=self.rewire, num_steps=1), score=NetworkView.gradients
        )
        return masks_with(net, layers.rewired(net, pruned, progress.step, draw))


@dataclass
class Network:
    """A network in training, with the goal of its method."""

    attached: Attached
    goal: Goal | None
    """None: it prunes within a training, on its own schedule."""


@dataclass(eq=False)
class Stage:
    """A network after one phase of a plan, and how it came about."""

    order: int
    """Number of the first plan that it is part of: earlier ones are trained first."""
    seed: int
    start: str
    start_density: float
    phases: tuple[Phase, ...]
    """All of them up to this one."""
    parent: Stage | None
    children: list[Stage] = field(default_factory=list)
    network: Network | None = None
    """While it trains, and until a child goes on with it."""
    kept: tuple[torch.nn.Module, torch.optim.Optimizer, Masks] | None = None
    """A copy of the result, from which more children can start."""
    first_step: int = 0
    flops: int = 0
    epochs: int = 0

    @property
    def phase(self) -> Phase:
        return self.phases[-1]


class Fleet(Sequence[Job]):
    """All stages of all plans, as a list of jobs that grows while the engine works through it.

    The engine asks for the next job whenever it has room; a stage that ends makes those that follow it ready.
    """

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.data = datasets.load(chosen.data, chosen.data_root)
        self.model_name = chosen.model
        settings = recipe(chosen.recipe or default_name(chosen.data, chosen.model))
        options = EngineOptions(compile=chosen.compile, max_concurrent=chosen.max_concurrent)
        self.trainer = Trainer(self.data, settings, options)
        self.lines = Lines(chosen.results, chosen.commit)
        self.example = self.data.example_input().to(self.trainer.plan.device)
        self._score = {part: self.trainer.evaluate(getattr(self.data, part)) for part in ("val", "test")}
        model = self._new(0)[0]
        self._scope, self._graph = scope(model), trace(model, self.example)
        self._steps_per_epoch = len(self.data.train) // settings.batch_size
        self._dense_macs = forward_macs(self._graph)
        self._epoch_flops = (
            sample_flops("dense", self._dense_macs, self._dense_macs) * self._steps_per_epoch * settings.batch_size
        )
        self._meter = CostMeter(
            cost="sparse", dense_macs=self._dense_macs, batch_size=settings.batch_size, num=self._scope.num
        )
        self._stages: dict[tuple[Any, ...], Stage] = {}
        self._ready: list[Stage] = []
        self._begun: list[Stage] = []
        self._file: Path | None = chosen.plans
        self._num_read = 0
        self._num_plans = 0
        self._ended = chosen.plans is None
        self._began = time.perf_counter()

    def add(self, plan: str, seed: int) -> None:
        """Take up a plan; what it shares with others is trained once."""
        start, density, phases = parse(plan)
        stage: Stage | None = None
        for number in range(1, len(phases) + 1):
            key = (seed, start, density, phases[:number])
            if key not in self._stages:
                new = Stage(self._num_plans, seed, start, density, phases[:number], stage)
                self._stages[key] = new
                if stage is not None:
                    stage.children.append(new)
                if stage is None or stage.kept is not None:
                    self._ready.append(new)
            stage = self._stages[key]
        self._num_plans += 1

    def run(self) -> None:
        """Train until nothing is left, and nothing more is to come."""
        self.look()
        while self._ready or not self._ended:
            self.trainer.train(self, on_done=self._done)
            if not self._ended:
                time.sleep(0.5)
            self.look()

    def look(self) -> None:
        """Take up new lines of the file of plans."""
        if self._file is None or self._ended:
            return
        for line in self._file.read_text().splitlines()[self._num_read :]:
            self._num_read += 1
            if line.strip() == "end":
                self._ended = True
            elif line.strip():
                seeds, _, plan = line.strip().partition(" ")
                for seed in seeds.split(","):
                    self.add(plan, int(seed))

    # The engine's list of jobs

    def __len__(self) -> int:
        return _MOST_PHASES  # as many as there can be; not all are known yet

    def __getitem__(self, number: Any) -> Any:
        raise TypeError("stages are only available in order")

    def __iter__(self) -> Iterator[Job]:
        self._begun = []  # the engine numbers jobs from the first that it asks for
        return self

    def __next__(self) -> Job:
        if not self._ready:
            raise StopIteration  # for now
        stage = min(self._ready, key=lambda ready: (ready.order, len(ready.phases)))
        self._ready.remove(stage)
        self._begun.append(stage)
        return self._job(stage)

    def _job(self, stage: Stage) -> Job:
        parent, phase = stage.parent, stage.phase
        network = self._network(stage)
        attached = network.attached
        stage.network, stage.first_step = network, attached.step
        if network.goal is not None:
            network.goal.density, network.goal.rewire = phase.density, phase.rewire
            attached.advance_()
        for group in attached.optimizer.param_groups:
            group["lr"] = phase.lr if phase.lr is not None else self.trainer.recipe.lr
        before = parent.epochs if parent is not None else 0
        return Job(attached=attached, epochs=phase.epochs, seed=derive(stage.seed, "shrink", before))

    def _network(self, stage: Stage) -> Network:
        """The network that the phase goes on with: the parent's own if nobody else did, else a copy."""
        parent, phase = stage.parent, stage.phase
        if parent is None:
            model, optimizer = self._new(stage.seed)
            begin = Method(name="start", start=_STARTS[stage.start], start_density=stage.start_density)
        else:
            assert parent.kept is not None
            model, optimizer, masks = parent.kept
            if parent.network is not None:
                network, parent.network = parent.network, None
                if network.goal is not None and phase.cubic is None:
                    return network
                network.attached.detach()
                model, optimizer = network.attached.model, network.attached.optimizer
            else:
                model, optimizer = copy_model_and_optimizer(model, optimizer)
            begin = fixed(masks)
        goal = Goal() if phase.cubic is None else None
        method = self._method(begin, phase, goal)
        attached = attach(
            model,
            optimizer,
            method,
            self.example,
            scope=self._scope,
            loss=self.trainer.loss,
            batches=self.trainer.batches,
            seed=derive(stage.seed, "masks"),
            on_mask_update=cost_logger(self._graph),
        )
        return Network(attached, goal)

    def _method(self, begin: Method, phase: Phase, goal: Goal | None) -> Method:
        if goal is not None:
            return Method(
                name="shrink",
                start=begin.start,
                start_density=begin.start_density,
                schedule=goal,
                update=goal.update,
                after_update="reset_optimizer",
            )
        assert phase.cubic is not None
        num_steps = phase.epochs * self._steps_per_epoch
        return Method(
            name="gmp",
            start=begin.start,
            start_density=begin.start_density,
            drop=ByScore(smallness, top_k),
            schedule=PruneCubically(
                density=phase.density,
                start_density=begin.start_density or 1.0,
                update_interval=scaled_interval(None, published=100, of_steps=10_000, num_steps=num_steps),
                num_steps=num_steps,
                start_fraction=phase.cubic[0],
                stop_fraction=phase.cubic[1],
            ),
            clock="step",
        )

    def _new(self, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return self.trainer.place(models.create(self.model_name, self.data.classes, seed=seed))

    def _done(self, number: int) -> None:
        stage = self._begun[number]
        assert stage.network is not None
        attached, phase, parent = stage.network.attached, stage.phase, stage.parent
        spent = self._meter.training_flops(attached.method_state, stage.first_step, attached.step)
        stage.flops = spent + (parent.flops if parent is not None else 0)
        stage.epochs = phase.epochs + (parent.epochs if parent is not None else 0)
        before = parent.phase.density if parent is not None else stage.start_density
        first = next((k for k, phase in enumerate(stage.phases) if phase.density < stage.start_density), None)
        if stage.start == "gcg":  # its first phases grow it
            peak = max(range(len(stage.phases)), key=lambda k: (stage.phases[k].density, k))
            first = peak + 1 if peak + 1 < len(stage.phases) else None
        self.lines.add(
            kind="shrink",
            plan=" ".join([f"{stage.start}:{stage.start_density:g}", *map(str, stage.phases)]),
            start=stage.start,
            start_density=stage.start_density,
            seed=stage.seed,
            e0=sum(phase.epochs for phase in stage.phases[:first]),
            e=phase.epochs,
            lr=phase.lr if phase.lr is not None else self.trainer.recipe.lr,
            fraction=round(1 - phase.density / before, 4),
            rewire=phase.rewire,
            within=phase.cubic,
            density=attached.density,
            epochs=stage.epochs,
            macs=forward_macs(self._graph, attached.masks) / self._dense_macs,
            flops=stage.flops,
            relative_80=stage.flops / (80 * self._epoch_flops),
            relative_160=stage.flops / (160 * self._epoch_flops),
            **{part: list(score(attached.model)) for part, score in self._score.items()},
            seconds=time.perf_counter() - self._began,
        )
        self.look()  # before it counts as done: new children are not to be made ready twice
        stage.kept = (*copy_model_and_optimizer(attached.model, attached.optimizer), attached.masks.clone())
        if stage.children:
            self._ready += stage.children
        else:
            attached.detach()
            stage.network = None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="*")
    parser.add_argument("--plans", type=Path, default=None, help="file of plans, watched until a line says `end`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--recipe", default=None)
    parser.add_argument("--results", type=Path, default=Path("results/shrink.jsonl"))
    parser.add_argument("--compile", default="on")
    parser.add_argument("--max-concurrent", type=int, default=8)
    parser.add_argument("--commit", default=None, help="of the code, if it is not a git checkout")
    chosen = parser.parse_args(arguments)
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(chosen)
    for plan in chosen.plan:
        for seed in chosen.seeds:
            fleet.add(plan, seed)
    fleet.run()


if __name__ == "__main__":
    main()
