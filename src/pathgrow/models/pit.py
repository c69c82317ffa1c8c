"""The pooling-based vision transformer of Heo et al. (2021), by default in the size of Lee et al. (2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.transformer import Attention, Block, Patches, VisionTransformer


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


class PiT(VisionTransformer):
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
        super().__init__(in_channels, image_size, patch, drop_path)
        if not len(dims) == len(depths) == len(heads) > 0:
            raise UserError(
                "dims, depths and heads must have one entry per stage, got "
                f"{len(dims)}, {len(depths)} and {len(heads)} entries"
            )
        num_positions = (image_size // patch) ** 2
        self.patch_embed = Patches(in_channels, dims[0], patch)
        stages: list[nn.Module] = []
        before, side = dims[0], image_size // patch
        for number, (dim, depth, num_heads) in enumerate(zip(dims, depths, heads, strict=True)):
            if dim % before:
                raise UserError(f"each of dims must be a multiple of the previous one, got {dim} after {before}")
            if number:
                stages.append(Pool(before, dim, side))
                side = (side + 1) // 2
            stages.extend(Block(Attention(dim, num_heads), dim, mlp_ratio, drop_path) for _ in range(depth))
            before = dim
        self.stages = nn.Sequential(*stages)
        self.add_tokens_and_head(dims[0], num_positions, dims[-1], classes, generator)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x) + self.pos_embed
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1)
        logits: Tensor = self.head(self.norm(self.stages(tokens)[:, 0]))
        return logits
