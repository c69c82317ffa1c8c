"""Engine options, and how they resolve on this machine: device, precision, CUDA graphs, compilation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pathgrow.config import check, option
from pathgrow.errors import UserError

if TYPE_CHECKING:  # flags are generated from `EngineOptions`, and `--help` should not wait for torch
    import torch
    from torch import nn

    from pathgrow.distributed.comm import Communicator

Compile = Literal["auto", "on", "off"]

SECONDS_TO_COMPILE = 0.6
"""Per layer with weights, on an H200 machine with cold caches: ResNet-32 with its norms takes 35-40 s."""
SAVED_BY_COMPILING = 0.23
"""Fraction of a CUDA-graph step: ResNet-32 at batch size 128 goes from 39,000 to 51,000 images/s."""
VECTOR_WIDTH = 16
"""Float32 channels that a CPU with 512-bit vectors computes at once."""
_NOT_DETERMINISTIC = " does not have a deterministic implementation"
"""What torch says after the name of an operation."""
_MAX_STREAMS = 32
"""CUDA streams in torch's pool; beyond these, two networks would share one."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How training runs. None of these options changes what is computed, apart from rounding.

    On a GPU "auto" means bfloat16 autocast and a CUDA-graph step, compiled if the run is long enough to recover the
    compile time; with several processes, an eager step. On a CPU "auto" means float32 and an eager step: bfloat16 is
    15 to 40 times slower on CPUs without native support, and compiling a ResNet takes longer than a demo.
    """

    device: str = option(
        "auto", "Device to train on: cpu, cuda or cuda:N (default: a GPU if available).", metavar="cpu|cuda"
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "Autocast dtype of the forward pass (default: bf16 on a GPU, fp32 on a CPU)."
    )
    step: Literal["auto", "cuda_graph", "eager"] = option(
        "auto", "Run a training step as CUDA graphs or eagerly (default: CUDA graphs on a GPU)."
    )
    compile: Literal["auto", "on", "off"] = option("auto", "Use torch.compile (default: auto, when it pays off).")
    deterministic: bool = option(False, "Use deterministic algorithms only: bit-identical results on a GPU, slower.")
    max_concurrent: int = option(
        8,
        "Maximum number of networks trained concurrently on a GPU.",
        at_least=1,
        at_most=_MAX_STREAMS,
        metavar="N",
    )
    """Fewer need less memory. More are not faster in total: ResNet-32 at batch size 128 on an H200 reaches
    93,000 images/s with 4 as with 8."""

    def __post_init__(self) -> None:
        check(self)

    def resolve(self) -> ExecutionPlan:
        """Resolve every "auto" for this machine."""
        import torch

        device = self._resolve_device()
        on_gpu = device.type == "cuda"
        if self.step == "cuda_graph" and not on_gpu:
            raise UserError(f"step 'cuda_graph' needs a GPU, got device {device.type}; use step='eager'")
        precision = self.precision if self.precision != "auto" else ("bf16" if on_gpu else "fp32")
        return ExecutionPlan(
            device=device,
            autocast=torch.bfloat16 if precision == "bf16" else None,
            cuda_graphs=on_gpu and self.step != "eager",
            compile=self.compile if on_gpu or self.compile == "on" else "off",
            deterministic=self.deterministic,
            max_concurrent=self.max_concurrent,
        )

    def _resolve_device(self) -> torch.device:
        import torch

        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device == "auto":
            return torch.device("cuda", torch.cuda.current_device()) if num_gpus else torch.device("cpu")
        kind, _, index = self.device.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
            raise UserError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")
        if kind == "cpu":
            return torch.device("cpu")
        if int(index or 0) >= num_gpus:
            raise UserError(
                f"device {self.device} is not available, torch sees {num_gpus} GPUs; use device cpu, "
                "or install a build of torch that supports this GPU"
            )
        return torch.device("cuda", int(index) if index else torch.cuda.current_device())


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """Engine options resolved for one machine."""

    device: torch.device
    autocast: torch.dtype | None
    cuda_graphs: bool
    compile: Compile
    deterministic: bool = False
    max_concurrent: int = 8

    def place(self, model: nn.Module) -> nn.Module:
        """Move the model to the device, convolutions in channels-last layout: faster on GPUs and on CPUs."""
        import torch
        from torch import nn

        model = model.to(self.device)
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        if convolutions and not (self.device.type == "cpu" and any(map(_overruns_buffer, convolutions))):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def compiles(self, model: nn.Module, num_steps: int, step_seconds: float) -> bool:
        """Return whether compiling recovers its own time over this many steps."""
        if self.compile != "auto":
            return self.compile == "on"
        num_layers = sum(1 for module in model.modules() if next(module.parameters(recurse=False), None) is not None)
        return SAVED_BY_COMPILING * num_steps * step_seconds > SECONDS_TO_COMPILE * num_layers

    @contextmanager
    def flags_between_trainings(self) -> Iterator[None]:
        """Set cuDNN's flags for gradients computed outside of training, which score weights for mask updates.

        In deterministic mode cuDNN's backward passes are bit-reproducible. Other nondeterministic operations are not
        forbidden: growth uses none, but a user's loss function may.
        """
        from torch.backends import cudnn

        before = (cudnn.benchmark, cudnn.deterministic)
        if self.deterministic:
            cudnn.benchmark, cudnn.deterministic = False, True
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = before

    @contextmanager
    def training_flags(self) -> Iterator[None]:
        """Set torch's global flags for training, and restore them afterwards; name an operation that they forbid."""
        import torch

        cudnn = torch.backends.cudnn
        before = (cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled())
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        if self.deterministic and self.device.type == "cuda":
            # cuBLAS reads this at startup; without it torch refuses matrix products in deterministic mode.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        cudnn.benchmark, cudnn.deterministic = not self.deterministic, self.deterministic
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            yield
        except RuntimeError as error:
            operation, found, _ = str(error).rpartition(_NOT_DETERMINISTIC)
            if not found or not self.deterministic:
                raise
            raise UserError(
                f"{operation.split()[-1]}, which this model uses, has no deterministic implementation on "
                f"{self.device.type}: use another layer in its place, or train without deterministic algorithms"
            ) from error
        finally:
            cudnn.benchmark, cudnn.deterministic = before[0], before[1]
            torch.use_deterministic_algorithms(before[2], warn_only=warn_only)


def _overruns_buffer(layer: nn.Conv2d) -> bool:
    """Return whether oneDNN writes out of bounds in the backward pass of this layer in channels-last layout.

    It packs the input of a strided 1x1 convolution in whole vectors of channels into a buffer sized for the actual
    channels (uxlfoundation/oneDNN issue 6035): narrow ResNets crash, hang, or get wrong gradients.
    """
    is_pointwise = all(size == 1 for size in layer.kernel_size)
    return is_pointwise and any(step > 1 for step in layer.stride) and layer.in_channels // layer.groups < VECTOR_WIDTH


def plan_for(options: EngineOptions, comm: Communicator) -> ExecutionPlan:
    """Resolve the options for one of several processes."""
    plan = options.resolve()
    if comm.size == 1:
        return plan
    if ":" in options.device:
        raise UserError(
            f"device {options.device} cannot be shared by {comm.size} processes; "
            f"use device {options.device.partition(':')[0]}"
        )
    # Opt-in with several processes: over NCCL, with one GPU each, CUDA-graph steps have not been tested.
    cuda_graphs = plan.cuda_graphs and options.step == "cuda_graph"
    # Messages of concurrent networks would have to arrive in the same order on every rank.
    return replace(plan, cuda_graphs=cuda_graphs, max_concurrent=1)
