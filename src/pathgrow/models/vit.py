"""The small-image vision transformer of Lee et al. (2021), without their tokenizer and attention changes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.init import xavier_
from pathgrow.models.reference import ReferenceModel


class Attention(nn.Module):
    """Multi-head self-attention; rows of `qkv.weight`: a third each of queries, keys and values, in this order."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        queries, keys, values = (
            self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))
        return out


class Block(nn.Module):
    """Pre-norm transformer block; in training a whole branch is dropped per sample with probability `drop_path`."""

    def __init__(self, dim: int, heads: int, hidden: int, drop_path: float) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._kept(self.attn(self.norm1(x)))
        return x + self._kept(self.fc2(F.gelu(self.fc1(self.norm2(x)))))

    def _kept(self, branch: Tensor) -> Tensor:
        if not self.training or self.drop_path == 0:
            return branch
        # Dropout of one value per sample is 0 or 1/(1 - p): exactly the scaled stochastic depth that is wanted.
        return branch * F.dropout(branch.new_ones(branch.shape[0], 1, 1), self.drop_path)


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
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((in_channels, image_size, image_size))
        if image_size % patch:
            raise UserError(
                f"image_size {image_size} is no multiple of patch {patch}: choose a patch size that divides it"
            )
        if dim % heads:
            raise UserError(f"dim {dim} is no multiple of heads {heads}: choose a number of heads that divides it")
        hidden = round(mlp_ratio * dim)
        if hidden < 1:
            raise UserError(f"mlp_ratio is {mlp_ratio}: give a positive number that leaves at least one hidden unit")
        if not 0 <= drop_path < 1:
            raise UserError(f"drop_path is {drop_path}: give a probability from 0 up to, not including, 1")
        self.patch_embed = nn.Conv2d(in_channels, dim, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, (image_size // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, hidden, drop_path) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        xavier_(self, generator)
        # Small, so that at the start a token's content outweighs its place.
        nn.init.normal_(self.cls_token, std=0.02, generator=generator)
        nn.init.normal_(self.pos_embed, std=0.02, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits
