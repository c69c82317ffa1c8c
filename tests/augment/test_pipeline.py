"""The pipeline: what `draw` and `apply` guarantee for every recipe."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pathgrow.augment import Augment, apply, draw
from pathgrow.errors import UserError
from pathgrow.rng import generator

SHAPE = (3, 20, 24)  # large enough for equalize, which does not change images of fewer than 255 pixels
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
    drawn = rows(draw(recipe, 3, len(images), SHAPE, generator(seed, "draw")), 1)
    return apply(recipe, images, labels, drawn, mean=MEAN, std=STD, classes=5, **options)


def normalized(images: torch.Tensor) -> torch.Tensor:
    return (images.float() - MEAN.view(1, 3, 1, 1)) / STD.view(1, 3, 1, 1)


def test_policies_require_gray_or_rgb():
    with pytest.raises(UserError, match="got 4 channels"):
        draw(EVERYTHING, 1, 2, (4, 8, 8), generator(0))


def test_a_border_wider_than_the_image_cannot_be_mirrored():
    wide = Augment(crop_padding=7, crop_mirrored=True)
    assert draw(wide, 1, 2, (3, 8, 9), generator(0))
    with pytest.raises(UserError, match="crop_padding must be < 7 to mirror images of 9x7, got 7"):
        draw(wide, 1, 2, (3, 9, 7), generator(0))


def test_without_augmentation_images_are_normalized_and_nothing_is_drawn():
    images, labels = some_batch()
    assert draw(Augment(), 4, 9, SHAPE, generator(0)) == {}
    got, targets = apply(Augment(), images, labels, {}, mean=MEAN, std=STD, classes=5)
    assert torch.equal(got, normalized(images))
    assert targets is labels


def test_zero_probabilities_change_no_image():
    recipe = Augment(erase=0.0, mixup=1.0, cutmix=1.0, mix_probability=0.0)
    got, targets = augmented(recipe)
    images, labels = some_batch()
    assert torch.equal(got, normalized(images))
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 5).float())


@given(st.sampled_from(sorted(RECIPES)), st.integers(0, 10_000))
def test_targets_are_labels_or_probabilities(name, seed):
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
    # All other classes have probability 0.
    elsewhere = torch.ones(9, 5).scatter(1, labels[:, None], 0).scatter(1, labels.flip(0)[:, None], 0)
    assert (targets * elsewhere == 0).all()


@pytest.mark.parametrize("name", RECIPES)
def test_results_depend_on_the_seed_only(name):
    recipe = RECIPES[name]
    images, targets = augmented(recipe, seed=1)
    again, same_targets = augmented(recipe, seed=1)
    assert torch.equal(images, again)
    assert torch.equal(targets, same_targets)
    assert not torch.equal(images, augmented(recipe, seed=2)[0])


@pytest.mark.parametrize("name", RECIPES)
def test_draws_have_a_row_per_batch_and_touch_no_global_generator(name):
    state = torch.get_rng_state()
    drawn = draw(RECIPES[name], 6, 4, SHAPE, generator(0))
    assert torch.equal(state, torch.get_rng_state())
    assert drawn
    for key, numbers in drawn.items():
        assert numbers.shape[0] == 6
        assert key.startswith("mix_") or numbers.shape[1] == 4
    assert {len(numbers) for numbers in draw(RECIPES[name], 0, 4, SHAPE, generator(0)).values()} == {0}


@pytest.mark.parametrize("name", RECIPES)
def test_apply_changes_none_of_its_arguments(name):
    recipe = RECIPES[name]
    images, labels = some_batch()
    drawn = rows(draw(recipe, 1, 9, SHAPE, generator(0)), 0)
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


@pytest.mark.parametrize("name", ["imagenet", "everything"])
def test_compiled_as_one_graph_equals_eager(name):
    recipe = RECIPES[name]
    images, labels = some_batch()
    drawn = draw(recipe, 3, 9, SHAPE, generator(5))

    def step(images, labels, drawn, mean, std):
        return apply(recipe, images, labels, drawn, mean=mean, std=std, classes=5)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch._dynamo.config.patch(error_on_recompile=True):  # other numbers, same graph
        for k in range(3):
            for got, expected in zip(
                compiled(images, labels, rows(drawn, k), MEAN, STD),
                step(images, labels, rows(drawn, k), MEAN, STD),
                strict=True,
            ):
                assert torch.equal(got, expected)
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_a_cuda_graph_equals_the_cpu(name):
    recipe = RECIPES[name]
    images, labels = some_batch()
    drawn = draw(recipe, 3, 9, SHAPE, generator(6))
    on_device = {key: numbers[0].cuda() for key, numbers in drawn.items()}
    inputs = images.cuda(), labels.cuda()
    constants = {"mean": MEAN.cuda(), "std": STD.cuda(), "classes": 5}
    torch.cuda.set_sync_debug_mode("error")  # nothing may synchronize with the device
    try:
        apply(recipe, *inputs, on_device, **constants)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = apply(recipe, *inputs, on_device, **constants)
    for k in range(3):
        for key, numbers in on_device.items():
            numbers.copy_(drawn[key][k])
        graph.replay()
        expected = apply(recipe, images, labels, rows(drawn, k), mean=MEAN, std=STD, classes=5)
        off = (got[0].cpu() - expected[0]).abs() * STD.view(1, 3, 1, 1)
        if recipe.resized_crop:  # a rounded interpolation may go to the next byte, which moves the histogram too
            assert (off > 1e-3).double().mean() < 0.05
        else:
            assert off.max() < 1e-3
        assert torch.allclose(got[1].cpu().float(), expected[1].float())
