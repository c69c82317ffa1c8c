"""Gradual Capacity Growth: seed, rounds of growth, probes, and the network handed back.

Every stage is a pure function of what earlier stages stored and of generators named after it. The loop therefore has no
code for resuming: it goes through the stages, and a stage that is stored is not done again.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from pathgrow import report as rendering
from pathgrow.checkpoint import RunDir
from pathgrow.density.acquisition import select_network
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reference, Stop
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.report.schema import RunReport
from pathgrow.runs.config import DiscoverOptions
from pathgrow.runs.learning import WARNING, compared, is_doubtful, learned, nothing_learned, scored_untrained
from pathgrow.runs.phases import check_call, check_calls
from pathgrow.runs.probes import train_dense, train_out
from pathgrow.runs.records import Record
from pathgrow.runs.result import Discovery
from pathgrow.runs.scale import check_reference, doubt_about_delta, doubt_about_reference
from pathgrow.runs.site import Site
from pathgrow.runs.trunk import Trunk
from pathgrow.sparse.checks import check_whole, unwrapped
from pathgrow.sparse.partial import clear_partials
from pathgrow.trainer.interface import Evaluate, Fit

_DRAWN = ("curve.png", "report.html")


def discover(
    model: nn.Module,
    optimizer: Optimizer,
    fit: Fit,
    evaluate: Evaluate,
    example_input: Any,
    *,
    scope: Masks | None = None,
    start_density: float | None = None,
    delta: float = 0.01,
    reference: float | Literal["dense"] | None = None,
    budget: int = 160,
    seed: int = 0,
    **options: Any,
) -> Discovery:
    """Find the smallest density that keeps the score, and the network of that density.

    Parameters
    ----------
    model, optimizer
        The network as it would be trained dense, with its initial weights; afterwards `model` holds the found network.
    fit : callable
        `fit(model, optimizer, epochs)` trains for that many epochs, with its own annealing. Each call begins at the
        learning rates that the optimizer has now.
    evaluate : callable
        `evaluate(model)` returns a score on validation data, higher is better, or a pair (score, loss).
        Both functions may be called with a copy of the model and an optimizer of that copy.
    example_input
        One input of the model.
    scope : Masks, optional
        True where a weight may be switched; None: `pathgrow.scope(model)` without frozen weights.
    start_density : float, optional
        Density of the seed network; None: the smallest of 1, 2, 3, 5% that isolates few units.
    delta : float
        How far below the reference the found network may stay, in units of the score.
    reference : float or "dense", optional
        The score of the dense network, if it is known, or "dense" to train that network first. None: the reference is a
        dense copy trained as long as the probes, a tenth of the budget (or, where probes have the whole budget as with
        `final="grown"`, the densest network grown).
    budget : int
        Epochs of the usual dense training; the lengths of all phases follow from it.
    seed : int
        Decides all random choices.
    **options
        All are described in `Options`. Those that matter most:

        - `store`: a folder in which every finished stage is written. Calling `discover` again with the same model, seed
          and options goes on after the last of them and ends with the same bits. When it is over, `pathgrow.discover`
          leaves report.html, curve.png, curve.csv and report.json there. Without it nothing is kept.
        - `observer`: an `Observer`, told when a stage begins and ends and what the density rule says.
        - `num_val`: how many validation examples there are, where the score is the share of them that are right.
        - `target_density`: grow to exactly this density and train that network out, without asking for the answer.
        - `gamma`: each round adds this share of the weights that are on.
        - `rough`, `seed_epochs`, `probe_fraction`: how long a round, the seed training and a probe last.
        - `final`: networks are trained out from a "fresh" initialisation of the found mask, or from "grown" weights.
        - `method`, `rule`: where weights grow and when growth ends, by name or as a value of your own.
        - `loss`, `batches`: `loss(model, batch)` and training batches, for growth methods that read gradients.
        - `team`: the processes that train together, where there are several; all of them call `discover` alike.

    Returns
    -------
    Discovery
        `.operating_density` with its `.interval`, `.gain_density`, the `.density` of the network handed back, and more.
        If the call is interrupted or fails, the model and the optimizer are left as they came.

    Examples
    --------
    How dense must a small network be to tell whether two numbers have the same sign?

    >>> import torch
    >>> from pathgrow.runs.callback import Callback
    >>> _ = torch.manual_seed(0)
    >>> inputs = torch.randn(512, 8)
    >>> labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    >>> model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    >>> def fit(model, optimizer, epochs):
    ...     schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    ...     for _ in range(epochs):
    ...         for batch in torch.randperm(384).split(64):
    ...             optimizer.zero_grad()
    ...             nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
    ...             optimizer.step()
    ...         schedule.step()
    >>> def evaluate(model):
    ...     with torch.no_grad():
    ...         return float((model(inputs[384:]).argmax(1) == labels[384:]).float().mean())
    >>> class MetricsLogger(Callback):
    ...     def on_stage_end(self, record, *, resumed):
    ...         if record.stage == "seed":
    ...             print("the seed network is trained")
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> found = discover(
    ...     model, optimizer, fit, evaluate, inputs[:1], delta=0.05, budget=16, num_val=128, callback=MetricsLogger()
    ... )
    the seed network is trained
    >>> found
    Discovery(...;
      network of density ..., score ..., ... rounds, ... probes)
    >>> bool((model[0].weight[~found.masks["0.weight"]] == 0).all())
    True
    """
    chosen = DiscoverOptions.checked(
        {"start_density": start_density, "delta": delta, "reference": reference, "budget": budget, **options}
    ).with_comm_of(fit)
    check_calls(fit, evaluate)
    if callable(chosen.final_epochs):
        check_call(chosen.final_epochs, "final_epochs", "records")
    check_whole(model)
    optimizer = unwrapped(optimizer)
    with chosen.opened_store(seed) as store:
        site = Site(model, optimizer, fit, evaluate, example_input, scope=scope, seed=seed, options=chosen, store=store)
        trunk = Trunk(site, model, optimizer)
        try:
            found = Loop(site, trunk).run()
        except BaseException:
            trunk.give_back_()
            raise
    _leave_report(found)
    return found


def write_findings(folder: RunDir, found: Discovery, report: RunReport) -> None:
    """Write curve.csv, and last of all report.json: its presence means that the run is finished."""
    clear_partials(folder)
    observed = [("rough", found.rounds), ("probe", found.probes)]
    folder.write_curve([{"kind": kind, **record.row()} for kind, records in observed for record in records])
    timing = dataclasses.replace(report.timing, run_seconds=folder.seconds)
    folder.write_report(dataclasses.replace(report, timing=timing).as_json())


def draw(folder: RunDir) -> None:
    """Draw the figure and the page of a finished discovery, unless they exist."""
    if not all((folder.path / name).exists() for name in _DRAWN):
        rendering.write_all(folder.path)


def _leave_report(found: Discovery) -> None:
    """Write the report of a discovery into its run directory; without one nothing is written."""
    options, comm = found.site.options, found.site.comm
    if not isinstance(options.store, str | os.PathLike):
        return

    def write() -> None:
        assert folder is not None
        if not folder.finished:
            write_findings(folder, found, found.report())
        draw(folder)

    try:
        with options.opened_folder(options.store, found.site.seed) as folder:
            comm.on_rank0(write)
    except (UserError, RunFailed, OSError) as error:
        # The result of hours of training is worth more than a page about it.
        warnings.warn(f"the discovery finished, but writing its report failed: {error}", stacklevel=3)


def _frames_to_the_caller() -> int:
    """How far up a warning has to point so that it points at the code of whoever called this package."""
    package, frame, number = f"{Path(__file__).parents[1]}{os.sep}", sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(package) and frame.f_back is not None:
        frame, number = frame.f_back, number + 1
    return number


class Loop:
    """The order of stages, and the decisions between them."""

    def __init__(self, site: Site, trunk: Trunk) -> None:
        self._site = site
        self._options = site.options
        self._rule = site.rule
        self._trunk = trunk
        self._probes: dict[int, Record] = {}
        self._dense: Record | None = None

    def run(self) -> Discovery:
        """Seed, grow and probe until the rule says stop, then hand the network back."""
        self._trunk.advance_()
        if self._options.reference == "dense":
            self._dense = train_dense(self._site)
        reason = self._ask_the_rule() if self._options.target_density is None else self._grow_to_target()
        curve = self._curve()
        answer = self._rule.answer(curve)
        told, untrained = self._checked(curve, answer)
        network, trained_anew = self._hand_over(self._choose(curve, answer))
        return Discovery(
            answer=told,
            reason=reason,
            curve=curve,
            rule=self._rule,
            attached=self._trunk.attached,
            network=network,
            rounds=tuple(self._trunk.rounds),
            probes=tuple(sorted(self._probes.values(), key=lambda record: record.point.density)),
            dense=self._dense,
            untrained=untrained,
            trained=(*self._trained, *([network] if trained_anew else [])),
            site=self._site,
        )

    def _curve(self) -> Curve:
        return Curve(
            rough=tuple(record.point for record in self._trunk.rounds),
            probes=tuple(record.point for record in self._probes.values()),
            reference=self._reference(),
            num_val=self._options.num_val,
            full_epochs=self._options.budget,
            select_by=self._options.answer,
            can_probe_dense=self._can_probe_dense,
            at_ceiling=self._trunk.is_full,
        )

    @property
    def _can_probe_dense(self) -> bool:
        """Only where probes are short: one as long as the final training would cost all that is to be saved."""
        return self._options.reference is None and self._options.num_probe_epochs < self._options.budget

    def _reference(self) -> Reference | None:
        if self._dense is not None:
            return Reference(score=self._dense.point.score, kind="dense", epochs=self._dense.point.epochs)
        if self._options.reference is None:
            return None
        return Reference(score=float(self._options.reference), kind="given", epochs=self._options.budget)

    def _ask_the_rule(self) -> str:
        """Do what the rule says until it says stop; returns its reason."""
        if isinstance(self._options.rule, str):  # a rule by name is made with this delta
            self._warn(doubt_about_delta(self._trunk.rounds[0].point.score, self._options.delta, DiscoverOptions.delta))
        num_probed = 0
        while True:
            curve = self._curve()
            check_reference(curve)
            if not num_probed:  # warned once, as soon as there are probes
                self._warn(doubt_about_reference(curve))
            num_probed = len(curve.probes)
            verdict = self._rule.decide(curve)
            self._options.callback.on_decision(verdict, self._rule.answer(curve))
            match verdict:
                case Stop():
                    return verdict.reason
                case Probe(rounds=rounds):
                    self._check_probes(rounds)
                    stages = {"probe-dense" if round == DENSE else f"probe-{round:03d}": round for round in rounds}
                    records = train_out(self._site, self._trunk, stages, self._options.num_probe_epochs)
                    self._probes |= dict(zip(rounds, records, strict=True))
                case Grow(up_to=up_to):
                    if self._trunk.is_full:
                        raise RunFailed(
                            f"rule {self._rule.name!r} asked to grow a network that has all its weights: "
                            "mend the rule, or choose another"
                        )
                    self._trunk.advance_(self._next_size(up_to))

    def _checked(self, curve: Curve, answer: Answer) -> tuple[Answer, tuple[Point, ...]]:
        """The answer, unless nothing was learned; and the untrained networks that were scored to see that."""
        if self._options.target_density is not None or not is_doubtful(curve):
            return answer, ()
        before, after = scored_untrained(self._site, self._trunk, curve), compared(curve)
        if learned(before, after):
            return answer, before
        self._warn(WARNING)
        return nothing_learned(answer, before, after), before

    def _warn(self, doubt: str | None) -> None:
        if doubt is not None and self._site.comm.rank == 0:
            warnings.warn(doubt, stacklevel=_frames_to_the_caller())

    def _next_size(self, up_to: float | None) -> int:
        """A whole step of growth, or as much of it as the rule asks for; at least one weight, so that growth ends."""
        whole = self._trunk.next_size()
        if up_to is None:
            return whole
        return min(whole, max(math.ceil(min(up_to, 1.0) * self._trunk.num), self._trunk.rounds[-1].num_on + 1))

    def _check_probes(self, rounds: tuple[int, ...]) -> None:
        """Refuse a rule that asks for nothing or for the same probe again: it would go on for ever."""
        num_visited = len(self._trunk.rounds)
        allowed = {*range(num_visited), *([DENSE] if self._can_probe_dense else [])}
        wrong = [k for k in rounds if k in self._probes or k not in allowed or rounds.count(k) > 1]
        if wrong or not rounds:
            asked = f"a probe of round {wrong[0]}" if wrong else "probes of no round"
            raise RunFailed(
                f"rule {self._rule.name!r} asked for {asked}, rounds that were visited (0-{num_visited - 1}) and not "
                "yet probed are wanted: mend the rule, or choose another"
            )

    def _grow_to_target(self) -> str:
        """Full growth steps, then a smaller one that hits the target."""
        target = self._options.target_density
        assert target is not None
        num_wanted = max(1, round(target * self._trunk.num))
        while self._trunk.rounds[-1].num_on < num_wanted:
            self._trunk.advance_(min(self._trunk.next_size(), num_wanted))
        return f"a network of density {target:g} was asked for, so growth ended there"

    def _choose(self, curve: Curve, answer: Answer) -> int:
        """The round whose network is handed back."""
        if self._options.target_density is not None:
            return curve.rough[-1].round
        return select_network(curve, answer, by=self._options.answer).round

    def _hand_over(self, round: int) -> tuple[Record, bool]:
        """Put the trained-out network of a round into the user's model; returns its record, and whether it is new."""
        # Decided by the first of a team: records hold seconds, which differ between processes.
        epochs = self._site.comm.broadcast_from_rank0(lambda: self._options.num_final_epochs(self._trained))
        record = probe = self._probes.get(round)
        trained_anew = record is None or record.point.epochs < epochs
        if record is None or trained_anew:
            ahead = probe if self._options.head_start and self._options.final == "fresh" else None
            [record] = train_out(self._site, self._trunk, {"final": round}, epochs, from_probe=ahead)
            for other in self._probes.values():
                self._site.store.delete_tensors(other.stage)
        found = self._site.stages.tensors(record.stage)
        assert found is not None
        self._trunk.hand_over_(self._trunk.masks(round), *found)
        return record, trained_anew

    @property
    def _trained(self) -> list[Record]:
        """The records of everything that was trained to find the answer."""
        dense = [self._dense] if self._dense is not None else []
        rounds, probes = self._trunk.rounds, list(self._probes.values())
        return [*rounds[:1], *dense, *rounds[1:], *probes]
