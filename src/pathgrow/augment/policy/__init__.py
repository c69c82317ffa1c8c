"""AutoAugment on whole batches: two rounds, in each of which every image has one operation of its own.

Whatever an operation is, every image goes through the same three functions: a warp, a lookup table per channel and a
blend with a duller version of itself. Each is the identity for an image whose operation is of another kind. No image
is picked out, so shapes are static and there is nothing to wait for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathgrow.augment.policy.blends import blend
from pathgrow.augment.policy.lookups import remap
from pathgrow.augment.policy.operations import IDENTITY, Operation, operation
from pathgrow.augment.policy.tables import POLICIES
from pathgrow.augment.policy.warps import warp

CHANNELS = (1, 3)
"""Grey or RGB: the only images for which colour operations mean anything."""
NUM_ROUNDS = 2


def draw(batches: tuple[int, int], name: str, height: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """`policy_warp` (..., 2, 6), `policy_op` and `policy_level` (..., 2): the operations of both rounds, worked out."""
    pairs = POLICIES[name]
    probability = torch.tensor([[step[1] for step in pair] for pair in pairs], dtype=torch.float64)
    choice = torch.randint(len(pairs), batches, generator=generator)
    negative = torch.randint(2, (*batches, NUM_ROUNDS), generator=generator)
    happens = torch.rand(*batches, NUM_ROUNDS, generator=generator, dtype=torch.float64) < probability[choice]
    # Each step with either sign is one row of a small table; the identity stands at its end.
    rows = [
        operation(kind, level, sign, height, width) for pair in pairs for kind, _, level in pair for sign in (1, -1)
    ]
    which = (choice[..., None] * NUM_ROUNDS + torch.arange(NUM_ROUNDS)) * 2 + negative
    return pack([*rows, IDENTITY], torch.where(happens, which, len(rows)))


def pack(rows: list[Operation], which: Tensor) -> dict[str, Tensor]:
    """The operations numbered `which`, as the tensors that `apply` takes."""
    return {
        "policy_warp": torch.tensor([row.warp for row in rows], dtype=torch.int32)[which],
        "policy_op": torch.tensor([row.op for row in rows], dtype=torch.int32)[which],
        "policy_level": torch.tensor([row.level for row in rows], dtype=torch.float32)[which],
    }


def apply(images: Tensor, matrix: Tensor, op: Tensor, level: Tensor) -> Tensor:
    """Bytes in, bytes out; the arguments after `images` are one batch's rows of `draw`."""
    for turn in range(NUM_ROUNDS):
        images = warp(images, matrix[:, turn])
        images = remap(images, op[:, turn], level[:, turn])
        images = blend(images, op[:, turn], level[:, turn])
    return images
