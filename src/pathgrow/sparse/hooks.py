"""A network whose masks are enforced at every step: the only writer of live weights, masks and optimizer slots.

`enforce` says what is written; this module says when: at each change of the masks and around each optimizer step,
through the optimizer's own hooks or by an engine that makes the same calls itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pathgrow.distributed.comm import Communicator
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import MaskUpdate, Method, MethodState, Progress
from pathgrow.methods.view import Batches, Loss, NetworkView, ScoringCost, loss_gradients, mean_gradients
from pathgrow.rng import derive, generator
from pathgrow.sparse import enforce, optimizer_state, stepping
from pathgrow.sparse.ema import Averaging, WeightAverage
from pathgrow.sparse.update import decide_on_rank0, updated_masks


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a network in training is made of, see `attach`; all of it checked."""

    model: nn.Module
    optimizer: Optimizer
    method: Method
    example_input: Any
    masks: Masks
    """To start with."""
    scope: Masks
    parameters: dict[str, Parameter]
    """The weights that the scope is about, by name."""
    loss: Loss | None
    batches: Batches | None
    seed: int
    average: Averaging | None
    comm: Communicator


class MaskedOptimizer:
    """Model, optimizer, method and masks, and the clock that brings them together."""

    def __init__(self, parts: Parts) -> None:
        self.model = parts.model
        self.optimizer = parts.optimizer
        self.method = parts.method
        self.scope = parts.scope
        self._masks = parts.masks
        self.round = 0
        """Growth steps so far."""
        self.step = 0
        """Optimizer steps so far."""
        self.last_scoring_cost = ScoringCost()
        """What was read for the last change of the masks; before the first change, for the masks to start with."""
        self.companions: dict[str, Any] = {}
        """What an engine made for this attachment, such as a captured step; kept until `detach`."""
        self._example_input = parts.example_input
        self._parameters = parts.parameters
        self._loss = parts.loss
        self._batches = parts.batches
        self._seed = parts.seed
        self._comm = parts.comm
        self._driven = False
        # The weights of the first are those that count, also for what a method remembers of them.
        self._comm.broadcast_([*self.model.parameters(), *self.model.buffers()])
        # Counted once: a step clock asks at every step, and counting waits for the device.
        self._num, self._num_on = self._masks.num, self._masks.num_on
        self._keep = enforce.keep_tensors(self._parameters, self._masks)
        self.method_state: MethodState = {}
        """What the method remembers, saved with this attachment."""
        self._undo: Callable[[], None] | None = None
        """Takes back a step that is not to count."""
        self._left_out = False
        """Whether the optimizer is about to skip its step, because gradients overflowed."""
        self._check_masks()
        if self.method.after_update == "rewind" and self.method.rewind_step == 0:
            self._remember_weights_()
        self._masks.apply_(self.model)
        if self.method.init_state is not None:
            self.method_state |= self.method.init_state(self._net())
        enforce.mask_optimizer_state_(self.optimizer, self._parameters, self._keep)
        self._average = WeightAverage(self.model, parts.average) if parts.average is not None else None
        self._handles = self._hooked()
        if self.method.weights is not None:
            self.method.weights.apply_effective_(self._net())
            self._read_hidden_masks_()

    @property
    def masks(self) -> Masks:
        """What is on now; edited in place, never another object. Where weights are hidden: as if training ended."""
        self._read_hidden_masks_()
        return self._masks

    def _hooked(self) -> list[RemovableHandle]:
        handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        if self.method.on_gradients is None and self.method.weights is None:
            # Clipping must see the norm of the gradients that count.
            handles += [
                parameter.register_post_accumulate_grad_hook(partial(self._mask_gradient_, keep=self._keep[name]))
                for name, parameter in self._parameters.items()
                if parameter.requires_grad
            ]
        return handles

    def _mask_gradient_(self, parameter: Tensor, *, keep: Tensor) -> None:
        assert parameter.grad is not None
        # A change reads all of them, and gives weights that it switches on their gradient of this very step.
        if not self._driven and not self.update_is_due:
            enforce.mask_(parameter.grad, keep)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> stepping.Arguments | None:
        if self._driven:
            return None
        self._refuse_average("trained")
        given = None
        if self.method.clock == "step" or self.method.on_gradients is not None or self.method.weights is not None:
            given = stepping.with_closure_called(args, kwargs)
            self._left_out = stepping.overflowed_(optimizer)
        if self._left_out:
            return given
        self.watch_()
        if self.update_masks_if_due_():
            # A hook cannot keep an optimizer from stepping, but the step can be taken back afterwards.
            self._undo = optimizer_state.held(self.optimizer)
        self.mask_gradients_()
        return given

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._driven:
            return
        if self._left_out:
            self._left_out = False
            return
        if self._undo is not None:
            self._undo()
            self._undo = None
        self.mask_weights_()
        self.stepped_()

    # For engines, whose captured steps run no hooks

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Inside the block the hooks do nothing, and whoever drives the optimizer calls the methods below itself."""
        self._refuse_average("trained")
        before, self._driven = self._driven, True
        try:
            yield
        finally:
            self._driven = before

    def watch_(self) -> None:
        """Show the dense gradients to a method that watches those of every step. Can be captured."""
        if self.method.on_gradients is not None:
            self.method.on_gradients(self._net(self._gradients_now))

    def update_masks_if_due_(self) -> bool:
        """Let a method with a step clock change the masks, which may read the dense gradients of the backward pass.

        Returns whether the change takes the place of the optimizer's step. Cannot be captured.
        """
        if self.method.clock != "step" or (due := self._due()) is None:
            return False
        self._change_(due, self._net(self._gradients_now), generator(self._seed, "change", self.step))
        return self.method.skip_step_on_update

    def mask_gradients_(self) -> None:
        """Zero the gradients of weights that are off; after the backward pass, before clipping. Can be captured."""
        if self.method.weights is not None:
            self.method.weights.restore_latent_(self._net(self._gradients_now))
        else:
            enforce.mask_gradients_(self._parameters, self._keep)

    def mask_weights_(self) -> None:
        """Zero the weights that are off and their optimizer state; after the optimizer's step. Can be captured."""
        if self.method.weights is not None:
            self.method.weights.apply_effective_(self._net())
        else:
            enforce.mask_weights_(self._parameters, self._keep)
            enforce.mask_optimizer_state_(self.optimizer, self._parameters, self._keep)

    def stepped_(self) -> None:
        """Advance the clock after a step and update the running average. Cannot be captured."""
        self.step += 1
        if self.method.after_update == "rewind" and self.step == self.method.rewind_step:
            self._remember_weights_()
        if self._average is not None:
            self._average.step_(self.step)

    @property
    def update_is_due(self) -> bool:
        """Whether the method changes its masks at the next step."""
        return self.method.clock == "step" and self._due() is not None

    def _due(self) -> MaskUpdate | None:
        return self.method.due(self._progress)

    @property
    def _progress(self) -> Progress:
        return Progress(round=self.round, step=self.step, num_on=self._num_on, num=self._num)

    def _net(self, gradients: Callable[[], tuple[Mapping[str, Tensor], int]] | None = None) -> NetworkView:
        # In a team all processes sum gradients together: one whose pick asked unannounced would wait for ever.
        announced = self._comm.size == 1 or "gradients" in self.method.needs
        if gradients is None and announced and self._loss is not None and self._batches is not None:
            seed = derive(self._seed, "batch", self.round)
            read = partial(loss_gradients, self.model, list(self._masks), self._loss, self._batches, seed)
            gradients = partial(mean_gradients, self._comm, read)
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

    def _gradients_now(self) -> tuple[Mapping[str, Tensor], int]:
        return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self._parameters.items()}, 0

    def _grow_round_(self, change: MaskUpdate) -> None:
        if self.method.after_update == "rewind" and "rewind" not in self.method_state:
            raise UserError(
                f"method {self.method.name!r} was to go back to step {self.method.rewind_step} after {self.step} "
                "steps: train longer first, or give a smaller rewind_step"
            )
        self._change_(change, self._net(), generator(self._seed, "grow", self.round))
        self.round += 1
        if self.method.after_update == "rewind":
            weights = self.method_state["rewind"]
            with torch.no_grad():
                for name, tensor in optimizer_state.weights_and_buffers(self.model):
                    tensor.copy_(weights[name])
            if self._average is not None:
                self._average.restart_()
        if self.method.after_update != "keep":
            optimizer_state.reset_optimizer_state_(self.optimizer)
            self._enforce_()

    def _remember_weights_(self) -> None:
        """Keep the weights of this moment to come back to."""
        weights = optimizer_state.weights_and_buffers(self.model)
        self.method_state["rewind"] = {name: tensor.detach().clone() for name, tensor in weights}
        # Batch-norm statistics differ between processes: all come back to those of the first, which are saved.
        self._comm.broadcast_(self.method_state["rewind"][name] for name, _ in self.model.named_buffers())

    def _read_hidden_masks_(self) -> None:
        """Bring the masks up to date where weights are hidden: training moves those without touching the masks."""
        if self.method.weights is not None and self._handles:
            # Not compared within a team: one process alone may ask for the density, or print this object.
            self._copy_masks_(self.method.weights.masks(self._net()))

    def _change_(self, change: MaskUpdate, net: NetworkView, draw: torch.Generator) -> None:
        self._refuse_average("grown")
        if not self._handles:
            raise UserError("masks were asked to change after detach(), when nobody enforces them: attach again")
        # Weights may have been loaded since the last step: what is off must be zero before it is switched on.
        self._enforce_()
        self._check_masks()
        if self._comm.size > 1 and "gradients" in self.method.needs:
            net.gradients()  # all processes take part in the sum, although the first alone decides

        def decide() -> tuple[Masks, ScoringCost]:
            return updated_masks(self.method, net, change, self._progress, draw), net.scoring_cost

        with optimizer_state.shared_(self.method_state, self._comm):
            masks, self.last_scoring_cost = decide_on_rank0(self._comm, self.scope, decide)
        self._set_masks_(masks)
        self._enforce_()

    def _set_masks_(self, masks: Masks) -> None:
        self._copy_masks_(masks)
        self._check_masks()

    def _copy_masks_(self, masks: Masks) -> None:
        self._masks.copy_(masks)
        enforce.set_keep_(self._keep, self._masks)
        self._num_on = self._masks.num_on

    def _check_masks(self) -> None:
        """Called around every change: ranks with different masks would silently train different networks."""
        self._comm.check_equal("masks", self._masks.digest)

    def _enforce_(self) -> None:
        if self.method.weights is not None:
            return
        enforce.mask_weights_(self._parameters, self._keep)
        enforce.mask_optimizer_state_(self.optimizer, self._parameters, self._keep)
        if self._average is not None:
            self._average.mask_(self._masks)

    def _refuse_average(self, what: str) -> None:
        if self._average is not None and self._average.swapped:
            raise UserError(
                f"the model was to be {what} inside averaged(), where it holds its average: do so after the block"
            )
