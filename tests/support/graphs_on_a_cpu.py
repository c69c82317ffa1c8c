"""CUDA graphs stood in for by Python calls: what a captured step does, in which order and to which tensors.

A replay calls again what was captured, with the gradients and learning rates that lay where the graph was told to find
them. It shows nothing about streams and memory of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pathgrow.trainer import EngineOptions
from pathgrow.trainer.device import ExecutionPlan
from pathgrow.trainer.step import CudaGraphStep


class _Idle:
    """A stream or an event of a device that has always done all that was asked of it."""

    def __init__(self, *of: object) -> None: ...

    def query(self) -> bool:
        return True

    def record(self, *on: object) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, other: object) -> None: ...


class _Graph:
    replay: Callable[[], None]

    def pool(self) -> None: ...


@contextmanager
def graphs_on_a_cpu() -> Iterator[None]:
    """Inside the block `EngineOptions(device="cpu", step="cuda_graph")` captures steps."""
    resolved, capture, empty = EngineOptions.resolve, CudaGraphStep._capture_, torch.empty

    def resolved_with_graphs(options: EngineOptions) -> ExecutionPlan:
        return replace(resolved(replace(options, step="auto")), cuda_graphs=options.step == "cuda_graph")

    def capture_(step: CudaGraphStep, forward: Any) -> None:
        capture(step, forward)
        _make_replays_(step, forward)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("Stream", "Event"):
            patch.setattr(torch.cuda, name, _Idle)
        patch.setattr(torch.cuda, "CUDAGraph", _Graph)
        for name in ("graph", "stream"):
            patch.setattr(torch.cuda, name, lambda *given, **named: nullcontext())
        for name in ("current_stream", "synchronize"):
            patch.setattr(torch.cuda, name, lambda device=None: None)
        patch.setattr(torch.cuda, "default_generators", {None: SimpleNamespace(clone_state=torch.Generator)})
        patch.setattr(torch, "empty", lambda *given, pin_memory=False, **named: empty(*given, **named))
        patch.setattr(CudaGraphStep, "_own_noise", lambda step: nullcontext())
        patch.setattr(CudaGraphStep, "_capture_", capture_)
        patch.setattr(EngineOptions, "resolve", resolved_with_graphs)
        yield


def _make_replays_(step: Any, forward: Any) -> None:
    captured, loss = list(step._gradients), step.loss

    def find_gradients() -> None:
        with _as_captured(step):
            step._find_gradients_(forward)
            for parameter, gradient in captured:
                assert (parameter.grad is None) == (gradient is None)
                if gradient is not None:
                    gradient.copy_(parameter.grad)
        step.loss = loss.copy_(step.loss)

    def use_gradients() -> None:
        with _as_captured(step):
            for parameter, gradient in captured:
                parameter.grad = gradient
            step._use_gradients_()

    step._to_gradients.replay, step._from_gradients.replay = find_gradients, use_gradients


@contextmanager
def _as_captured(step: Any) -> Iterator[None]:
    """A graph knows the tensors that it was captured with, and touches no attribute of a parameter or optimizer."""
    groups, parameters = step._optimizer.param_groups, [parameter for parameter, _ in step._gradients]
    rates, gradients = [group["lr"] for group in groups], [parameter.grad for parameter in parameters]
    for group, tensor in zip(groups, step._rates, strict=True):
        group["lr"] = tensor
    hooks_disabled: AbstractContextManager[None] = step.attached.hooks_disabled()
    with hooks_disabled:
        yield
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
