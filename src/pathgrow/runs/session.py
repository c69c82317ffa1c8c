"""The session of a run: what all its stages share, and how a stage is trained, evaluated, recorded and stored.

A stage that is stored is not run again, so resuming needs no code of its own. What a stage computes depends on its
name, on earlier stages and on the seed, never on the process that runs it.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow.checkpoint import Store
from pathgrow.density.types import Point
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import RunFailed, UserError, frames_to_the_caller
from pathgrow.graph import trace
from pathgrow.graph.calls import called_scope, calls_instead, uncalled_layers
from pathgrow.graph.flops import sample_training_flops
from pathgrow.graph.sample_counter import SampleCounter, counting
from pathgrow.graph.scope import model_density, trained_scope
from pathgrow.masks import Masks
from pathgrow.methods.gradients import Batches, Loss
from pathgrow.methods.method import FIXED, Method, ScoringCost
from pathgrow.report.formats import number
from pathgrow.report.schema import Score
from pathgrow.rng import derive, seeded_globals
from pathgrow.runs import user_functions
from pathgrow.runs.records import Callback, Record
from pathgrow.runs.stages import Stages
from pathgrow.sparse.attach import Attached, attach, check_needs, checked_scope, start_masks
from pathgrow.sparse.ema import EMA
from pathgrow.sparse.training_state import (
    DIVERGED,
    OptimizerSettings,
    copy_model_and_optimizer,
    scale_to_fan_in_,
    weights_and_buffers,
)
from pathgrow.sparse.tree import decide_on_rank0, tensor_digest
from pathgrow.trainer.interface import Evaluate, Fit, Job, JobTrainer

PATIENCE = 3
"""Epochs without a better validation loss after which an adaptive phase stops early."""
MAX_ADAPTIVE_EPOCHS = 40
"""Longest adaptive phase, in epochs."""
_SAME_SCORE = 0.002
"""Relative difference of two evaluations of one network on a GPU, whose sums are not always in the same order."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Outcome of a training phase."""

    num_epochs: int
    num_samples: int
    score: Score
    num_steps: int = 0
    """Optimizer steps, unless it was trained in parts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Phase:
    """A network to train, and how long."""

    attached: Attached
    stage: str
    epochs: int
    part: int = 0
    """Number of the phase within its stage."""
    first_step: int = 0
    """Step of the schedule to start with, after rewinding."""
    seed_name: str | None = None
    """Name that random numbers are derived from; None: the stage."""


class _Fitted(NamedTuple):
    """What a phase took."""

    num_samples: int
    num_epochs: int


class Session(Stages):
    """Model, data, training function, graph, scope and store of one run.

    Parameters
    ----------
    model, optimizer
        The untrained model; every phase starts with the current settings of the optimizer.
    fit, evaluate
        Training function, or a `JobTrainer`, and evaluation on the validation split.
    example_input
        One batch as the model accepts it; None: guessed.
    scope
        True where a weight is prunable; None: `pathgrow.scope(model)` without frozen weights.
    store
        Where finished stages and partial trainings are kept; None: in memory.
    loss, batches
        For methods that use gradients.
    use_ema
        Evaluate the EMA of the weights.
    needs_paths
        Refuse a model that cannot be traced; otherwise its layers are found by the calls of one forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        fit: Fit,
        evaluate: Evaluate,
        example_input: Any,
        *,
        scope: Masks | None = None,
        seed: int = 0,
        store: Store | None = None,
        callback: Callback | None = None,
        loss: Loss | None = None,
        batches: Batches | None = None,
        use_ema: bool = False,
        comm: Communicator = SINGLE_PROCESS,
        needs_paths: bool = True,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.example_input = example_input
        self.seed = seed
        super().__init__(store, callback, comm)
        self._fit = fit
        self.trains_together = isinstance(fit, JobTrainer) and getattr(fit, "is_concurrent", True)
        self._evaluate = evaluate
        self._loss = loss
        self._batches = batches
        self._use_ema = use_ema
        self.optimizer_settings = OptimizerSettings(optimizer)
        comm.broadcast_([*model.parameters(), *model.buffers()])
        # Copied before anything is trained: users may keep state of their own on the model.
        self._untrained = copy_model_and_optimizer(model, optimizer)
        self.warnings: list[str] = []
        self._is_fit_checked = self._is_score_checked = False
        # Both are shared by the searches of several finishers, which are copies of one session.
        self._warned: set[str] = set()
        self._monitor = user_functions.CallMonitor()
        self._modes = user_functions.modes_of(model)
        """Whether each module trains or evaluates when `fit` is called: as in the model that was passed."""
        self.holds_fractions = False
        """Whether `evaluate` returns accuracies or error rates, so that a score above 1 is refused."""
        self._scales_weights = getattr(getattr(fit, "recipe", None), "density_scaling", "none") == "supar"
        """Whether a network that starts sparse keeps the variance of a dense one; the trainer scales learning rates."""
        self._samples_per_epoch = 0.0
        """Of a user's `fit`, on this rank; 0: not known yet."""
        self.has_paths = True
        try:
            self.graph = trace(model, example_input)
        except UserError as error:
            if needs_paths:
                raise
            self._find_calls(error)
        if scope is None:
            scope = trained_scope(model, example_input) if self.has_paths else called_scope(model, self.graph)
        self.uncalled = uncalled_layers(model, example_input, self.graph)
        """Weights of layers that `example_input` does not reach; they stay dense."""
        self.scope = checked_scope(model, scope, self.uncalled)

    def _find_calls(self, reason: UserError) -> None:
        """Do without paths: layers and costs from the calls of one forward pass."""
        self.graph, warning = calls_instead(self.model, self.example_input, reason)
        self.has_paths = False
        self.warnings.append(warning)

    def warn(self, sentence: str | None) -> None:
        """Issue a warning now, on rank 0, and keep it for the report."""
        if sentence is not None:
            self.warnings.append(sentence)
            self._warned.add(sentence)
            warn_caller(self, [sentence])

    def warn_of_kept(self) -> None:
        """Issue the warnings that were only kept for the report so far."""
        warn_caller(self, [sentence for sentence in self.warnings if sentence not in self._warned])

    def _warn_once(self, sentence: str, kind: str | None = None) -> None:
        """Issue a warning about a user's `fit` now, unless one of its kind was issued."""
        if (kind or sentence) not in self._warned:
            self._warned.add(kind or sentence)
            warn_caller(self, [sentence])

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def restore_modes_(self) -> None:
        """Set every module of the user's model to the mode that it was passed in."""
        user_functions.set_modes_(self.model, self._modes)

    @property
    def initial(self) -> Mapping[str, Tensor]:
        """All parameters and buffers of the untrained model."""
        return {name: tensor.detach() for name, tensor in weights_and_buffers(self._untrained[0])}

    def untrained_copy(self) -> tuple[nn.Module, Optimizer]:
        """Return a copy of the untrained model and of its optimizer."""
        return copy_model_and_optimizer(*self._untrained)

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        *,
        on_mask_update: Callable[[Attached], None] | None = None,
    ) -> Attached:
        """Attach a method to a model with the scope, seed and data of this session."""
        attached = attach(
            model,
            optimizer,
            method,
            self.example_input,
            scope=self.scope,
            loss=self._loss,
            batches=self._batches,
            seed=self.seed,
            ema=EMA() if self._use_ema else None,
            comm=self.comm,
            on_mask_update=on_mask_update,
        )
        # Fixed masks are put on weights that are scaled already, or trained.
        if self._scales_weights and method.name != FIXED and method.weights is None:
            scale_to_fan_in_(model, attached.masks, self.graph)
        return attached

    def check_needs(self, method: Method) -> None:
        """Raise a `UserError` for a method that needs gradients of a loss that this session does not have."""
        check_needs(method, self._loss, self._batches)

    def start_masks(self, method: Method) -> tuple[Masks, ScoringCost]:
        """Return the initial masks of a method and what choosing them costs, without attaching it."""
        return decide_on_rank0(
            self.comm,
            self.scope,
            lambda: start_masks(
                self.model, method, self.scope, self.example_input, self.seed, self._loss, self._batches
            ),
        )

    def record(
        self,
        stage: str,
        attached: Attached,
        trained: Trained,
        *,
        round: int,
        epochs_before: int,
        seconds: float,
        training_flops: int | None = None,
        update_flops: int = 0,
        topology: Mapping[str, Any] | None = None,
    ) -> Record:
        """Return the record of a network that was just trained; by default its masks were constant meanwhile."""
        masks = attached.masks
        if training_flops is None:
            training_flops = trained.num_samples * sample_training_flops(self.graph, masks)
        epochs = epochs_before + trained.num_epochs
        point = Point(round=round, density=masks.density, epochs=epochs, **vars(trained.score))
        return Record(
            stage=stage,
            point=point,
            density_model=model_density(attached.model, masks),
            num_on=masks.num_on,
            num_epochs=trained.num_epochs,
            num_samples=trained.num_samples,
            training_flops=training_flops,
            update_flops=update_flops,
            topology=topology,
            seconds=seconds,
        )

    # Training and evaluation

    def train_(
        self,
        attached: Attached,
        stage: str,
        epochs: int | None,
        *,
        first_step: int = 0,
        seed_name: str | None = None,
        sign: int = 1,
    ) -> Trained:
        """Train for a number of epochs (None: early stopping on the loss, or on `sign * score`) and evaluate."""
        self.announce(stage, epochs, attached.next_density)
        if epochs is None:
            return self._train_adaptively_(attached, stage, sign)
        phase = Phase(attached=attached, stage=stage, epochs=epochs, first_step=first_step, seed_name=seed_name)
        return self._trained_([phase])[0]

    def train_together_(self, networks: Sequence[tuple[Attached, str]], epochs: Sequence[int]) -> list[Trained]:
        """Train several networks, concurrently if the training function can, and evaluate each."""
        phases = [Phase(attached=a, stage=stage, epochs=n) for (a, stage), n in zip(networks, epochs, strict=True)]
        for phase in phases:
            self.announce(phase.stage, phase.epochs, phase.attached.next_density)
        return self._trained_(phases)

    def _trained_(self, phases: Sequence[Phase]) -> list[Trained]:
        before = [phase.attached.step for phase in phases]
        return [
            Trained(
                num_epochs=fitted.num_epochs,
                num_samples=fitted.num_samples,
                score=self._score(phase),
                num_steps=phase.attached.step - step,
            )
            for phase, fitted, step in zip(phases, self._fit_(phases), before, strict=True)
        ]

    def train_to_plateau_(
        self, attached: Attached, stage: str, epochs: int, is_improvement: Callable[[float, float], bool]
    ) -> Trained:
        """Train for `epochs`, then for half as long again and again while `is_improvement(score before, after)`.

        Up to twice `epochs` in all.
        """
        self.announce(stage, epochs, attached.density)
        num_samples = num_epochs = 0
        scores, more = list[Score](), max(1, epochs // 2)
        for part, length in enumerate([epochs] + [more] * (epochs // more)):
            phase = Phase(attached=attached, stage=stage, epochs=length, part=part)
            num_samples += self._fit_([phase])[0].num_samples
            num_epochs += length
            scores.append(self._score(phase))
            if part > 0 and not is_improvement(scores[-2].score, scores[-1].score):
                break
        return Trained(num_epochs=num_epochs, num_samples=num_samples, score=scores[-1])

    def score(self, attached: Attached, stage: str, *, part: int = 0, evaluate: Evaluate | None = None) -> Score:
        """Evaluate a network, on the validation split unless another evaluation is given."""
        weights = attached.ema_weights() if self._use_ema else nullcontext()
        is_user_function = evaluate is None and not isinstance(self._fit, JobTrainer)
        watch = (
            self._monitor.watch_evaluation(attached.model, self._is_fit_checked) if is_user_function else nullcontext()
        )
        with weights, seeded_globals(self.seed, stage, "evaluate", part), watch:
            value = (evaluate or self._evaluate)(attached.model)
            score, loss = self.comm.broadcast_from_rank0(lambda: user_functions.parsed_evaluation(value, stage))
        self.warn(self._monitor.mode_warning())
        if self.holds_fractions and evaluate is None:
            user_functions.check_fraction(score)
        return Score(score=score, loss=loss)

    def check_score(self, attached: Attached, record: Record) -> None:
        """Warn if a network that an earlier process has scored scores otherwise now; only the first is checked."""
        if self._is_score_checked or record.stage not in self.resumed or isinstance(self._fit, JobTrainer):
            return
        self._is_score_checked = True
        before, now = record.point.score, self.score(attached, record.stage).score
        if abs(now - before) > _SAME_SCORE * max(abs(now), abs(before)):
            self.warn(
                f"evaluate returns {number(now)} for a stored network that it gave {number(before)} before: if it, or "
                "its data, has changed, the scores of stored stages cannot be compared with new ones; use a new store"
            )

    def _score(self, phase: Phase) -> Score:
        return self.score(phase.attached, phase.seed_name or phase.stage, part=phase.part)

    def _train_adaptively_(self, attached: Attached, stage: str, sign: int) -> Trained:
        best, num_since, num_samples = math.inf, 0, 0
        for epoch in range(1, MAX_ADAPTIVE_EPOCHS + 1):
            phase = Phase(attached=attached, stage=stage, epochs=1, part=epoch)
            num_samples += self._fit_([phase])[0].num_samples
            score = self._score(phase)
            loss = score.loss if score.loss is not None else -sign * score.score
            num_since = 0 if loss < best else num_since + 1
            best = min(best, loss)
            if num_since == PATIENCE:
                break
        return Trained(num_epochs=epoch, num_samples=num_samples, score=score)

    def _fit_(self, phases: Sequence[Phase]) -> list[_Fitted]:
        """Train every phase."""
        try:
            if isinstance(self._fit, JobTrainer):
                return self._train_jobs_(self._fit, phases)
            return [self._call_fit_(phase) for phase in phases]
        except UserError as error:
            # A mask update refuses scores that are not finite, which they are not if the weights are not.
            for phase in phases:
                if name := phase.attached.not_finite():
                    raise RunFailed(DIVERGED.format(name, f"some steps of stage {phase.stage}")) from error
            raise

    def _train_jobs_(self, trainer: JobTrainer, phases: Sequence[Phase]) -> list[_Fitted]:
        counts = trainer.train([self._job(phase, len(phases)) for phase in phases])
        for phase in phases:
            self._end_phase(phase)
        return [_Fitted(count, phase.epochs) for count, phase in zip(counts, phases, strict=True)]

    def _call_fit_(self, phase: Phase) -> _Fitted:
        """Train with a user's `fit`, and check what it does."""
        assert phase.first_step == 0, "a function that trains whole epochs cannot start in the middle"
        attached = phase.attached
        self.optimizer_settings.restore_(attached.optimizer)
        checkpoint = self.checkpoint(phase.stage, phase.part)
        if (saved := checkpoint.load(attached) if self.is_kept else None) is not None:
            # Trained by a run that ended before it was evaluated.
            attached.finish_pruning_()
            return _Fitted(saved.step, saved.num_calls * phase.epochs)
        seeded = seeded_globals(self.seed, phase.seed_name or phase.stage, "fit", phase.part)
        first, step = None if self._is_fit_checked else user_functions.FirstFit(attached), attached.step
        num_calls, is_pruning = 1, attached.is_pruning
        user_functions.set_modes_(attached.model, self._modes)  # an evaluation may have changed them
        with seeded, counting(attached.model) as counter, self._reporting_epochs(phase, counter):
            self._fit(attached.model, attached.optimizer, phase.epochs)
            if is_pruning and not attached.finish_pruning_():
                # A network that was pruned after its training would be worse than it has to be.
                self._warn_once(user_functions.REFIT)
                self.optimizer_settings.restore_(attached.optimizer)
                self._fit(attached.model, attached.optimizer, phase.epochs)
                num_calls = 2
        self._end_phase(phase)
        if first is not None:
            first.check(has_run=counter.samples > 0)
        num_samples = counter.samples or attached.step - step
        if not counter.samples and not self._is_fit_checked:
            self.warn(user_functions.UNCOUNTED)
        self._is_fit_checked = True
        fitted = _Fitted(sum(self.comm.gather(num_samples)), num_calls * phase.epochs)
        self._samples_per_epoch = num_samples / fitted.num_epochs
        num_steps = (attached.step - step) / num_calls
        self.warn(self._monitor.length_warning(phase.epochs, counter.samples / num_calls, num_steps))
        if self.is_kept:
            checkpoint.save(attached, fitted.num_samples, torch.get_rng_state(), num_calls=num_calls)
        return fitted

    @contextmanager
    def _reporting_epochs(self, phase: Phase, counter: SampleCounter) -> Iterator[None]:
        """Report the epochs of a user's `fit` by the samples of an earlier one.

        At the steps of the optimizer, since the forward pass may be compiled.
        """
        done, per_epoch = 0, self._samples_per_epoch

        def after_step(*_: object) -> None:
            nonlocal done
            while done < phase.epochs and per_epoch and counter.samples >= (done + 1) * per_epoch:
                done += 1
                self.callback.on_epoch(phase.stage, done, phase.epochs)

        handle = phase.attached.optimizer.register_step_post_hook(after_step)
        try:
            yield
        finally:
            handle.remove()

    def _job(self, phase: Phase, num: int) -> Job:
        self.optimizer_settings.restore_(phase.attached.optimizer)
        checkpoint = self.checkpoint(phase.stage, phase.part, num)
        seed = derive(self.seed, phase.seed_name or phase.stage, "fit", phase.part)
        return Job(
            attached=phase.attached,
            epochs=phase.epochs,
            seed=seed,
            first_step=phase.first_step,
            progress=checkpoint,
            on_epoch=functools.partial(self.callback.on_epoch, phase.stage),
        )

    def _end_phase(self, phase: Phase) -> None:
        model = phase.attached.model
        phase.attached.check_parameters()
        if not phase.attached.finish_pruning_():
            untrained = user_functions.UNTRAINED_MASKS
            self._warn_once(untrained.format(phase.stage), kind=untrained)
        self.optimizer_settings.restore_(phase.attached.optimizer)
        # Batch-norm statistics differ between ranks during training; from here on those of rank 0 count.
        self.comm.broadcast_(model.buffers())
        self.comm.check_equal("trained weights", lambda: tensor_digest(dict(model.named_parameters())))
        if name := phase.attached.not_finite():
            raise RunFailed(DIVERGED.format(name, f"stage {phase.stage}"))


def warn_caller(session: Session, sentences: Sequence[str]) -> None:
    """Issue warnings that point at the code that called this package; on rank 0 only."""
    for sentence in sentences if session.comm.rank == 0 else ():
        warnings.warn(sentence, stacklevel=frames_to_the_caller())
