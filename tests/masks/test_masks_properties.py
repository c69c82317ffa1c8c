"""Laws of masks for arbitrary shapes and scopes, and of files however they are damaged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.masks import Masks

Position = tuple[str, int]
SHAPES = {"a": (3,), "layer.b": (2, 3), "c": (2, 1, 2, 2), "d": ()}


def random_flags(shapes: dict[str, tuple[int, ...]], seed: int, share: float = 0.5) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {name: torch.tensor(rng.random(shape) < share) for name, shape in shapes.items()}


def positions(masks: Masks) -> set[Position]:
    """The True positions inside the scope, as a plain set."""
    return {
        (name, int(index))
        for name, flags in masks.items()
        for index in (flags & masks.scope[name]).reshape(-1).nonzero().reshape(-1)
    }


seeds = st.integers(0, 2**32 - 1)
shapes = st.dictionaries(st.text(max_size=8), st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=4)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Masks, Masks]:
    """Two Masks of one scope, each a mask or a selection."""
    scope = random_flags(SHAPES, draw(seeds), share=draw(st.sampled_from([0.5, 1.0])))

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
def test_equality_and_digest_agree(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    assert (a == b) == (a.digest() == b.digest())
    assert a == a.clone()


@given(shapes=shapes, seed=seeds, share=st.sampled_from([0.0, 0.5, 1.0]))
def test_files_bring_back_everything(shapes: dict[str, tuple[int, ...]], seed: int, share: float) -> None:
    scope = random_flags(shapes, seed, share)
    inside = {name: flags & scope[name] for name, flags in random_flags(shapes, seed + 1).items()}
    with tempfile.TemporaryDirectory() as folder:
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
    scope = random_flags({"a": (30,), "b": (5, 50)}, 1, share=0.8)
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
    for bit in range(0, 8 * len(content), 3):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            loaded = Masks.load(path)
        except UserError:
            num_refused += 1
        else:
            assert loaded == masks
    assert num_refused > 0.9 * len(content) * 8 / 3
