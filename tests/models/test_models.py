"""The reference models: sizes of the literature, seeds, options, and that every model can be traced and scored."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.paths import path_scores
from pathgrow.graph.scope import scope
from pathgrow.walks.phew import phew

# name, classes, options, all parameters, prunable weights, millions of MACs and their rounding
SIZES = [
    ("resnet20", 10, {}, 272_474, 267_696, 40.81, 2),
    ("resnet32", 10, {}, 466_906, 461_232, 69.12, 2),
    ("resnet32x2", 10, {}, 1_860_522, 1_844_064, 275.61, 2),  # 1.86 M in the tables of GraSP and MEST
    ("resnet56", 100, {}, 861_620, 848_304, 125.75, 2),
    ("resnet18", 200, {}, 11_271_432, 10_987_200, 2221.8, 1),
    ("resnet18", 200, {"stem": "imagenet"}, 11_279_112, 10_994_880, 148.1, 1),
    ("resnet50", 1000, {}, 25_557_032, 20_686_016, 4089, 0),
    ("vit", 200, {}, 2_756_744, 1_990_656, 189.5, 1),
    ("vit", 200, {"spt": True}, 2_906_120, 1_990_656, 199.0, 1),
    ("vit", 200, {"lsa": True}, 2_756_744 + 9 * 12, 1_990_656, 189.5, 1),
    ("vit", 200, {"spt": True, "lsa": True}, 2_906_120 + 9 * 12, 1_990_656, 199.0, 1),
]


@pytest.mark.parametrize(("name", "classes", "options", "num_parameters", "num_prunable", "macs", "digits"), SIZES)
def test_sizes_are_those_of_the_literature(name, classes, options, num_parameters, num_prunable, macs, digits):
    model = models.create(name, classes, seed=0, **options)
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    assert scope(model, example_input=model.example_input()).num == num_prunable
    assert round(forward_macs(trace(model, model.example_input())) / 1e6, digits) == macs


def test_mlp_sizes():
    model = models.create("mlp", 10)
    assert sum(p.numel() for p in model.parameters()) == (64 + 1) * 64 + (64 + 1) * 64 + (64 + 1) * 10
    assert scope(model, example_input=model.example_input()).num == 64 * 64 + 64 * 64
    assert forward_macs(trace(model, model.example_input())) == 64 * 64 + 64 * 64 + 64 * 10


@pytest.mark.parametrize(("name", "depth"), [("resnet20", 20), ("resnet44", 44), ("resnet110", 110)])
def test_depth_counts_weighted_layers_off_the_shortcuts(name, depth):
    model = models.create(name, 10)
    weighted = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "downsample" not in n]
    assert len(weighted) == depth


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_resnets_compute_what_torchvision_computes(name):
    torchvision = pytest.importorskip("torchvision")
    theirs = getattr(torchvision.models, name)(num_classes=7).eval()
    ours = models.create(name, 7, stem="imagenet").eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet50", "wrn22_2"])
def test_batch_norms_follow_the_data_as_in_the_literature(name):
    """Momentum 0.1 (decay 0.9) and epsilon 1e-5."""
    norms = [module for module in models.create(name, 10, seed=0).modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) > 15
    assert {(norm.momentum, norm.eps, norm.affine) for norm in norms} == {(0.1, 1e-5, True)}


SMALL = {
    "mlp": {"inputs": 12, "widths": [5, 6]},
    "vit": {"image_size": 16, "patch": 4, "dim": 12, "depth": 2, "heads": 3, "mlp_ratio": 1.5, "in_channels": 1},
    "pit": {"image_size": 16, "patch": 4, "dims": [4, 8], "depths": [1, 2], "heads": [2, 4], "in_channels": 1},
    **{
        name: {"width": 4, "image_size": 16, "in_channels": 2}
        for name in models.names()
        if name.startswith(("resnet", "wrn"))
    },
}


@pytest.mark.parametrize("name", [name for name in models.names() if name != "gpt"])
def test_every_model_takes_its_example_and_its_options(name):
    model = models.create(name, 3, **SMALL[name])
    example = model.example_input()
    assert example.shape[0] == 1
    assert bool((example == 1).all())
    assert not example.requires_grad
    assert model(example.expand(2, *example.shape[1:])).shape == (2, 3)
    assert model.double().example_input().dtype is torch.float64


def test_mlp_flattens_images():
    model = models.create("mlp", 10, seed=0)
    image = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(image), model(image.reshape(2, 64)))


@pytest.mark.parametrize("name", ["mlp", "pit", "resnet20", "vit", "wrn22_2"])
def test_a_seed_decides_the_weights_and_leaves_the_global_generator_alone(name):
    before = torch.get_rng_state()
    first, again, other = (models.create(name, 3, seed=seed, **SMALL[name]).state_dict() for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if first[key].dim() > 1]
    assert all(not torch.equal(first[key], other[key]) for key in weights)


def test_without_a_seed_weights_come_from_the_global_generator():
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(models.create("mlp", 10).state_dict()["layers.0.weight"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_resnet_weights_are_he_normal_by_fan_in():
    model = models.create("resnet20", 10, seed=0)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 4000:
            fan_in = module.weight[0].numel()
            # The sample deviation of n normal draws lies within 5 of its standard errors, sigma / sqrt(2 n).
            assert module.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=5 / (2 * 4000) ** 0.5)
    assert not model.fc.bias.any()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet23", {}, r"unknown model 'resnet23': did you mean resnet\d\d"),
        ("mlp", {"width": 3}, "model 'mlp' has no option 'width', did you mean widths"),
        ("mlp", {"generator": None}, "model 'mlp' has no option 'generator'"),
        ("mlp", {"classes": 0}, "classes must be >= 1, got 0"),
        ("mlp", {"classes": True}, "classes must be an integer >= 1, got True"),
        ("mlp", {"widths": [8, 0]}, r"widths\[1\] must be >= 1, got 0"),
        ("resnet20", {"width": 2.5}, "width must be an integer >= 1, got 2.5"),
        ("resnet18", {"stem": "big"}, "unknown ResNet stem 'big'"),
        ("resnet18", {"stem": 7}, "stem must be a string, got 7"),
        ("vit", {"patch": 7}, r"patch must divide image_size \(64\), got 7"),
        ("vit", {"heads": 5}, r"heads must divide dim \(192\), got 5"),
        ("vit", {"drop_path": 1.0}, r"drop_path must be in \[0, 1\), got 1.0"),
        ("vit", {"mlp_ratio": "2"}, "mlp_ratio must be a number, got '2'"),
        ("vit", {"mlp_ratio": float("nan")}, "mlp_ratio must be a number, got nan"),
        ("vit", {"mlp_ratio": -1}, "mlp_ratio must leave at least one hidden unit, got -1"),
        ("vit", {"spt": 1}, "spt must be true or false, got 1"),
        ("vit", {"depth": True}, "depth must be an integer >= 1, got True"),
        ("vit", {"patch": 1, "spt": True}, "patch must be even if spt is on .*, got 1"),
        ("pit", {"depths": [2, 6]}, "one entry per stage, got 3, 2 and 3 entries"),
        ("pit", {"dims": [96, 144, 288]}, "multiple of the previous one, got 144 after 96"),
        ("pit", {"heads": [2, 5, 8]}, r"heads must divide dim \(192\), got 5"),
        ("resnet20", {"width": 10**5}, "cannot create resnet20 with .*width=100000 .*: choose smaller sizes"),
        ("wrn22_2", {"dropout": 1}, r"dropout must be in \[0, 1\), got 1"),
        ("wrn_22_2", {}, "unknown model 'wrn_22_2': did you mean wrn22_2"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(name, options, sentence):
    with pytest.raises(UserError, match=sentence):
        models.create(name, **{"classes": 10, **options})


VIT = {"image_size": 16, "patch": 4, "dim": 12, "depth": 2, "heads": 3}
TRACED = [
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
    ("timm:vit_tiny_patch16_224", {"image_size": 64}),
]


def made(name, options, seed=0):
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    return models.create(name, 5, seed=seed, **options)


@pytest.mark.parametrize(("name", "options"), TRACED)
def test_path_scores_are_positive_exactly_on_the_scope(name, options):
    model = made(name, options)
    scores, inside = path_scores(model), scope(model)
    for key, positions in inside.items():
        assert torch.equal(scores[key] > 0, positions), key
    parameters = dict(model.named_parameters())
    # Layers with a score outside of the scope are excluded by a rule, not for lack of paths.
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
"""Name suffixes of layers that have paths but stay dense: embeddings, projection shortcuts, classifiers."""


@pytest.mark.parametrize(("name", "options"), TRACED)
def test_phew_seeds_whole_paths(name, options):
    model = made(name, options)
    inside = scope(model)
    masks = phew(model, model.example_input(), 0.1, inside)
    assert masks.num_on == round(0.1 * inside.num)
    # With the pruned weights removed, every active weight is still on a path from input to output.
    scores = path_scores(model, masks=masks)
    assert all(bool((scores[key][kept & inside[key]] > 0).all()) for key, kept in masks.items())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"inputs": 2**64}),
        ("mlp", {"widths": (10**9,)}),
        ("vit", {"depth": 5000}),
        ("vit", {"mlp_ratio": 1e308}),
        ("pit", {"depths": (2, 10**6, 4)}),
        ("resnet20", {"width": 5000}),
    ],
)
def test_sizes_that_no_machine_can_hold_are_refused_at_once(name: str, options: dict[str, Any]) -> None:
    start = time.monotonic()
    with pytest.raises(UserError, match=r"must be|parameters.*: choose smaller sizes"):
        models.create(name, 10, seed=0, **options)
    assert time.monotonic() - start < 5
