"""Gradual Capacity Growth: a seed network, rounds of growth, probes, and the final network.

Every stage depends only on stored earlier stages and on generators named after it, so the loop has no code for
resuming: it goes through all stages, and a stored stage is not run again.
"""

import dataclasses
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from pathgrow.checkpoint import RunDir, Store
from pathgrow.density.probe import select_network
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reference, Stop
from pathgrow.distributed.comm import Communicator, held_by_rank0
from pathgrow.errors import RunFailed, UserError
from pathgrow.graph.calls import uncalled_layers
from pathgrow.masks import Masks
from pathgrow.methods.method import GrowEachRound, never
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import RunReport
from pathgrow.runs import checks
from pathgrow.runs.command import open_session, run_in
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record
from pathgrow.runs.result import Discovery, draw_figures
from pathgrow.runs.session import MAX_ADAPTIVE_EPOCHS, Session
from pathgrow.runs.shrinking import Lengths, ShrinkingTrunk, ShrinkSearch
from pathgrow.runs.trunk import GrowingTrunk, train_copies, train_dense
from pathgrow.sparse.attach import check_whole
from pathgrow.sparse.enforce import unwrapped
from pathgrow.trainer.interface import Evaluate, Fit


def discover(
    model: nn.Module,
    optimizer: Optimizer,
    fit: Fit,
    evaluate: Evaluate,
    example_input: Any = None,
    *,
    scope: Masks | None = None,
    start_density: float | None = None,
    delta: float | str = DiscoverOptions.delta,
    reference: float | Literal["dense"] | None = None,
    budget: int = DiscoverOptions.budget,
    seed: int = 0,
    **options: Any,
) -> Discovery:
    """Find the smallest density that keeps the score, and the network of that density.

    Parameters
    ----------
    model, optimizer
        The dense network with its initial weights, and its optimizer. On return `model` holds the found network; if
        the call fails or is interrupted, both are restored.
    fit : callable
        `fit(model, optimizer, epochs)` trains for that many epochs, including learning-rate annealing. Each call starts
        with the current learning rates of the optimizer.
    evaluate : callable
        `evaluate(model)` returns a validation score, or a pair (score, loss). Both functions may be
        called with copies of the model and its optimizer.
    example_input : optional
        One batch as the model accepts it; None: the one that the model declares, or one that fits its first layer.
    scope : Masks, optional
        True where a weight is prunable; None: `pathgrow.scope(model)` without frozen weights.
    start_density : float, optional
        Density of the seed network, if the network grows; None: the smallest of 1, 2, 3, 5% that isolates few units.
    delta : float or str
        How much worse than the reference the score may be; "1%": relative to it, or else to the trained network's.
    reference : float or "dense", optional
        Score of the dense baseline, or "dense" to train it. None: estimated from the first half of a dense training
        (static masks: a dense probe on the same short schedule, or with `final="grown"` the densest network grown).
    budget : int
        Epochs of a full dense training; the lengths of all phases follow from it.
    seed : int
        Determines all random choices.
    **options
        See `DiscoverOptions`. The most important ones:

        - `store`: run directory of finished stages; repeat the call with the same model, seed and options to resume,
          with bit-identical results. On return it holds report.html, the network and its masks, as after
          `pathgrow discover --out`. Without it, `found.save(DIR)` writes them.
        - `name`: name of the run in reports and tables, by default the class of the model.
        - `start`: "pretrained" keeps the weights of a trained model, prunes and fine-tunes it; its score is the
          reference.
        - `mode`: "min" if a lower score is better (losses, error rates).
        - `callback`: a `Callback`, called at the start and end of stages and at decisions of the density rule.
        - `num_val`: number of validation examples, if the score is an accuracy; reports then show percentages.
        - `finish`: "static" trains the masks of growth rounds, as in the paper, instead of pruning a trained network.
        - `max_density`: never hold more than this fraction of the weights; below 1 the network grows up to it.
        - `max_cost`: most to spend, in dense trainings.
        - `method`, `gamma`: growth method, and the fraction of the nonzero weights added per growth round.
        - `rule`, `rough`, `seed_epochs`, `probe_fraction`, `final`: with static masks only, the density rule, the
          lengths of a growth round, of the seed training and of a probe, and the initial weights of probes ("fresh" or
          "grown").
        - `loss`, `batches`: `loss(model, batch)` and training batches, for growth methods that use gradients.
        - `comm`: the process group of distributed training; all ranks call `discover` alike.

    Returns
    -------
    Discovery
        `.operating_density` with its `.interval`, `.gain_density`, the `.density` of the returned network, and more.

    Examples
    --------
    How dense must a small network be to tell whether two numbers have the same sign?

    >>> import torch
    >>> from pathgrow.runs.records import Callback
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
    >>> class Announcer(Callback):
    ...     def on_stage_end(self, record, *, resumed):
    ...         if record.stage == "train-2":
    ...             print("network trained, pruning begins")
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> found = discover(
    ...     model, optimizer, fit, evaluate, inputs[:1], delta=0.05, budget=60, num_val=128, callback=Announcer()
    ... )
    network trained, pruning begins
    >>> found
    Discovery(Operating density: ...;
      returned model: density ..., score ...; ... pruned, ... finished)
    >>> bool((model[0].weight[~found.masks["0.weight"]] == 0).all())
    True
    """
    chosen = DiscoverOptions.checked(
        {"start_density": start_density, "delta": delta, "reference": reference, "budget": budget, **options}
    ).with_comm_of(fit)
    chosen = dataclasses.replace(chosen, name=chosen.name or type(model).__name__)
    assert chosen.comm is not None
    checks.check_functions(fit, evaluate)
    if callable(chosen.final_epochs):
        checks.check_signature(chosen.final_epochs, "final_epochs", "records")
    check_whole(model)
    with _opened(chosen, seed, model) as (store, run_dir):
        session = Session(
            model,
            unwrapped(optimizer),
            fit,
            evaluate,
            example_input,
            scope=scope,
            seed=seed,
            store=store,
            callback=chosen.callback,
            loss=chosen.loss,
            batches=chosen.batches,
            use_ema=chosen.eval_weights == "ema",
            comm=chosen.comm,
            needs_paths=False,
        )
        if not session.has_paths:
            checks.refuse_paths(model, chosen)
        if uncalled := uncalled_layers(model, example_input, session.graph):
            session.warnings.append(
                f"example_input does not reach {', '.join(uncalled)} of {type(model).__name__}, so they stay dense"
            )
        if chosen.start is None and chosen.prunes:
            checks.refuse_trained(session, chosen)
        if chosen.start == "pretrained":
            chosen = checks.start_of(session, chosen)
        found = search(session, chosen)
        _write(found, run_dir)
    return found


def search(session: Session, options: DiscoverOptions) -> Discovery:
    """Run the search of a session; a failure restores its model and optimizer."""
    trunk: GrowingTrunk | ShrinkingTrunk
    if (finisher := options.finishing_method) is not None:
        session.check_needs(finisher.at(1.0, num_steps=1))
    if options.prunes:
        trunk = ShrinkingTrunk(session, options)
    else:
        trunk = GrowingTrunk(session, options, options.growth_method())
    _warn(session, session.warnings)
    try:
        if isinstance(trunk, GrowingTrunk):
            return _Search(trunk, options).run()  # warns by itself, when something is found
        found = ShrinkSearch(trunk, options).run()
        later = (*found.warnings, *checks.improved_warnings(found.options, found.curve))
        _warn(session, later)
        return dataclasses.replace(found, warnings=(*session.warnings, *later))
    except BaseException:
        trunk.restore_()
        raise


@contextmanager
def _opened(options: DiscoverOptions, seed: int, model: nn.Module) -> Iterator[tuple[Store | None, RunDir | None]]:
    """Open the store of a discovery; a run directory is locked on rank 0."""
    place = options.store
    if not isinstance(place, str | os.PathLike):
        yield place, None
        return
    assert options.comm is not None
    with held_by_rank0(options.comm, lambda: options.open_run(place, seed, model)) as run_dir:
        yield None if run_dir is None else run_dir.stages, run_dir


def _write(found: Discovery, run_dir: RunDir | None) -> None:
    """Write network and report of a discovery to its run directory, if it has one."""
    if not isinstance(found.options.store, str | os.PathLike):
        return
    try:
        found.write_to(run_dir, found.report())
    except (UserError, RunFailed, OSError) as error:
        # The result of hours of training is worth more than a page about it.
        warnings.warn(
            f"the discovery finished, but writing its report failed: {error}", stacklevel=_frames_to_the_caller()
        )


def _warn(session: Session, sentences: Sequence[str]) -> None:
    for sentence in sentences if session.comm.rank == 0 else ():
        warnings.warn(sentence, stacklevel=_frames_to_the_caller())


def _frames_to_the_caller() -> int:
    """Stack level of the code that called this package, for warnings."""
    package, frame, number = f"{Path(__file__).parents[1]}{os.sep}", sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(package) and frame.f_back is not None:
        frame, number = frame.f_back, number + 1
    return number


class _Search:
    """The order of the stages, and the decisions between them."""

    def __init__(self, trunk: GrowingTrunk, options: DiscoverOptions) -> None:
        self._trunk = trunk
        self._session = trunk.session
        self._options = options
        self._rule = options.density_rule()
        self._probes: dict[int, Record] = {}
        self._dense: Record | None = None
        self._warnings = list(self._session.warnings)

    def run(self) -> Discovery:
        """Seed, grow and probe until the rule says stop, then train the final network."""
        self._trunk.advance_()
        if self._options.reference == "dense":
            self._dense = train_dense(self._session, self._options.budget)
        reason = self._follow_rule()
        curve = self._curve()
        answer = self._rule.answer(curve)
        checked, untrained = self._check_learning(curve, answer)
        network, is_new = self._finish(select_network(curve, answer, by=self._options.select_by).round)
        return Discovery(
            answer=checked,
            reason=reason,
            curve=curve,
            network=network,
            probes=tuple(sorted(self._probes.values(), key=lambda record: record.point.density)),
            dense=self._dense,
            untrained=untrained,
            trained=(*self._trained, *([network] if is_new else [])),
            warnings=tuple(self._warnings),
            options=self._options,
            trunk=self._trunk,
        )

    def _curve(self) -> Curve:
        return Curve(
            rough=tuple(record.point for record in self._trunk.records),
            probes=tuple(record.point for record in self._probes.values()),
            reference=self._reference(),
            num_val=self._options.num_val,
            full_epochs=self._options.budget,
            select_by=self._options.select_by,
            can_probe_dense=self._can_probe_dense,
            at_ceiling=self._trunk.is_full,
        )

    @property
    def _can_probe_dense(self) -> bool:
        """Only if probes are short: a dense probe as long as the final training would cost more than is saved."""
        return self._options.reference is None and self._options.num_probe_epochs < self._options.budget

    def _reference(self) -> Reference | None:
        if self._dense is not None:
            return Reference(score=self._dense.point.score, kind="dense", epochs=self._dense.point.epochs)
        if self._options.reference is None:
            return None
        return Reference(score=float(self._options.reference), kind="given", epochs=self._options.budget)

    def _follow_rule(self) -> str:
        """Do what the rule says until it says stop; returns its reason."""
        if isinstance(self._options.rule, str):  # a rule by name is created with this delta
            first = self._trunk.records[0].point.score
            self._warn(checks.delta_warning(first, self._options.delta, DiscoverOptions.delta))
        has_probed = False
        while True:
            curve = self._curve()
            checks.check_reference(curve)
            if not has_probed:  # warns once, after the first probes
                self._warn(checks.reference_warning(curve))
            has_probed = bool(curve.probes)
            verdict = self._rule.decide(curve)
            self._session.callback.on_decision(verdict, self._rule.answer(curve))
            match verdict:
                case Stop():
                    return verdict.reason
                case Probe(rounds=rounds):
                    self._check_probes(rounds)
                    stages = {"probe-dense" if round == DENSE else f"probe-{round:03d}": round for round in rounds}
                    records = train_copies(self._trunk, self._options, stages, self._options.num_probe_epochs)
                    self._probes |= dict(zip(rounds, records, strict=True))
                case Grow(up_to=up_to):
                    if self._trunk.is_full:
                        raise RunFailed(f"rule {self._rule.name!r} asked to grow a network that cannot grow further")
                    self._trunk.advance_(self._next_size(up_to))

    def _check_learning(self, curve: Curve, answer: Answer) -> tuple[Answer, tuple[Point, ...]]:
        """The answer, unless nothing was learned; and the scores before training, if they were needed to tell."""
        if not checks.may_not_have_learned(curve):
            return answer, ()
        before, after = checks.scores_before_training(self._trunk, curve), checks.compared(curve)
        if checks.has_learned(before, after):
            return answer, before
        self._warn(checks.NOTHING_LEARNED)
        return checks.without_density(answer, before, after), before

    def _warn(self, warning: str | None) -> None:
        if warning is not None:
            self._warnings.append(warning)
            _warn(self._session, [warning])

    def _next_size(self, up_to: float | None) -> int:
        """A full growth step, or as much of it as the rule asks for; at least one weight, so that growth ends."""
        full = self._trunk.next_size()
        if up_to is None:
            return full
        return min(full, max(math.ceil(min(up_to, 1.0) * self._trunk.num), self._trunk.records[-1].num_on + 1))

    def _check_probes(self, rounds: tuple[int, ...]) -> None:
        """Refuse a rule that asks for no probe or for the same one again: the search would never end."""
        num_visited = len(self._trunk.records)
        allowed = {*range(num_visited), *([DENSE] if self._can_probe_dense else [])}
        invalid = [k for k in rounds if k in self._probes or k not in allowed or rounds.count(k) > 1]
        if invalid or not rounds:
            asked = f"a probe of round {invalid[0]}" if invalid else "probes of no round"
            raise RunFailed(
                f"rule {self._rule.name!r} asked for {asked}; it must ask for visited rounds (0-{num_visited - 1}) "
                "that have not been probed"
            )

    def _finish(self, round: int) -> tuple[Record, bool]:
        """Load the fully trained network of a round into the user's model; returns its record and whether it is new."""
        # On rank 0: records hold seconds, which differ between ranks.
        epochs = self._session.comm.broadcast_from_rank0(lambda: self._options.num_final_epochs(self._trained))
        record = probe = self._probes.get(round)
        is_new = record is None or record.point.epochs < epochs
        if record is None or is_new:
            warm = probe if self._options.warm_start and self._options.final == "fresh" and self._keeps_masks else None
            [record] = train_copies(self._trunk, self._options, {"final": round}, epochs, probe=warm)
            for other in self._probes.values():
                self._session.store.delete_tensors(other.stage)
        self._trunk.finish_(*self._session.tensors(record.stage))
        return record, is_new

    @property
    def _keeps_masks(self) -> bool:
        """Whether candidates are trained with constant masks, so that a probe is the first part of a full training."""
        finisher = self._options.finishing_method
        if finisher is None:
            return True
        method = finisher.at(self._trunk.records[-1].point.density, num_steps=1)
        return method.schedule is never and method.weights is None

    @property
    def _trained(self) -> list[Record]:
        """Records of everything that was trained to find the answer."""
        dense = [self._dense] if self._dense is not None else []
        rounds, probes = self._trunk.records, list(self._probes.values())
        return [*rounds[:1], *dense, *rounds[1:], *probes]


# The command `pathgrow discover`

_USUAL_PROBES = {"reference": 8, "no reference": 5}


def run_discovery(
    config: DiscoverConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
    """Run a discovery in a run directory and return its report; for the parameters, see `run_in`."""
    return run_in(config, out, _discover, progress, comm, draw_figures)


def expected_epochs(config: DiscoverConfig, out: str | os.PathLike[str]) -> int:
    """Estimate how many epochs are left to train; the number of probes is up to the rule."""
    options = DiscoverOptions(**config.search())
    if options.prunes:
        expected = Lengths(options).expected
    else:
        schedule = options.growth_method().schedule
        gamma = schedule.gamma if isinstance(schedule, GrowEachRound) else GrowEachRound.gamma
        num_rounds = math.ceil(-math.log(config.start_density or 0.05) / math.log1p(gamma))
        expected = options.num_seed_epochs + num_rounds * (options.num_rough_epochs or MAX_ADAPTIVE_EPOCHS)
        num_probes = _USUAL_PROBES["no reference" if config.reference is None else "reference"]
        expected += num_probes * options.num_probe_epochs
        if options.num_probe_epochs < config.budget:
            expected += config.budget
    if config.reference == "dense":
        expected += config.budget
    stages = RunDir(out).stages
    done = [stages.number(stage, "num_epochs") for stage in stages.names()]
    return max(0, expected - sum(done))


def _discover(config: DiscoverConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
    """Search, test, write; only rank 0 has a run directory."""
    options = DiscoverOptions(**config.search(), comm=comm)
    session, trainer = open_session(
        config,
        run_dir,
        progress,
        comm,
        num_epochs=None if run_dir is None else expected_epochs(config, run_dir.path),
        use_ema=options.eval_weights == "ema",
    )
    notes, num_val = [], len(trainer.data.val)
    if config.delta * num_val < 1.0:
        notes.append(
            f"delta ({config.delta:g}) is less than one of the {num_val} validation examples "
            f"({1 / num_val:.2g}), so the answer will be noise; use a larger --delta or more data"
        )
        if run_dir is not None:
            warnings.warn(notes[0], stacklevel=2)
    if options.prunes:
        # Static masks: without it, since their rule was tuned without it, see docs/design/train_and_compare.md.
        options = dataclasses.replace(options, num_val=num_val)
    found = search(session, options)
    # Everything is decided: only now is the test split used, once.
    test, dense_test = found.examine(trainer.evaluate(trainer.data.test))
    report = found.report(test=test, dense_test=dense_test)
    found.write_to(
        run_dir, dataclasses.replace(report, config=config.as_dict(), notes=(*notes, *report.notes)), draws=False
    )
