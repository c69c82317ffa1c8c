"""The whole state of a network in training, as flat tensors and JSON, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pathgrow.sparse.attach import Attached
from pathgrow.sparse.networks import pack_pair, unpack_pair_
from pathgrow.sparse.tree import Flat, put_together, take_apart

_PAIR, _CLOCK = "pair/", "clock/"


def take(attached: Attached) -> Flat:
    """Weights, optimizer state, masks and clock. The tensors are the live ones: store them before training goes on."""
    pair, pair_facts = pack_pair(attached.model, attached.optimizer)
    clock, clock_facts = take_apart(attached.state_dict())
    tensors = {_PAIR + name: tensor for name, tensor in pair.items()}
    tensors |= {_CLOCK + name: tensor for name, tensor in clock.items()}
    return tensors, {"pair": pair_facts, "clock": clock_facts}


def put_back_(attached: Attached, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Bring a network to the state of a snapshot, bit for bit."""
    unpack_pair_(attached.model, attached.optimizer, _part(tensors, _PAIR), metadata["pair"])
    attached.load_state_dict(put_together(_part(tensors, _CLOCK), metadata["clock"]))


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
