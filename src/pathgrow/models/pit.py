"""The pooling-based vision transformer of Heo et al. (2021), by default in the size of Lee et al. (2021)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.blocks import ReferenceModel, check_drop_rate, xavier_
from pathgrow.models.transformer import Attention, Block, Patches, check_heads, check_patch, hidden_units


class Pool(nn.Module):
    """Halve the resolution and widen the tokens, like the stages of a ResNet.

    Patch tokens pass a strided depthwise convolution over their map, the class token a linear layer.
    """

    def __init__(self, dim_in: int, dim_out: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.conv = nn.Conv2d(dim_in, dim_out, 3, stride=2, padding=1, groups=dim_in)
        self.fc = nn.Linear(dim_in, dim_out)

    def forward(self, tokens: Tensor) -> Tensor:
        map_ = tokens[:, 1:].transpose(1, 2).unflatten(2, (self.side, self.side))
        return torch.cat([self.fc(tokens[:, :1]), self.conv(map_).flatten(2).transpose(1, 2)], dim=1)


class PiT(ReferenceModel):
    """Patch embedding, class token, and stages of transformer blocks with pooling layers between them.

    Parameters
    ----------
    image_size, patch : int
        The image is cut into `(image_size / patch) ** 2` tokens; `patch=2` is common at 32 pixels.
    dims, depths, heads : sequence of int
        One entry per stage; each of `dims` must be a multiple of the previous one.
    mlp_ratio : float
        Hidden units of a block's MLP, divided by its `dim`.
    drop_path : float
        Probability of dropping a branch, constant over depth; 0.1 in the paper.
    """

    def __init__(
        self,
        classes: int,
        *,
        image_size: int = 64,
        patch: int = 4,
        dims: Sequence[int] = (96, 192, 384),
        depths: Sequence[int] = (2, 6, 4),
        heads: Sequence[int] = (2, 4, 8),
        mlp_ratio: float = 2.0,
        in_channels: int = 3,
        drop_path: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((in_channels, image_size, image_size))
        check_patch(image_size, patch)
        check_drop_rate("drop_path", drop_path)
        _check_stages(dims, depths, heads)
        side = image_size // patch
        self.patch_embed = Patches(in_channels, dims[0], patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dims[0]))
        self.pos_embed = nn.Parameter(torch.empty(1, side**2, dims[0]))
        stages: list[nn.Module] = []
        before = None
        for dim, depth, num_heads in zip(dims, depths, heads, strict=True):
            if before is not None:
                stages.append(Pool(before, dim, side))
                side = (side + 1) // 2
            hidden = hidden_units(dim, mlp_ratio)
            stages.extend(Block(Attention(dim, num_heads), dim, hidden, drop_path) for _ in range(depth))
            before = dim
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(dims[-1])
        self.head = nn.Linear(dims[-1], classes)
        xavier_(self, generator)
        nn.init.normal_(self.cls_token, std=0.02, generator=generator)
        nn.init.normal_(self.pos_embed, std=0.02, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x) + self.pos_embed
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1)
        logits: Tensor = self.head(self.norm(self.stages(tokens)[:, 0]))
        return logits


def _check_stages(dims: Sequence[int], depths: Sequence[int], heads: Sequence[int]) -> None:
    if not len(dims) == len(depths) == len(heads) > 0:
        raise UserError(
            "dims, depths and heads must have one entry per stage, got "
            f"{len(dims)}, {len(depths)} and {len(heads)} entries"
        )
    for dim, num_heads in zip(dims, heads, strict=True):
        check_heads(dim, num_heads)
    for narrow, wide in pairwise(dims):
        if wide % narrow:
            raise UserError(f"each of dims must be a multiple of the previous one, got {wide} after {narrow}")
