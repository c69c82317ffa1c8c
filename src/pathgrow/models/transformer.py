"""What the ViT and the PiT are built of, and the locality attention of Lee et al. (2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Patches(nn.Conv2d):
    """Every patch of an image becomes a token: `(B, C, H, W)` to `(B, T, dim)`."""

    def __init__(self, in_channels: int, dim: int, patch: int) -> None:
        super().__init__(in_channels, dim, patch, stride=patch)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).flatten(2).transpose(1, 2)


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
        mixed = self.attend(queries, keys, values)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))
        return out

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Values mixed by softmax, each `(batch, heads, tokens, dim / heads)`."""
        return F.scaled_dot_product_attention(queries, keys, values)


class LocalityAttention(Attention):
    """Self-attention in which no token attends to itself and every head learns how sharply it attends (LSA).

    Parameters
    ----------
    tokens : int
        Length of the sequence, class token included.
    """

    others: Tensor

    def __init__(self, dim: int, heads: int, tokens: int) -> None:
        super().__init__(dim, heads)
        # An inverse temperature: a factor of the logits, as in the authors' code, not a divisor as in their formula.
        self.scale = nn.Parameter(torch.full((heads,), (dim // heads) ** -0.5))
        self.register_buffer("others", ~torch.eye(tokens, dtype=torch.bool), persistent=False)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        queries = queries * self.scale.view(-1, 1, 1)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.others, scale=1.0)


class Block(nn.Module):
    """Pre-norm transformer block; in training a whole branch is dropped per sample with probability `drop_path`."""

    def __init__(self, attention: Attention, dim: int, hidden: int, drop_path: float) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attention
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
