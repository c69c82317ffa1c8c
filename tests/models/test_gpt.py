"""The GPT against a NumPy re-derivation, sizes by hand, and causality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.paths import path_scores
from pathgrow.graph.scope import scope

Array = NDArray[np.float64]
TINY: dict[str, Any] = {"context": 5, "dim": 6, "depth": 2, "heads": 3, "mlp_ratio": 2.0}


def randomized(seed: int = 0) -> models.ReferenceModel:
    """A tiny model whose parameters all differ from their initial values."""
    model = models.create("gpt", 7, seed=seed, **TINY).double().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draw))
    return model


def numpy_logits(weights: dict[str, Array], tokens: NDArray[np.int64], heads: int) -> Array:
    """The logits of one sequence, position by position and head by head."""

    def norm(x: Array, name: str) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        scaled: Array = centered / np.sqrt(centered.var(-1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.zeros(()))

    x = weights["token_embed.weight"][tokens] + weights["pos_embed"][0, : len(tokens)]
    dim = x.shape[1]
    size = dim // heads
    for block in ("blocks.0", "blocks.1"):
        qkv = linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        mixed = np.zeros_like(x)
        for head in range(heads):
            q, k, v = (qkv[:, part * dim + head * size : part * dim + (head + 1) * size] for part in range(3))
            for position in range(len(tokens)):
                logits = np.array([q[position] @ k[earlier] / math.sqrt(size) for earlier in range(position + 1)])
                chances = np.exp(logits) / np.exp(logits).sum()
                mixed[position, head * size : (head + 1) * size] = chances @ v[: position + 1]
        x = x + linear(mixed, f"{block}.attn.proj")
        hidden = linear(norm(x, f"{block}.norm2"), f"{block}.fc1")
        gelu = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        x = x + linear(gelu, f"{block}.fc2")
    return linear(norm(x, "norm"), "head")


def test_logits_are_those_of_a_numpy_re_derivation() -> None:
    model = randomized()
    tokens = torch.tensor([[3, 1, 4, 1, 5], [0, 6, 2, 6, 0]])
    weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    with torch.no_grad():
        found = model(tokens)
        short = model(tokens[:, :3])
    expected = np.stack([numpy_logits(weights, row, heads=3) for row in tokens.numpy()])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(short.numpy(), expected[:, :3], rtol=1e-9)


@pytest.mark.parametrize("changed", range(5))
def test_a_later_token_does_not_change_earlier_logits(changed: int) -> None:
    model = randomized()
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    other = tokens.clone()
    other[0, changed] = 6
    with torch.no_grad():
        before, after = model(tokens)[0], model(other)[0]
    assert torch.equal(before[:changed], after[:changed])
    assert bool((before[changed:] != after[changed:]).any(dim=1).all())


def test_sizes_by_hand() -> None:
    model = models.create("gpt", 65, seed=0)
    dim, per_block = 384, 12 * 384**2
    rest = 65 * dim + 256 * dim + 6 * (dim + 4 * dim + dim + 4 * dim) + 2 * dim + 65 * dim  # biases and norms of blocks
    assert sum(parameter.numel() for parameter in model.parameters()) == 6 * per_block + rest == 10_788_864
    assert scope(model).num == 6 * 10 * dim**2  # without queries and keys
    products = 6 * 2 * 256**2 * dim
    assert forward_macs(trace(model)) == 256 * (6 * per_block + 65 * dim) + products


def test_every_prunable_weight_is_on_a_path() -> None:
    model = models.create("gpt", 7, seed=0, **TINY)
    inside = scope(model)
    scores = path_scores(model, model.example_input())
    assert set(inside) == {
        f"blocks.{block}.{layer}.weight" for block in (0, 1) for layer in ("attn.qkv", "attn.proj", "fc1", "fc2")
    }
    for name, mask in inside.items():
        assert bool((scores[name][mask] > 0).all())
        assert not bool(scores[name][~mask].any())


def test_initial_weights_are_small_and_smaller_where_branches_join() -> None:
    model = models.create("gpt", 65, seed=0, depth=2, dim=192)
    for name, parameter in model.named_parameters():
        if parameter.numel() > 10_000:
            deviation = 0.02 / (2 if name.endswith(("proj.weight", "fc2.weight")) else 1)  # sqrt(2 x 2 blocks) is 2
            assert parameter.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(2 * parameter.numel())), name
        elif name.endswith("bias"):
            assert not parameter.any()
    again, other = (models.create("gpt", 65, seed=seed, depth=2, dim=192).state_dict() for seed in (0, 1))
    assert torch.equal(again["pos_embed"], model.state_dict()["pos_embed"])
    assert not torch.equal(other["pos_embed"], model.state_dict()["pos_embed"])


def test_dropout_is_active_in_training_only() -> None:
    model = models.create("gpt", 7, seed=0, **TINY)
    tokens = model.example_input()
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"), ({"heads": 5}, "heads must divide dim")],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        models.create("gpt", 7, **options)
