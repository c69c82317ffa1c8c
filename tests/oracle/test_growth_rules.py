"""The growth rules against their definitions, re-derived in NumPy on a small network."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.optim import SGD

from pathgrow import methods
from pathgrow.masks import Masks
from pathgrow.methods.method import NetworkView, ScoringCost
from pathgrow.rng import generator
from pathgrow.sparse.attach import Attached, attach

Array = npt.NDArray[np.float64]
NAMES = ("0.weight", "2.weight", "4.weight")


def chain() -> tuple[nn.Sequential, Masks]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    draw = torch.Generator().manual_seed(1)
    tensors = {name: torch.rand(model.get_parameter(name).shape, generator=draw) < 0.5 for name in NAMES}
    masks = Masks(tensors)
    with torch.no_grad():
        for name in NAMES:
            # Spread out, or sums of magnitudes and of squares would rank positions much alike.
            model.get_parameter(name).mul_(torch.randn(tensors[name].shape, generator=draw).exp())
    masks.apply_(model)
    return model, masks


def arrays(model: nn.Module) -> list[Array]:
    return [model.get_parameter(name).detach().numpy() for name in NAMES]


def path_products(weights: list[Array], power: int) -> list[Array]:
    """For each position, the sum over paths through it of the product of the other |weights|, path by path."""
    sizes = [weights[0].shape[1], *(w.shape[0] for w in weights)]
    scores = [np.zeros_like(w) for w in weights]
    for path in np.ndindex(*sizes):
        values = [abs(w[path[k + 1], path[k]]) ** power for k, w in enumerate(weights)]
        for k in range(len(weights)):
            scores[k][path[k + 1], path[k]] += np.prod(values[:k] + values[k + 1 :])
    return scores


def missing(masks: Masks, values: list[Array]) -> dict[tuple[str, int], float]:
    """Values of the missing positions by name and flat index."""
    return {
        (name, int(index)): float(value.reshape(-1)[index])
        for name, value in zip(NAMES, values, strict=True)
        for index in np.flatnonzero(~masks[name].numpy().reshape(-1))
    }


def positions(selection: Masks) -> set[tuple[str, int]]:
    return {(name, int(i)) for name in NAMES for i in np.flatnonzero(selection[name].numpy().reshape(-1))}


def gradients(model: nn.Module, x: Array, y: Array) -> list[Array]:
    """Backpropagation by hand of mean((model(x) - y)^2), every position, masked or not."""
    weights = arrays(model)
    biases = [model.get_parameter(name.replace("weight", "bias")).detach().numpy() for name in NAMES]
    inputs, h = [], x
    for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
        inputs.append(h)
        z = h @ w.T + b
        h = np.maximum(z, 0) if k < 2 else z
    back = 2 * (h - y) / h.size
    found = [np.zeros_like(w) for w in weights]
    for k in (2, 1, 0):
        found[k] = back.T @ inputs[k]
        back = (back @ weights[k]) * (inputs[k] > 0)
    return found


def first_picks(method: str, net: NetworkView, num: int) -> Counter[tuple[str, int]]:
    grow = methods.create(method).grow
    assert grow is not None
    candidates = net.masks.missing()
    return Counter(next(iter(positions(grow(net, candidates, 1, generator(seed, "draw"))))) for seed in range(num))


def p_value(counts: Counter[tuple[str, int]], shares: dict[tuple[str, int], float]) -> float:
    num, total = sum(counts.values()), sum(shares.values())
    likely = {key: share / total * num for key, share in shares.items() if share > 0}
    assert set(counts) <= set(likely), "a position without a score was drawn"
    return float(stats.chisquare([counts[key] for key in likely], list(likely.values())).pvalue)


@pytest.mark.parametrize(("method", "power"), [("gcg", 1), ("trace_growth", 2)])
def test_sampled_growth_follows_the_path_products(method: str, power: int) -> None:
    model, masks = chain()
    net = NetworkView(model, masks, Masks.select(Masks.full(model)), torch.ones(1, 3, dtype=torch.float64))
    shares = missing(masks, path_products(arrays(model), power))
    counts = first_picks(method, net, 1200)
    assert p_value(counts, shares) > 0.01
    # The test can tell the two rules apart: the law of the other one does not fit.
    assert p_value(counts, missing(masks, path_products(arrays(model), 3 - power))) < 1e-6


def test_random_growth_is_uniform_over_all_missing_positions() -> None:
    model, masks = chain()
    net = NetworkView(model, masks, Masks.select(Masks.full(model)))
    counts = first_picks("random_growth", net, 1200)
    assert p_value(counts, dict.fromkeys(missing(masks, arrays(model)), 1.0)) > 0.01


def attached(method: str, masks: Masks, model: nn.Module, **options: object) -> Attached:
    """The method on known masks, through `attach`."""
    made = methods.create(method, start_density=masks.density)
    started = dataclasses.replace(made, start=lambda net, candidates, count, draw: masks)
    optimizer = SGD(model.parameters(), lr=0.1)
    return attach(model, optimizer, started, torch.ones(1, 3, dtype=torch.float64), scope=Masks.full(model), **options)


def test_pathgrow_d_takes_the_largest_path_products_of_all_layers() -> None:
    model, masks = chain()
    scores = missing(masks, path_products(arrays(model), 1))
    ranked = sorted(scores, key=lambda key: -scores[key])
    # Missing weights of one unit of the first layer score alike, so not every border is clear.
    clear = [n for n in range(1, len(ranked)) if scores[ranked[n - 1]] > scores[ranked[n]] * (1 + 1e-9)]
    assert len(clear) >= 4
    for num in clear:
        sparse = attached("pathgrow_d", masks, model)
        sparse.grow_(num)
        assert positions(sparse.masks - masks) == set(ranked[:num])
        sparse.detach()


def test_pathgrow_d_breaks_ties_at_random() -> None:
    """With all weights 1 every missing position of the first layer scores alike."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    masks = Masks({"0.weight": torch.eye(3, dtype=torch.bool)})
    masks.apply_(model)
    net = NetworkView(model, masks, Masks.select(masks.scope, masks.scope), torch.ones(1, 3, dtype=torch.float64))
    grow = methods.create("pathgrow_d").grow
    assert grow is not None
    drawn = [grow(net, masks.missing(), 1, generator(seed, "tie"))["0.weight"] for seed in range(600)]
    counts = torch.stack(drawn).sum(0).reshape(-1).numpy()
    free = counts[~np.eye(3, dtype=bool).reshape(-1)]
    assert counts.sum() == free.sum() == 600
    assert stats.chisquare(free).pvalue > 0.01


def test_gradient_growth_takes_the_largest_gradients_of_all_layers() -> None:
    model, masks = chain()
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(50, 3)), draw.normal(size=(50, 2))
    by_hand = missing(masks, [np.abs(g) for g in gradients(model, x, y)])
    ranked = sorted(by_hand, key=lambda key: -by_hand[key])
    clear = [n for n in range(1, len(ranked)) if by_hand[ranked[n - 1]] > by_hand[ranked[n]] * (1 + 1e-9)]
    assert len(clear) >= 6

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    batches = [(torch.tensor(x), torch.tensor(y))]
    for num in clear:
        sparse = attached("gradient_growth", masks, model, loss=loss, batches=batches)
        sparse.grow_(num)
        assert positions(sparse.masks - masks) == set(ranked[:num])
        assert sparse.last_scoring_cost == ScoringCost(num_gradient_samples=50)
        sparse.detach()


@pytest.mark.parametrize("method", ["pathgrow_d", "random_growth", "gradient_growth", "trace_growth"])
def test_growth_methods_differ_only_in_where_they_grow(method: str) -> None:
    options = {"gamma": 0.5, "start_density": 0.02, "target_density": 0.3}
    gcg, other = methods.create("gcg", **options), methods.create(method, **options)
    assert other == dataclasses.replace(gcg, name=method, grow=other.grow, needs=other.needs)
    assert other.grow != gcg.grow
