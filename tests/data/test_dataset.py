"""Datasets: shapes, disjoint splits, rotating folds, and the requests that `load` refuses."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pathgrow import data
from pathgrow.data.dataset import Paths, Split, folds
from pathgrow.errors import UserError


def rows(split: Split) -> list[bytes]:
    return [
        image.numpy().tobytes() + bytes([int(label)]) for image, label in zip(split.images, split.labels, strict=True)
    ]


def test_shape_of_digits() -> None:
    digits = data.load("digits")
    assert digits.classes == 10
    assert digits.shape == (1, 8, 8)
    assert digits.train.images.dtype == torch.uint8
    assert digits.train.labels.dtype == torch.int64
    assert (len(digits.train), len(digits.val), len(digits.test)) == (897, 450, 450)
    assert digits.example_input().shape == (1, 1, 8, 8)


@pytest.mark.parametrize("fold", [0, 3, 7])
def test_every_sample_is_in_exactly_one_split(fold: int) -> None:
    digits = data.load("digits", fold=fold)
    pixels, labels = load_digits(return_X_y=True)
    everything = [row.astype(np.uint8).tobytes() + bytes([label]) for row, label in zip(pixels, labels, strict=True)]
    assert sorted(rows(digits.train) + rows(digits.val) + rows(digits.test)) == sorted(everything)


def test_digits_are_those_of_scikit_learn_wherever_it_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = load_digits(return_X_y=True)
    module = import_module("pathgrow.data.digits")
    for spec in (module.find_spec, lambda name: None):
        monkeypatch.setattr(module, "find_spec", spec)
        images, targets = module._load_all()
        assert np.array_equal(images.flatten(1), pixels)
        assert np.array_equal(targets, labels)


def test_loading_digits_does_not_wait_for_scikit_learn() -> None:
    code = "from pathgrow import data; import sys; data.load('digits'); print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_splits_are_stratified() -> None:
    digits = data.load("digits", fold=2)
    whole = np.bincount(load_digits().target) / 1797
    for split in (digits.train, digits.val, digits.test):
        assert np.abs(np.bincount(split.labels) / len(split) - whole).max() < 0.005


def test_folds_rotate_and_seeds_shuffle() -> None:
    val = [set(rows(data.load("digits", fold=fold).val)) for fold in range(8)]
    assert len(set.union(*val)) == len(
        set(rows(data.load("digits").train)) | val[0] | set(rows(data.load("digits").test))
    )
    assert not val[0] & val[2]
    assert val[0] != set(rows(data.load("digits", seed=1).val))


def test_loading_is_deterministic() -> None:
    first = data.load("digits", fold=1)
    data._load_digits.cache_clear()
    assert torch.equal(first.train.images, data.load("digits", fold=1).train.images)


def test_normalization_uses_only_training_images() -> None:
    digits = data.load("digits")
    images = digits.train.normalized()
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)
    assert digits.test.mean == digits.train.mean


def test_stratified_parts_differ_by_at_most_one() -> None:
    labels = torch.tensor([0] * 11 + [1] * 5 + [2] * 2)
    parts = folds("digits", labels, 0, 1, 4)
    assert sorted(torch.cat(parts).tolist()) == list(range(18))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for label in range(3):
        counts = [int((labels[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "digit"}, "did you mean digits"),
        ({"name": "digits", "fold": 8}, r"fold of digits must be in \[0, 7\], got 8"),
        ({"name": "digits", "root": "/data"}, "is bundled and has no data root"),
        ({"name": None}, r"unknown dataset None \(known: "),
        ({"name": "digits", "seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"name": "digits", "fold": True}, "fold must be an integer, got True"),
        ({"name": "cifar10", "root": 3}, "data root must be the path of a file or directory, got 3"),
        ({"name": "cifar10", "root": "~nobody-of-this-name/data"}, "nobody-of-this-name"),
        ({"name": "cifar10", "root": "/tmp/" + 300 * "x"}, "does not exist or is not accessible"),
    ],
)
def test_invalid_requests(arguments: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        data.load(**arguments)


def test_numpy_integers_are_accepted() -> None:
    assert data.load("digits", seed=np.int64(1)) is data.load("digits", seed=1)


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1 sample, got 0"):
        Split(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), (0.0,), (1.0,))


def test_paths_keep_the_bytes_of_file_names(tmp_path: Path) -> None:
    names = ["a/1.png", "ü/long name.png", os.fsdecode(b"b/\xff.png")]
    paths = Paths(tmp_path, names)
    assert list(paths) == [tmp_path / name for name in names]
    assert list(paths[1:]) == [tmp_path / name for name in names[1:]]
    assert list(paths.take(torch.tensor([2, 0]))) == [tmp_path / names[2], tmp_path / names[0]]
    assert pickle.loads(pickle.dumps(paths))[2] == tmp_path / names[2]
    assert paths[-1] == tmp_path / names[2]


def test_shape_of_a_split() -> None:
    split = Split(torch.zeros(2, 1, 4, 5, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), (0.0,), (1.0,))
    assert split.shape == (1, 4, 5)
