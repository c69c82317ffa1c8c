"""Transformer layers shared by ViT, PiT and GPT, including the locality self-attention of Lee et al. (2021)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError, require
from pathgrow.models.blocks import ReferenceModel, xavier_


class VisionTransformer(ReferenceModel):
    """Base of ViT and PiT: a class token, learned positions, and a classifier that reads the class token."""

    def __init__(self, in_channels: int, image_size: int, patch: int, drop_path: float) -> None:
        super().__init__((in_channels, image_size, image_size))
        if image_size % patch:
            raise UserError(f"patch must divide image_size ({image_size}), got {patch}")
        require(0 <= drop_path < 1, "drop_path", drop_path, "in [0, 1)")

    def add_tokens_and_head(
        self, dim: int, num_positions: int, dim_out: int, classes: int, generator: torch.Generator | None
    ) -> None:
        """Add what surrounds the blocks, and initialize all weights."""
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, num_positions, dim))
        self.norm = nn.LayerNorm(dim_out)
        self.head = nn.Linear(dim_out, classes)
        xavier_(self, generator)
        # Small, so a token's content initially outweighs its position.
        nn.init.normal_(self.cls_token, std=0.02, generator=generator)
        nn.init.normal_(self.pos_embed, std=0.02, generator=generator)


class Patches(nn.Conv2d):
    """Embed the patches of an image as tokens: `(B, C, H, W)` to `(B, T, dim)`."""

    def __init__(self, in_channels: int, dim: int, patch: int) -> None:
        super().__init__(in_channels, dim, patch, stride=patch)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention; `qkv.weight` stacks the rows of queries, keys and values in this order."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise UserError(f"heads must divide dim ({dim}), got {heads}")
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
        """Return the attention output; all tensors are `(batch, heads, tokens, dim / heads)`."""
        return F.scaled_dot_product_attention(queries, keys, values)


class LocalityAttention(Attention):
    """Self-attention in which no token attends to itself and every head learns its temperature (LSA).

    Parameters
    ----------
    tokens : int
        Sequence length including the class token.
    """

    others: Tensor

    def __init__(self, dim: int, heads: int, tokens: int) -> None:
        super().__init__(dim, heads)
        # An inverse temperature: it multiplies the logits as in the authors' code, while their formula divides by it.
        self.scale = nn.Parameter(torch.full((heads,), (dim // heads) ** -0.5))
        self.register_buffer("others", ~torch.eye(tokens, dtype=torch.bool), persistent=False)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        queries = queries * self.scale.view(-1, 1, 1)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.others, scale=1.0)


class Block(nn.Module):
    """Pre-norm transformer block.

    Training drops each value of a branch with probability `dropout`, and the whole branch of a sample with `drop_path`
    (stochastic depth).
    """

    def __init__(
        self, attention: Attention, dim: int, mlp_ratio: float, drop_path: float = 0.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        hidden = round(mlp_ratio * dim)
        if hidden < 1:
            raise UserError(f"mlp_ratio must leave at least one hidden unit, got {mlp_ratio} (dim {dim})")
        self.drop_path = drop_path
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._kept(self.attn(self.norm1(x)))
        return x + self._kept(self.fc2(F.gelu(self.fc1(self.norm2(x)))))

    def _kept(self, branch: Tensor) -> Tensor:
        if self.dropout > 0:
            branch = F.dropout(branch, self.dropout, self.training)
        if not self.training or self.drop_path == 0:
            return branch
        # Dropout of one value per sample gives 0 or 1/(1 - p), which is scaled stochastic depth.
        return branch * F.dropout(branch.new_ones(branch.shape[0], 1, 1), self.drop_path)
