"""CIFAR: pixels and labels as written, splits that partition the training set, and a sentence for every bad file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pathgrow import data
from pathgrow.data.dataset import Paths, Split, carve
from pathgrow.errors import UserError


def rows(images: Any, labels: Any) -> list[bytes]:
    return [np.asarray(image).tobytes() + bytes([int(label)]) for image, label in zip(images, labels, strict=True)]


def test_pixels_labels_and_constants_are_the_official_ones(layouts: Any) -> None:
    train, test = layouts.cifar10()
    found = data.load("cifar10", layouts.root)
    assert (found.name, found.classes, found.shape) == ("cifar10", 10, (3, 32, 32))
    assert rows(found.test.images, found.test.labels) == rows(*test)
    held_out = rows(found.train.images, found.train.labels) + rows(found.val.images, found.val.labels)
    assert sorted(held_out) == sorted(rows(*train))
    assert found.train.images.dtype == torch.uint8
    assert found.train.labels.dtype == torch.int64
    for split in (found.train, found.val, found.test):
        assert split.mean == pytest.approx((125.307, 122.961, 113.8575))
        assert split.std == pytest.approx((62.985, 62.0925, 66.708))


def test_fine_labels_of_cifar100(layouts: Any) -> None:
    _, test = layouts.cifar100()
    found = data.load("cifar100", layouts.root)
    assert (found.classes, len(found.train), len(found.val), len(found.test)) == (100, 180, 20, 100)
    assert found.test.labels.tolist() == test.labels.tolist()
    for split in (found.train, found.val, found.test):
        assert split.mean == pytest.approx((129.3105, 124.0575, 112.4295))
        assert split.std == pytest.approx((68.1615, 65.382, 70.431))


def test_folds_hold_out_every_sample_once_and_every_class_alike(layouts: Any) -> None:
    train, _ = layouts.cifar10()
    folds = [data.load("cifar10", layouts.root, fold=fold) for fold in range(10)]
    assert sorted(row for fold in folds for row in rows(fold.val.images, fold.val.labels)) == sorted(rows(*train))
    for fold in folds:
        assert torch.bincount(fold.val.labels, minlength=10).tolist() == [1] * 10
        assert not set(rows(fold.val.images, fold.val.labels)) & set(rows(fold.train.images, fold.train.labels))


def test_the_split_depends_on_seed_and_fold_alone(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.cifar10()
    first = data.load("cifar10", layouts.root)
    data._from_disk.cache_clear()
    torch.manual_seed(99)
    monkeypatch.chdir(layouts.root)
    again = data.load("cifar10", "cifar-10-batches-py")
    assert again is not first
    assert torch.equal(again.val.images, first.val.images)
    assert not torch.equal(data.load("cifar10", layouts.root, seed=1).val.images, first.val.images)


def test_5000_of_50000_are_carved_and_stay_the_same_for_ever() -> None:
    labels = torch.arange(50_000) % 10
    train, val = carve("cifar10", labels, seed=0, fold=0)
    assert (len(train), len(val)) == (45_000, 5_000)
    assert torch.bincount(labels[val]).tolist() == [500] * 10
    # Recorded: a change would make results incomparable with those of earlier versions.
    assert val[:6].tolist() == [0, 7, 22, 25, 27, 42]


@pytest.mark.parametrize("place", ["", "cifar-10-batches-py", ".."])
def test_the_root_may_be_the_folder_or_one_above_it(place: str, layouts: Any) -> None:
    layouts.cifar10()
    assert len(data.load("cifar10", os.path.normpath(layouts.root / place)).test) == 20


def test_root_defaults_to_the_variable_then_to_data(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.cifar10(where="data/cifar-10-batches-py")
    monkeypatch.chdir(layouts.root)
    assert len(data.load("cifar10").test) == 20
    monkeypatch.setenv("PATHGROW_DATA", "/nowhere")
    with pytest.raises(UserError, match="/nowhere does not exist"):
        data.load("cifar10")
    monkeypatch.setenv("PATHGROW_DATA", str(layouts.root / "data"))
    assert len(data.load("cifar10").test) == 20
    assert len(data.load("digits").val) == 450  # embedded data do not mind the variable


def test_two_copies_are_not_chosen_between(layouts: Any) -> None:
    for place in ("a", "b"):
        layouts.cifar10(where=f"{place}/cifar-10-batches-py")
    with pytest.raises(UserError, match="more than once"):
        data.load("cifar10", layouts.root)


def _change(layouts: Any, **changes: Any) -> None:
    """Another batch 3, as Python 3 writes it."""
    path = layouts.root / "cifar-10-batches-py" / "data_batch_3"
    content = pickle.loads(path.read_bytes(), encoding="latin1") | changes
    path.write_bytes(pickle.dumps({key: value for key, value in content.items() if value is not None}))


def test_a_batch_saved_again_by_python_3_reads_as_before(layouts: Any) -> None:
    train, _ = layouts.cifar10()
    _change(layouts)
    found = data.load("cifar10", layouts.root)
    both = rows(found.train.images, found.train.labels) + rows(found.val.images, found.val.labels)
    assert sorted(both) == sorted(rows(*train))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": None}, "`data` are no array of rows of 3,072 bytes"),
        ({"data": np.zeros((20, 3071), np.uint8)}, "`data` are no array"),
        ({"data": np.zeros(20 * 3072, np.uint8)}, "`data` are no array"),
        ({"data": np.zeros((0, 3072), np.uint8)}, "impossible shape"),
        ({"data": np.zeros((20, 3072), np.float32)}, "type f4"),
        ({"data": [0] * 20}, "`data` are no array"),
        ({"labels": None}, "`labels` are no list of whole numbers"),
        ({"labels": ["cat"] * 20}, "no list of whole numbers"),
        ({"labels": [True] * 20}, "no list of whole numbers"),
        ({"labels": [0] * 19}, "20 images and 19 labels"),
        ({"labels": [0] * 19 + [10]}, "0 to 9 are wanted"),
        ({"labels": [0] * 19 + [-1]}, "0 to 9 are wanted"),
    ],
)
def test_a_batch_with_other_content_is_one_sentence(changes: dict, words: str, layouts: Any) -> None:
    layouts.cifar10()
    _change(layouts, **changes)
    _expect(layouts, words, "data_batch_3")


def _expect(layouts: Any, words: str, file: str) -> None:
    data._from_disk.cache_clear()
    with pytest.raises(UserError, match=words) as caught:
        data.load("cifar10", layouts.root)
    said = str(caught.value)
    assert said.isprintable()  # hence one line
    assert file in said
    assert f"pathgrow data get cifar10 --data-root {layouts.root}" in said


def test_missing_truncated_and_foreign_files_are_one_sentence(layouts: Any) -> None:
    layouts.cifar10()
    folder = layouts.root / "cifar-10-batches-py"
    good = (folder / "test_batch").read_bytes()
    for cut in (0, 1, 100, len(good) // 2, len(good) - 1):
        (folder / "test_batch").write_bytes(good[:cut])
        _expect(layouts, "is damaged", "test_batch")
    (folder / "test_batch").write_bytes(b"<html>404 not found</html>")
    _expect(layouts, "nothing in it was run|damaged", "test_batch")
    (folder / "test_batch").unlink()
    _expect(layouts, "No such file", "test_batch")
    (folder / "test_batch").mkdir()
    _expect(layouts, "cannot be read", "test_batch")
    (folder / "data_batch_1").unlink()
    _expect(layouts, "has no data_batch_1", "cifar-10-batches-py")


def test_flipped_bytes_give_a_sentence_or_a_well_formed_set(layouts: Any) -> None:
    layouts.cifar10(num=2)
    path = layouts.root / "cifar-10-batches-py" / "data_batch_4"
    good = path.read_bytes()
    random = np.random.default_rng(2)
    refused = []
    for place in random.integers(0, 330, 300):
        damaged = bytearray(good)
        damaged[place] = int(random.integers(256))
        path.write_bytes(bytes(damaged))
        data._from_disk.cache_clear()
        try:
            found = data.load("cifar10", layouts.root)
        except UserError as error:
            refused.append(str(error))
        else:
            assert found.shape == (3, 32, 32)
            assert 0 <= int(found.train.labels.min()) <= int(found.train.labels.max()) < 10
    assert len(refused) > 100
    assert all(sentence.isprintable() for sentence in refused)


def test_unknown_folds_and_roots_say_what_to_do(layouts: Any, tmp_path: Path) -> None:
    layouts.cifar10()
    with pytest.raises(UserError, match="choose one of 0-9"):
        data.load("cifar10", layouts.root, fold=10)
    with pytest.raises(UserError, match=r"cifar-100-python was not found.*pathgrow data get cifar100 --data-root"):
        data.load("cifar100", layouts.root)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is no folder"):
        data.load("cifar10", tmp_path / "file")


@pytest.mark.parametrize("name", ["cifar100", "tiny-imagenet"])
def test_nobody_is_told_to_delete_what_was_named_by_mistake(name: str, layouts: Any) -> None:
    root = layouts.by_class("train/cat", "train/dog", "val/cat", "val/dog")
    with pytest.raises(UserError, match=f"--data-root, or get it with `pathgrow data get {name}`") as caught:
        data.load(name, root)
    assert "delete" not in str(caught.value)


def test_runs_of_one_process_share_their_data(layouts: Any) -> None:
    layouts.cifar10()
    assert data.load("cifar10", layouts.root) is data.load("cifar10", str(layouts.root))


def test_paths_keep_names_in_the_bytes_of_the_system(tmp_path: Path) -> None:
    names = ["a/1.png", "ü/long name.png", os.fsdecode(b"b/\xff.png")]
    paths = Paths(tmp_path, names)
    assert list(paths) == [tmp_path / name for name in names]
    assert list(paths[1:]) == [tmp_path / name for name in names[1:]]
    assert list(paths.take(torch.tensor([2, 0]))) == [tmp_path / names[2], tmp_path / names[0]]
    assert list(paths + paths[:1]) == [tmp_path / name for name in [*names, names[0]]]
    assert pickle.loads(pickle.dumps(paths))[2] == tmp_path / names[2]
    assert paths[-1] == tmp_path / names[2]


def test_a_split_says_its_shape() -> None:
    split = Split(torch.zeros(2, 1, 4, 5, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), (0.0,), (1.0,))
    assert split.shape == (1, 4, 5)
