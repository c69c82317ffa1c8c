"""Every reference model can be read, scored, seeded and counted."""

from __future__ import annotations

import pytest
import torch

from pathgrow import models
from pathgrow.graph.paths import path_scores
from pathgrow.graph.scope import scope
from pathgrow.walks.phew import phew

VIT = {"image_size": 16, "patch": 4, "dim": 12, "depth": 2, "heads": 3}
SMALL = [
    ("mlp", {}),
    ("pit", {"image_size": 16, "patch": 2, "dims": [4, 8, 16], "depths": [1, 2, 1], "heads": [2, 4, 4]}),
    ("resnet20", {"width": 4, "image_size": 16}),
    ("resnet18", {"width": 4, "image_size": 32}),
    ("resnet50", {"width": 4, "image_size": 64}),
    ("vit", VIT),
    ("vit", {**VIT, "spt": True}),
    ("vit", {**VIT, "lsa": True}),
    ("vit", {**VIT, "spt": True, "lsa": True}),
    ("wrn22_2", {"width": 4, "image_size": 16}),
    ("wrn28_2", {"width": 4, "image_size": 16, "widen": 1}),
    ("timm:resnet10t", {"image_size": 64}),
    ("timm:test_vit", {"image_size": 64}),
]


def made(name, options, seed=0):
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    return models.create(name, 5, seed=seed, **options)


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_path_scores_are_positive_exactly_on_the_scope(name, options):
    model = made(name, options)
    scores, inside = path_scores(model), scope(model)
    for key, positions in inside.items():
        assert torch.equal(scores[key] > 0, positions), key
    parameters = dict(model.named_parameters())
    # Whatever else has a score was left out by a rule, not for want of paths.
    dense = {key for key, score in scores.items() if key not in inside and bool((score > 0).any())}
    ends = DENSE[name.partition(":")[0]]
    assert dense == {key for key, value in parameters.items() if key.endswith(ends) and value.ndim > 1}


DENSE = {
    "mlp": ("layers.2.weight",),
    "pit": ("patch_embed.weight", "head.weight"),
    "resnet18": ("downsample.0.weight", "fc.weight"),
    "resnet20": ("downsample.0.weight", "fc.weight"),
    "resnet50": ("downsample.0.weight", "fc.weight"),
    "timm": ("downsample.0.weight", "downsample.1.weight", "fc.weight", "patch_embed.proj.weight", "head.weight"),
    "vit": ("patch_embed.weight", "patch_embed.proj.weight", "head.weight"),
    "wrn22_2": ("shortcut.weight", "fc.weight"),
    "wrn28_2": ("shortcut.weight", "fc.weight"),
}
"""Ends of the names of layers with paths that no rule may switch: embeddings, projection shortcuts, outputs."""


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_phew_seeds_whole_paths(name, options):
    model = made(name, options)
    inside = scope(model)
    masks = phew(model, model.example_input(), 0.1, inside)
    assert masks.num_on == round(0.1 * inside.num)
    # Scored with its kept weights alone, every kept weight still lies on a path from input to output.
    scores = path_scores(model, masks=masks)
    assert all(bool((scores[key][kept & inside[key]] > 0).all()) for key, kept in masks.items())
