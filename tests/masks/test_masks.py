"""Masks: counts, set operations, in-place edits, models."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from tests.support.catalogue import Trials


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


class Fused(nn.Module):
    """Stands for a fused weight of which only the last row may be switched."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(2, 3)
        self.out = nn.Linear(2, 2)


SCOPE = {"qkv.weight": torch.tensor([[0, 0], [0, 0], [1, 1]], dtype=torch.bool), "out.weight": torch.ones(2, 2) > 0}


@pytest.fixture
def masks() -> Masks:
    return Masks({"qkv.weight": torch.tensor([[1, 1], [1, 1], [1, 0]]) > 0, "out.weight": torch.eye(2) > 0}, SCOPE)


class TestCounting:
    def test_only_prunable_positions_count(self, masks: Masks) -> None:
        assert (masks.num, masks.num_on, masks.density) == (6, 3, 0.5)

    def test_without_a_scope_every_position_counts(self) -> None:
        masks = Masks({"w": flags(1, 0, 0, 1, 1)})
        assert (masks.num, masks.num_on, masks.density) == (5, 3, 0.6)
        assert masks.scope["w"].tolist() == [True] * 5

    def test_a_scope_has_density_one(self) -> None:
        scope = Masks.select(SCOPE, SCOPE)
        assert (scope.num, scope.num_on, scope.density) == (6, 6, 1.0)
        assert all(torch.equal(scope.scope[name], SCOPE[name]) for name in SCOPE)

    def test_no_density_without_a_prunable_weight(self) -> None:
        with pytest.raises(UserError, match="no prunable weight"):
            _ = Masks({}).density

    def test_scalars_and_empty_tensors(self) -> None:
        masks = Masks({"scalar": torch.tensor(True), "nothing": torch.ones(0, 3) > 0})
        assert (masks.num, masks.num_on) == (1, 1)

    def test_repr_tells_the_counts(self, masks: Masks) -> None:
        assert repr(masks) == "Masks(2 tensors, 3 of 6 on)"


class TestConstruction:
    @pytest.mark.parametrize("bad", [torch.ones(2), torch.ones(2, dtype=torch.uint8), [True, False]])
    def test_anything_but_bool_is_refused_by_name(self, bad: object) -> None:
        with pytest.raises(UserError, match=r"a mask must be a torch.bool tensor, got .* for 'w'"):
            Masks({"w": bad})  # type: ignore[dict-item]

    def test_a_mask_is_true_outside_its_scope(self) -> None:
        with pytest.raises(UserError, match="mask of 'w' is False outside its scope"):
            Masks({"w": flags(0, 1)}, {"w": flags(0, 1)})

    def test_a_selection_is_false_outside_its_scope(self) -> None:
        with pytest.raises(UserError, match="selection of 'w' has positions outside its scope"):
            Masks.select({"w": flags(1, 1)}, {"w": flags(0, 1)})

    def test_names_must_match(self) -> None:
        with pytest.raises(UserError, match="only the scope has 'b'"):
            Masks({"a": flags(1)}, {"a": flags(1), "b": flags(1)})
        with pytest.raises(UserError, match="only the masks have 'b'"):
            Masks({"a": flags(1), "b": flags(1)}, {"a": flags(1)})

    def test_shapes_must_match(self) -> None:
        with pytest.raises(UserError, match=r"mask of 'w' has shape \(2,\) but its scope has shape \(1,\)"):
            Masks({"w": flags(1, 1)}, {"w": flags(1)})

    def test_tensors_are_held_and_the_scope_is_copied(self) -> None:
        tensor, inside = flags(1, 1), flags(1, 0)
        masks = Masks({"w": tensor}, {"w": inside})
        tensor[0] = False
        inside[1] = True
        assert (masks.num_on, masks.num) == (0, 1)

    def test_full_takes_linear_and_convolution_weights(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(5, 2), nn.Linear(4, 2))
        masks = Masks.full(model)
        assert list(masks) == ["0.weight", "3.weight"]
        assert masks.num_on == masks.num == 3 * 4 * 9 + 4 * 2

    def test_full_names_a_tied_weight_once(self) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        assert list(Masks.full(model)) == ["0.weight"]

    def test_full_keeps_the_memory_layout_of_the_weights(self) -> None:
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        assert Masks.full(model)["weight"].stride() == model.weight.stride()

    def test_full_with_a_scope(self) -> None:
        masks = Masks.full(Fused(), Masks.select(SCOPE, SCOPE))
        assert (masks.num, masks.num_on) == (6, 6)
        assert masks["qkv.weight"].all()

    def test_full_without_anything_to_mask(self) -> None:
        with pytest.raises(UserError, match="ReLU has no linear or convolution weight"):
            Masks.full(nn.ReLU())

    def test_empty_leaves_what_lies_outside_the_scope(self) -> None:
        masks = Masks.empty(Masks.select(SCOPE, SCOPE))
        assert masks["qkv.weight"].tolist() == [[True, True], [True, True], [False, False]]
        assert (masks.num, masks.num_on) == (6, 0)


class TestAlgebra:
    def test_present_and_missing_split_the_scope(self, masks: Masks) -> None:
        assert masks.present()["qkv.weight"].tolist() == [[False, False], [False, False], [True, False]]
        assert masks.missing()["qkv.weight"].tolist() == [[False, False], [False, False], [False, True]]
        assert masks.present() | masks.missing() == Masks.select(SCOPE, SCOPE)

    def test_growing_and_pruning_leave_a_mask(self, masks: Masks) -> None:
        picks = masks.missing()
        grown = masks | picks
        assert grown == Masks.full(Fused(), SCOPE)
        assert Masks(dict(grown - picks), SCOPE) == masks

    def test_what_a_mask_and_a_selection_share_is_a_selection(self, masks: Masks) -> None:
        assert masks & Masks.select(SCOPE, SCOPE) == masks.present()

    def test_different_models_are_refused(self) -> None:
        with pytest.raises(UserError, match="only one has 'b'"):
            Masks({"a": flags(1)}) | Masks({"a": flags(1), "b": flags(1)})
        with pytest.raises(UserError, match=r"'a' is \(1,\) in one and \(2,\) in the other"):
            Masks({"a": flags(1)}) & Masks({"a": flags(1, 1)})

    def test_different_scopes_are_refused(self) -> None:
        with pytest.raises(UserError, match="different scopes"):
            Masks({"a": flags(1, 1)}, {"a": flags(1, 0)}) - Masks({"a": flags(1, 1)})

    def test_equality_sees_values_names_shapes_and_scope(self) -> None:
        base = Masks({"a": flags(1, 1)})
        assert base == Masks({"a": flags(1, 1)})
        assert base == Masks({"a": flags(1, 1)}, {"a": flags(1, 1)})
        assert base != Masks({"a": flags(1, 0)})
        assert base != Masks({"b": flags(1, 1)})
        assert base != Masks({"a": flags(1, 1).reshape(2, 1)})
        assert base != Masks({"a": flags(1, 1)}, {"a": flags(1, 0)})
        assert base != {"a": flags(1, 1)}

    def test_operators_refuse_plain_dicts(self) -> None:
        with pytest.raises(TypeError):
            Masks({"a": flags(1)}) | {"a": flags(1)}  # type: ignore[operator]


class TestInPlace:
    def test_edits_reach_whoever_holds_a_tensor(self, masks: Masks) -> None:
        held, same = masks["out.weight"], masks
        before = masks.clone()
        masks |= masks.missing()
        assert masks is same
        assert masks["out.weight"] is held
        assert held.all()
        masks -= masks.present()
        assert not held.any()
        masks.copy_(before)
        assert masks == before
        assert masks["out.weight"] is held

    def test_intersection_in_place(self) -> None:
        masks = Masks({"w": flags(1, 1, 0)})
        held = masks["w"]
        masks &= Masks({"w": flags(0, 1, 1)})
        assert held.tolist() == [False, True, False]

    def test_a_clone_is_independent(self, masks: Masks) -> None:
        copy = masks.clone()
        copy -= copy.present()
        assert (copy.num_on, masks.num_on) == (0, 3)

    def test_a_selection_is_not_copied_over_a_mask(self, masks: Masks) -> None:
        before = masks.clone()
        with pytest.raises(UserError, match="a mask and a selection of 'qkv"):
            masks.copy_(masks.present())
        with pytest.raises(UserError, match="a mask and a selection of 'qkv"):
            masks &= masks.present()
        assert masks == before

    def test_tensors_cannot_be_exchanged(self, masks: Masks) -> None:
        with pytest.raises(TypeError):
            masks["out.weight"] = torch.ones(2, 2) > 0  # type: ignore[index]


class TestModel:
    def test_apply_zeroes_exactly_the_off_weights(self, masks: Masks) -> None:
        model = Fused()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        assert masks.apply_(model) is masks
        for name, parameter in model.named_parameters():
            expected = before[name] * masks[name] if name in masks else before[name]
            assert torch.equal(parameter, expected)

    def test_apply_keeps_parameters_and_removes_nan(self) -> None:
        model = nn.Linear(2, 1)
        weight = model.weight
        with torch.no_grad():
            weight.fill_(torch.nan)
        Masks({"weight": torch.tensor([[True, False]])}).apply_(model)
        assert model.weight is weight
        assert weight.isnan().tolist() == [[True, False]]
        assert weight[0, 1] == 0
        assert weight.requires_grad

    def test_check_names_what_is_wrong(self, masks: Masks) -> None:
        masks.check(Fused())
        with pytest.raises(UserError, match=r"there is a mask for 'qkv.weight' but Linear has no such parameter"):
            masks.check(nn.Linear(2, 2))
        wrong = Fused()
        wrong.out = nn.Linear(3, 2)
        with pytest.raises(UserError, match=r"'out.weight' has shape \(2, 2\) but .* Fused has shape \(2, 3\)"):
            masks.apply_(wrong)

    def test_a_device_and_back(self, masks: Masks) -> None:
        assert masks.to("meta")["qkv.weight"].is_meta
        assert masks.to("meta").scope["qkv.weight"].is_meta
        assert masks.to("cpu") == masks


Position = tuple[str, int]


SHAPES = {"a": (3,), "layer.b": (2, 3), "c": (2, 1, 2, 2), "d": ()}


def random_flags(shapes: dict[str, tuple[int, ...]], seed: int, fraction: float = 0.5) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {name: torch.tensor(rng.random(shape) < fraction) for name, shape in shapes.items()}


def positions(masks: Masks) -> set[Position]:
    """The True positions inside the scope, as a plain set."""
    return {
        (name, int(index))
        for name, flags in masks.items()
        for index in (flags & masks.scope[name]).reshape(-1).nonzero().reshape(-1)
    }


seeds = st.integers(0, 2**32 - 1)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Masks, Masks]:
    """Two Masks of one scope, each a mask or a selection."""
    scope = random_flags(SHAPES, draw(seeds), fraction=draw(st.sampled_from([0.5, 1.0])))

    def one() -> Masks:
        inside = {name: flags & scope[name] for name, flags in random_flags(SHAPES, draw(seeds)).items()}
        if draw(st.booleans()):
            return Masks.select(inside, scope)
        return Masks({name: flags | ~scope[name] for name, flags in inside.items()}, scope)

    return one(), one()


@given(pair=pairs())
def test_operators_are_those_of_sets(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    everything = {(name, int(i)) for name, flags in a.scope.items() for i in flags.reshape(-1).nonzero().reshape(-1)}
    assert positions(a | b) == positions(a) | positions(b)
    assert positions(a & b) == positions(a) & positions(b)
    assert positions(a - b) == positions(a) - positions(b)
    assert positions(a.missing()) == everything - positions(a)
    assert positions(a.present()) == positions(a)
    assert (a.num, a.num_on) == (len(everything), len(positions(a)))


@given(pair=pairs())
def test_every_result_is_a_mask_or_a_selection(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    for result in (a | b, a & b, a - b, a.present(), a.missing(), a.clone()):
        outside = torch.cat([flags[~result.scope[name]] for name, flags in result.items()])
        assert outside.all() or not outside.any()
    for selection in (a.present(), a.missing()):
        assert Masks.select(dict(selection), a.scope) == selection


@given(pair=pairs())
def test_masks_with_other_active_weights(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    active = a.with_active(dict(b.present()))
    assert active == Masks.empty(a.scope) | b.present()
    outside = {name: ~inside for name, inside in a.scope.items()}
    if any(flags.any() for flags in outside.values()):
        with pytest.raises(UserError, match="positions outside its scope"):
            a.with_active(outside)


@given(pair=pairs())
def test_equality_and_digest_agree(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    assert (a == b) == (a.digest() == b.digest())
    assert a == a.clone()


# Files


shapes = st.dictionaries(st.text(max_size=8), st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=4)


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


@pytest.mark.item(10)
def test_a_file_cut_anywhere_is_refused(stored: tuple[Masks, bytes, Path], trials: Trials) -> None:
    _, content, path = stored
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with trials.one(f"{length} bytes"), pytest.raises(UserError):
            Masks.load(path)


@pytest.mark.item(10)
def test_a_flipped_bit_never_changes_the_masks(stored: tuple[Masks, bytes, Path], trials: Trials) -> None:
    masks, content, path = stored
    num_refused = 0
    for bit in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with trials.one(f"bit {bit}"):
            try:
                loaded = Masks.load(path)
            except UserError:
                num_refused += 1
            else:
                assert loaded == masks
    assert num_refused > 0.9 * len(content) * 8 / 7
