"""Settings, crop and flip, erasing, mixing, and the promises of `apply`."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pathgrow.augment import Augment, apply, draw, erase, mix, shift
from pathgrow.errors import UserError
from pathgrow.rng import generator

SHAPE = (3, 20, 24)  # large enough for equalize, which leaves images of fewer than 255 pixels alone
MEAN, STD = torch.tensor([120.0, 110.5, 99.0]), torch.tensor([60.0, 61.5, 59.0])
EVERYTHING = Augment(crop_padding=2, flip=True, policy="autoaugment-cifar", erase=0.5, mixup=0.8, cutmix=1.0)
RECIPES = {
    "plain": Augment(crop_padding=4, flip=True),
    "mirrored": Augment(crop_padding=3, crop_mirrored=True, flip=True),
    "flip": Augment(flip=True),
    "imagenet": Augment(resized_crop=True, flip=True, policy="autoaugment-imagenet"),
    "erase": Augment(erase=1.0),
    "mixup": Augment(mixup=0.3, mix_probability=1.0),
    "cutmix": Augment(cutmix=1.0, mix_probability=1.0),
    "everything": EVERYTHING,
}


def some_batch(num: int = 9, shape: tuple[int, ...] = SHAPE, classes: int = 5, seed: int = 0):
    stream = generator(seed, "batch")
    images = torch.randint(256, (num, *shape), dtype=torch.uint8, generator=stream)
    return images, torch.randint(classes, (num,), generator=stream)


def rows(drawn: dict[str, torch.Tensor], batch: int) -> dict[str, torch.Tensor]:
    return {name: numbers[batch] for name, numbers in drawn.items()}


def augmented(recipe: Augment, seed: int = 0, **options):
    images, labels = some_batch()
    drawn = rows(draw(recipe, 3, len(images), SHAPE, 5, generator(seed, "draw")), 1)
    return apply(recipe, images, labels, drawn, mean=MEAN, std=STD, classes=5, **options)


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images.float() - MEAN.view(1, 3, 1, 1)) / STD.view(1, 3, 1, 1)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_survive_json():
    assert Augment(**json.loads(json.dumps(dataclasses.asdict(EVERYTHING)))) == EVERYTHING


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"crop_padding": -1}, "crop_padding=-1"),
        ({"crop_padding": 1.5}, "crop_padding=1.5"),
        ({"crop_padding": True}, "crop_padding=True"),
        ({"flip": 1}, "flip=1"),
        ({"resized_crop": "yes"}, "resized_crop='yes'"),
        ({"policy": "autoaugment-cifar10"}, "did you mean autoaugment-cifar"),
        ({"policy": None}, "unknown augmentation policy 'None'"),
        ({"erase": 1.1}, "erase=1.1"),
        ({"erase": float("nan")}, "erase=nan"),
        ({"mixup": -0.1}, "mixup=-0.1"),
        ({"cutmix": float("inf")}, "cutmix=inf"),
        ({"cutmix": "1"}, "cutmix='1'"),
        ({"mix_probability": -0.5}, "mix_probability=-0.5"),
        ({"crop_padding": 4, "resized_crop": True}, "choose one"),
        ({"crop_padding": 4, "crop_mirrored": 1}, "crop_mirrored=1"),
        ({"crop_mirrored": True}, "give crop_padding too"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(wrong, says):
    with pytest.raises(UserError, match=says) as refusal:
        Augment(**wrong)
    assert "\n" not in str(refusal.value)


def test_policies_are_for_grey_and_rgb():
    with pytest.raises(UserError, match="got 4 channels"):
        draw(EVERYTHING, 1, 2, (4, 8, 8), 10, generator(0))


def test_a_border_wider_than_the_image_cannot_be_mirrored():
    wide = Augment(crop_padding=7, crop_mirrored=True)
    assert draw(wide, 1, 2, (3, 8, 9), 10, generator(0))
    with pytest.raises(UserError, match="7 pixels cannot be mirrored from images of 9x7: give a smaller crop_padding"):
        draw(wide, 1, 2, (3, 9, 7), 10, generator(0))


# --- nothing on -------------------------------------------------------------------------------------------------------


def test_with_everything_off_images_are_normalised_and_nothing_is_drawn():
    images, labels = some_batch()
    assert draw(Augment(), 4, 9, SHAPE, 5, generator(0)) == {}
    got, targets = apply(Augment(), images, labels, {}, mean=MEAN, std=STD, classes=5)
    assert torch.equal(got, normalised(images))
    assert targets is labels


def test_zero_probabilities_change_no_image():
    recipe = Augment(erase=0.0, mixup=1.0, cutmix=1.0, mix_probability=0.0)
    got, targets = augmented(recipe)
    images, labels = some_batch()
    assert torch.equal(got, normalised(images))
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 5).float())


# --- crop and flip ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("padding", "mirrored"), [(1, False), (4, False), (13, False), (1, True), (6, True)])
def test_crop_and_flip_equal_slicing_for_every_offset(padding, mirrored):
    height, width = 7, 9
    places = list(itertools.product(range(2 * padding + 1), range(2 * padding + 1), (False, True)))
    images = torch.randint(1, 256, (len(places), 2, height, width), dtype=torch.uint8, generator=generator(0, "crop"))
    tops, lefts, flips = (torch.tensor(column) for column in zip(*places, strict=True))
    got = shift.crop(images, padding, torch.stack([tops, lefts], 1), flips, mirrored=mirrored).numpy()
    for image, (top, left, flip), ours in zip(images.numpy(), places, got, strict=True):
        around = ((0, 0), (padding, padding), (padding, padding))
        wanted = np.pad(image, around, mode="reflect" if mirrored else "constant")
        wanted = wanted[:, top : top + height, left : left + width]
        np.testing.assert_array_equal(ours, wanted[:, :, ::-1] if flip else wanted)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6))
def test_flipping_twice_is_the_identity(seed, height, width):
    images, _ = some_batch(5, (2, height, width), seed=seed)
    flips = torch.randint(2, (5,), generator=generator(seed, "flips")).bool()
    once = shift.crop(images, 0, None, flips)
    assert torch.equal(shift.crop(once, 0, None, flips), images)
    assert torch.equal(once[flips], images[flips].flip(3))


def test_offsets_and_flips_are_uniform():
    drawn = draw(RECIPES["plain"], 100, 81, (3, 32, 32), 10, generator(3, "uniform"))
    cells = (drawn["shift"][..., 0] * 9 + drawn["shift"][..., 1]).flatten()
    counts = torch.bincount(cells, minlength=81).double()
    assert len(counts) == 81
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert 45 < chi_square < 130  # 80 degrees of freedom: mean 80, deviation 12.6
    assert abs(drawn["flip"].double().mean() - 0.5) < 4 * 0.5 / 8100**0.5


# --- erasing ----------------------------------------------------------------------------------------------------------


def test_erased_boxes_are_zero_and_the_rest_is_untouched():
    pixels = torch.rand(3, 2, 6, 5, generator=generator(0)) + 1
    boxes = torch.tensor([[1, 2, 3, 2], [0, 0, 0, 0], [5, 0, 1, 5]], dtype=torch.int32)
    wanted = pixels.clone()
    wanted[0, :, 1:4, 2:4] = 0
    wanted[2, :, 5, :] = 0
    assert torch.equal(erase.blank(pixels, boxes), wanted)


def test_erasing_spares_the_rest_of_the_batch():
    drawn = draw(Augment(erase=0.25), 50, 100, (3, 32, 32), 10, generator(0, "erase"))["erase_box"]
    erased = (drawn[..., 2] * drawn[..., 3] > 0).double().mean()
    assert abs(erased - 0.25) < 4 * (0.25 * 0.75 / 5000) ** 0.5
    assert (drawn[..., :2] + drawn[..., 2:] <= 32).all()
    assert (drawn >= 0).all()


# --- mixing -----------------------------------------------------------------------------------------------------------


def test_mixup_is_the_weighted_sum_with_the_partner():
    pixels = torch.rand(4, 2, 3, 3, generator=generator(0))
    got = mix.images(pixels, torch.tensor(0.25), None)
    for k in range(4):
        assert torch.allclose(got[k], 0.25 * pixels[k] + 0.75 * pixels[3 - k])


def test_cutmix_pastes_the_partner_into_the_box():
    pixels = torch.rand(3, 2, 6, 5, generator=generator(0))
    wanted = pixels.clone()
    wanted[:, :, 1:4, 0:2] = pixels.flip(0)[:, :, 1:4, 0:2]
    assert torch.equal(mix.images(pixels, None, torch.tensor([1, 0, 3, 2])), wanted)


def test_the_share_of_a_label_is_the_share_of_its_pixels():
    recipe = Augment(mixup=1.0, cutmix=1.0, mix_probability=1.0)
    drawn = draw(recipe, 200, 2, (1, 9, 7), 2, generator(4, "share"))
    kinds = set()
    for k in range(200):
        one = rows(drawn, k)
        bright = torch.stack([torch.ones(1, 9, 7), torch.zeros(1, 9, 7)])
        got = mix.images(bright, one["mix_weight"], one["mix_box"])
        targets = mix.targets(torch.tensor([0, 1]), one["mix_share"], 2)
        assert torch.allclose(targets[:, 0], got.mean((1, 2, 3)), atol=1e-6)
        kinds.add("cut" if one["mix_box"][2:].prod() > 0 else "blend" if one["mix_weight"] < 1 else "none")
    assert {"cut", "blend"} <= kinds


@given(st.sampled_from(sorted(RECIPES)), st.integers(0, 10_000))
def test_targets_are_labels_or_shares_that_sum_to_one(name, seed):
    images, targets = augmented(RECIPES[name], seed)
    _, labels = some_batch()
    assert images.shape == (9, *SHAPE)
    assert images.isfinite().all()
    if not RECIPES[name].mixes:
        assert torch.equal(targets, labels)
        return
    assert targets.shape == (9, 5)
    assert (targets >= 0).all()
    assert torch.allclose(targets.sum(1), torch.ones(9), atol=1e-6)
    # Only the own class and the partner's have a share.
    elsewhere = torch.ones(9, 5).scatter(1, labels[:, None], 0).scatter(1, labels.flip(0)[:, None], 0)
    assert (targets * elsewhere == 0).all()


# --- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_seed_gives_one_result_and_another_seed_another(name):
    recipe = RECIPES[name]
    images, targets = augmented(recipe, seed=1)
    again, same_targets = augmented(recipe, seed=1)
    assert torch.equal(images, again)
    assert torch.equal(targets, same_targets)
    assert not torch.equal(images, augmented(recipe, seed=2)[0])


@pytest.mark.parametrize("name", RECIPES)
def test_draws_have_a_row_per_batch_and_touch_no_global_generator(name):
    state = torch.get_rng_state()
    drawn = draw(RECIPES[name], 6, 4, SHAPE, 5, generator(0))
    assert torch.equal(state, torch.get_rng_state())
    assert drawn
    for key, numbers in drawn.items():
        assert numbers.shape[0] == 6
        assert key.startswith("mix_") or numbers.shape[1] == 4
    assert {len(numbers) for numbers in draw(RECIPES[name], 0, 4, SHAPE, 5, generator(0)).values()} == {0}


@pytest.mark.parametrize("name", RECIPES)
def test_apply_changes_none_of_its_arguments(name):
    recipe = RECIPES[name]
    images, labels = some_batch()
    drawn = rows(draw(recipe, 1, 9, SHAPE, 5, generator(0)), 0)
    before = [value.clone() for value in (images, labels, *drawn.values())]
    apply(recipe, images, labels, drawn, mean=MEAN, std=STD, classes=5)
    assert all(torch.equal(a, b) for a, b in zip(before, (images, labels, *drawn.values()), strict=True))


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_half_precision_is_the_rounded_full_precision(name):
    images, targets = augmented(RECIPES[name], dtype=torch.bfloat16)
    full, same_targets = augmented(RECIPES[name])
    assert images.dtype == torch.bfloat16
    assert torch.equal(images, full.to(torch.bfloat16))
    assert torch.equal(targets, same_targets)


@pytest.mark.parametrize("name", ["plain", "imagenet", "everything"])
def test_compiled_as_one_graph_it_equals_itself(name):
    recipe = RECIPES[name]
    images, labels = some_batch()
    drawn = draw(recipe, 3, 9, SHAPE, 5, generator(5))

    def step(images, labels, drawn, mean, std):
        return apply(recipe, images, labels, drawn, mean=mean, std=std, classes=5)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch._dynamo.config.patch(error_on_recompile=True):  # other numbers, same graph
        for k in range(3):
            for got, wanted in zip(
                compiled(images, labels, rows(drawn, k), MEAN, STD),
                step(images, labels, rows(drawn, k), MEAN, STD),
                strict=True,
            ):
                assert torch.equal(got, wanted)
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_captured_in_a_cuda_graph_it_equals_the_cpu(name):
    recipe = RECIPES[name]
    images, labels = some_batch()
    drawn = draw(recipe, 3, 9, SHAPE, 5, generator(6))
    there = {key: numbers[0].cuda() for key, numbers in drawn.items()}
    inputs = images.cuda(), labels.cuda()
    constants = {"mean": MEAN.cuda(), "std": STD.cuda(), "classes": 5}
    torch.cuda.set_sync_debug_mode("error")  # nothing may wait for the device
    try:
        apply(recipe, *inputs, there, **constants)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = apply(recipe, *inputs, there, **constants)
    for k in range(3):
        for key, numbers in there.items():
            numbers.copy_(drawn[key][k])
        graph.replay()
        wanted = apply(recipe, images, labels, rows(drawn, k), mean=MEAN, std=STD, classes=5)
        off = (got[0].cpu() - wanted[0]).abs() * STD.view(1, 3, 1, 1)
        if recipe.resized_crop:  # a rounded interpolation may go to the next byte, which moves the histogram too
            assert (off > 1e-3).double().mean() < 0.05
        else:
            assert off.max() < 1e-3
        assert torch.allclose(got[1].cpu().float(), wanted[1].float())
