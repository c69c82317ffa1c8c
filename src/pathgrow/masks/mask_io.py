"""Mask files: one safetensors file, eight positions per byte, verified by SHA-256 when read.

A scope is stored only for the tensors that are partly outside it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from pathgrow import atomic
from pathgrow.errors import RunFailed, UserError

_KIND = "pathgrow.masks"
_VERSION = 1

_Flags = Mapping[str, Tensor]


def digest(masks: _Flags, scope: _Flags) -> str:
    """SHA-256 of names, shapes and bits, sorted by name."""
    sha = hashlib.sha256()
    for name in sorted(masks):
        heading = [name, list(masks[name].shape), name in scope]
        sha.update(json.dumps(heading).encode() + b"\n")
        for group in (masks, scope):
            if name in group:
                sha.update(_packed(group[name]).tobytes())
    return sha.hexdigest()


def write(path: Path, masks: _Flags, scope: _Flags) -> None:
    """Write a file atomically; `scope` holds only the tensors that are partly outside it."""
    payload = {f"mask/{name}": torch.from_numpy(_packed(flags)) for name, flags in masks.items()}
    payload |= {f"scope/{name}": torch.from_numpy(_packed(flags)) for name, flags in scope.items()}
    shapes = {name: list(flags.shape) for name, flags in masks.items()}
    about = {"version": _VERSION, "shapes": shapes, "sha256": digest(masks, scope)}
    # A single metadata entry: safetensors writes several in random order, and equal masks should give equal files.
    content = to_safetensors(payload, metadata={_KIND: json.dumps(about)})
    try:
        atomic.replace(path, content)
    except OSError as error:
        # A wrong path is the caller's mistake; a full or failing disk is not.
        kind = RunFailed if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO} else UserError
        raise kind(f"cannot write masks to {str(path)!r} ({error.strerror or error})") from error


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read the masks and the scope of a file."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return _contents(file)
    except FileNotFoundError:
        raise UserError(f"no mask file at {str(path)!r}") from None
    except OSError as error:
        raise UserError(f"cannot read masks from {str(path)!r} ({error})") from error
    except (safetensors.SafetensorError, _NotMasks) as error:
        raise UserError(f"{str(path)!r} is not a valid mask file ({error})") from error


class _NotMasks(Exception):
    """Why a safetensors file cannot be read as masks."""


def _contents(file: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    about = _about(file.metadata())
    stored = set(file.keys())
    masks: dict[str, Tensor] = {}
    scope: dict[str, Tensor] = {}
    for name, shape in about["shapes"].items():
        masks[name] = _unpacked(file, stored, f"mask/{name}", shape)
        if f"scope/{name}" in stored:
            scope[name] = _unpacked(file, stored, f"scope/{name}", shape)
    if digest(masks, scope) != about["sha256"]:
        raise _NotMasks("checksum mismatch")
    return masks, scope


def _about(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The metadata, checked field by field: files may come from anywhere."""
    if metadata is None or _KIND not in metadata:
        raise _NotMasks("no mask metadata")
    try:
        about = json.loads(metadata[_KIND])
    except (ValueError, RecursionError):
        raise _NotMasks("unreadable metadata") from None
    if not isinstance(about, dict) or about.keys() != {"version", "shapes", "sha256"}:
        raise _NotMasks("incomplete metadata")
    if about["version"] != _VERSION:
        raise _NotMasks(f"format {about['version']!r}, expected {_VERSION}")
    shapes = about["shapes"]
    if not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        raise _NotMasks("malformed shapes")
    return about


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _packed(flags: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.packbits(flags.detach().cpu().reshape(-1).numpy())


def _unpacked(file: Any, stored: set[str], key: str, shape: list[int]) -> Tensor:
    if key not in stored:
        raise _NotMasks(f"{key!r} is missing")
    num = math.prod(shape)
    piece = file.get_slice(key)
    # Checked before anything is allocated: a forged shape must not cost memory.
    if piece.get_dtype() != "U8" or piece.get_shape() != [-(-num // 8)]:
        raise _NotMasks(f"{key!r} does not have shape {shape}")
    return torch.from_numpy(np.unpackbits(file.get_tensor(key), count=num).view(np.bool_)).reshape(shape)
