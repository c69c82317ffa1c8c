"""Path scores: scale, zero layers, tied weights, and refused weights and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph.paths import path_scores, signals


@pytest.mark.parametrize("name", ["resnet110", "resnet50"])
def test_nothing_overflows_at_depth(name: str) -> None:
    model = models.create(name, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1e6)  # far beyond what float64 could hold as a product over the layers
    example = torch.ones(1, 3, 32, 32)
    found = signals(model, example)
    assert found.log2_total > 1024
    assert found.total == float("inf")
    for _, score in found.scores():
        assert bool(torch.isfinite(score).all())
        assert bool((score > 0).any())


def test_scaling_does_not_change_scores() -> None:
    """Powers of two inside the pass are exact: a network scaled far out of range scores like the plain one."""
    model = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(12)))
    plain = path_scores(model, torch.ones(1, 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0**100)
    for name, score in path_scores(model, torch.ones(1, 6)).items():
        torch.testing.assert_close(score * 2.0**100, plain[name], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("meet", ["cat", "add", "where"])
def test_branches_that_were_rescaled_meet_in_proportion(meet: str) -> None:
    class Branches(nn.Module):
        """One branch reaches 2**70 on its way, and both are about 2**30 where they meet."""

        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(2, 3, bias=False), nn.Linear(3, 4, bias=False)
            self.plain = nn.Linear(2, 4, bias=False)
            self.head = nn.Linear(8 if meet == "cat" else 4, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.down(self.up(x)), self.plain(x)
            if meet == "cat":
                return self.head(torch.cat([b, a], 1))
            return self.head(b + a if meet == "add" else torch.where(torch.ones(4).bool(), b, a))

    model = Branches().double()
    with torch.no_grad():
        for layer, power in ((model.up, 70), (model.down, -40), (model.plain, 30)):
            layer.weight.mul_(2.0**power)
    up, down, plain, head = (p.detach().abs().numpy() for p in model.parameters())
    a, b = down @ up @ np.ones(2), plain @ np.ones(2)
    read_off = np.concatenate([b, a]) if meet == "cat" else a + b
    total = (head @ read_off).sum()
    assert signals(model, torch.ones(1, 2).double()).total == pytest.approx(total, rel=1e-12)
    scores = path_scores(model, torch.ones(1, 2).double())
    np.testing.assert_allclose(scores["head.weight"].numpy() * total, np.stack([read_off] * 2), rtol=1e-12)
    further = head.sum(0)[:4]
    np.testing.assert_allclose(scores["plain.weight"].numpy() * total, np.stack([further] * 2, axis=1), rtol=1e-12)


def test_batch_norm_by_its_scale() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 1, bias=False))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([-2.0, 1.0]))
        norm.running_var.copy_(torch.tensor([4.0, 0.25]))  # type: ignore[union-attr]
    example = torch.ones(1, 1, 1, 1)
    plain, scaled = path_scores(model, example), path_scores(model, example, batch_norm="scale")
    ratio = scaled["3.weight"] / plain["3.weight"]
    assert float(ratio[0, 1] / ratio[0, 0]) == pytest.approx(2.0, rel=1e-4)


def test_zero_initialized_head_gives_usable_scores() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    scores = path_scores(model, torch.ones(1, 4))
    assert all(bool((score > 0).all()) for score in scores.values())


def test_masks_that_cut_every_path_are_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(UserError, match="no path of nonzero weights"):
        path_scores(model, torch.ones(1, 4), {"0.weight": torch.zeros(5, 4, dtype=torch.bool)})


def test_a_zero_layer_counts_as_ones_only_if_it_is_not_prunable() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    kept = {name: torch.ones_like(model.get_parameter(name)).bool() for name in ("0.weight", "2.weight")}
    with pytest.raises(UserError, match=r"no nonzero weight: 2\.weight"):
        path_scores(model, torch.ones(1, 4), kept)
    del kept["2.weight"]
    assert bool((path_scores(model, torch.ones(1, 4), kept)["2.weight"] > 0).all())


def test_nan_weights_are_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    nn.init.constant_(model[0].weight, float("nan"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="NaN"):
        path_scores(model, torch.ones(1, 4))


def test_tied_weights_add_up() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.inner(F.relu(self.inner(x)))))

    model = Tied()
    weight, head = model.inner.weight.detach().double().abs(), model.head.weight.detach().double().abs()
    weight.requires_grad_()
    total = (head @ weight @ weight @ torch.ones(3, dtype=torch.float64)).sum()
    total.backward()
    assert weight.grad is not None
    torch.testing.assert_close(path_scores(model, torch.ones(1, 3))["inner.weight"], weight.grad / total.detach())


def test_masks_of_another_model_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(UserError, match=r"'0.weight' has shape \(2, 2\)"):
        path_scores(model, torch.ones(1, 4), {"0.weight": torch.ones(2, 2, dtype=torch.bool)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": 3}, "^model must be a torch.nn.Module, got 3"),
        ({"batch_norm": "x"}, "^batch_norm must be 'identity' or 'scale', got 'x'"),
        ({"masks": 3}, "^masks must be Masks or a mapping"),
        (
            {"masks": {"weigth": torch.ones(2, 2, dtype=torch.bool)}},
            "^unknown parameter in masks 'weigth': did you mean",
        ),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        path_scores(**{"model": nn.Linear(2, 2), "example_input": torch.ones(1, 2), **given})
