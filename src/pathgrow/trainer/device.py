"""How training is carried out: device, precision, captured or eager. Chosen by measurement, changed by option."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from pathgrow.errors import UserError, is_int, require, unknown_name

Precision = Literal["auto", "fp32", "bf16"]
StepKind = Literal["auto", "captured", "eager"]
Compile = Literal["auto", "on", "off"]

SECONDS_TO_COMPILE = 0.6
"""Of a network on an H200 machine with cold caches, per layer with weights; ResNet-32 with its norms takes 35-40 s."""
SAVED_BY_COMPILING = 0.23
"""Share of a captured step's time: ResNet-32 at batch 128 goes from 39,000 to 51,000 images a second."""
ONE_VECTOR = 16
"""Channels that a CPU with vectors of 512 bits computes at once."""
_MOST_STREAMS = 32
"""That torch hands out before it gives one to two networks."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What may be chosen about the engine. Nothing here changes what is computed beyond rounding.

    On a GPU "auto" is bfloat16 and a captured step, compiled where the run is long enough to win the time back; in
    several processes an eager step. On a CPU it is float32, step by step: bfloat16 is 15 to 40 times slower on CPUs
    without units for it, and compiling a ResNet takes longer than a demo.
    """

    device: str = "auto"
    precision: Precision = "auto"
    step: StepKind = "auto"
    compile: Compile = "auto"
    deterministic: bool = False
    """Only algorithms that give the same bits each time, at some loss of speed on a GPU; a CPU always does."""
    side_by_side: int = 8
    """Networks that train at once on a GPU, at most; fewer take less memory. More are no faster in all: ResNet-32 at
    batch 128 on an H200 reaches 93,000 images a second with 4 or 8."""

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            raise UserError(f"device {self.device!r} was given, cpu or cuda is wanted: leave it out to choose")
        if not isinstance(self.deterministic, bool):
            raise UserError(f"deterministic {self.deterministic!r} was given, true or false is wanted: give either")
        fits = is_int(self.side_by_side) and 1 <= self.side_by_side <= _MOST_STREAMS
        require(fits, "side_by_side", self.side_by_side, f"a whole number from 1 to {_MOST_STREAMS}", "4")
        for name, allowed in (("precision", Precision), ("step", StepKind), ("compile", Compile)):
            if getattr(self, name) not in get_args(allowed):
                raise unknown_name(f"value of {name}", str(getattr(self, name)), get_args(allowed))

    def resolved(self) -> Mode:
        """What this comes to on the machine at hand."""
        device = self._device()
        on_gpu = device.type == "cuda"
        if self.step == "captured" and not on_gpu:
            raise UserError(f"a captured step was asked for on {device.type}, which has no graphs: give step='eager'")
        precision = self.precision if self.precision != "auto" else ("bf16" if on_gpu else "fp32")
        return Mode(
            device=device,
            autocast=torch.bfloat16 if precision == "bf16" else None,
            captured=on_gpu and self.step != "eager",
            compile=self.compile if on_gpu or self.compile == "on" else "off",
            deterministic=self.deterministic,
            side_by_side=self.side_by_side,
        )

    def _device(self) -> torch.device:
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device == "auto":
            return torch.device("cuda", torch.cuda.current_device()) if there else torch.device("cpu")
        kind, _, index = self.device.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
            raise UserError(f"device {self.device!r} was given, cpu or cuda is wanted: leave it out to choose")
        if kind == "cpu":
            return torch.device("cpu")
        if int(index or 0) >= there:
            raise UserError(
                f"device {self.device} was asked for and torch sees {there} of them: give cpu, "
                "or install a build of torch for this machine's GPU"
            )
        return torch.device("cuda", int(index) if index else torch.cuda.current_device())


@dataclass(frozen=True, kw_only=True)
class Mode:
    """The engine's choices for one machine."""

    device: torch.device
    autocast: torch.dtype | None
    captured: bool
    compile: Compile
    deterministic: bool = False
    side_by_side: int = 8

    def place(self, model: nn.Module) -> nn.Module:
        """The model on the device, convolutions laid out with channels last: the faster layout on GPUs and CPUs."""
        model = model.to(self.device)
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        if convolutions and not (self.device.type == "cpu" and any(map(_overruns, convolutions))):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def compiles(self, model: nn.Module, num_steps: int, step_seconds: float) -> bool:
        """Whether compiling wins back its own time over this many steps."""
        if self.compile != "auto":
            return self.compile == "on"
        num_layers = sum(1 for module in model.modules() if next(module.parameters(recurse=False), None) is not None)
        return SAVED_BY_COMPILING * num_steps * step_seconds > SECONDS_TO_COMPILE * num_layers

    @contextmanager
    def between_trainings(self) -> Iterator[None]:
        """The switches for what happens around trainings: scores read from gradients choose masks as well.

        In deterministic mode cuDNN's backward passes repeat to the bit. torch is not made to refuse all else that may
        not: growth has no use for such operations, but a user's loss may.
        """
        cudnn = torch.backends.cudnn
        before = (cudnn.benchmark, cudnn.deterministic)
        if self.deterministic:
            cudnn.benchmark, cudnn.deterministic = False, True
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = before

    @contextmanager
    def settings(self) -> Iterator[None]:
        """torch's global switches while the engine works, as they were afterwards."""
        cudnn = torch.backends.cudnn
        before = (cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled())
        only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
        if self.deterministic and self.device.type == "cuda":
            # Read by cuBLAS when it starts; without it torch refuses matrix products in this mode.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        cudnn.benchmark, cudnn.deterministic = not self.deterministic, self.deterministic
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = before[0], before[1]
            torch.use_deterministic_algorithms(before[2], warn_only=only_warned)


def _overruns(layer: nn.Conv2d) -> bool:
    """Whether oneDNN writes beyond its memory in this layer's backward pass, where channels come last.

    It packs the input of a strided 1x1 convolution for whole vectors of channels into memory for those that there are
    (uxlfoundation/oneDNN issue 6035): a narrow ResNet ends in a segmentation fault, never, or with other gradients.
    """
    is_point = all(size == 1 for size in layer.kernel_size)
    return is_point and any(step > 1 for step in layer.stride) and layer.in_channels // layer.groups < ONE_VECTOR
