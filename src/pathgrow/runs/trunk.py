"""The networks of a run: the trunk and its copies.

The trunk is the user's model, trained in consecutive stages between which its masks change. Probes, the dense baseline
and the final network are copies with the masks of a visited round, trained while the trunk waits.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from pathgrow.checkpoint import Stage
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import DENSE
from pathgrow.distributed import interrupts
from pathgrow.errors import RunFailed, UserError
from pathgrow.graph.flops import inference_flops, scoring_flops
from pathgrow.graph.topology import GLOBAL_LIMIT, Topology, measure
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.methods.method import Method, Progress
from pathgrow.report.schema import NetworkReport, Score
from pathgrow.rng import derive
from pathgrow.runs.iso_flop import CostMeter, cost_logger
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record, StageOutput
from pathgrow.runs.session import Session, Trained
from pathgrow.runs.start import Start, load_start, save_start
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.training_state import (
    copy_model_and_optimizer,
    pack_model_and_optimizer,
    pack_training,
    reinitialize_,
    unpack_model_and_optimizer_,
    unpack_training_,
)
from pathgrow.trainer.interface import Evaluate

_MAX_OFF = 0.02
"""How far from its planned density a candidate may end; published methods end on it exactly."""
_ROUNDS_BETWEEN_CORES = 3
"""The global tau-core takes half as long as a short round. It shows as much at each doubling of density."""


class Trunk:
    """A model that is trained stage by stage, each stage starting where the previous one ended.

    The record of a stage is stored under its name. Weights, optimizer state and masks are stored separately: they are
    large, and usually only the latest are needed.
    """

    def __init__(
        self,
        session: Session,
        method: Method,
        *,
        on_mask_update: Callable[[Attached], None] | None = None,
        keep_weights: bool = False,
    ) -> None:
        self.session = session
        self.method = method
        self.records: list[Record] = []
        self.start_flops = 0
        """Cost of choosing the initial masks."""
        self.start_seconds = 0.0
        self._on_mask_update = on_mask_update
        self._keep_weights = keep_weights
        self._train: dict[int, tuple[int, Callable[[], Any]]] = {}
        """For each visited stage the one it starts from, and how it trains, to repeat it if its weights are lost."""
        self.attached = self._attach(session.model, session.optimizer)
        self._is_finished = False
        self._position: int | None = -1
        """The stage whose weights the model holds; -1: the initial ones; None: somewhere in between."""

    @property
    def num(self) -> int:
        """Prunable weights."""
        return self.attached.masks.num

    def visit_(
        self,
        stage: str,
        train_: Callable[[], Trained],
        finish: Callable[[Trained, float], StageOutput],
        *,
        after: int | None = None,
    ) -> Record:
        """Run the next stage unless it is stored: change the masks and train, then `finish` makes its record.

        `finish` receives the seconds that the stage took. It starts where stage number `after` ended, by default the
        previous one; for another one the weights have to be kept.
        """
        number = len(self.records)
        self._train[number] = (number - 1 if after is None else after, train_)

        def work() -> StageOutput:
            began = time.perf_counter()
            with self._finished_network_kept():
                trained = self._run_(number)
                seconds = time.perf_counter() - began
                return finish(trained, seconds if number else seconds + self.start_seconds)

        self.records.append(self._expected(self.session.once(stage, work), number))
        if number > 0 and not self._keep_weights:
            self.forget_weights(number - 1)
        return self.records[-1]

    @staticmethod
    def _expected(record: Record, number: int) -> Record:
        """The record of a stage; refused if the search that stored it had visited other stages before."""
        if record.point.round != number:
            raise UserError(
                f"stage {record.stage!r} in the store is number {record.point.round} of its search, and would be "
                f"number {number} of this one: another version of pathgrow has stored it; use a new store"
            )
        return record

    def go_to_(self, number: int) -> None:
        """Bring the model to where a visited stage ended; a stage whose weights are lost is trained again."""
        if self._position == number:
            return
        self._position = None
        if number < 0:
            self.restore_()
            self.attached = self._attach(self.attached.model, self.attached.optimizer)
        elif not self._restore_(self.attached, number):
            self._run_(number)
        self._position = number

    def next_size(self) -> int:
        """Number of active weights after one more full growth step."""
        num_on, round = self.records[-1].num_on, len(self.records) - 1
        # Without the step: a resumed run knows the rounds, but has not loaded their weights.
        due = self.method.due(Progress(round=round, step=0, num_on=num_on, num=self.num))
        return num_on + (0 if due is None else due.num_grow)

    def masks(self, round: int) -> Masks:
        """Masks of a visited round, which the record of its stage was stored with."""
        return Masks.restored(self.session.tensors(self.records[round].stage)[0], self.session.scope)

    def forget_weights(self, number: int) -> None:
        """Delete the stored weights of a stage; if they are needed after all, it is trained again."""
        self.session.store.delete_tensors(_weights(number))

    def finish_(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Attached:
        """Load a finished network into the user's model, with its masks enforced."""
        attached, self._position = self.attached, None
        attached.detach()
        self.attached = attached_as_stored(self.session, attached.model, attached.optimizer, tensors, metadata)
        self._is_finished = True
        return self.attached

    @contextmanager
    def _finished_network_kept(self) -> Iterator[None]:
        """Put a finished network back into the user's model after a lost stage was trained in it again."""
        if not self._is_finished:
            yield
            return
        tensors, metadata = pack_training(self.attached)
        tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._is_finished = False
        self.go_to_(-1)
        try:
            with interrupts.save_if_interrupted():
                yield
        finally:
            self.finish_(tensors, metadata)

    def restore_(self) -> None:
        """Restore the user's untrained model and optimizer, after a run that failed or was interrupted."""
        model, optimizer = self.attached.model, self.attached.optimizer
        self.attached.detach()
        unpack_model_and_optimizer_(model, optimizer, *pack_model_and_optimizer(*self.session.untrained_copy()))

    def network_report(self, network: Record, test: Score | None, **more: Any) -> NetworkReport:
        """The returned network, which the trunk holds, for the report."""
        session, masks = self.session, self.attached.masks
        return NetworkReport(
            density=network.point.density,
            density_model=network.density_model,
            num_on=network.num_on,
            num=masks.num,
            num_parameters=session.num_parameters,
            epochs=network.point.epochs,
            inference_flops=inference_flops(session.graph, masks),
            dense_inference_flops=inference_flops(session.graph),
            val=network.score,
            test=test,
            **more,
        )

    def _restore_(self, attached: Attached, number: int) -> bool:
        """Load the weights that a visited stage left, if they are still stored."""

        def restore_(stage: Stage) -> bool:
            if stage.tensors:
                unpack_training_(attached, stage.tensors, stage.metadata)
            return bool(stage.tensors)

        if is_stored := self.session.stored(_weights(number), restore_):
            self.session.check_score(attached, self.records[number])
        return bool(is_stored)

    def _run_(self, number: int) -> Any:
        after, train_ = self._train[number]
        self.go_to_(after)
        self._position = None
        trained = train_()
        self._save_weights(number, self.attached)
        self._position = number
        return trained

    def _save_weights(self, number: int, attached: Attached) -> None:
        self.session.store.save(_weights(number), *reversed(pack_training(attached)))

    def _attach(self, model: nn.Module, optimizer: Optimizer) -> Attached:
        """Attach with the initial masks, from the store if a run is resumed; refuses the stages of another run."""
        session, method = self.session, self.method
        now = Start.of(session, optimizer)
        found = load_start(session, now, optimizer)
        if found is not None and method.weights is None:  # latent weights must not be zeroed, and their masks follow
            start = fixed(found[1])
            # The target is the schedule's business: masks of a whole number of weights may exceed it slightly.
            method = replace(method, start=start.start, start_density=start.start_density, target_density=None)
        began = time.perf_counter()
        attached = session.attach(model, optimizer, method, on_mask_update=self._on_mask_update)
        if found is not None:
            self.start_flops, self.start_seconds = found[0].flops, found[0].seconds
            return attached
        self.start_seconds = time.perf_counter() - began
        self.start_flops = scoring_flops(session.graph, **asdict(attached.last_scoring_cost))
        save_start(session, now, attached.masks, flops=self.start_flops, seconds=self.start_seconds)
        return attached


class GrowingTrunk(Trunk):
    """A trunk whose masks grow round by round; round 0 is the seed network. The masks of every round are kept."""

    def __init__(self, session: Session, options: DiscoverOptions, method: Method) -> None:
        super().__init__(session, method, keep_weights=options.final == "grown")
        self._options = options
        self._update_flops = 0

    @property
    def is_full(self) -> bool:
        """Whether growth has ended: all weights are active, or the schedule has reached its target."""
        return self.next_size() == self.records[-1].num_on

    def advance_(self, num_on: int | None = None) -> Record:
        """Train the next round, after a full growth step or at the given number of active weights."""
        round = len(self.records)
        stage = "seed" if round == 0 else f"round-{round:03d}"
        if round > 0 and num_on is None:
            num_on = self.next_size()

        def train_() -> Trained:
            if round == 0:
                return self._train_seed_(stage)
            assert num_on is not None
            self._grow_(num_on)
            options = self._options
            return self.session.train_(self.attached, stage, options.num_rough_epochs, sign=options.sign)

        def finish(trained: Trained, seconds: float) -> StageOutput:
            topology = None
            if self.session.has_paths:
                topology = self.session.comm.broadcast_from_rank0(lambda: self._topology(round).as_dict())
            record = self.session.record(
                stage,
                self.attached,
                trained,
                round=round,
                epochs_before=self.records[round - 1].point.epochs if round else 0,
                update_flops=self._update_flops if round else self.start_flops,
                topology=topology,
                seconds=seconds,
            )
            return StageOutput(record, dict(self.attached.masks))

        return self.visit_(stage, train_, finish)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch, as measured so far."""
        self.go_to_(len(self.records) - 1)
        return max(1, round(self.attached.step / self.records[-1].point.epochs))

    def copy_at(self, round: int) -> tuple[nn.Module, Optimizer]:
        """Return a copy of the model and optimizer as a visited round left them."""
        self.go_to_(round)
        return copy_model_and_optimizer(self.attached.model, self.attached.optimizer)

    def _train_seed_(self, stage: str) -> Trained:
        """Train the seed network; to its plateau if a rule reads the trajectory itself.

        Points recorded earlier would rise because the network is trained longer, not because it is denser. Probes are
        all trained alike, so the probe rule does not need this.
        """
        options, epochs = self._options, self._options.num_seed_epochs
        if options.seed_epochs is not None or isinstance(options.density_rule(), ProbeRule):
            return self.session.train_(self.attached, stage, epochs)
        return self.session.train_to_plateau_(self.attached, stage, epochs, options.is_improvement)

    def _grow_(self, num_on: int) -> None:
        before = self.attached.masks.clone()
        self.attached.grow_(num_on - before.num_on)
        self._update_flops = scoring_flops(self.session.graph, before, **asdict(self.attached.last_scoring_cost))

    def _topology(self, round: int) -> Topology:
        """Path measures of the trunk, on the CPU: many small passes in float64 do not suit a GPU."""
        model, example = self.attached.model, self.session.example_input
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            model = copy_model_and_optimizer(model, self.attached.optimizer)[0].cpu()
            example = tree_map(lambda part: part.cpu() if isinstance(part, Tensor) else part, example)
        limit = GLOBAL_LIMIT if round % _ROUNDS_BETWEEN_CORES == 0 else 0.0
        return measure(model, example, self.attached.masks.to("cpu"), global_limit=limit)


def _weights(number: int) -> str:
    """Name under which the state after a stage is stored."""
    return f"weights-{number:03d}"


DENSE_STAGE = "dense"


def train_dense(session: Session, epochs: int) -> Record:
    """Train the dense baseline: the model with its initial weights."""

    def work() -> StageOutput:
        began = time.perf_counter()
        attached = attach_dense(session)
        trained = session.train_(attached, DENSE_STAGE, epochs)
        attached.detach()
        seconds = time.perf_counter() - began
        record = session.record(DENSE_STAGE, attached, trained, round=0, epochs_before=0, seconds=seconds)
        return StageOutput(record, *pack_training(attached))

    return session.once(DENSE_STAGE, work)


def score_dense(session: Session, evaluate: Evaluate) -> Score:
    """Evaluate the stored dense baseline by another function."""
    return session.score(stored_dense(session), DENSE_STAGE, evaluate=evaluate)


def stored_dense(session: Session) -> Attached:
    """A copy of the model as the training of the dense baseline left it."""
    attached = attach_dense(session)
    unpack_training_(attached, *session.tensors(DENSE_STAGE))
    return attached


def train_copies(
    trunk: GrowingTrunk,
    options: DiscoverOptions,
    stages: Mapping[str, int],
    total_epochs: int,
    *,
    probe: Record | None = None,
) -> list[Record]:
    """Train networks of visited rounds until each has had `total_epochs`, concurrently if possible.

    Grown weights come with the epochs of the trunk, and a warm start with those of the probe. If too few epochs are
    left, a network still gets as many as the seed had, because its learning rate has to be annealed; its point says how
    many it had in all. If a method finishes the search, it is trained with that method at the density of the round.

    Parameters
    ----------
    stages
        For each stage the round whose masks it takes; `DENSE`: all weights.
    probe
        A probe of this very round to continue from, instead of a fresh initialization.
    """
    session = trunk.session

    def work(missing: Sequence[str]) -> list[StageOutput]:
        began = time.perf_counter()
        copies = [_copy(trunk, options, stages[stage], total_epochs, probe) for stage in missing]
        least = min(total_epochs, options.num_seed_epochs)
        epochs = [max(total_epochs - copy.epochs, least) for copy in copies]
        networks = [(copy.attached, stage) for copy, stage in zip(copies, missing, strict=True)]
        trained = session.train_together_(networks, epochs)
        seconds = (time.perf_counter() - began) / len(missing)
        results = []
        for stage, copy, phase in zip(missing, copies, trained, strict=True):
            attached, flops = copy.attached, None
            if copy.num_on is not None:
                _check_density(stage, attached, copy.num_on)
                meter = CostMeter.of(session, attached.method, Fraction(phase.num_samples, max(1, attached.step)))
                flops = meter.training_flops(attached.method_state, 0, attached.step)
            record = session.record(
                stage,
                attached,
                phase,
                round=stages[stage],
                epochs_before=copy.epochs,
                training_flops=flops,
                update_flops=copy.start_flops,
                seconds=seconds,
            )
            attached.detach()
            # From here on it is a network with masks: neither latent weights nor a schedule are needed any more.
            attached.method, attached.method_state = fixed(attached.masks), {}
            results.append(StageOutput(record, *pack_training(attached)))
        return results

    return session.all_once(list(stages), work)


def _check_density(stage: str, attached: Attached, planned: int) -> None:
    """Raise if a method did not reach its density, since `fit` made fewer steps than in the growth rounds."""
    num_on, num = attached.masks.num_on, attached.masks.num
    if abs(num_on - planned) > _MAX_OFF * planned:
        raise RunFailed(
            f"method {attached.method.name!r} ended stage {stage} at density {num_on / num:.4g} instead of "
            f"{planned / num:.4g}, after {attached.step} optimizer steps: fit must make as many steps per epoch in "
            "every call"
        )


def initialized_copy(session: Session, round: int, masks: Masks | None = None) -> Attached:
    """The network of a round with fresh initial weights; without masks: with all weights."""
    model, optimizer = session.untrained_copy()
    masks = Masks.full(model, session.scope) if masks is None else masks
    reinitialize_(model, optimizer, session.initial, masks, derive(session.seed, "fresh", round), graph=session.graph)
    return session.attach(model, optimizer, fixed(masks))


def attach_dense(session: Session) -> Attached:
    """A copy of the model with its initial weights, all of them active."""
    model, optimizer = session.untrained_copy()
    return session.attach(model, optimizer, fixed(Masks.full(model, session.scope)))


def attached_as_stored(
    session: Session,
    model: nn.Module,
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
) -> Attached:
    """Load a stored network, with its masks and the settings of its optimizer, and enforce its masks."""
    attached = session.attach(model, optimizer, fixed(Masks.full(model, session.scope)))
    unpack_training_(attached, tensors, metadata)
    return attached


@dataclass(frozen=True)
class _Copy:
    """A network that is ready to be trained."""

    attached: Attached
    epochs: int = 0
    """Epochs that it has had."""
    num_on: int | None = None
    """Active weights to end with; None: its masks are fixed."""
    start_flops: int = 0
    """Cost of choosing its first masks."""


def _copy(trunk: GrowingTrunk, options: DiscoverOptions, round: int, epochs: int, probe: Record | None) -> _Copy:
    """The network of a round, to be trained until it has had this many epochs."""
    session, finisher = trunk.session, options.finishing_method
    if options.final == "grown":
        model, optimizer = trunk.copy_at(round)
        return _Copy(session.attach(model, optimizer, fixed(trunk.masks(round))), trunk.records[round].point.epochs)
    if probe is not None:
        attached = attached_as_stored(session, *session.untrained_copy(), *session.tensors(probe.stage))
        return _Copy(attached, probe.point.epochs)
    if finisher is None or round == DENSE:
        return _Copy(initialized_copy(session, round, None if round == DENSE else trunk.masks(round)))
    grown = trunk.records[round]
    method = finisher.at(grown.point.density, epochs * trunk.steps_per_epoch)
    attached = session.attach(*session.untrained_copy(), method, on_mask_update=cost_logger(session.graph))
    start_flops = scoring_flops(session.graph, **asdict(attached.last_scoring_cost))
    return _Copy(attached, num_on=grown.num_on, start_flops=start_flops)
