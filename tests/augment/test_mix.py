"""Random erasing, MixUp and CutMix."""

from __future__ import annotations

import torch

from pathgrow.augment import Augment, draw
from pathgrow.augment.mix import erase_boxes, mix_images, mix_targets
from pathgrow.rng import generator


def test_erased_boxes_are_zero_and_the_rest_is_untouched():
    pixels = torch.rand(3, 2, 6, 5, generator=generator(0)) + 1
    boxes = torch.tensor([[1, 2, 3, 2], [0, 0, 0, 0], [5, 0, 1, 5]], dtype=torch.int32)
    expected = pixels.clone()
    expected[0, :, 1:4, 2:4] = 0
    expected[2, :, 5, :] = 0
    assert torch.equal(erase_boxes(pixels, boxes), expected)


def test_erasing_leaves_the_rest_of_the_batch():
    drawn = draw(Augment(erase=0.25), 50, 100, (3, 32, 32), generator(0, "erase"))["erase_box"]
    erased = (drawn[..., 2] * drawn[..., 3] > 0).double().mean()
    assert abs(erased - 0.25) < 4 * (0.25 * 0.75 / 5000) ** 0.5
    assert (drawn[..., :2] + drawn[..., 2:] <= 32).all()
    assert (drawn >= 0).all()


def test_mixup_is_the_weighted_sum_with_the_partner():
    pixels = torch.rand(4, 2, 3, 3, generator=generator(0))
    got = mix_images(pixels, torch.tensor(0.25), None)
    for k in range(4):
        assert torch.allclose(got[k], 0.25 * pixels[k] + 0.75 * pixels[3 - k])


def test_cutmix_pastes_the_partner_into_the_box():
    pixels = torch.rand(3, 2, 6, 5, generator=generator(0))
    expected = pixels.clone()
    expected[:, :, 1:4, 0:2] = pixels.flip(0)[:, :, 1:4, 0:2]
    assert torch.equal(mix_images(pixels, None, torch.tensor([1, 0, 3, 2])), expected)


def test_the_share_of_a_label_is_the_share_of_its_pixels():
    recipe = Augment(mixup=1.0, cutmix=1.0, mix_probability=1.0)
    drawn = draw(recipe, 200, 2, (1, 9, 7), generator(4, "share"))
    kinds = set()
    for k in range(200):
        one = {name: numbers[k] for name, numbers in drawn.items()}
        bright = torch.stack([torch.ones(1, 9, 7), torch.zeros(1, 9, 7)])
        got = mix_images(bright, one["mix_weight"], one["mix_box"])
        targets = mix_targets(torch.tensor([0, 1]), one["mix_share"], 2)
        assert torch.allclose(targets[:, 0], got.mean((1, 2, 3)), atol=1e-6)
        kinds.add("cut" if one["mix_box"][2:].prod() > 0 else "blend" if one["mix_weight"] < 1 else "none")
    assert {"cut", "blend"} <= kinds
