"""A model and an optimizer whose masks are enforced at every step and updated by a method.

`MaskedOptimizer` is the only writer of live weights, masks and optimizer state. `enforce` says what is written; this
module says when: around each optimizer step, through the optimizer's own hooks or by a training engine that makes the
same calls itself, and at each mask update.
"""

import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pathgrow.density.trajectory import TrajectoryRule
from pathgrow.density.types import DEFAULT_DELTA, Answer, Curve, Grow, Point, Probe, Reason, Rule, Stop, Verdict
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import RunFailed, UserError, checked_int, require, short
from pathgrow.masks import Masks
from pathgrow.methods.gradients import Batches, Loss, loss_gradients, mean_gradients
from pathgrow.methods.method import MaskUpdate, Method, MethodState, NetworkView, Progress, ScoringCost
from pathgrow.rng import derive, generator
from pathgrow.sparse import enforce
from pathgrow.sparse.ema import EMA, WeightEMA
from pathgrow.sparse.training_state import reset_optimizer_state_, weights_and_buffers
from pathgrow.sparse.tree import decide_on_rank0, layout, shared_

Metric = float | Tensor | tuple[float | Tensor, float | Tensor]
DEFAULT_RULE: Rule = TrajectoryRule(delta=DEFAULT_DELTA)
"""The density rule of `attach`, which needs nothing but the observations."""


class MaskedOptimizer:
    """Model, optimizer, method and masks, and the clock of rounds and steps; made by `pathgrow.attach`."""

    _pruning: Callable[[Progress], MaskUpdate | None] | None = None

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        method: Method,
        masks: Masks,
        *,
        scope: Masks,
        parameters: dict[str, Parameter],
        rule: Rule = DEFAULT_RULE,
        example_input: Any = None,
        loss: Loss | None = None,
        batches: Batches | None = None,
        seed: int = 0,
        ema: EMA | None = None,
        comm: Communicator = SINGLE_PROCESS,
        scoring_cost: ScoringCost | None = None,
        on_mask_update: Callable[[Any], None] | None = None,
    ) -> None:
        self.model = model
        # Their hooks hold this object: a strong reference back would keep dropped models until garbage is collected.
        self._optimizers: tuple[Any, ...] = tuple(map(weakref.ref, optimizers))
        self.method = method
        self.scope = scope
        self.round = 0
        """Mask updates between rounds so far."""
        self.step = 0
        """Optimizer steps so far; with several optimizers, a step of each after one backward pass is one step."""
        self.last_scoring_cost = scoring_cost or ScoringCost()
        """Cost of scoring for the last mask update; before the first one, for the initial masks."""
        self.engine_cache: dict[str, Any] = {}
        """What a training engine built for this attachment, such as a CUDA graph; kept until `detach`."""
        self.method_state: MethodState = {}
        """State of the method, part of `state_dict`."""
        self._masks = masks
        self._parameters = parameters
        self._rule = rule
        self._example_input = example_input
        self._loss = loss
        self._batches = batches
        self._seed = seed
        self._comm = comm
        self._on_mask_update = on_mask_update
        self._points: list[Point] = []
        self._stopped: Stop | None = None
        self._hooks_disabled = False
        self._in_step = False
        self._stepped: set[int] = set()
        """Which optimizers have made the current step, as long as others have not."""
        self._backward_since = False
        """Whether there were new gradients since the first of these steps."""
        self._skip_step = False
        """Whether a mask update takes the place of the current step."""
        self._undo_step: Callable[[], None] | None = None
        self._step_skipped = False
        """Whether the optimizer is about to skip its step because gradients overflowed."""
        # All ranks start from the weights of rank 0, also for the state that a method derives from them.
        self._comm.broadcast_([*self.model.parameters(), *self.model.buffers()])
        # Counted once: a schedule may be called at every step, and counting waits for the device.
        self._num, self._num_on = self._masks.num, self._masks.num_on
        self._keep = enforce.keep_tensors(self._parameters, self._masks)
        self._hidden_gradients = enforce.HiddenGradients(self._parameters, self._keep)
        self._links = enforce.links(self.model, self._parameters)
        self._check_masks()
        if self.method.after_update == "rewind" and self.method.rewind_step == 0:
            self._save_rewind_point_()
        self._masks.apply_(self.model)
        if self.method.init_state is not None:
            self.method_state |= self.method.init_state(self._view())
        self._initial_state = layout(self.method_state)
        self._mask_optimizer_state_()
        self._ema = WeightEMA(self.model, ema) if ema is not None else None
        self._handles = self._register_hooks()
        if self.method.weights is not None:
            self.method.weights.apply_effective_(self._view())
            self._read_latent_masks_()

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """All optimizers that were attached."""
        return tuple(each if isinstance(each, Optimizer) else each() for each in self._optimizers)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, or the first of several."""
        return self.optimizers[0]

    @property
    def masks(self) -> Masks:
        """The current masks; always the same object, edited in place."""
        self._read_latent_masks_()
        return self._masks

    @property
    def density(self) -> float:
        """Fraction of the prunable weights that are active."""
        return self.masks.density

    @property
    def curve(self) -> Curve:
        """Everything observed up to the decision to stop."""
        return Curve(rough=tuple(self._points), can_probe=False, at_ceiling=self._due() is None)

    # Updates between rounds

    def observe(self, metric: Metric) -> Verdict:
        """Report a validation metric; the network grows here if the density rule says so.

        Parameters
        ----------
        metric : float or (float, float)
            A score (higher is better), or a pair of score and loss.

        Returns
        -------
        Verdict
            `Grow`: the masks have grown by one step of the method's schedule; continue training. `Stop`: the density
            is settled and the masks are final; training may continue. `reason` is a code, which
            `pathgrow.explain(verdict.reason, verdict.details)` turns into a sentence.
        """
        self._check_ema_inactive("observe()")
        self._check_attached("observe() cannot be called")
        read = partial(parse_evaluation, metric, "observe")
        score, loss = read() if self._comm.size == 1 else self._comm.broadcast_from_rank0(read)
        if self._stopped is not None:
            return self._stopped
        point = Point(round=self.round, density=self.density, epochs=len(self._points) + 1, score=score, loss=loss)
        due = self._due()
        verdict = self._decide(dataclasses.replace(self.curve, rough=(*self._points, point)), due)
        if isinstance(verdict, Stop):
            self._stopped = verdict
        elif due is not None:
            self._next_round_(due)
        # Last, so that an observation whose update failed can be repeated.
        self._points.append(point)
        return verdict

    def rule_answer(self) -> Answer:
        """The rule's answer so far, relative to the densest network grown: a lower bound, since dense was not seen."""
        return self._rule.answer(self.curve)

    def advance_(self) -> bool:
        """Apply the update that the method's schedule has for this round; returns whether there was one.

        For methods that prune between trainings (IMP), where no density rule decides.
        """
        due = self._due() if self.method.clock == "round" else None
        if due is not None:
            self._next_round_(due)
        return due is not None

    def grow_(self, num: int) -> int:
        """Add `num` weights with the method's growth pick, or all missing ones if fewer; returns how many.

        New weights are zero, so the network computes the same function as before.
        """
        require(checked_int("num", num) >= 0, "num", num, ">= 0", 100)
        count = min(num, self._num - self._num_on)
        if count:
            self._next_round_(MaskUpdate(num_grow=count))
        return count

    def _decide(self, curve: Curve, due: MaskUpdate | None) -> Verdict:
        method, details = self.method, {"method": self.method.name}
        if method.clock == "step" or method.weights is not None:
            return Stop(reason=Reason.UPDATES_DURING_TRAINING, details=details)
        if method.grow is None:
            if due is not None:
                return Grow(reason=Reason.SCHEDULE_CONTINUES, details=details)
            return Stop(reason=Reason.MASKS_FINAL, details=details)
        verdict = self._rule.decide(curve)
        if isinstance(verdict, Probe):
            raise UserError(
                f"rule {self._rule.name!r} needs to train probes, which attach() cannot do; "
                "use stop='trajectory' or pathgrow.discover"
            )
        if isinstance(verdict, Grow) and due is None:
            return Stop(reason=Reason.GROWTH_ENDED, details={"at_density": self.density})
        return verdict

    def _check_rewind_point(self) -> None:
        if self.method.after_update == "rewind" and "rewind" not in self.method_state:
            raise UserError(
                f"method {self.method.name!r} cannot rewind to step {self.method.rewind_step} after {self.step} steps; "
                "train longer or use a smaller rewind_step"
            )

    def _next_round_(self, update: MaskUpdate) -> None:
        self._check_rewind_point()
        self._update_masks_(update, self._view(), generator(self._seed, "grow", self.round))
        self._begin_round_()

    def _begin_round_(self) -> None:
        self.round += 1
        if self.method.after_update == "rewind":
            with torch.no_grad():
                for name, tensor in weights_and_buffers(self.model):
                    tensor.copy_(self.method_state["rewind"][name])
            if self._ema is not None:
                self._ema.restart_()
        if self.method.after_update != "keep":
            for optimizer in self.optimizers:
                reset_optimizer_state_(optimizer)
            self._enforce_()

    def _save_rewind_point_(self) -> None:
        weights = weights_and_buffers(self.model)
        self.method_state["rewind"] = {name: tensor.detach().clone() for name, tensor in weights}
        # Batch-norm statistics differ between ranks: all rewind to those of rank 0, which are saved.
        self._comm.broadcast_(self.method_state["rewind"][name] for name, _ in self.model.named_buffers())

    # Optimizer hooks

    def _register_hooks(self) -> list[RemovableHandle]:
        handles = []
        for optimizer in self.optimizers:
            handles.append(optimizer.register_step_pre_hook(self._before_step))
            handles.append(optimizer.register_step_post_hook(self._after_step))
        if self.method.weights is None:
            # Weakly: hooks of tensors are invisible to the garbage collector, which would never free the cycle.
            here = weakref.ref(self)
            handles += [
                parameter.register_post_accumulate_grad_hook(partial(self._on_gradient_, here, name))
                for name, parameter in self._parameters.items()
                if parameter.requires_grad
            ]
        return handles

    @staticmethod
    def _on_gradient_(attached: "weakref.ref[MaskedOptimizer]", name: str, parameter: Tensor) -> None:
        """Mask a gradient as it accumulates: clipping must see the norm of the masked gradients."""
        self = attached()
        if self is None or self._hooks_disabled:
            return
        self._backward_since = bool(self._stepped)
        if self.method.on_gradients is not None or self.update_is_due:
            # This step uses the dense ones: to choose masks, for SNFS's momentum, to train the weights that it grows.
            self._hidden_gradients.arrive_(name)
        else:
            assert parameter.grad is not None
            enforce.mask_(parameter.grad, self._keep[name])

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> enforce.Arguments | None:
        if self._hooks_disabled:
            return None
        self._check_ema_inactive("optimizer.step()")
        self.check_parameters()
        self._in_step = True
        arguments = None
        if self.method.clock == "step" or self.method.on_gradients is not None or self.method.weights is not None:
            arguments = enforce.call_closure(args, kwargs)
            self._step_skipped = enforce.unscale_(optimizer)
        if self._step_skipped:
            return arguments
        if self.optimizers.index(optimizer) in self._stepped or self._backward_since:
            self.finish_step_()  # without the optimizers that did not take part
        if not self._stepped:
            self._hidden_gradients.reveal_(self._comm)
            self.record_gradients_()
            self._skip_step = self.update_masks_if_due_()
        if self._skip_step:
            # A hook cannot prevent the optimizer step, but the step can be undone.
            self._undo_step = enforce.undo_of(optimizer)
        self.mask_gradients_()
        return arguments

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._hooks_disabled:
            return
        self._in_step = False
        if self._step_skipped:
            self._step_skipped = False
            return
        if self._undo_step is not None:
            self._undo_step()
            self._undo_step = None
        self.mask_weights_()
        self._stepped.add(self.optimizers.index(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self.finish_step_()

    def check_parameters(self) -> None:
        """Raise a `UserError` if the model no longer holds the parameters that were attached."""
        enforce.check_links(self._links)

    # For training engines, whose CUDA graphs run no hooks

    @contextmanager
    def hooks_disabled(self) -> Iterator[None]:
        """Disable the hooks inside the block; the caller runs the methods below around its optimizer steps."""
        self._check_ema_inactive("training")
        before, self._hooks_disabled = self._hooks_disabled, True
        try:
            yield
        finally:
            self._hooks_disabled = before

    def record_gradients_(self) -> None:
        """Pass the dense gradients to a method that uses those of every step. CUDA-graph safe."""
        if self.method.on_gradients is not None:
            self.method.on_gradients(self._view(self._current_gradients))

    def update_masks_if_due_(self) -> bool:
        """Update the masks if the method's step schedule says so, with the dense gradients of the backward pass.

        Returns whether to skip the optimizer step. Not CUDA-graph safe.
        """
        if self.method.clock != "step" or (due := self._due()) is None:
            return False
        self._update_masks_(due, self._view(self._current_gradients), generator(self._seed, "change", self.step))
        return self.method.skip_step_on_update

    def mask_gradients_(self) -> None:
        """Zero the gradients of pruned weights; after the backward pass, before clipping. CUDA-graph safe."""
        if self.method.weights is not None:
            self.method.weights.restore_latent_(self._view(self._current_gradients))
        else:
            enforce.mask_gradients_(self._parameters, self._keep)

    def mask_weights_(self) -> None:
        """Zero pruned weights and their optimizer state; after the optimizer step. CUDA-graph safe."""
        if self.method.weights is not None:
            self.method.weights.apply_effective_(self._view())
        else:
            enforce.mask_weights_(self._parameters, self._keep)
            self._mask_optimizer_state_()

    def finish_step_(self) -> None:
        """Advance the step counter, update the EMA and prune if that is due. Not CUDA-graph safe."""
        self.step += 1
        self._stepped.clear()
        self._backward_since = False
        if self.method.after_update == "rewind" and self.step == self.method.rewind_step:
            self._save_rewind_point_()
        if self._ema is not None:
            self._ema.step_(self.step)
        if self._pruning is not None and (due := self._pruning(self._progress)) is not None:
            self._update_masks_(due, self._view(), generator(self._seed, "change", self.step))

    @property
    def update_is_due(self) -> bool:
        """Whether the next step updates the masks."""
        return self.method.clock == "step" and self._due() is not None

    # Mask updates

    def _due(self) -> MaskUpdate | None:
        return self.method.due(self._progress)

    @property
    def _progress(self) -> Progress:
        step = self.step + bool(self._stepped)  # gradients that come after the first optimizer belong to the next step
        return Progress(round=self.round, step=step, num_on=self._num_on, num=self._num)

    def _view(self, gradients: Callable[[], tuple[Mapping[str, Tensor], int]] | None = None) -> NetworkView:
        # All ranks sum gradients together: a rank whose pick asked for them undeclared would wait forever.
        declared = self._comm.size == 1 or "gradients" in self.method.needs
        if gradients is None and declared and self._loss is not None and self._batches is not None:
            seed = derive(self._seed, "batch", self.round)
            compute = partial(loss_gradients, self.model, list(self._masks), self._loss, self._batches, seed)
            gradients = partial(mean_gradients, self._comm, compute)
        return NetworkView(
            self.model,
            self._masks,
            self.scope,
            self._example_input,
            gradients,
            seed=self._seed,
            method_state=self.method_state,
            optimizer=self.optimizer,
            loss=self._loss,
            batches=self._batches,
        )

    def _current_gradients(self) -> tuple[Mapping[str, Tensor], int]:
        return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self._parameters.items()}, 0

    def _update_masks_(self, update: MaskUpdate, net: NetworkView, draw: torch.Generator) -> None:
        self._check_ema_inactive("a mask update")
        self._check_attached("masks cannot be updated")
        self.check_parameters()
        # Weights may have been loaded since the last step: pruned weights must be zero before they are grown.
        self._enforce_()

        def decide() -> tuple[Masks, ScoringCost]:
            return self.method.next_masks(net, update, self._progress, draw), net.scoring_cost

        if self._comm.size == 1:
            masks, self.last_scoring_cost = decide()
        else:
            self._check_masks()
            self._comm.check_equal("weights", lambda: enforce.checksum(self.model))
            if "gradients" in self.method.needs:
                net.signed_gradients()  # all ranks take part in the sum, although rank 0 alone decides
            with shared_(self.method_state, self._comm):
                masks, self.last_scoring_cost = decide_on_rank0(self._comm, self.scope, decide)
        self._copy_masks_(masks)
        self._check_masks()
        self._enforce_()
        if self._on_mask_update is not None:
            self._on_mask_update(self)

    def _copy_masks_(self, masks: Masks) -> None:
        self._masks.copy_(masks)
        enforce.set_keep_(self._keep, self._masks)
        self._num_on = self._masks.num_on

    def _read_latent_masks_(self) -> None:
        """Refresh the masks of a method with latent weights, which training moves without touching the masks."""
        if self.method.weights is not None and self._handles:
            # Not compared between ranks: a single rank may ask for the density, or print this object.
            self._copy_masks_(self.method.weights.masks(self._view()))

    def _check_masks(self) -> None:
        """Compare the masks of all ranks: with different masks they would silently train different networks."""
        if self._comm.size > 1:
            self._comm.check_equal("masks", self._masks.digest)

    def _enforce_(self) -> None:
        if self.method.weights is not None:
            return
        enforce.mask_weights_(self._parameters, self._keep)
        self._mask_optimizer_state_()
        if self._ema is not None:
            self._ema.mask_(self._masks)

    def _check_attached(self, what: str) -> None:
        if not self._handles:
            raise UserError(f"{what} after detach(); attach again")

    def _mask_optimizer_state_(self) -> None:
        for optimizer in self.optimizers:
            enforce.mask_optimizer_state_(optimizer, self._parameters, self._keep)

    def _check_ema_inactive(self, what: str) -> None:
        if self._ema is not None and self._ema.swapped:
            raise UserError(f"{what} is not allowed inside ema_weights(), where the model holds its EMA")


def parse_evaluation(value: Any, source: str = "evaluate") -> tuple[float, float | None]:
    """Return an evaluation result as (score, loss); the loss is None if the result is a single number.

    >>> parse_evaluation(0.9), parse_evaluation((torch.tensor(0.5), 0.3))
    ((0.9, None), (0.5, 0.3))
    """
    parts = value if isinstance(value, tuple | list) else (value,)
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor with more than one element
        numbers = []
    if len(numbers) not in (1, 2) or any(isinstance(part, str | bytes) for part in parts):
        raise UserError(f"{source}: expected a score or a pair (score, loss), got {short(value)}")
    for name, number in zip(("score", "loss"), numbers, strict=False):
        if not math.isfinite(number):
            raise RunFailed(f"{source}: the {name} is {number}; lower the learning rate, or check evaluate")
    return numbers[0], numbers[1] if len(numbers) == 2 else None
