"""Mask files: round trips, forged and damaged files, failed writes."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from tests.masks.test_masks import SCOPE, flags, random_flags

shapes = st.dictionaries(st.text(max_size=8), st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=4)

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture
def masks() -> Masks:
    return Masks({"qkv.weight": torch.tensor([[1, 1], [1, 1], [1, 0]]) > 0, "out.weight": torch.eye(2) > 0}, SCOPE)


class TestFiles:
    def test_a_file_brings_back_values_scope_and_order(self, masks: Masks, tmp_path: Path) -> None:
        for thing in (masks, masks.missing(), Masks.select(SCOPE, SCOPE), Masks({})):
            thing.save(tmp_path / "m.safetensors")
            loaded = Masks.load(tmp_path / "m.safetensors")
            assert loaded == thing
            assert list(loaded) == list(thing)
            assert loaded.digest() == thing.digest()
        assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]

    def test_eight_positions_to_a_byte(self, tmp_path: Path) -> None:
        Masks({"w": torch.rand(800, 100) < 0.5}).save(tmp_path / "m")
        assert (tmp_path / "m").stat().st_size < 10_000 + 500

    def test_equal_masks_are_equal_files(self, masks: Masks, tmp_path: Path) -> None:
        masks.save(tmp_path / "a")
        masks.clone().save(tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_loaded_masks_can_be_edited(self, masks: Masks, tmp_path: Path) -> None:
        masks.save(tmp_path / "m")
        loaded = Masks.load(tmp_path / "m")
        loaded |= loaded.missing()
        assert loaded.density == 1

    def test_the_digest_sees_name_shape_value_and_scope(self) -> None:
        variants = [
            Masks({"a": flags(1, 1)}),
            Masks({"b": flags(1, 1)}),
            Masks({"a": flags(1, 0)}),
            Masks({"a": flags(1, 1, 0)}),
            Masks({"a": flags(1, 1).reshape(1, 2)}),
            Masks({"a": flags(1, 1)}, {"a": flags(1, 0)}),
            Masks({"a": flags(1, 1)}, {"a": flags(0, 1)}),
            Masks({}),
        ]
        assert len({masks.digest() for masks in variants}) == len(variants)
        ordered = Masks({"a": flags(1), "b": flags(0)})
        assert ordered.digest() == Masks({"b": flags(0), "a": flags(1)}).digest()

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"no mask file at .*gone"):
            Masks.load(tmp_path / "gone")

    def test_a_folder_in_place_of_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="masks"):
            Masks.load(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\xff" * 100, b"{}" * 40])
    def test_no_safetensors_at_all(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(UserError, match="is not a valid mask file"):
            Masks.load(tmp_path / "m")

    def test_a_file_of_weights(self, tmp_path: Path) -> None:
        save_file({"w": torch.ones(3)}, tmp_path / "m")
        with pytest.raises(UserError, match=r"is not a valid mask file \(no mask metadata\)"):
            Masks.load(tmp_path / "m")

    @pytest.mark.parametrize(
        ("about", "reason"),
        [
            ("not json", "unreadable metadata"),
            ("[" * 100_000, "unreadable metadata"),
            ("[]", "incomplete metadata"),
            ({"version": 1, "shapes": {}}, "incomplete metadata"),
            ({"version": 2, "shapes": {}, "sha256": ""}, "format 2, expected 1"),
            ({"version": 1, "shapes": [3], "sha256": ""}, "malformed shapes"),
            ({"version": 1, "shapes": {"w": [-3]}, "sha256": ""}, "malformed shapes"),
            ({"version": 1, "shapes": {"w": [2.0]}, "sha256": ""}, "malformed shapes"),
            ({"version": 1, "shapes": {"w": [True]}, "sha256": ""}, "malformed shapes"),
            ({"version": 1, "shapes": {"v": [8]}, "sha256": ""}, "'mask/v' is missing"),
            ({"version": 1, "shapes": {"w": [10**9, 10**9]}, "sha256": ""}, "'mask/w' does not have shape"),
            ({"version": 1, "shapes": {"f": [8]}, "sha256": ""}, "'mask/f' does not have shape"),
            ({"version": 1, "shapes": {"w": [8]}, "sha256": "0"}, "checksum mismatch"),
        ],
    )
    def test_forged_files(self, about: object, reason: str, tmp_path: Path) -> None:
        text = about if isinstance(about, str) else json.dumps(about)
        payload = {"mask/w": torch.zeros(1, dtype=torch.uint8), "mask/f": torch.zeros(1)}
        save_file(payload, tmp_path / "m", metadata={"pathgrow.masks": text})
        with pytest.raises(UserError, match=reason):
            Masks.load(tmp_path / "m")

    def test_a_wrong_folder_is_the_callers_mistake(self, masks: Masks, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot write masks to"):
            masks.save(tmp_path / "nowhere" / "m")

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    def test_a_full_disk_leaves_the_old_file_and_no_litter(
        self, call: str, masks: Masks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        masks.save(tmp_path / "m")

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(RunFailed, match="No space left"):
                masks.missing().save(tmp_path / "m")
        assert Masks.load(tmp_path / "m") == masks
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_file_and_folder_are_synced_around_the_rename(
        self, masks: Masks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        real_fsync, real_replace = os.fsync, os.replace

        def fsync(descriptor: int) -> None:
            calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
            real_fsync(descriptor)

        def replace(source: Path, target: Path) -> None:
            calls.append("rename")
            real_replace(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        masks.save(tmp_path / "m")
        expected = ["file", "rename", "folder"] if os.path.isdir("/proc/self/fd") else ["file", "rename", "file"]
        assert calls == expected


@given(shapes=shapes, seed=seeds, fraction=st.sampled_from([0.0, 0.5, 1.0]))
def test_files_bring_back_everything(shapes: dict[str, tuple[int, ...]], seed: int, fraction: float) -> None:
    scope = random_flags(shapes, seed, fraction)
    inside = {name: flags & scope[name] for name, flags in random_flags(shapes, seed + 1).items()}
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        for masks in (
            Masks.select(inside, scope),
            Masks({name: flags | ~scope[name] for name, flags in inside.items()}, scope),
        ):
            masks.save(Path(folder) / "m")
            loaded = Masks.load(Path(folder) / "m")
            assert loaded == masks
            assert list(loaded) == list(masks)
            assert {name: flags.shape for name, flags in loaded.items()} == {n: f.shape for n, f in masks.items()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Masks, bytes, Path]:
    scope = random_flags({"a": (30,), "b": (5, 50)}, 1, fraction=0.8)
    masks = Masks.select(scope, scope)
    path = tmp_path_factory.mktemp("masks") / "m"
    masks.save(path)
    return masks, path.read_bytes(), path.with_name("damaged")


def test_a_file_cut_anywhere_is_refused(stored: tuple[Masks, bytes, Path]) -> None:
    _, content, path = stored
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            Masks.load(path)


def test_a_flipped_bit_never_changes_the_masks(stored: tuple[Masks, bytes, Path]) -> None:
    masks, content, path = stored
    num_refused = 0
    for bit in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            loaded = Masks.load(path)
        except UserError:
            num_refused += 1
        else:
            assert loaded == masks
    assert num_refused > 0.9 * len(content) * 8 / 7
