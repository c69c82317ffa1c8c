"""The network handed back: plain weights and masks that load into their own model and into no other."""

import os

import pytest
import safetensors.torch
import torch
from torch import nn

from pathgrow.checkpoint import RunDir
from pathgrow.checkpoint.network_file import mismatch
from pathgrow.errors import UserError
from pathgrow.masks import Masks


def model(width=4, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def masks_of(net):
    masks = Masks.full(net)
    masks["0.weight"][0, 0] = False
    return masks


@pytest.fixture
def folder(tmp_path):
    with RunDir.open(tmp_path / "run", {}) as opened:
        yield opened


def test_weights_masks_and_buffers_come_back(folder):
    net = model()
    net[1].running_mean.fill_(3)
    folder.save_network(net, masks_of(net))
    other = model(seed=1)
    masks = RunDir(folder.path).load_network_(other)
    assert masks == masks_of(net)
    for name, tensor in net.state_dict().items():
        assert tensor.equal(other.state_dict()[name])


def test_the_file_is_a_plain_state_dict_for_anybody(folder):
    net = model()
    folder.save_network(net, masks_of(net))
    weights = safetensors.torch.load_file(folder.path / "network.safetensors")
    assert weights.keys() == net.state_dict().keys()


def test_equal_networks_give_equal_hashes(folder):
    first = folder.save_network(model(), masks_of(model()))
    assert first == folder.save_network(model(), masks_of(model()))
    assert first != folder.save_network(model(seed=1), masks_of(model()))


def test_another_model_is_refused_by_its_first_wrong_tensor_and_left_alone(folder):
    folder.save_network(model(), masks_of(model()))
    other = model(width=5, seed=1)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(UserError, match=r"tensor '0\.weight' has shape \(4, 3\), wanted \(5, 3\)"):
        folder.load_network_(other)
    assert all(tensor.equal(before[name]) for name, tensor in other.state_dict().items())


def test_masks_of_another_model_are_refused(folder):
    folder.save_network(model(), masks_of(model()))
    masks_of(model(width=5)).save(folder.path / "network_masks.safetensors")
    with pytest.raises(UserError, match=r"mask of '0\.weight' is \(5, 3\) but the parameter of Sequential is \(4, 3\)"):
        folder.load_network_(model())


def test_missing_and_extra_tensors_are_named():
    one, two = torch.zeros(1), torch.zeros(2)
    assert mismatch({"a": one}, {"a": one, "b": two}) == "tensor 'b' of shape (2,) is wanted and missing"
    assert mismatch({"a": one, "b": two}, {"a": one}) == "tensor 'b' of shape (2,) is not in the model"
    assert mismatch({"a": one}, {"a": torch.ones(1)}) is None
    assert mismatch({"a": torch.zeros(2, 3)}, {"a": torch.zeros(3, 2)}) == "tensor 'a' has shape (2, 3), wanted (3, 2)"


@pytest.mark.parametrize("content", [None, b"", b"not a safetensors file"])
def test_a_file_that_is_no_checkpoint_is_a_sentence(folder, content):
    if content is not None:
        (folder.path / "network.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="cannot read weights"):
        folder.load_network_(model())


def test_masks_of_a_round_have_its_number_and_appear_in_full(folder, monkeypatch):
    net = model()
    path = folder.save_masks(4, masks_of(net))
    assert path == folder.path / "masks" / "round_004.safetensors"
    assert Masks.load(path) == masks_of(net)

    def killed(_path):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.save_masks(5, masks_of(net))
    assert not (folder.path / "masks" / "round_005.safetensors").exists()
