"""The reference models against hand-computed sizes and against other people's implementations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.flops import forward_macs
from pathgrow.scope import scope
from pathgrow.wiring import read

# name, classes, options, all parameters, switchable weights, millions of MACs and their rounding
SIZES = [
    ("resnet20", 10, {}, 272_474, 267_696, 40.81, 2),
    ("resnet32", 10, {}, 466_906, 461_232, 69.12, 2),
    ("resnet56", 100, {}, 861_620, 848_304, 125.75, 2),
    ("resnet18", 200, {}, 11_271_432, 10_987_200, 2221.8, 1),
    ("resnet18", 200, {"stem": "imagenet"}, 11_279_112, 10_994_880, 148.1, 1),
    ("resnet50", 1000, {}, 25_557_032, 20_686_016, 4089, 0),
    ("vit", 200, {}, 2_756_744, 1_990_656, 189.5, 1),
]


@pytest.mark.parametrize(("name", "classes", "options", "num_parameters", "num_switchable", "macs", "digits"), SIZES)
def test_sizes_are_those_of_the_literature(name, classes, options, num_parameters, num_switchable, macs, digits):
    model = models.create(name, classes, seed=0, **options)
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    assert scope(model, example_input=model.example_input()).num == num_switchable
    assert round(forward_macs(read(model, model.example_input())) / 1e6, digits) == macs


def test_mlp_sizes():
    model = models.create("mlp", 10)
    assert sum(p.numel() for p in model.parameters()) == (64 + 1) * 64 + (64 + 1) * 64 + (64 + 1) * 10
    assert scope(model, example_input=model.example_input()).num == 64 * 64 + 64 * 64
    assert forward_macs(read(model, model.example_input())) == 64 * 64 + 64 * 64 + 64 * 10


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


def test_vit_computes_what_timm_computes():
    timm = pytest.importorskip("timm.models.vision_transformer")
    theirs = timm.VisionTransformer(
        img_size=64, patch_size=8, embed_dim=192, depth=9, num_heads=12, mlp_ratio=2, qkv_bias=False, num_classes=7
    ).eval()
    # Two differences only: timm's layer norm adds another epsilon, and two modules sit one level deeper.
    for module in theirs.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    renamed = {
        k.replace("patch_embed.proj.", "patch_embed.").replace(".mlp.", "."): v for k, v in theirs.state_dict().items()
    }
    ours = models.create("vit", 7).eval()
    ours.load_state_dict(renamed)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


SMALL = {
    "mlp": {"inputs": 12, "widths": [5, 6]},
    "vit": {"image_size": 16, "patch": 4, "dim": 12, "depth": 2, "heads": 3, "mlp_ratio": 1.5, "in_channels": 1},
    **{name: {"width": 4, "image_size": 16, "in_channels": 2} for name in models.names() if name.startswith("resnet")},
}


@pytest.mark.parametrize("name", models.names())
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


@pytest.mark.parametrize("name", ["mlp", "resnet20", "vit"])
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


def test_drop_path_drops_whole_samples_in_training_only():
    model = models.create("vit", 3, seed=0, drop_path=0.5, **SMALL["vit"])
    block = model.blocks[0]
    branch = torch.ones(4000, 2, 3)
    torch.manual_seed(0)
    kept = block.train()._kept(branch)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert bool((kept == kept[:, :1, :1]).all())
    assert kept.mean().item() == pytest.approx(1.0, abs=0.08)  # five standard errors
    assert torch.equal(block.eval()._kept(branch), branch)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet23", {}, r"unknown model 'resnet23': did you mean resnet\d\d"),
        ("mlp", {"width": 3}, "unknown option of mlp 'width': did you mean widths"),
        ("mlp", {"generator": None}, "unknown option of mlp 'generator'"),
        ("mlp", {"classes": 0}, "classes is 0: give a whole number of at least 1"),
        ("mlp", {"classes": True}, "classes is True"),
        ("mlp", {"widths": [8, 0]}, r"widths is \[8, 0\]: give a list of whole numbers"),
        ("resnet20", {"width": 2.5}, "width is 2.5: give a whole number"),
        ("resnet18", {"stem": "big"}, "unknown ResNet stem 'big'"),
        ("resnet18", {"stem": 7}, "stem is 7: give a text"),
        ("vit", {"patch": 7}, "image_size 64 is no multiple of patch 7"),
        ("vit", {"heads": 5}, "dim 192 is no multiple of heads 5"),
        ("vit", {"drop_path": 1.0}, "drop_path is 1.0"),
        ("vit", {"mlp_ratio": "2"}, "mlp_ratio is '2': give a number"),
        ("vit", {"mlp_ratio": -1}, "mlp_ratio is -1"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(name, options, sentence):
    with pytest.raises(UserError, match=sentence):
        models.create(name, **{"classes": 10, **options})
