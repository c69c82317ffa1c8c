"""Padded crops and flips against slicing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pathgrow.augment import Augment, draw
from pathgrow.augment.crops import padded_crop
from pathgrow.rng import generator


@pytest.mark.parametrize(("padding", "mirrored"), [(1, False), (4, False), (13, False), (1, True), (6, True)])
def test_crop_and_flip_equal_slicing_for_every_offset(padding, mirrored):
    height, width = 7, 9
    places = list(itertools.product(range(2 * padding + 1), range(2 * padding + 1), (False, True)))
    images = torch.randint(1, 256, (len(places), 2, height, width), dtype=torch.uint8, generator=generator(0, "crop"))
    tops, lefts, flips = (torch.tensor(column) for column in zip(*places, strict=True))
    got = padded_crop(images, padding, torch.stack([tops, lefts], 1), flips, mirrored=mirrored).numpy()
    for image, (top, left, flip), ours in zip(images.numpy(), places, got, strict=True):
        around = ((0, 0), (padding, padding), (padding, padding))
        expected = np.pad(image, around, mode="reflect" if mirrored else "constant")
        expected = expected[:, top : top + height, left : left + width]
        np.testing.assert_array_equal(ours, expected[:, :, ::-1] if flip else expected)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6))
def test_flipping_twice_is_the_identity(seed, height, width):
    images = torch.randint(256, (5, 2, height, width), dtype=torch.uint8, generator=generator(seed, "batch"))
    flips = torch.randint(2, (5,), generator=generator(seed, "flips")).bool()
    once = padded_crop(images, 0, None, flips)
    assert torch.equal(padded_crop(once, 0, None, flips), images)
    assert torch.equal(once[flips], images[flips].flip(3))


def test_offsets_and_flips_are_uniform():
    drawn = draw(Augment(crop_padding=4, flip=True), 100, 81, (3, 32, 32), generator(3, "uniform"))
    cells = (drawn["shift"][..., 0] * 9 + drawn["shift"][..., 1]).flatten()
    counts = torch.bincount(cells, minlength=81).double()
    assert len(counts) == 81
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert 45 < chi_square < 130  # 80 degrees of freedom: mean 80, deviation 12.6
    assert abs(drawn["flip"].double().mean() - 0.5) < 4 * 0.5 / 8100**0.5
