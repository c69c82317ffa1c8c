"""A character-level GPT: the transformer block of the ViT with causal attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import require
from pathgrow.models.blocks import ReferenceModel
from pathgrow.models.transformer import Attention, Block

_INIT_STD = 0.02


class CausalAttention(Attention):
    """Self-attention in which a position attends to itself and to earlier ones."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


class GPT(ReferenceModel):
    """Token and position embeddings, pre-norm blocks, and a head that predicts the next token at every position.

    Parameters
    ----------
    classes : int
        Number of different tokens.
    context : int
        Longest sequence.
    mlp_ratio : float
        Hidden units of a block's MLP, divided by `dim`.
    dropout : float
        Dropout of the embeddings and of every branch.
    """

    def __init__(
        self,
        classes: int,
        *,
        context: int = 256,
        dim: int = 384,
        depth: int = 6,
        heads: int = 6,
        mlp_ratio: float = 4.0,
        dropout: float = 0.2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((context,))
        require(0 <= dropout < 1, "dropout", dropout, "in [0, 1)")
        self.dropout = dropout
        self.token_embed = nn.Embedding(classes, dim)
        self.pos_embed = nn.Parameter(torch.empty(1, context, dim))
        blocks = [Block(CausalAttention(dim, heads), dim, mlp_ratio, dropout=dropout) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # So that the residual stream, the sum of all branches, has the same variance at any depth.
                scale = (2 * depth) ** -0.5 if name.endswith(("proj.weight", "fc2.weight")) else 1.0
                nn.init.normal_(parameter, std=_INIT_STD * scale, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def example_input(self) -> Tensor:
        """Return a batch of one sequence of zeros, on the model's device."""
        return torch.zeros(1, *self.input_shape, dtype=torch.int64, device=self.pos_embed.device)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.token_embed(tokens) + self.pos_embed[:, : tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(F.dropout(embedded, self.dropout, self.training))))
        return logits
