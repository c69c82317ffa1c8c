"""Wide ResNets against hand-computed sizes and a plain re-derivation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.scope import scope

SMALL = {"width": 4, "image_size": 16, "in_channels": 2}


@pytest.mark.parametrize(("name", "blocks"), [("wrn22_2", 3), ("wrn28_2", 4)])
def test_wide_resnet_sizes_by_hand(name, blocks):
    model = models.create(name, 10, seed=0)
    stem, kernels, shortcuts, norms, macs = 3 * 16 * 9, 0, 0, 0, 3 * 16 * 9 * 32**2
    for before, width, side in ((16, 32, 32), (32, 64, 16), (64, 128, 8)):
        stage = before * width * 9 + (2 * blocks - 1) * width * width * 9
        kernels += stage
        shortcuts += before * width
        norms += before + width + (blocks - 1) * 2 * width
        macs += (stage + before * width) * side**2
    total = stem + kernels + shortcuts + 2 * (norms + 128) + (128 + 1) * 10
    assert total == {"wrn22_2": 1_079_642, "wrn28_2": 1_467_610}[name]  # 1.08M and 1.47M in the literature
    assert sum(p.numel() for p in model.parameters()) == total
    assert scope(model).num == stem + kernels
    assert forward_macs(trace(model)) == macs + 128 * 10


def test_wide_resnet_computes_the_pre_activation_recipe():
    model = models.create("wrn22_2", 5, seed=0, width=4, image_size=8).eval()
    state = model.state_dict()
    g = torch.Generator().manual_seed(0)
    for value in state.values():  # running statistics and affine terms that matter
        if value.is_floating_point() and value.dim() == 1:
            value.copy_(torch.rand(value.shape, generator=g) + 0.5)

    def normed(x, key):
        mean, var, gain, bias = (
            state[f"{key}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * gain + bias).clamp(min=0)

    x = torch.randn(2, 3, 8, 8, generator=g)
    y = nn.functional.conv2d(x, state["conv1.weight"], padding=1)
    for stage in (1, 2, 3):
        for block in range(3):
            key = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            a = normed(y, f"{key}.bn1")
            b = nn.functional.conv2d(a, state[f"{key}.conv1.weight"], stride=stride, padding=1)
            b = nn.functional.conv2d(normed(b, f"{key}.bn2"), state[f"{key}.conv2.weight"], padding=1)
            # The first block of every stage projects what was activated; the others add their raw input.
            y = b + (y if block else nn.functional.conv2d(a, state[f"{key}.shortcut.weight"], stride=stride))
    logits = normed(y, "bn").mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    with torch.no_grad():
        torch.testing.assert_close(model(x), logits, rtol=1e-4, atol=1e-4)


def test_wide_resnet_drops_in_training_only():
    model = models.create("wrn22_2", 3, seed=0, dropout=0.5, **SMALL)
    plain = models.create("wrn22_2", 3, seed=0, dropout=0.0, **SMALL)
    x = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), plain.eval()(x))
        assert not torch.equal(model.train()(x), plain.train()(x))


@pytest.mark.parametrize("name", ["wrn22_2", "wrn28_2"])
def test_wide_resnets_drop_as_in_rigl_and_sparse_momentum(name: str):
    drops = [module.dropout for module in models.create(name, 3).modules() if hasattr(module, "dropout")]
    assert set(drops) == {0.3}
