"""Training on a CPU: what it computes, and what its result depends on."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from pathgrow import augment, methods
from pathgrow.data.dataset import Dataset, Split
from pathgrow.distributed.comm import SingleProcess
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import Method
from pathgrow.methods.picks import at_random
from pathgrow.rng import generator
from pathgrow.runs.session import Session
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from pathgrow.trainer import EngineOptions, Trainer, eager_step, feed, trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe
from tests.support.swapping import swapping

CPU = EngineOptions(device="cpu")
CLASSES = 3
PLAIN = Recipe(batch_size=8, lr=0.1, warmup=0.2, weight_decay=0.01)


def made(num: int = 27, channels: int = 2, side: int = 4) -> Dataset:
    """Noise with a weak class signal; one split for all, whose last samples do not fill a batch."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(num) % CLASSES
    images = torch.randint(0, 160, (num, channels, side, side), generator=draw) + 40 * labels.view(-1, 1, 1, 1)
    split = Split(images.to(torch.uint8), labels, (120.0, 110.0)[:channels], (60.0, 50.0)[:channels])
    return Dataset("made", CLASSES, split, split, split)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, CLASSES))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(16, CLASSES),
    )  # fmt: skip


GROWING = dataclasses.replace(methods.create("random_growth", start_density=0.4), start=at_random)


def sparse(
    trainer: Trainer, make: Callable[[], nn.Module] = mlp, *, seed: int = 0, method: Method = GROWING, **options: object
) -> Attached:
    model, optimizer = trainer.place(seeded(make, seed))
    return attach(model, optimizer, method, scope=Masks.full(model), seed=seed, **options)


def trained(recipe: Recipe, make: Callable[[], nn.Module] = mlp, *, epochs: int = 2, seed: int = 5) -> Attached:
    engine = Trainer(made(), recipe, CPU)
    attached = sparse(engine, make)
    assert engine.train([Job(attached=attached, epochs=epochs, seed=seed)]) == [epochs * 24]
    return attached


def state(attached: Attached) -> dict[str, Tensor]:
    moments = {
        f"{name} {key}": value.clone()
        for name, parameter in attached.model.named_parameters()
        for key, value in attached.optimizer.state[parameter].items()
    }
    return moments | {name: value.clone() for name, value in attached.model.state_dict().items()}


def assert_same_bits(ours: Attached, theirs: Attached) -> None:
    here, there = state(ours), state(theirs)
    assert here.keys() == there.keys()
    assert [name for name in here if not torch.equal(here[name], there[name])] == []
    assert ours.masks == theirs.masks
    assert ours.step == theirs.step


def batches(recipe: Recipe, seed: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the batches of a training by definition: order, then augmentation, from one generator per epoch."""
    split, size = made().train, recipe.batch_size
    assert isinstance(split, Split)
    num_batches = len(split) // size
    for epoch in range(epochs):
        draw = generator(seed, "epoch", epoch)
        order = torch.randperm(len(split), generator=draw)
        drawn = augment.draw(recipe.augment, num_batches, size, split.shape, draw)
        for batch in range(num_batches):
            rows = order[batch * size : (batch + 1) * size]
            yield augment.apply(
                recipe.augment, split.images[rows], split.labels[rows], {name: d[batch] for name, d in drawn.items()},
                mean=torch.tensor(split.mean), std=torch.tensor(split.std), classes=CLASSES,
            )  # fmt: skip


# What is computed


def expected_factor(recipe: Recipe, step: int, total: int) -> float:
    """Return the learning-rate factor of the schedules used below."""
    num_warmup = int(recipe.warmup * total)
    if step < num_warmup:
        return (step + 1) / (num_warmup + 1)
    if recipe.schedule == "step":
        return 0.1 ** ((step >= total / 2) + (step >= 3 * total / 4))
    falling = math.cos(math.pi / 2 * (step - num_warmup) / (total - num_warmup)) ** 2
    return recipe.floor + (1 - recipe.floor) * falling


def train_in_numpy(
    weights: dict[str, np.ndarray], masks: Mapping[str, np.ndarray], recipe: Recipe, seed: int, epochs: int
) -> dict[str, np.ndarray]:
    """Train the MLP in NumPy, in double precision, with explicit gradients."""
    w, moments = dict(weights), {name: (np.zeros_like(v), np.zeros_like(v)) for name, v in weights.items()}
    fed = list(batches(recipe, seed, epochs))
    for step, (images, targets) in enumerate(fed):
        x = images.flatten(1).double().numpy()
        q = np.eye(CLASSES)[targets.numpy()] if targets.dim() == 1 else targets.double().numpy()
        q = (1 - recipe.label_smoothing) * q + recipe.label_smoothing / CLASSES
        before = x @ w["1.weight"].T + w["1.bias"]
        hidden = np.maximum(before, 0)
        logits = hidden @ w["3.weight"].T + w["3.bias"]
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        onto_logits = (chances - q) / len(x)
        onto_hidden = (onto_logits @ w["3.weight"]) * (before > 0)
        gradients = {
            "1.weight": onto_hidden.T @ x, "1.bias": onto_hidden.sum(0),
            "3.weight": onto_logits.T @ hidden, "3.bias": onto_logits.sum(0),
        }  # fmt: skip
        gradients = {name: g * masks.get(name, 1) for name, g in gradients.items()}
        if recipe.clip_norm is not None:
            norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
            gradients = {name: g * min(1, recipe.clip_norm / norm) for name, g in gradients.items()}
        rate = recipe.lr * expected_factor(recipe, step, len(fed))
        for name, g in gradients.items():
            first, second = moments[name]
            decay = recipe.weight_decay if recipe.decay_all or w[name].ndim > 1 else 0.0
            if recipe.optimizer == "sgd":
                g = g + decay * w[name]
                first = recipe.momentum * first + g
                w[name] = w[name] - rate * (g + recipe.momentum * first)
            else:
                first = recipe.momentum * first + (1 - recipe.momentum) * g
                second = recipe.second_beta * second + (1 - recipe.second_beta) * g**2
                root = np.sqrt(second / (1 - recipe.second_beta ** (step + 1))) + 1e-8
                change = first / (1 - recipe.momentum ** (step + 1)) / root
                w[name] = w[name] * (1 - rate * decay) - rate * change
            moments[name] = first, second
            w[name] = w[name] * masks.get(name, 1)
    return w


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"augment": {"crop_padding": 1, "flip": True}},
        {"schedule": "step", "momentum": 0.0},
        {"clip_norm": 0.05},
        {"clip_norm": 100.0},
        {"label_smoothing": 0.2},
        {"accumulate": 4},
        {"augment": {"mixup": 1.0, "cutmix": 1.0, "mix_probability": 1.0}, "label_smoothing": 0.1, "accumulate": 2},
        {"optimizer": "adamw", "lr": 0.01, "decay_all": False, "floor": 0.1, "weight_decay": 0.1},
        {"optimizer": "adamw", "lr": 0.01, "clip_norm": 0.05, "weight_decay": 0.1},
    ],
    ids=lambda changes: " ".join(changes) or "plain",
)
def test_training_equals_a_numpy_implementation(changes: dict) -> None:
    recipe = PLAIN.override(changes)
    start = sparse(Trainer(made(), recipe, CPU))
    weights = {name: p.detach().double().numpy() for name, p in start.model.named_parameters()}
    masks = {name: mask.numpy() for name, mask in start.masks.items()}
    attached = trained(recipe, epochs=4)
    assert attached.masks == start.masks
    for name, expected in train_in_numpy(weights, masks, recipe, seed=5, epochs=4).items():
        found = attached.model.get_parameter(name).detach().numpy()
        assert np.abs(expected - weights[name]).max() > 5e-3, "the test must train something"
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("changes", [{}, {"clip_norm": 0.01}], ids=["plain", "clipped"])
def test_training_is_bit_identical_to_a_plain_loop_with_hooks(changes: dict) -> None:
    """With batch norm, dropout and channels last, in the loop that a user of `attach` would write."""
    recipe = PLAIN.override({**changes, "augment": {"crop_padding": 1, "flip": True}})
    engine = Trainer(made(), recipe, CPU)
    attached, plain = trained(recipe, convolutions), sparse(engine, convolutions)
    plain.model.train()
    with torch.random.fork_rng():
        for step, (images, labels) in enumerate(batches(recipe, seed=5, epochs=2)):
            if step % 3 == 0:
                torch.manual_seed(dropout_seed(5, step // 3))
            for group in plain.optimizer.param_groups:
                group["lr"] = float(np.float32(0.1) * np.float32(recipe.lr_factor(step, 6)))
            plain.optimizer.zero_grad()
            logits = plain.model(images.contiguous(memory_format=torch.channels_last))
            functional.cross_entropy(logits, labels).backward()
            if recipe.clip_norm is not None:
                nn.utils.clip_grad_norm_(plain.model.parameters(), recipe.clip_norm)
            plain.optimizer.step()
    assert_same_bits(attached, plain)


def dropout_seed(seed: int, epoch: int) -> int:
    """Return the seed of dropout in an epoch."""
    return generator(seed, "noise", epoch).initial_seed()


def test_microbatches_add_up_to_the_batch() -> None:
    whole, parts = trained(PLAIN), trained(PLAIN.override({"accumulate": 8}))
    for name, tensor in state(whole).items():
        torch.testing.assert_close(state(parts)[name], tensor, rtol=1e-5, atol=1e-6)


def test_a_batch_larger_than_the_data_is_split_into_equal_microbatches() -> None:
    """24 of 27 samples in 4 microbatches: unequal ones would not add up to the mean."""
    whole = trained(PLAIN.override({"batch_size": 24}))
    engine = Trainer(made(), PLAIN.override({"batch_size": 64, "accumulate": 4}), CPU)
    attached = sparse(engine)
    assert engine.train([Job(attached=attached, epochs=2, seed=5)]) == [48]
    for name, tensor in state(whole).items():
        torch.testing.assert_close(state(attached)[name], tensor, rtol=1e-5, atol=1e-6)
    tiny = Trainer(made(num=3), PLAIN.override({"batch_size": 64, "accumulate": 4}), CPU)
    with pytest.raises(UserError, match=r"3 training samples cannot be split into 4 microbatches"):
        tiny.train([Job(attached=sparse(tiny), epochs=1, seed=5)])


def test_the_ema_follows_the_training() -> None:
    engine = Trainer(made(), PLAIN, CPU)
    followed = sparse(engine, ema=EMA(decay=0.6, update_interval=2))
    engine.train([Job(attached=followed, epochs=3, seed=5)])
    # The weights after steps 2, 4, 6 and 8 of the same training.
    plain = Trainer(made(), PLAIN, CPU)
    one_by_one = sparse(plain)
    seen = []

    class Watch(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            super().step(closure)
            seen.append(one_by_one.model[1].bias.detach().clone())

    one_by_one.optimizer.__class__ = Watch
    plain.train([Job(attached=one_by_one, epochs=3, seed=5)])
    assert len(seen) == 9
    expected = torch.zeros(10)
    for num_before, weights in enumerate(seen[1::2]):
        old = min(0.6, num_before / (num_before + 1))
        expected = old * expected + (1 - old) * weights
    with followed.ema_weights():
        torch.testing.assert_close(followed.model[1].bias.detach(), expected)
    assert not torch.allclose(followed.model[1].bias.detach(), expected, atol=1e-3)


def test_pruned_weights_stay_zero_under_optimizers_that_move_every_weight() -> None:
    class Drift(torch.optim.Optimizer):
        """Like Muon, the update of one weight depends on the gradients of others."""

        @torch.no_grad()
        def step(self, closure: object = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter += self.param_groups[0]["lr"]
                self.state[parameter]["sum"] = self.state[parameter].get("sum", 0) + torch.ones_like(parameter)

    engine = Trainer(made(), PLAIN, CPU)
    model = seeded(mlp)
    optimizer = Drift(model.parameters(), {"lr": 0.1})
    attached = attach(model, optimizer, GROWING, scope=Masks.full(model))
    engine.train([Job(attached=attached, epochs=2, seed=5)])
    for name, mask in attached.masks.items():
        assert torch.equal(model.get_parameter(name) != 0, mask)
        assert torch.equal(optimizer.state[model.get_parameter(name)]["sum"], 6.0 * mask)


@pytest.mark.parametrize(
    "method",
    [swapping(density=0.3), methods.create("snfs", density=0.3, num_steps=6, update_interval=2)],
    ids=["gradients at updates", "gradients at every step"],
)
def test_a_method_with_a_step_clock_gets_dense_gradients(method: Method) -> None:
    """Same masks and bits as in a plain loop, where the hooks see every step."""
    engine = Trainer(made(), PLAIN, CPU)
    attached, plain = (sparse(engine, method=method, ema=EMA(update_interval=1)) for _ in range(2))
    before = attached.masks.clone()
    engine.train([Job(attached=attached, epochs=2, seed=5)])
    for step, (images, labels) in enumerate(batches(PLAIN, seed=5, epochs=2)):
        for group in plain.optimizer.param_groups:
            group["lr"] = float(np.float32(0.1) * np.float32(PLAIN.lr_factor(step, 6)))
        plain.optimizer.zero_grad()
        functional.cross_entropy(plain.model(images.contiguous()), labels).backward()
        plain.optimizer.step()
    assert_same_bits(attached, plain)
    assert (attached.masks - before).num_on > 3
    with attached.ema_weights(), plain.ema_weights():
        assert torch.equal(attached.model[1].weight, plain.model[1].weight)


def test_gradients_are_clipped_at_mask_updates_too() -> None:
    """The norm is over the weights that are active after the update."""
    engine = Trainer(made(), PLAIN.override({"clip_norm": 0.01}), CPU)
    attached = sparse(engine, method=swapping(density=0.3))
    norms = []

    def note(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        gradients = {name: p.grad for name, p in attached.model.named_parameters()}
        assert all(not gradient[~attached.masks[name]].any() for name, gradient in gradients.items() if name in masks)
        norms.append(math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values())))

    masks = attached.masks
    attached.optimizer.register_step_pre_hook(note)
    engine.train([Job(attached=attached, epochs=2, seed=5)])
    assert norms == pytest.approx([0.01] * 6, rel=1e-3)


def test_bfloat16_is_used_in_training_and_not_in_evaluation() -> None:
    engine = Trainer(made(), PLAIN, EngineOptions(device="cpu", precision="bf16"))
    attached, seen = sparse(engine), []
    attached.model[1].register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    engine.train([Job(attached=attached, epochs=1, seed=5)])
    engine.evaluate(engine.data.val)(attached.model)
    assert seen == [torch.bfloat16] * 3 + [torch.float32]
    assert attached.model[1].weight.dtype == torch.float32
    exact = trained(PLAIN, epochs=1)
    for name, tensor in state(exact).items():
        torch.testing.assert_close(state(attached)[name], tensor, rtol=0.05, atol=0.01)


def test_a_compiled_step_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced, but not compiled by the C++ compiler, which would take twenty seconds.
    count = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(eager_step.forward_loss, dynamic=False, backend=count)
    monkeypatch.setattr(eager_step, "compiled_forward_loss", lambda kind: compiled)
    engine = Trainer(made(), PLAIN, EngineOptions(device="cpu", compile="on"))
    attached = sparse(engine)
    engine.train([Job(attached=attached, epochs=2, seed=5)])
    for name, tensor in state(trained(PLAIN)).items():
        torch.testing.assert_close(state(attached)[name], tensor, rtol=1e-4, atol=1e-5)
    assert count.frame_count == 1  # not once per step


# Batches


class Spy(nn.Module):
    """Records the samples it gets, whose index is their first pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, CLASSES)
        self.fed: list[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.fed.append([round(value) for value in x[:, 0, 0, 0].tolist()])
        return self.layer(x[:, 0, 0])


def numbered(num: int = 50) -> Dataset:
    images = torch.arange(num, dtype=torch.uint8).view(-1, 1, 1, 1)
    split = Split(images, torch.arange(num) % CLASSES, (0.0,), (1.0,))
    return Dataset("numbered", CLASSES, split, split, split)


def orders(seed: int, epochs: int, *, recipe: Recipe = PLAIN, global_seed: int = 0) -> list[list[list[int]]]:
    """Return batches of sample indices, epoch by epoch."""
    engine = Trainer(numbered(), recipe.override({"lr": 1e-6}), CPU)
    torch.manual_seed(global_seed)
    attached = sparse(engine, Spy)
    engine.train([Job(attached=attached, epochs=epochs, seed=seed)])
    fed = attached.model.fed
    return [fed[i : i + len(fed) // epochs] for i in range(0, len(fed), len(fed) // epochs)]


def test_an_epoch_has_full_batches_and_no_sample_twice() -> None:
    epochs = orders(seed=1, epochs=20)
    assert all([len(batch) for batch in epoch] == [8] * 6 for epoch in epochs)
    seen = [frozenset(sample for batch in epoch for sample in batch) for epoch in epochs]
    assert all(len(samples) == 48 for samples in seen)
    assert len(set(seen)) > 15, "the dropped samples vary"


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    first = orders(seed=1, epochs=3)
    assert first[0] != first[1] != first[2]
    assert orders(seed=1, epochs=3, global_seed=99) == first
    assert orders(seed=1, epochs=2) == first[:2]
    assert orders(seed=2, epochs=1)[0] != first[0]


def test_a_second_training_of_the_same_network_has_its_own_order() -> None:
    engine = Trainer(numbered(), PLAIN.override({"lr": 1e-6}), CPU)
    attached = sparse(engine, Spy)
    for seed in (1, 2, 1):
        engine.train([Job(attached=attached, epochs=1, seed=seed)])
    fed = attached.model.fed
    assert fed[:6] == fed[12:]
    assert [fed[:6], fed[6:12]] == [orders(seed=1, epochs=1)[0], orders(seed=2, epochs=1)[0]]


def test_global_generators_and_flags_are_restored() -> None:
    engine = Trainer(made(), PLAIN, EngineOptions(device="cpu", deterministic=True))
    attached = sparse(engine, convolutions)
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    try:
        engine.train([Job(attached=attached, epochs=1, seed=5)])
        engine.evaluate(engine.data.val)(attached.model)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


def test_data_too_large_for_a_normalized_copy_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = trained(PLAIN, convolutions)
    score = Trainer(made(), PLAIN, CPU).evaluate(made().val)(kept.model)
    monkeypatch.setattr(feed, "_MAX_NORMALIZED_BYTES", 0)
    assert_same_bits(trained(PLAIN, convolutions), kept)
    assert Trainer(made(), PLAIN, CPU).evaluate(made().val)(kept.model) == score


def test_batches_for_growth_hold_every_sample_once_without_augmentation() -> None:
    engine = Trainer(numbered(), PLAIN, CPU)
    torch.manual_seed(4)
    order = torch.randperm(50)
    torch.manual_seed(4)
    found = list(engine.batches())
    assert [len(labels) for _, labels in found] == [8] * 6 + [2]
    assert torch.equal(torch.cat([images for images, _ in found]).flatten(), order.float())
    assert torch.equal(torch.cat([labels for _, labels in found]), order % CLASSES)
    model, smooth = seeded(Spy), Trainer(numbered(), PLAIN.override({"label_smoothing": 0.2}), CPU)
    expected = functional.cross_entropy(model(found[0][0]), found[0][1], label_smoothing=0.2)
    assert smooth.loss(model, found[0]) == expected


# Trainings


def test_several_jobs_are_bit_identical_to_each_alone() -> None:
    engine = Trainer(made(), PLAIN, CPU)
    fleet = [sparse(engine, convolutions, seed=seed) for seed in range(3)]
    jobs = [Job(attached=one, epochs=1 + seed, seed=10 + seed) for seed, one in enumerate(fleet)]
    assert engine.train(jobs) == [24, 48, 72]
    for seed, one in enumerate(fleet):
        alone = Trainer(made(), PLAIN, CPU)
        twin = sparse(alone, convolutions, seed=seed)
        alone.train([Job(attached=twin, epochs=1 + seed, seed=10 + seed)])
        assert_same_bits(one, twin)
    assert engine.train([]) == []


def test_a_network_in_eval_mode_is_trained_like_any_other() -> None:
    engine = Trainer(made(), PLAIN, CPU)
    attached, twin = sparse(engine, convolutions), sparse(engine, convolutions)
    attached.model.eval()
    for one in (attached, twin):
        engine.train([Job(attached=one, epochs=1, seed=5)])
    assert_same_bits(attached, twin)
    assert attached.model.training


def test_a_rewound_network_gets_the_rest_of_the_training() -> None:
    """Six batches per epoch: from the third batch of the second epoch, with the learning rates of these steps."""
    engine = Trainer(numbered(), PLAIN.override({"lr": 1e-6}), CPU)
    attached = sparse(engine, Spy)
    rates: list[float] = []
    attached.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    assert engine.train([Job(attached=attached, epochs=3, seed=1, first_step=8)]) == [10 * 8]
    whole = [batch for epoch in orders(seed=1, epochs=3) for batch in epoch]
    assert attached.model.fed == whole[8:]
    assert rates == pytest.approx([1e-6 * expected_factor(PLAIN, step, 18) for step in range(8, 18)])


def test_a_second_training_continues_from_the_grown_network() -> None:
    """The second training sees the growth and starts at the peak of its own schedule."""
    engine = Trainer(made(), PLAIN, CPU)
    attached, twin = sparse(engine), sparse(engine)
    for one in (attached, twin):
        engine.train([Job(attached=one, epochs=1, seed=1)])
        assert [group["lr"] for group in one.optimizer.param_groups] == [0.1]
        one.grow_(50)
        if one is twin:
            one.engine_cache.clear()  # as if the trainer had never seen it
        engine.train([Job(attached=one, epochs=1, seed=2)])
    assert_same_bits(attached, twin)
    assert attached.masks.num_on == sparse(engine).masks.num_on + 50
    for name, mask in attached.masks.items():
        assert torch.equal(attached.model.get_parameter(name) != 0, mask)


def test_a_second_trainer_uses_its_own_data() -> None:
    def started() -> tuple[Trainer, Attached]:
        first = Trainer(made(num=40), PLAIN, CPU)
        attached = sparse(first)
        first.train([Job(attached=attached, epochs=1, seed=1)])
        return Trainer(made(), PLAIN, CPU), attached  # other data, same recipe

    second, attached = started()
    assert second.train([Job(attached=attached, epochs=1, seed=5)]) == [24]
    other, anew = started()
    anew.engine_cache.clear()
    other.train([Job(attached=anew, epochs=1, seed=5)])
    assert_same_bits(attached, anew)


def test_a_learning_rate_changed_between_trainings_is_used() -> None:
    engine = Trainer(made(), PLAIN, CPU)
    attached, twin = sparse(engine), sparse(engine)
    for one in (attached, twin):
        engine.train([Job(attached=one, epochs=1, seed=1)])
        if one is twin:
            one.engine_cache.clear()  # as if the trainer had never seen it
        one.optimizer.param_groups[0]["lr"] = 0.02
        engine.train([Job(attached=one, epochs=1, seed=2)])
        assert one.optimizer.param_groups[0]["lr"] == 0.02
    assert_same_bits(attached, twin)


def test_parameter_groups_keep_the_ratio_of_their_learning_rates() -> None:
    plan = PLAIN.override({"optimizer": "adamw", "decay_all": False, "lr": 0.01})
    engine = Trainer(made(), plan, CPU)
    attached, slow = sparse(engine), sparse(engine)
    slow.optimizer.param_groups[1]["lr"] = 0.0  # biases do not move
    for one in (attached, slow):
        engine.train([Job(attached=one, epochs=1, seed=1)])
    assert [group["lr"] for group in slow.optimizer.param_groups] == [0.01, 0.0]
    start = sparse(engine).model
    assert torch.equal(slow.model[1].bias, start[1].bias)
    assert not torch.equal(attached.model[1].bias, start[1].bias)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_epochs_are_reported_with_their_last_loss(parts: int) -> None:
    reported: list[tuple[int, int, float]] = []
    recipe = PLAIN.override({"accumulate": parts})
    engine = Trainer(made(), recipe, CPU, on_epoch=lambda *values: reported.append(values))
    attached = sparse(engine)
    given: list[Tensor] = []
    attached.model.register_forward_hook(lambda module, images, out: given.append(out.detach()))
    engine.train([Job(attached=attached, epochs=2, seed=5)])
    logits = torch.cat(given).split(recipe.batch_size)
    labels = [labels for _, labels in batches(recipe, seed=5, epochs=2)]
    expected = [float(functional.cross_entropy(logits[at], labels[at])) for at in (2, 5)]
    assert reported == [(1, 2, pytest.approx(expected[0])), (2, 2, pytest.approx(expected[1]))]


@pytest.mark.parametrize(("bias", "loss"), [(math.nan, "nan"), (-3e38, "inf")])
def test_a_diverging_loss_ends_the_run(bias: float, loss: str) -> None:
    engine = Trainer(made(), PLAIN, CPU)
    attached = sparse(engine)
    with torch.no_grad():
        attached.model[3].bias.copy_(
            torch.tensor([bias, 3e38, 0.0])
        )  # -3e38 is finite, its difference from 3e38 is not
    wanted = rf"became {loss} in epoch 1 of 3: lower the learning rate \(now 0.1\)$"
    with pytest.raises(RunFailed, match=wanted):
        engine.train([Job(attached=attached, epochs=3, seed=5)])


def test_a_trainer_is_a_fit_for_dense_networks() -> None:
    engine = Trainer(made(), PLAIN, CPU)
    model, optimizer = engine.place(seeded(mlp))
    torch.manual_seed(8)
    engine(model, optimizer, 2)
    torch.manual_seed(8)
    seed = int(torch.randint(2**62, ()).item())
    dense = sparse(engine, method=dataclasses.replace(GROWING, start_density=1.0))
    engine.train([Job(attached=dense, epochs=2, seed=seed)])
    assert all(torch.equal(value, dense.model.state_dict()[name]) for name, value in model.state_dict().items())
    attach(model, optimizer, GROWING, scope=Masks.full(model)).detach()  # no hooks are left
    with torch.no_grad():
        model[1].weight.fill_(math.nan)
    with pytest.raises(RunFailed):
        engine(model, optimizer, 1)
    attach(model, optimizer, GROWING, scope=Masks.full(model)).detach()


def test_training_learns() -> None:
    engine = Trainer(made(60), PLAIN, CPU)
    model, optimizer = engine.place(seeded(mlp))
    evaluate = engine.evaluate(engine.data.val)
    before = evaluate(model)
    engine(model, optimizer, 30)
    assert evaluate(model)[0] > 0.95
    assert evaluate(model)[1] < before[1]


# Evaluation


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_equals_a_plain_loop_and_restores_the_mode(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_EVALUATION_BATCH", 7)
    data, model = made(), seeded(convolutions)
    model.train(training)
    model[1].eval()
    engine = Trainer(data, PLAIN, CPU)
    accuracy, loss = engine.evaluate(data.val)(model)
    assert [module.training for module in model] == [training, False, *[training] * 5]
    model.eval()
    with torch.no_grad():
        images = data.val.images.float()
        images = torch.stack([(images[:, 0] - 120) / 60, (images[:, 1] - 110) / 50], dim=1)
        logits = model(images).double().numpy()
    truth = data.val.labels.numpy()
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert accuracy == np.mean(logits.argmax(1) == truth)
    assert loss == pytest.approx(-np.log(chances[np.arange(len(truth)), truth]).mean(), rel=1e-6)


# Edge cases


def one_pixel() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(1, CLASSES))


def one_pixel_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, CLASSES, 1), nn.BatchNorm2d(CLASSES), nn.Flatten())


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_an_interrupted_training_restores_the_learning_rate(kind: str) -> None:
    trainer = Trainer(numbered(32), Recipe(lr=1e-4, batch_size=4, optimizer=kind, decay_all=False), CPU)
    model, optimizer = trainer.place(one_pixel())
    calls = 0

    def interrupt(module: nn.Module, given: object, out: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt

    model.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer(model, optimizer, 1)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-4] * len(optimizer.param_groups)


def test_batches_for_growth_have_the_size_of_a_microbatch() -> None:
    whole, parts = (Trainer(numbered(20), Recipe(batch_size=8, accumulate=n), CPU) for n in (1, 4))
    assert [len(labels) for _, labels in whole.batches()] == [8, 8, 4]
    assert [len(labels) for _, labels in parts.batches()] == [2] * 10


@pytest.mark.parametrize("num", [31, 32, 33])
def test_ranks_get_equally_many_rows_of_every_batch_for_growth(num: int) -> None:
    class One(SingleProcess):
        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

    found = []
    for rank in range(2):
        torch.manual_seed(0)
        trainer = Trainer(numbered(num), Recipe(batch_size=8), CPU, comm=One(rank))
        found.append([images.flatten().tolist() for images, _ in trainer.batches()])
    assert [len(rows) for rows in found[0]] == [len(rows) for rows in found[1]] == [4] * (num // 8)
    seen = [number for batches in found for rows in batches for number in rows]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(("batch_size", "accumulate"), [(1, 1), (4, 4)])
def test_batch_norm_over_one_value_is_refused(batch_size: int, accumulate: int) -> None:
    trainer = Trainer(numbered(8), Recipe(batch_size=batch_size, accumulate=accumulate), CPU)
    model, optimizer = trainer.place(one_pixel_norm())
    ways: list[Callable[[], object]] = [
        lambda: trainer(model, optimizer, 1),
        lambda: trainer.loss(model.train(), next(trainer.batches())),
    ]
    for way in ways:
        with pytest.raises(UserError, match=r"one sample at a time .*; use a larger batch size"):
            way()


# Scaling with density

SUPAR = Recipe(batch_size=8, optimizer="adamw", lr=0.01, weight_decay=0.1, warmup=0.0, density_scaling="supar")


class Wide(nn.Module):
    """One prunable layer, whose outputs are seen, and a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(32, 400, bias=False), nn.Linear(400, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x.flatten(1)).relu())  # type: ignore[no-any-return]


def first_step(recipe: Recipe, density: float) -> tuple[float, float, list[float]]:
    """Size of pre-activations, their change in one step, and the learning rates in between."""
    data = made(num=8)
    train = Trainer(data, recipe, CPU)
    model, optimizer = train.place(seeded(Wide))
    everything = {"hidden.weight": torch.ones(400, 32, dtype=torch.bool)}
    scope = Masks.select(everything, everything)
    session = Session(model, optimizer, train, train.evaluate(data.val), data.example_input(), scope=scope)
    sparse = session.attach(model, optimizer, methods.create("random", density=density, allocation="uniform"))
    inputs = data.train.images.float().flatten(1) / 255
    before = model.hidden(inputs).detach()
    if recipe.density_scaling == "supar":
        trainer.scale_by_density_(sparse, recipe)
    rates = [group["lr"] for group in optimizer.param_groups]
    train.train([Job(attached=sparse, epochs=1, seed=0)])
    return float(before.std()), float((model.hidden(inputs).detach() - before).abs().mean()), rates


def test_supar_keeps_the_size_of_activations_and_of_their_first_change() -> None:
    """The property that the rule is derived from: without it both shrink with density, as sqrt and linearly."""
    dense, sparse = first_step(SUPAR, 1.0), first_step(SUPAR, 0.1)
    plain = first_step(dataclasses.replace(SUPAR, density_scaling="none"), 0.1)
    assert sparse[0] == pytest.approx(dense[0], rel=0.1)
    assert sparse[1] == pytest.approx(dense[1], rel=0.3)
    assert plain[0] < 0.6 * dense[0]
    assert plain[1] < 0.2 * dense[1]
    assert dense[2] == [0.01, 0.01, 0.01]
    assert sparse[2] == pytest.approx([0.1, 0.01, 0.01])  # the prunable weight alone


def test_supar_scales_once_and_keeps_the_decay_per_step() -> None:
    data = made(num=8)
    train = Trainer(data, SUPAR, CPU)
    model, optimizer = train.place(seeded(mlp))
    sparse = attach(model, optimizer, methods.create("random", density=0.25), scope=Masks.full(model))
    for _ in range(2):  # as in a training that is resumed
        trainer.scale_by_density_(sparse, SUPAR)
    for name, group in zip(("1.weight", "3.weight"), optimizer.param_groups, strict=False):
        density = float(sparse.masks[name].float().mean())
        assert group["lr"] == pytest.approx(0.01 / density)
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.01 * 0.1)
    assert [group["lr"] for group in optimizer.param_groups[2:]] == [0.01]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_supar_needs_adamw() -> None:
    with pytest.raises(UserError, match="density_scaling='supar' is a rule for AdamW, got optimizer='sgd'"):
        Recipe(density_scaling="supar")
