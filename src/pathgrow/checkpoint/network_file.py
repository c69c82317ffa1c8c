"""The weights of a network as a plain safetensors file that loads anywhere, and back into the model it is of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from pathgrow import atomic
from pathgrow.checkpoint.stage_files import serialize
from pathgrow.errors import UserError


def save_weights(weights: Mapping[str, Tensor], path: Path) -> str:
    """Write a state dict atomically; returns the SHA-256 of the file."""
    data = serialize(weights)
    atomic.write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def load_weights_(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into `model`; those of another model are refused before anything is changed."""
    try:
        weights = safetensors.torch.load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read weights from {path} ({error}): wanted a safetensors file") from error
    if wrong := mismatch(weights, model.state_dict()):
        raise UserError(f"{path} holds the weights of another model: {wrong}; build the model the run was made with")
    model.load_state_dict(weights)


def mismatch(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str | None:
    """The first tensor in which two state dicts differ by name or shape, in words; None if there is none."""
    for name, tensor in wanted.items():
        if name not in got:
            return f"tensor '{name}' of shape {_shape(tensor)} is wanted and missing"
        if got[name].shape != tensor.shape:
            return f"tensor '{name}' has shape {_shape(got[name])}, wanted {_shape(tensor)}"
    extra = next((name for name in got if name not in wanted), None)
    return None if extra is None else f"tensor '{extra}' of shape {_shape(got[extra])} is not in the model"


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
