"""The reference models against hand-computed sizes and against other people's implementations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.scope import scope

# name, classes, options, all parameters, switchable weights, millions of MACs and their rounding
SIZES = [
    ("resnet20", 10, {}, 272_474, 267_696, 40.81, 2),
    ("resnet32", 10, {}, 466_906, 461_232, 69.12, 2),
    ("resnet56", 100, {}, 861_620, 848_304, 125.75, 2),
    ("resnet18", 200, {}, 11_271_432, 10_987_200, 2221.8, 1),
    ("resnet18", 200, {"stem": "imagenet"}, 11_279_112, 10_994_880, 148.1, 1),
    ("resnet50", 1000, {}, 25_557_032, 20_686_016, 4089, 0),
    ("vit", 200, {}, 2_756_744, 1_990_656, 189.5, 1),
    ("vit", 200, {"spt": True}, 2_906_120, 1_990_656, 199.0, 1),
    ("vit", 200, {"lsa": True}, 2_756_744 + 9 * 12, 1_990_656, 189.5, 1),
    ("vit", 200, {"spt": True, "lsa": True}, 2_906_120 + 9 * 12, 1_990_656, 199.0, 1),
]


@pytest.mark.parametrize(("name", "classes", "options", "num_parameters", "num_switchable", "macs", "digits"), SIZES)
def test_sizes_are_those_of_the_literature(name, classes, options, num_parameters, num_switchable, macs, digits):
    model = models.create(name, classes, seed=0, **options)
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    assert scope(model, example_input=model.example_input()).num == num_switchable
    assert round(forward_macs(trace(model, model.example_input())) / 1e6, digits) == macs


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


def test_pit_sizes_by_hand():
    model = models.create("pit", 200, seed=0)
    switchable, rest, macs = 0, 0, 0
    before = None
    for dim, depth, side in ((96, 2, 16), (192, 6, 8), (384, 4, 4)):
        tokens = side**2 + 1
        if before is None:
            rest += 3 * 16 * dim + dim + dim + 256 * dim  # patches, class token, positions
            macs += 3 * 16 * dim * 256
        else:
            switchable += 9 * dim + before * dim  # depthwise: one input channel to each output channel
            rest += 2 * dim
            macs += 9 * dim * side**2 + before * dim
        switchable += depth * (dim * dim + dim * dim + 2 * dim * 2 * dim)  # values, projection, MLP
        rest += depth * (2 * dim * dim + dim + 2 * dim + dim + 4 * dim)  # queries and keys, biases, norms
        macs += depth * (tokens * (4 * dim * dim + 4 * dim * dim) + 2 * tokens**2 * dim)
        before = dim
    rest += 2 * 384 + 385 * 200
    assert sum(p.numel() for p in model.parameters()) == switchable + rest == 6_864_200
    assert scope(model).num == switchable
    assert forward_macs(trace(model)) == macs + 384 * 200


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
    """A tenth of every batch (in other words: decay 0.9), epsilon 1e-5."""
    norms = [module for module in models.create(name, 10, seed=0).modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) > 15
    assert {(norm.momentum, norm.eps, norm.affine) for norm in norms} == {(0.1, 1e-5, True)}


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


def test_pit_computes_what_timm_computes():
    timm = pytest.importorskip("timm.models.pit")
    sizes = {"depth": (1, 2, 1), "heads": (2, 4, 8), "base_dims": (6, 6, 6)}
    theirs = timm.PoolingVisionTransformer(
        img_size=20, patch_size=4, stride=4, mlp_ratio=2, num_classes=7, **sizes
    ).eval()
    renamed = {}
    order = ["0.blocks.0", "1.pool", "1.blocks.0", "1.blocks.1", "2.pool", "2.blocks.0"]
    for key, value in theirs.state_dict().items():
        for place, module in enumerate(order):
            key = key.replace(f"transformers.{module}.", f"stages.{place}.")
        renamed[key.replace("patch_embed.conv.", "patch_embed.").replace(".mlp.", ".")] = value
    renamed["pos_embed"] = renamed["pos_embed"].flatten(2).transpose(1, 2)
    # Two differences: timm's layer norm adds another epsilon, and its queries, keys and values have a bias.
    for name, module in theirs.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
        if name.endswith("attn.qkv"):
            nn.init.zeros_(module.bias)
    ours = models.create("pit", 7, image_size=20, dims=(12, 24, 48), depths=(1, 2, 1)).eval()
    ours.load_state_dict({key: value for key, value in renamed.items() if not key.endswith("qkv.bias")})
    x = torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))  # 5, 3 and 2 tokens a side: odd maps
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


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
    model = models.create("wrn22_2", 3, seed=0, dropout=0.5, **SMALL["wrn22_2"])
    plain = models.create("wrn22_2", 3, seed=0, dropout=0.0, **SMALL["wrn22_2"])
    x = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), plain.eval()(x))
        assert not torch.equal(model.train()(x), plain.train()(x))


@pytest.mark.parametrize("name", ["wrn22_2", "wrn28_2"])
def test_wide_resnets_drop_as_in_rigl_and_sparse_momentum(name: str):
    drops = [module.dropout for module in models.create(name, 3).modules() if hasattr(module, "dropout")]
    assert set(drops) == {0.3}


def test_shifted_patches_read_half_a_patch_around_them():
    model = models.create("vit", 3, seed=0, image_size=8, patch=4, dim=6, heads=2, in_channels=2, spt=True)
    embed = model.patch_embed
    x = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(embed.norm.weight, generator=torch.Generator().manual_seed(1))
    tokens = embed(x)
    for row in range(2):
        for column in range(2):
            features = []
            for down, right in ((0, 0), (-2, -2), (-2, 2), (2, -2), (2, 2)):  # the patch, and its four neighbours
                for channel in range(2):
                    for i in range(4):
                        for j in range(4):
                            at = (4 * row + i + down, 4 * column + j + right)
                            features.append(x[0, channel][at] if min(at) >= 0 and max(at) < 8 else torch.zeros(()))
            features = torch.stack(features)
            deviation = features.var(unbiased=False).add(1e-5).sqrt()
            normed = (features - features.mean()) / deviation * embed.norm.weight + embed.norm.bias
            expected = embed.proj.weight @ normed + embed.proj.bias
            torch.testing.assert_close(tokens[0, 2 * row + column], expected, rtol=1e-4, atol=1e-5)


def test_locality_attention_is_softmax_over_the_others_at_a_learned_temperature():
    model = models.create("vit", 3, seed=0, image_size=8, patch=4, dim=6, heads=2, lsa=True)
    attention = model.blocks[0].attn
    assert attention.scale.tolist() == pytest.approx([3**-0.5] * 2)
    with torch.no_grad():
        attention.scale.copy_(torch.tensor([0.5, 2.0]))
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    q, k, v = (x @ attention.qkv.weight.T).chunk(3, dim=-1)
    heads = []
    for head, scale in enumerate((0.5, 2.0)):
        part = slice(3 * head, 3 * head + 3)
        weights = (scale * q[..., part] @ k[..., part].transpose(1, 2)).exp() * (1 - torch.eye(5))
        heads.append(weights / weights.sum(-1, keepdim=True) @ v[..., part])
    expected = torch.cat(heads, dim=-1) @ attention.proj.weight.T + attention.proj.bias
    torch.testing.assert_close(attention(x), expected, rtol=1e-4, atol=1e-5)
    attention(x).sum().backward()
    assert bool((attention.scale.grad != 0).all())
    assert not any("others" in key for key in model.state_dict())  # a constant, no part of a checkpoint


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
        ("vit", {"mlp_ratio": "2"}, "mlp_ratio is '2': give a finite number"),
        ("vit", {"mlp_ratio": float("nan")}, "mlp_ratio is nan: give a finite number"),
        ("vit", {"mlp_ratio": -1}, "mlp_ratio is -1"),
        ("vit", {"spt": 1}, "spt is 1: give true or false"),
        ("vit", {"depth": True}, "depth is True: give a whole number"),
        ("vit", {"patch": 1, "spt": True}, "patch is 1: shifted patches move by half a patch"),
        ("pit", {"depths": [2, 6]}, "dims, depths and heads have 3, 2 and 3 entries"),
        ("pit", {"dims": [96, 144, 288]}, "dims holds 96 before 144"),
        ("pit", {"heads": [2, 5, 8]}, "dim 192 is no multiple of heads 5"),
        (
            "resnet20",
            {"width": 10**9},
            r"width=1000000000 cannot be made .*: choose smaller sizes",
        ),
        ("wrn22_2", {"dropout": 1}, "dropout is 1: give a probability"),
        ("wrn_22_2", {}, "unknown model 'wrn_22_2': did you mean wrn22_2"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(name, options, sentence):
    with pytest.raises(UserError, match=sentence):
        models.create(name, **{"classes": 10, **options})
