"""One training step as two CUDA graphs, recorded once and replayed.

The first graph ends with the gradients, the second starts from them. The graphs count their own steps and read batch,
learning rate and masks from fixed buffers, which growth edits in place: nothing is ever recorded again. Between the two
graphs a method may update masks by the gradients of the step, and the ranks of a process group average their gradients.
"""

import gc
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator, GradientBuckets
from pathgrow.errors import UserError
from pathgrow.graph.running import tensors_in
from pathgrow.sparse.attach import Attached
from pathgrow.trainer.device import ExecutionPlan
from pathgrow.trainer.eager_step import (
    apply_gradients_,
    backward,
    base_lrs,
    compiled_forward_loss,
    forward_loss,
    scaled_lrs,
)
from pathgrow.trainer.feed import Feed
from pathgrow.trainer.recipes import Recipe

_NUM_WARMUP = 3
"""Steps before recording, in which libraries choose algorithms and allocate workspaces."""
_NUM_TIMED = 8
_STEPS_PER_EVENT = 8
_MAX_EVENTS = 4
"""Events the device may lag behind: 32 replays of ResNet-32 at batch size 128 are 43 ms of work for an H200."""


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Free what can be freed now and nothing until the end: freeing an old graph invalidates one that is recorded."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CudaGraphStep:
    """A training step as two CUDA graphs, replayed one after the other on a separate stream."""

    def __init__(
        self,
        attached: Attached,
        feed: Feed,
        recipe: Recipe,
        plan: ExecutionPlan,
        num_steps: int,
        comm: Communicator = SINGLE_PROCESS,
    ) -> None:
        """Record the graphs; `num_steps`, about how often the step will run, decides whether compiling it pays off."""
        self.attached = attached
        self._feed = feed
        self._recipe = recipe
        self._plan = plan
        self._device = plan.device
        self._optimizer = attached.optimizer
        self._base_lrs = base_lrs(self._optimizer)
        self._lrs = [torch.zeros((), device=self._device) for _ in self._base_lrs]
        self._index = torch.zeros((), dtype=torch.int64, device=self._device)
        self.stream = torch.cuda.Stream(self._device)
        self.dropout_rng = torch.cuda.default_generators[self._device.index].clone_state()
        """Generator of dropout, separate for each network, so that concurrent networks do not affect each other."""
        self.loss = torch.zeros((), device=self._device)
        self._events: deque[torch.cuda.Event] = deque(maxlen=_MAX_EVENTS)
        """Events recorded between replays that the device has not reached yet."""
        self.compiled = False
        self._buckets: GradientBuckets | None = None
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        """The gradient tensors that the graphs write and read."""
        _init_optimizer_state_(self._optimizer)
        with self._restored(), torch.cuda.stream(self.stream), self._own_rng():
            if comm.size > 1:
                self._buckets = GradientBuckets(self._parameters_with_gradients(), comm)
            if plan.compile != "on":
                self._record_(forward_loss)
            if plan.compile == "on" or comm.broadcast_from_rank0(
                lambda: plan.compiles(attached.model, num_steps, self._seconds())
            ):
                self.compiled = True
                # All shapes and networks of a process share one code object: the default limit of 8 is soon reached.
                with torch._dynamo.config.patch(recompile_limit=256):
                    self._record_(compiled_forward_loss(self._device.type))
        self._addresses = self._tensor_addresses()

    @property
    def is_current(self) -> bool:
        """Whether the graphs still use the learning rates and the tensors of the network, which loading a checkpoint
        may have replaced."""
        return self._base_lrs == base_lrs(self._optimizer) and self._tensor_addresses() == self._addresses

    def rewind_(self, step: int) -> None:
        """Make this step of the epoch the next one to be replayed."""
        self._index.fill_(step)

    def __call__(self, step: int) -> None:
        """Train on one batch of the epoch; the graphs count the steps themselves."""
        self._backward_graph.replay()
        if self._buckets is not None:
            self._buckets.average_()
            self._watch_gradients_()
        if self.attached.update_is_due and self._update_masks_(step):
            self._index += 1  # as the second graph would have done
        else:
            self._update_graph.replay()
        if step % _STEPS_PER_EVENT == 0:
            event = torch.cuda.Event()
            event.record(self.stream)
            self._events.append(event)
        self.attached.finish_step_()

    @property
    def is_well_ahead(self) -> bool:
        """Whether so many replays are queued on the device that no more are needed now."""
        while self._events and self._events[0].query():
            self._events.popleft()
        return len(self._events) >= _MAX_EVENTS

    def _update_masks_(self, step: int) -> bool:
        """Let the method update masks; return whether the update replaces the optimizer step."""
        self._restore_gradients_()
        scaled = scaled_lrs(self._optimizer, self._base_lrs, self._feed.lr_factor(step))
        with scaled, self.attached.hooks_disabled(), self._own_rng():
            replaces_step = self.attached.update_masks_if_due_()
            if replaces_step:
                self.attached.mask_weights_()
        return replaces_step

    def _restore_gradients_(self) -> None:
        """Point the parameters to the gradients of the graphs again, which other code may have replaced or removed."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient

    def _record_(self, forward: Any) -> None:
        with self.attached.hooks_disabled():
            for _ in range(_NUM_WARMUP):
                self._compute_gradients_(forward)
                if self._buckets is not None:
                    self._watch_gradients_()  # of this rank only: the effect is undone by `_restored`
                self._apply_gradients_()
            self._gradients = []  # free those of an earlier recording
            torch.cuda.synchronize(self._device)
            self._backward_graph, self._update_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            # Other threads and streams of the process keep working meanwhile.
            mode = "thread_local"
            with no_garbage_collection():
                with torch.cuda.graph(self._backward_graph, stream=self.stream, capture_error_mode=mode):
                    self._compute_gradients_(forward)
                self._gradients = [(parameter, parameter.grad) for parameter in self.attached.model.parameters()]
                pool = self._backward_graph.pool()
                with torch.cuda.graph(self._update_graph, pool, self.stream, capture_error_mode=mode):
                    self._apply_gradients_()

    def _compute_gradients_(self, forward: Any) -> None:
        """Compute the gradients: the first graph."""
        factor = self._feed.lr_factor_on_device(self._index)
        for group, lr, tensor in zip(self._optimizer.param_groups, self._base_lrs, self._lrs, strict=True):
            tensor.copy_(factor * lr)
            group["lr"] = tensor
        if self._buckets is not None:
            self._buckets.clear_()
        else:
            self._optimizer.zero_grad(set_to_none=True)
        self.loss = backward(forward, self.attached.model, self._feed, self._index, self._recipe, self._plan)
        if self._buckets is None:
            self.attached.record_gradients_()

    def _parameters_with_gradients(self) -> list[nn.Parameter]:
        """Return the parameters that a backward pass reaches; an optimizer skips the others."""
        with self.attached.hooks_disabled():
            self._optimizer.zero_grad(set_to_none=True)
            backward(forward_loss, self.attached.model, self._feed, self._index, self._recipe, self._plan)
        return [parameter for parameter in self.attached.model.parameters() if parameter.grad is not None]

    def _watch_gradients_(self) -> None:
        """Pass the averaged gradients to a method that watches them; they exist only after the first graph."""
        self._restore_gradients_()
        with self.attached.hooks_disabled():
            self.attached.record_gradients_()

    def _apply_gradients_(self) -> None:
        """Apply the gradients: the second graph."""
        apply_gradients_(self.attached, self._recipe)
        # Warmup may reach the end of the epoch; training never does.
        self._index.add_(1).remainder_(self._feed.num_steps)

    def _seconds(self) -> float:
        """Return the time of one replay."""
        torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        for _ in range(_NUM_TIMED):
            self._backward_graph.replay()
            self._update_graph.replay()
        torch.cuda.synchronize(self._device)
        return (time.perf_counter() - start) / _NUM_TIMED

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore everything that warmup and timing change, since they train the network."""
        tensors = list(_trained_tensors(self.attached))
        copies = [tensor.detach().clone() for tensor in tensors]
        torch.cuda.synchronize(self._device)
        try:
            yield
        finally:
            torch.cuda.synchronize(self._device)
            with torch.no_grad():
                for tensor, copy in zip(tensors, copies, strict=True):
                    tensor.copy_(copy)
            for group, lr in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
                group["lr"] = lr
            torch.cuda.synchronize(self._device)

    @contextmanager
    def _own_rng(self) -> Iterator[None]:
        shared = torch.cuda.default_generators[self._device.index]
        before = shared.graphsafe_get_state()
        shared.graphsafe_set_state(self.dropout_rng)
        try:
            yield
        finally:
            shared.graphsafe_set_state(before)

    def _tensor_addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in _trained_tensors(self.attached)]


def _init_optimizer_state_(optimizer: Optimizer) -> None:
    """Create the optimizer state of the first step, all zero, so that the recorded step is the general one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if isinstance(optimizer, SGD):
                if group["momentum"] and state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
            elif isinstance(optimizer, Adam | AdamW):
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
            else:
                raise UserError(
                    f"step 'cuda_graph' supports SGD, Adam and AdamW, got {type(optimizer).__name__}; use step='eager'"
                )


def _trained_tensors(attached: Attached) -> Iterator[Tensor]:
    """Yield every tensor that a step writes: weights, buffers, optimizer state, method state."""
    yield from attached.model.parameters()
    yield from attached.model.buffers()
    for group in attached.optimizer.param_groups:
        for parameter in group["params"]:
            yield from tensors_in(attached.optimizer.state.get(parameter, {}))
    yield from tensors_in(attached.method_state)
