"""The small-image vision transformer of Lee et al. (2021), optionally with their tokenizer and attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.transformer import Attention, Block, LocalityAttention, Patches, VisionTransformer


class ShiftedPatches(nn.Module):
    """Tokens that also see half a patch in every direction around their own patch (SPT).

    The image and its four diagonal shifts by half a patch are concatenated as channels before patches are cut.
    """

    def __init__(self, in_channels: int, dim: int, patch: int) -> None:
        super().__init__()
        if patch % 2:
            raise UserError(f"patch must be even if spt is on (images are shifted by half a patch), got {patch}")
        self.patch = patch
        self.norm = nn.LayerNorm(5 * in_channels * patch**2)
        self.proj = nn.Linear(5 * in_channels * patch**2, dim)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        half = self.patch // 2
        padded = F.pad(x, (half, half, half, half))
        corners = [(row, column) for row in (0, 2 * half) for column in (0, 2 * half)]
        shifts = [padded[:, :, row : row + height, column : column + width] for row, column in corners]
        patches = F.pixel_unshuffle(torch.cat([x, *shifts], dim=1), self.patch).flatten(2).transpose(1, 2)
        tokens: Tensor = self.proj(self.norm(patches))
        return tokens


class ViT(VisionTransformer):
    """Patch embedding, class token and learned positions, followed by pre-norm blocks.

    Parameters
    ----------
    image_size, patch : int
        The image is cut into `(image_size / patch) ** 2` tokens; `patch=4` is common at 32 pixels.
    mlp_ratio : float
        Hidden units of a block's MLP, divided by `dim`.
    drop_path : float
        Probability of dropping a branch, constant over depth; 0.1 in the paper.
    spt : bool
        Shifted patch tokenization: tokens also read the neighborhood of their patch.
    lsa : bool
        Locality self-attention: no token attends to itself, and each head learns its softmax temperature.
    """

    def __init__(
        self,
        classes: int,
        *,
        image_size: int = 64,
        patch: int = 8,
        dim: int = 192,
        depth: int = 9,
        heads: int = 12,
        mlp_ratio: float = 2.0,
        in_channels: int = 3,
        drop_path: float = 0.0,
        spt: bool = False,
        lsa: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(in_channels, image_size, patch, drop_path)
        tokens = (image_size // patch) ** 2 + 1
        self.patch_embed = (ShiftedPatches if spt else Patches)(in_channels, dim, patch)
        blocks = []
        for _ in range(depth):
            attention = LocalityAttention(dim, heads, tokens) if lsa else Attention(dim, heads)
            blocks.append(Block(attention, dim, mlp_ratio, drop_path))
        self.blocks = nn.Sequential(*blocks)
        self.add_tokens_and_head(dim, tokens, dim, classes, generator)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits
