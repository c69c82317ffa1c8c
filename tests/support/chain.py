"""A chain of three linear layers with masks, and its gradients written out in NumPy: for tests of update rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pathgrow.masks import Masks
from pathgrow.methods.method import Method
from pathgrow.sparse.attach import Attached, attach

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
NAMES = ("0.weight", "2.weight", "4.weight")
SIZES = (6, 8, 5, 3)


def chain(density: float = 0.4, seed: int = 3) -> tuple[nn.Sequential, Masks]:
    """In float64 and with leaky units, so that no two scores are equal: not by rounding, nor because a unit is dead."""
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        a, b, c, d = SIZES
        model = nn.Sequential(
            nn.Linear(a, b), nn.LeakyReLU(0.1), nn.Linear(b, c), nn.LeakyReLU(0.1), nn.Linear(c, d)
        ).double()
    masks = Masks({name: torch.rand(model.get_parameter(name).shape, generator=draw) < density for name in NAMES})
    return model, masks


def attached(
    method: Method, model: nn.Module, masks: Masks | None = None, *, lr: float = 0.05, seed: int = 0, **options: Any
) -> Attached:
    """The method attached to a model, optionally from known masks."""
    if masks is not None:
        method = dataclasses.replace(
            method, start=lambda net, candidates, count, draw: masks, start_density=masks.density
        )
    optimizer = SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)
    return attach(model, optimizer, method, scope=Masks.full(model), seed=seed, **options)


def batch(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1000 + step)
    sizes = (7, SIZES[0]), (7, SIZES[-1])
    x, y = (torch.randn(size, generator=draw, dtype=torch.float64) for size in sizes)
    return x, y


def squares(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(pair[0]), pair[1])


def train(sparse: Attached, step: int) -> None:
    sparse.optimizer.zero_grad()
    squares(sparse.model, batch(step)).backward()
    sparse.optimizer.step()


def weights(model: nn.Module) -> Arrays:
    return {name: model.get_parameter(name).detach().numpy().copy() for name in NAMES}


def momenta(sparse: Attached) -> Arrays:
    slots = ((name, sparse.optimizer.state.get(sparse.model.get_parameter(name), {})) for name in NAMES)
    return {name: found["momentum_buffer"].numpy().copy() for name, found in slots if found}


def flags(masks: Masks) -> Arrays:
    return {name: masks[name].numpy().copy() for name in NAMES}


def gradients(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Arrays:
    """Backpropagation by hand of the mean squared error, for every position, on or off."""
    inputs, h = [], pair[0].numpy()
    for name in NAMES:
        inputs.append(h)
        bias = model.get_parameter(name.replace("weight", "bias")).detach().numpy()
        z = h @ weights(model)[name].T + bias
        h = z if name == NAMES[-1] else np.where(z > 0, z, 0.1 * z)
    back = 2 * (h - pair[1].numpy()) / h.size
    found = {}
    for name, before in zip(reversed(NAMES), reversed(inputs), strict=True):
        found[name] = back.T @ before
        back = (back @ weights(model)[name]) * np.where(before > 0, 1, 0.1)
    return found


def best(scores: Array, candidates: Array, num: int) -> Array:
    """The `num` largest among the candidates, by sorting."""
    order = sorted(np.flatnonzero(candidates), key=lambda place: -scores.reshape(-1)[place])
    result = np.zeros(scores.size, dtype=bool)
    result[order[:num]] = True
    return result.reshape(scores.shape)


def best_of_all(scores: Arrays, candidates: Arrays, num: int) -> Arrays:
    """The same over all layers together."""
    flat, able = (np.concatenate([group[name].reshape(-1) for name in NAMES]) for group in (scores, candidates))
    chosen = best(flat, able, num)
    ends = np.cumsum([scores[name].size for name in NAMES])[:-1]
    return {name: part.reshape(scores[name].shape) for name, part in zip(NAMES, np.split(chosen, ends), strict=True)}


def magnitudes(arrays: Arrays) -> Arrays:
    return {name: abs(array) for name, array in arrays.items()}


def num_on(arrays: Arrays) -> int:
    return int(sum(array.sum() for array in arrays.values()))


def same(found: Arrays, wanted: Arrays) -> bool:
    return all(np.array_equal(found[name], wanted[name]) for name in NAMES)


def steps(sparse: Attached, num: int) -> Iterator[tuple[int, Arrays, Arrays, Arrays, Arrays]]:
    """Train; before each step: its number, what is on, weights, momenta, and the dense gradients of its batch."""
    for step in range(num):
        yield step, flags(sparse.masks), weights(sparse.model), momenta(sparse), gradients(sparse.model, batch(step))
        train(sparse, step)
