"""timm models by name: built like timm builds them, seeded and checked like the reference models."""

from __future__ import annotations

import sys

import pytest
import torch

from pathgrow import models
from pathgrow.errors import UserError

timm = pytest.importorskip("timm")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"image_size": 32}),
        ("vit_tiny_patch16_224", {"image_size": 32, "in_channels": 1}),  # positions for 4 patches, not for 196
        ("mobilenetv3_small_050", {"image_size": 32, "dropout": 0.2, "drop_path": 0.1}),
    ],
)
def test_the_model_is_timms(name, options):
    model = models.create(f"timm:{name}", 7, seed=3, **options)
    example = model.example_input()
    assert example.shape == (1, options.get("in_channels", 3), 32, 32)
    assert model.eval()(example).shape == (1, 7)
    sized = {"img_size": 32} if name.startswith("vit") else {}
    theirs = timm.create_model(name, num_classes=7, in_chans=example.shape[1], **sized)
    assert {key: value.shape for key, value in model.net.state_dict().items()} == {
        key: value.shape for key, value in theirs.state_dict().items()
    }


def test_a_seed_decides_the_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first = models.create("timm:resnet10t", 3, seed=5).state_dict()
    torch.rand(3)
    moved = torch.get_rng_state()
    again, other = (models.create("timm:resnet10t", 3, seed=seed).state_dict() for seed in (5, 6))
    assert torch.equal(moved, torch.get_rng_state())
    assert not torch.equal(before, moved)
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if first[key].dim() > 1]
    assert all(not torch.equal(first[key], other[key]) for key in weights)


def test_without_a_seed_weights_come_from_the_global_generator():
    torch.manual_seed(0)
    ours = models.create("timm:resnet10t", 3).net.state_dict()
    torch.manual_seed(0)
    theirs = timm.create_model("resnet10t", num_classes=3).state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_defaults_are_those_of_the_architecture():
    assert models.defaults("timm:resnet18") == {
        "image_size": 224, "in_channels": 3, "dropout": 0.0, "drop_path": 0.0,
    }  # fmt: skip
    assert models.defaults("timm:resnet10t")["image_size"] == 176
    assert models.create("timm:vit_tiny_patch16_224", 3).example_input().shape == (1, 3, 224, 224)


def test_dropout_reaches_the_model():
    model = models.create("timm:resnet10t", 3, dropout=0.25, drop_path=0.5)
    assert model.net.drop_rate == 0.25
    rates = [module.drop_prob for module in model.net.modules() if hasattr(module, "drop_prob")]
    assert max(rates) == 0.5


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("timm:resnet81", {}, r"unknown timm model 'resnet81': did you mean timm:resnet\w+.*\(see timm.list_models"),
        ("timm:", {}, r"unknown timm model ''"),
        ("timm:hf-hub:someone/resnet18", {}, "unknown timm model 'hf-hub:someone/resnet18'"),
        ("timm:resnet18", {"width": 3}, "model 'timm:resnet18' has no option 'width'"),
        ("timm:resnet18", {"pretrained": True}, "model 'timm:resnet18' has no option 'pretrained'"),
        ("timm:resnet18", {"image_size": 2.5}, "image_size must be an integer >= 1, got 2.5"),
        ("timm:resnet18", {"dropout": 1.5}, r"dropout must be in \[0, 1\), got 1.5"),
        ("timm:vgg11", {"drop_path": 0.1}, "timm cannot build 'vgg11' with .*drop_path_rate=0.1 "),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(name, options, sentence):
    with pytest.raises(UserError, match=sentence):
        models.create(name, 10, **options)


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("2.13.0", "pip install timm torchvision torch==2.13.0"),
        (
            "2.13.0+cpu",
            "pip install timm torchvision torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu",
        ),
        ("2.13.0+mine", "pip install timm"),
    ],
)
def test_without_timm_the_command_that_installs_it_is_named(monkeypatch, version, command):
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UserError) as caught:
        models.defaults("timm:resnet18")
    assert str(caught.value) == f"timm:NAME requires the timm library: run `{command}`"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("RuntimeError", "operator torchvision::nms does not exist"),
        ("ImportError", "torchvision/_C.so: undefined symbol"),
        ("OSError", "libcudart.so.12: cannot open shared object file"),
    ],
)
def test_a_torchvision_for_another_torch_is_explained_with_the_command_that_replaces_it(
    monkeypatch, tmp_path, kind, reason
):
    (tmp_path / "timm.py").write_text(f"raise {kind}('{reason}')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    with pytest.raises(UserError) as caught:
        models.defaults("timm:resnet18")
    assert str(caught.value) == (
        f"torchvision does not work with torch 2.13.0+cpu ({reason}): run `pip uninstall -y torchvision && pip install "
        "torchvision torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu`"
    )
