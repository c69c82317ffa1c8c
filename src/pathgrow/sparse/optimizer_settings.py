"""What an optimizer was told, so that stored trainings are not gone on with by another one."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Settings = list[dict[str, str]]

_HOW = frozenset({"params", "fused", "foreach", "capturable", "differentiable"})
"""Say how a step is computed, not what: they may differ on another device."""


def settings_of(optimizer: Optimizer) -> Settings:
    """Kind and settings of every group of parameters.

    >>> import torch
    >>> settings_of(torch.optim.SGD([torch.zeros(1)], lr=0.1))[0]["lr"]
    '0.1'
    """
    kind = {"kind": type(optimizer).__name__}
    return [
        kind | {name: _told(value) for name, value in group.items() if name not in _HOW}
        for group in optimizer.param_groups
    ]


def changed_setting(before: Settings, now: Settings) -> str:
    """The first difference in words, or nothing."""
    if len(before) != len(now):
        return f"it had {len(before)} groups of parameters, now {len(now)}"
    for old, new in zip(before, now, strict=True):
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                return f"its {name} was {old.get(name, 'not there')}, now {new.get(name, 'not there')}"
    return ""


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.tolist())
    # Others may print as their address, which is another one in each process.
    return str(value) if isinstance(value, bool | int | float | str | list | tuple | None) else type(value).__name__
