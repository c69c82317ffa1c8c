"""Weights and momentum of whole trainings in which masks change before a step, written out in NumPy.

RigL, whose change takes the place of the step, is in `test_rewiring.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pathgrow import methods
from tests.support.chain import NAMES, Arrays, attached, batch, chain, flags, same, squares, steps

LR, MOMENTUM, DECAY = 0.05, 0.9, 0.01
"""Those of `attached`."""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("set", {}),
        ("set", {"by_sign": True}),
        ("itop", {"criterion": "random"}),
        ("itop", {"criterion": "gradient"}),
        ("snfs", {}),
        ("dsr", {"threshold": 0.1}),
        ("gse", {}),
        ("granet", {"start_density": 0.6}),
        ("gmp", {"start_fraction": 0.0}),
    ],
)
def test_new_weights_start_from_nothing_and_all_others_go_on(name: str, options: dict[str, Any]) -> None:
    method = methods.create(name, density=0.3, num_steps=40, update_interval=4, **options)
    sparse = attached(method, chain()[0], loss=squares, batches=[batch(99)])
    before: tuple[Arrays, ...] | None = None
    num_new = num_gone = 0
    for _, on, now, state, gradient in steps(sparse, 30):
        if before is not None:
            for layer in NAMES:
                was_on, weight, momentum, pull = (arrays[layer] for arrays in before)
                stayed = was_on & on[layer]
                num_new, num_gone = num_new + int((on[layer] & ~was_on).sum()), num_gone + int((was_on & ~stayed).sum())
                # A new weight takes part in this very step, by its own gradient and from zero.
                momentum = MOMENTUM * momentum * stayed + (pull + DECAY * weight * stayed) * on[layer]
                np.testing.assert_allclose(state[layer], momentum, rtol=1e-9, atol=1e-15)
                np.testing.assert_allclose(now[layer], weight * stayed - LR * momentum, rtol=1e-9, atol=1e-15)
        none_yet = {layer: np.zeros_like(array) for layer, array in now.items()}
        before = on, now, state or none_yet, gradient
    assert num_gone > 10
    assert num_new > 10 or name == "gmp"


@pytest.mark.parametrize(
    ("name", "options", "looks"),
    [
        ("set", {}, False),
        ("itop", {"criterion": "random"}, False),
        ("dsr", {"threshold": 0.1}, False),
        ("gmp", {"start_fraction": 0.0}, False),
        ("rigl", {}, True),
        ("itop", {"criterion": "gradient"}, True),
    ],
)
def test_who_looks_at_gradients(name: str, options: dict[str, Any], looks: bool) -> None:
    def changed(seed: int) -> tuple[Arrays, Arrays]:
        sparse = attached(methods.create(name, density=0.3, num_steps=40, update_interval=4, **options), chain()[0])
        sparse.step, before = 4, flags(sparse.masks)
        draw = torch.Generator().manual_seed(seed)
        for parameter in sparse.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
        sparse.optimizer.step()
        return before, flags(sparse.masks)

    (before, after), (_, other) = changed(0), changed(1)
    assert not same(before, after)
    assert same(after, other) is not looks
