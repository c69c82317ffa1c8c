"""The small-image vision transformer of Lee et al. (2021), with or without their tokenizer and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.init import xavier_
from pathgrow.models.options import check_heads, check_patch, check_probability, hidden_units
from pathgrow.models.reference import ReferenceModel
from pathgrow.models.transformer import Attention, Block, LocalityAttention, Patches


class ShiftedPatches(nn.Module):
    """Tokens that see half a patch beyond their own patch in every direction (SPT).

    The image and its four diagonal shifts by half a patch lie side by side as channels before it is cut into patches.
    """

    def __init__(self, in_channels: int, dim: int, patch: int) -> None:
        super().__init__()
        if patch % 2:
            raise UserError(f"patch is {patch}: shifted patches move by half a patch, choose an even one")
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


class ViT(ReferenceModel):
    """Patches, a class token and learned positions, then pre-norm blocks.

    Parameters
    ----------
    image_size, patch : int
        The image is cut into `(image_size / patch)` squared tokens; `patch` 4 is usual at 32 pixels.
    mlp_ratio : float
        Hidden units of a block's MLP over `dim`.
    drop_path : float
        Probability of dropping a branch, the same at every depth; 0.1 in the paper's recipe.
    spt : bool
        Shifted patch tokenization: a token reads its neighbourhood, not its patch alone.
    lsa : bool
        Locality self-attention: no token attends to itself, and the softmax temperature of a head is learned.
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
        super().__init__((in_channels, image_size, image_size))
        check_patch(image_size, patch)
        check_heads(dim, heads)
        check_probability("drop_path", drop_path)
        hidden = hidden_units(dim, mlp_ratio)
        tokens = (image_size // patch) ** 2 + 1
        self.patch_embed = (ShiftedPatches if spt else Patches)(in_channels, dim, patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, tokens, dim))
        blocks = []
        for _ in range(depth):
            attention = LocalityAttention(dim, heads, tokens) if lsa else Attention(dim, heads)
            blocks.append(Block(attention, dim, hidden, drop_path))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        xavier_(self, generator)
        # Small, so that at the start a token's content outweighs its place.
        nn.init.normal_(self.cls_token, std=0.02, generator=generator)
        nn.init.normal_(self.pos_embed, std=0.02, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits
