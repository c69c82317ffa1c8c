"""One training step: forward, loss, backward, mask gradients, clip, optimizer, mask weights.

The same sequence runs eagerly, and as two CUDA graphs, captured once and replayed: up to the gradients, and from them
on. The graphs count their own steps, read their batch and learning rate from the feed's buffers and the masks where
they are: growth edits these in place, and nothing is captured again. Between the two a method may change masks by the
gradients of the step, and processes that train together make their gradients one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.distributed.gradients import SharedGradients
from pathgrow.errors import UserError
from pathgrow.sparse.attach import Attached
from pathgrow.trainer.device import ExecutionPlan
from pathgrow.trainer.feed import Feed
from pathgrow.trainer.recipes import Recipe

_NUM_WARMUP = 3
"""Steps before a capture, in which libraries choose algorithms and take their memory."""
_NUM_TIMED = 8
_STEPS_PER_MARK = 8
_MOST_MARKS = 4
"""That the device may not have come to yet: 32 replays of ResNet-32 at batch 128 are 43 ms of an H200's work."""


def forward_loss(
    model: nn.Module, feed: Feed, step: int | Tensor, part: int, recipe: Recipe, autocast: torch.dtype | None
) -> Tensor:
    """The loss of one part of a step's batch, scaled so that the parts add up to the mean over the batch."""
    images, targets = feed.batch(step)
    if recipe.accumulate > 1:
        images, targets = images.chunk(recipe.accumulate)[part], targets.chunk(recipe.accumulate)[part]
    # On a CPU the layout of the weights decides, see `Mode.place`; the first convolution turns its input to it.
    if images.is_cuda and images.shape[1] > 1:
        images = images.contiguous(memory_format=torch.channels_last)
    kind, lower = images.device.type, autocast or torch.bfloat16
    # No cache: a captured graph would keep the cast copy of a weight that has changed since.
    with torch.autocast(kind, lower, enabled=autocast is not None, cache_enabled=False):
        logits = model(images)
    loss = functional.cross_entropy(logits.float(), targets, label_smoothing=recipe.label_smoothing)
    return loss / recipe.accumulate


@cache
def compiled_forward_loss(kind: str) -> Any:
    """The same, compiled for a kind of device; made when it is first wanted: the compiler takes seconds to import."""
    # On a CPU the compiler would put channels last by itself, also where `Mode.place` had reasons not to.
    return torch.compile(forward_loss, dynamic=False, options={"layout_optimization": False} if kind == "cpu" else None)


class EagerStep:
    """A step as Python runs it: on CPUs, and wherever nothing may be captured."""

    def __init__(
        self, attached: Attached, feed: Feed, recipe: Recipe, plan: ExecutionPlan, module: nn.Module | None = None
    ) -> None:
        self.attached = attached
        self._feed = feed
        self._recipe = recipe
        self._plan = plan
        self._compiled = plan.compile == "on"
        self._forward = compiled_forward_loss(plan.device.type) if self._compiled else forward_loss
        self._module = module if module is not None else attached.model
        """What is called: the model itself, or a wrapper around it that talks to other processes."""
        self._peaks = _peak_rates(attached.optimizer)
        self._index = torch.zeros((), dtype=torch.int64, device=plan.device)
        self.loss: Tensor = torch.zeros((), device=plan.device)

    @property
    def is_current(self) -> bool:
        """Whether the learning rates are still those that this step was made for."""
        return self._peaks == _peak_rates(self.attached.optimizer)

    def __call__(self, step: int) -> None:
        """Train on one batch of the epoch."""
        attached = self.attached
        with _rated(attached.optimizer, self._peaks, self._feed.rate(step)):
            with attached.hooks_disabled():
                self._backward(step)
                attached.record_gradients_()
                if attached.update_masks_if_due_():
                    attached.mask_weights_()  # and nothing else: the change took the place of the step
                else:
                    apply_gradients_(attached, self._recipe)
            attached.finish_step_()

    def _backward(self, step: int) -> None:
        self.attached.optimizer.zero_grad(set_to_none=True)
        # A compiled function is compiled anew for every number it is given, and not for every tensor.
        which = self._index.fill_(step) if self._compiled else step
        self.loss = backward(self._forward, self._module, self._feed, which, self._recipe, self._plan)


class CudaGraphStep:
    """A step as two CUDA graphs, one after the other on a stream of its own."""

    def __init__(
        self,
        attached: Attached,
        feed: Feed,
        recipe: Recipe,
        plan: ExecutionPlan,
        num_steps: int,
        comm: Communicator = SINGLE_PROCESS,
    ) -> None:
        """Capture; `num_steps` is about how often the step will run, which decides whether compiling it pays."""
        self.attached = attached
        self._feed = feed
        self._recipe = recipe
        self._plan = plan
        self._device = plan.device
        self._optimizer = attached.optimizer
        self._peaks = _peak_rates(self._optimizer)
        self._rates = [torch.zeros((), device=self._device) for _ in self._peaks]
        self._index = torch.zeros((), dtype=torch.int64, device=self._device)
        self.stream = torch.cuda.Stream(self._device)
        self.noise = torch.cuda.default_generators[self._device.index].clone_state()
        """Where dropout draws from: its own, so that networks side by side do not disturb each other."""
        self.loss = torch.zeros((), device=self._device)
        self._marks: deque[torch.cuda.Event] = deque(maxlen=_MOST_MARKS)
        """Set among the replays, the last of those that the device has not come to yet."""
        self.compiled = False
        self._shared: SharedGradients | None = None
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        """Those that the graphs write and read."""
        _give_slots_(self._optimizer)
        with self._untouched(), torch.cuda.stream(self.stream), self._own_noise():
            if comm.size > 1:
                self._shared = SharedGradients(self._reached_parameters(), comm)
            if plan.compile != "on":
                self._capture_(forward_loss)
            if plan.compile == "on" or comm.broadcast_from_rank0(
                lambda: plan.compiles(attached.model, num_steps, self._seconds())
            ):
                self.compiled = True
                # Every shape and network of a process shares one code object: the default limit of 8 is soon reached.
                with torch._dynamo.config.patch(recompile_limit=256):
                    self._capture_(compiled_forward_loss(self._device.type))
        self._addresses = self._where()

    @property
    def is_current(self) -> bool:
        """Whether the graphs still work with the learning rates and on the tensors that the network has: those of a
        restored one may lie elsewhere."""
        return self._peaks == _peak_rates(self._optimizer) and self._where() == self._addresses

    def rewind_(self, step: int) -> None:
        """The next replay is this step of the epoch."""
        self._index.fill_(step)

    def __call__(self, step: int) -> None:
        """Train on one batch of the epoch; the graphs know which one it is."""
        self._to_gradients.replay()
        if self._shared is not None:
            self._shared.average_()
            self._show_gradients_()
        if self.attached.update_is_due and self._change_(step):
            self._index += 1  # the second graph would have
        else:
            self._from_gradients.replay()
        if step % _STEPS_PER_MARK == 0:
            mark = torch.cuda.Event()
            mark.record(self.stream)
            self._marks.append(mark)
        self.attached.finish_step_()

    @property
    def is_well_ahead(self) -> bool:
        """Whether the device has so many replays left to do that more of them need not be queued now."""
        while self._marks and self._marks[0].query():
            self._marks.popleft()
        return len(self._marks) >= _MOST_MARKS

    def _change_(self, step: int) -> bool:
        """Let the method change masks; whether that takes the place of what is left of the step."""
        self._regain_gradients_()
        rated = _rated(self._optimizer, self._peaks, self._feed.rate(step))
        with rated, self.attached.hooks_disabled(), self._own_noise():
            took_place = self.attached.update_masks_if_due_()
            if took_place:
                self.attached.mask_weights_()
        return took_place

    def _regain_gradients_(self) -> None:
        """Others may have put theirs there since the capture, or taken them away."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient

    def _capture_(self, forward: Any) -> None:
        with self.attached.hooks_disabled():
            for _ in range(_NUM_WARMUP):
                self._find_gradients_(forward)
                if self._shared is not None:
                    self._show_gradients_()  # of this process: what they come to is put back
                self._use_gradients_()
            self._gradients = []  # those of an earlier capture, whose memory can be had again
            torch.cuda.synchronize(self._device)
            self._to_gradients, self._from_gradients = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            # Other threads and streams of the process go on working meanwhile.
            with torch.cuda.graph(self._to_gradients, stream=self.stream, capture_error_mode="thread_local"):
                self._find_gradients_(forward)
            self._gradients = [(parameter, parameter.grad) for parameter in self.attached.model.parameters()]
            pool = self._to_gradients.pool()
            with torch.cuda.graph(self._from_gradients, pool, self.stream, capture_error_mode="thread_local"):
                self._use_gradients_()

    def _find_gradients_(self, forward: Any) -> None:
        """What the first graph holds."""
        rate = self._feed.rate_on_device(self._index)
        for group, peak, tensor in zip(self._optimizer.param_groups, self._peaks, self._rates, strict=True):
            tensor.copy_(rate * peak)
            group["lr"] = tensor
        if self._shared is not None:
            self._shared.clear_()
        else:
            self._optimizer.zero_grad(set_to_none=True)
        self.loss = backward(forward, self.attached.model, self._feed, self._index, self._recipe, self._plan)
        if self._shared is None:
            self.attached.record_gradients_()

    def _reached_parameters(self) -> list[nn.Parameter]:
        """Those to which a backward pass gives gradients; an optimizer leaves the others as they are."""
        with self.attached.hooks_disabled():
            self._optimizer.zero_grad(set_to_none=True)
            backward(forward_loss, self.attached.model, self._feed, self._index, self._recipe, self._plan)
        return [parameter for parameter in self.attached.model.parameters() if parameter.grad is not None]

    def _show_gradients_(self) -> None:
        """To a method that watches them; those of several processes are there only after the first graph."""
        self._regain_gradients_()
        with self.attached.hooks_disabled():
            self.attached.record_gradients_()

    def _use_gradients_(self) -> None:
        """What the second holds."""
        apply_gradients_(self.attached, self._recipe)
        # Warm-up may come to the end of the epoch; a training never reads beyond it.
        self._index.add_(1).remainder_(self._feed.num_steps)

    def _seconds(self) -> float:
        """Of one replay."""
        torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        for _ in range(_NUM_TIMED):
            self._to_gradients.replay()
            self._from_gradients.replay()
        torch.cuda.synchronize(self._device)
        return (time.perf_counter() - began) / _NUM_TIMED

    @contextmanager
    def _untouched(self) -> Iterator[None]:
        """Warm-up and timing train the network: everything they change is put back."""
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
            for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
                group["lr"] = peak
            torch.cuda.synchronize(self._device)

    @contextmanager
    def _own_noise(self) -> Iterator[None]:
        shared = torch.cuda.default_generators[self._device.index]
        before = shared.graphsafe_get_state()
        shared.graphsafe_set_state(self.noise)
        try:
            yield
        finally:
            shared.graphsafe_set_state(before)

    def _where(self) -> list[int]:
        return [tensor.data_ptr() for tensor in _trained_tensors(self.attached)]


def _peak_rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


@contextmanager
def _rated(optimizer: Optimizer, peaks: list[float], share: float) -> Iterator[None]:
    """This share of the learning rates. After it, or an interrupt, they are those that a training begins with."""
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        # Rounded as a graph rounds it: what differs in the last bit differs everywhere some steps later.
        group["lr"] = float(np.float32(peak) * np.float32(share))
    try:
        yield
    finally:
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak


def backward(
    forward: Any, module: nn.Module, feed: Feed, step: int | Tensor, recipe: Recipe, plan: ExecutionPlan
) -> Tensor:
    """Gradients of a step's batch, in as many parts as the recipe says; its loss."""
    parts = []
    # A wrapper that talks to other processes does so once, with the sum of all parts.
    silent = getattr(module, "no_sync", nullcontext)
    for part in range(recipe.accumulate):
        with silent() if part + 1 < recipe.accumulate else nullcontext():
            with enough_rows(feed.num_rows // recipe.accumulate):
                loss = forward(module, feed, step, part, recipe, plan.autocast)
            loss.backward()
        parts.append(loss.detach())
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


@contextmanager
def enough_rows(num_rows: int) -> Iterator[None]:
    """Batch norm over one sample of one pixel is no statistic: torch refuses it by an error that names no remedy."""
    try:
        yield
    except ValueError as fault:
        if num_rows > 1 or isinstance(fault, UserError):
            raise
        raise UserError(
            f"this network cannot be trained on one sample at a time ({fault}): give a larger batch size, "
            "or fewer parts and processes to share it"
        ) from fault


def apply_gradients_(attached: Attached, recipe: Recipe) -> None:
    """Mask, clip, step, mask."""
    attached.mask_gradients_()
    if recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(attached.model.parameters(), recipe.clip_norm)
    attached.optimizer.step()
    attached.mask_weights_()


def _give_slots_(optimizer: Optimizer) -> None:
    """The state that the first step would make, all zero, so that a graph captured before it holds the general step."""
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
                    f"{type(optimizer).__name__} was given for a captured step, SGD or AdamW is wanted: give step=eager"
                )


def _trained_tensors(attached: Attached) -> Iterator[Tensor]:
    """All that a step writes: weights, buffers, optimizer state, what the method remembers."""
    yield from attached.model.parameters()
    yield from attached.model.buffers()
    for group in attached.optimizer.param_groups:
        for parameter in group["params"]:
            yield from _tensors_in(attached.optimizer.state.get(parameter, {}))
    yield from _tensors_in(attached.method_state)


def _tensors_in(values: Mapping[str, Any]) -> Iterator[Tensor]:
    for value in values.values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors_in(value)
