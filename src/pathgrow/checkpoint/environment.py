"""The environment of a run, stored with it; nothing in here names a person or a machine."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

from pathgrow.version import __version__

BITS_DEPEND_ON = ("python", "torch", "numpy", "machine", "torch_threads", "device", "device_name")
"""If one of these changes before a run is resumed, its last bits may differ from those of an undisturbed run."""


def describe(device: str = "cpu") -> dict[str, Any]:
    """The environment of this process as JSON values."""
    return {
        "pathgrow": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "torch_threads": torch.get_num_threads(),
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
    }


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed among the things the bits depend on.

    >>> changes({"torch": "2.6.0", "device": "cpu"}, {"torch": "2.13.0", "device": "cpu"})
    ['torch 2.6.0 -> 2.13.0']
    """
    return [f"{key} {before.get(key)} -> {now.get(key)}" for key in BITS_DEPEND_ON if before.get(key) != now.get(key)]


@functools.cache
def _commit() -> str | None:
    """The commit of the source tree this package runs from; None when installed as a wheel."""
    root = Path(__file__).resolve().parents[3]
    if sys.platform == "win32" or not (root / ".git").exists() or not (root / "src" / "pathgrow").is_dir():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
