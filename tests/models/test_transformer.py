"""ViT and PiT against hand-computed sizes, timm and plain re-derivations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.scope import scope


def test_pit_sizes_by_hand():
    model = models.create("pit", 200, seed=0)
    prunable, rest, macs = 0, 0, 0
    before = None
    for dim, depth, side in ((96, 2, 16), (192, 6, 8), (384, 4, 4)):
        tokens = side**2 + 1
        if before is None:
            rest += 3 * 16 * dim + dim + dim + 256 * dim  # patches, class token, positions
            macs += 3 * 16 * dim * 256
        else:
            prunable += 9 * dim + before * dim  # depthwise: one input channel to each output channel
            rest += 2 * dim
            macs += 9 * dim * side**2 + before * dim
        prunable += depth * (dim * dim + dim * dim + 2 * dim * 2 * dim)  # values, projection, MLP
        rest += depth * (2 * dim * dim + dim + 2 * dim + dim + 4 * dim)  # queries and keys, biases, norms
        macs += depth * (tokens * (4 * dim * dim + 4 * dim * dim) + 2 * tokens**2 * dim)
        before = dim
    rest += 2 * 384 + 385 * 200
    assert sum(p.numel() for p in model.parameters()) == prunable + rest == 6_864_200
    assert scope(model).num == prunable
    assert forward_macs(trace(model)) == macs + 384 * 200


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


def test_drop_path_drops_whole_samples_in_training_only():
    model = models.create("vit", 3, seed=0, image_size=16, patch=4, dim=12, depth=2, heads=3, drop_path=0.5)
    block = model.blocks[0]
    branch = torch.ones(4000, 2, 3)
    torch.manual_seed(0)
    kept = block.train()._kept(branch)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert bool((kept == kept[:, :1, :1]).all())
    assert kept.mean().item() == pytest.approx(1.0, abs=0.08)  # five standard errors
    assert torch.equal(block.eval()._kept(branch), branch)
