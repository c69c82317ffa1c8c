"""CUDA graphs replaced by Python calls: what a CUDA-graph step does, in which order and to which tensors.

A replay repeats the recorded calls with the gradients and learning rates at the recorded addresses. It shows nothing
about streams and memory of a device.
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
from pathgrow.trainer.cuda_graph_step import CudaGraphStep
from pathgrow.trainer.device import ExecutionPlan


class _Idle:
    """A stream or an event of a device that has always finished its work."""

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
    """Inside the block `EngineOptions(device="cpu", step="cuda_graph")` records CUDA-graph steps."""
    resolved, record, empty = EngineOptions.resolve, CudaGraphStep._record_, torch.empty

    def resolved_with_graphs(options: EngineOptions) -> ExecutionPlan:
        return replace(resolved(replace(options, step="auto")), cuda_graphs=options.step == "cuda_graph")

    def record_(step: CudaGraphStep, forward: Any) -> None:
        record(step, forward)
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
        patch.setattr(CudaGraphStep, "_own_rng", lambda step: nullcontext())
        patch.setattr(CudaGraphStep, "_record_", record_)
        patch.setattr(EngineOptions, "resolve", resolved_with_graphs)
        yield


def _make_replays_(step: Any, forward: Any) -> None:
    recorded, loss = list(step._gradients), step.loss

    def compute_gradients() -> None:
        with _as_recorded(step):
            step._compute_gradients_(forward)
            for parameter, gradient in recorded:
                assert (parameter.grad is None) == (gradient is None)
                if gradient is not None:
                    gradient.copy_(parameter.grad)
        step.loss = loss.copy_(step.loss)

    def apply_gradients() -> None:
        with _as_recorded(step):
            for parameter, gradient in recorded:
                parameter.grad = gradient
            step._apply_gradients_()

    step._backward_graph.replay, step._update_graph.replay = compute_gradients, apply_gradients


@contextmanager
def _as_recorded(step: Any) -> Iterator[None]:
    """A graph uses the tensors it was recorded with and changes no attribute of a parameter or an optimizer."""
    groups, parameters = step._optimizer.param_groups, [parameter for parameter, _ in step._gradients]
    rates, gradients = [group["lr"] for group in groups], [parameter.grad for parameter in parameters]
    for group, tensor in zip(groups, step._lrs, strict=True):
        group["lr"] = tensor
    hooks_disabled: AbstractContextManager[None] = step.attached.hooks_disabled()
    with hooks_disabled:
        yield
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
