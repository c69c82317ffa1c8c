"""Scopes of our models and of other libraries' models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph.paths import path_scores
from pathgrow.graph.scope import model_density, scope
from pathgrow.masks import Masks

COUNTS = [
    ("resnet20", 10, {}, 267_696),
    ("resnet32", 10, {}, 461_232),
    ("resnet56", 100, {}, 848_304),
    ("resnet18", 200, {}, 10_987_200),
    ("resnet18", 200, {"stem": "imagenet"}, 10_994_880),
    ("resnet50", 1000, {}, 20_686_016),
    ("vit", 200, {}, 1_990_656),
]


@pytest.mark.parametrize(("name", "classes", "options", "count"), COUNTS)
def test_prunable_counts_of_the_papers_models(name: str, classes: int, options: dict[str, str], count: int) -> None:
    model = models.create(name, classes, **options)
    found = scope(model)
    assert found.num == found.num_on == count
    assert found.density == 1.0


def test_fused_query_and_key_rows_stay_dense() -> None:
    model = models.create("vit", 10, image_size=32, patch=8, dim=24, depth=2, heads=4)
    found = scope(model)
    fused = [name for name in found if "qkv" in name]
    assert len(fused) == 2
    for name in fused:
        assert not bool(found[name][:48].any())
        assert bool(found[name][48:].all())
    masks = Masks.empty(found)
    assert bool(masks[fused[0]][:48].all()), "weights outside the scope are kept"
    masks.apply_(model)
    state = model.state_dict()
    assert bool((state[fused[0]][:48] != 0).any())
    assert bool((state[fused[0]][48:] == 0).all())


def test_presets_and_filters() -> None:
    model = models.create("resnet20", 10)
    default, resnet = scope(model, preset="default"), scope(model, preset="resnet")
    assert default.num - resnet.num == 2_560, "the default prunes projections too"
    only = scope(model, only="*layer*") if any("layer" in n for n in resnet) else scope(model, only=["*.0.*", "*.1.*"])
    assert 0 < only.num < resnet.num
    assert scope(model, only=lambda name: name in only) == only
    with pytest.raises(UserError, match="did you mean resnet"):
        scope(model, preset="resnets")
    with pytest.raises(UserError, match="example_input must be a batch, got 'vit'"):
        scope(model, "vit")
    with pytest.raises(UserError, match="nothing to sparsify"):
        scope(model, only="no such name")
    with pytest.raises(UserError, match="nothing to sparsify"):
        scope(nn.Linear(3, 2))
    for odd in (0.5, [None], torch.tensor(0.5)):
        with pytest.raises(UserError, match="only must be a function of a parameter name, a pattern, or several"):
            scope(model, only=odd)  # type: ignore[arg-type]


def test_model_density_counts_everything() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))
    assert model_density(model, Masks.empty(scope(model))) == pytest.approx((165 - 100) / 165)


TIMM = [
    "resnet18", "efficientnet_b0", "mobilenetv3_small_100", "convnext_atto", "vit_tiny_patch16_224", "densenet121",
    "swin_tiny_patch4_window7_224", "regnety_002", "cait_xxs24_224",
]  # fmt: skip


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_need_no_changes(name: str) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, pretrained=False)
    found, scores = scope(model), path_scores(model)
    for parameter, positions in found.items():
        assert torch.equal(scores[parameter] > 0, positions), f"{parameter}: prunable exactly where paths lead"
    dense = set(scores) - set(found)
    assert any("head" in n or "fc" in n or "classifier" in n for n in dense)


def test_transformers_models_need_no_changes() -> None:
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60,
    }  # fmt: skip
    tokens = torch.arange(14).view(2, 7)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**small))
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=60, bos_token_id=1, eos_token_id=2)
    )
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, num_key_value_heads=2))
    for model in (bert, gpt2, llama):
        found, scores = scope(model, example_input=inputs), path_scores(model, inputs)
        for name, positions in found.items():
            assert torch.equal(scores[name] > 0, positions), name
        assert not any(part in name for name in found for part in ("query", "key.", "q_proj", "k_proj", "embed"))
    fused = scope(gpt2, example_input=inputs)["transformer.h.0.attn.c_attn.weight"]
    assert fused.shape == (32, 96)
    assert not bool(fused[:, :64].any()), "query and key columns of an [in, out] weight"
    assert bool(fused[:, 64:].all())
