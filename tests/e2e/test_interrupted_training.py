"""A training interrupted after any step and resumed by another process ends with identical bits."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pathgrow import methods
from pathgrow.checkpoint import MemoryStore, RunDir, Store
from pathgrow.data.dataset import Dataset, Split
from pathgrow.errors import RunFailed
from pathgrow.masks import Masks
from pathgrow.methods.picks import at_random
from pathgrow.report.schema import TimingReport
from pathgrow.runs import stages
from pathgrow.runs.api import discover
from pathgrow.runs.records import Callback
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from pathgrow.sparse.training_state import TrainingCheckpoint
from pathgrow.trainer import EngineOptions, Trainer, eager_step
from pathgrow.trainer.eager_step import EagerStep, cross_entropy
from pathgrow.trainer.feed import ResidentFeed
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe
from tests.support.catalogue import Trials
from tests.support.command import leave
from tests.support.faults import replaced
from tests.support.swapping import swapping

EPOCHS, STEPS_PER_EPOCH = 3, 5
VALUES = (math.nan, math.inf, -math.inf)


NUM_STEPS = EPOCHS * STEPS_PER_EPOCH


AUGMENTED = {"crop_padding": 1, "flip": True, "erase": 0.5, "mixup": 1.0}


CASES = {
    "sgd": Recipe(batch_size=8, lr=0.1, warmup=0.2, clip_norm=1.0).override({"augment": AUGMENTED}),
    "adamw": Recipe(batch_size=8, optimizer="adamw", lr=0.01, decay_all=False, accumulate=2, label_smoothing=0.1),
}


@cache
def data() -> Dataset:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(42) % 3
    images = torch.randint(0, 160, (42, 1, 4, 4), generator=draw) + 40 * labels.view(-1, 1, 1, 1)
    split = Split(images.to(torch.uint8), labels, (120.0,), (60.0,))
    return Dataset("made", 3, split, split, split)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
            nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 3),
        )  # fmt: skip


GROWING = dataclasses.replace(methods.create("random_growth", start_density=0.4), start=at_random)


METHODS = {"growing": GROWING, "swapping": swapping(density=0.3, every=4, num=4)}


class Killed(BaseException):
    """Like a kill, not seen by any handler of the program."""


class Mortal(TrainingCheckpoint):
    """Saves after some steps; the process dies after one of them."""

    def __init__(self, store: Store, saves: set[int], dies: int | None, kept: list[Attached] | None = None) -> None:
        super().__init__(store, "partial-test-0", seconds=-1.0)
        object.__setattr__(self, "saves", saves)
        object.__setattr__(self, "dies", dies)
        object.__setattr__(self, "offered", [])
        object.__setattr__(self, "kept", kept)

    def save(self, attached: Attached, step: int, noise: Tensor) -> None:
        self.offered.append(step)
        if step in self.saves:
            super().save(attached, step, noise)
        if step == self.dies:
            if self.kept is not None:
                self.kept.append(attached)
            raise Killed


def begun(recipe: str, method: str, on_epoch: Callable[..., None] = print) -> tuple[Trainer, Attached]:
    trainer = Trainer(data(), CASES[recipe], EngineOptions(device="cpu"), on_epoch=on_epoch)
    model, optimizer = trainer.place(network())
    return trainer, attach(
        model,
        optimizer,
        METHODS[method],
        data().example_input(),
        scope=Masks.full(model),
        seed=1,
        ema=EMA(decay=0.8, update_interval=2),
    )


def train(
    recipe: str, method: str, progress: TrainingCheckpoint | None = None
) -> tuple[Attached, list[tuple[int, int, float]]]:
    """Like a process of its own, which shares only the store with others."""
    epochs: list[tuple[int, int, float]] = []
    trainer, attached = begun(recipe, method, lambda *epoch: epochs.append(epoch))
    trainer.train([Job(attached=attached, epochs=EPOCHS, seed=5, progress=progress)])
    return attached, epochs


def everything(attached: Attached) -> dict[str, Tensor]:
    slots = {
        f"{name} {key}": value.clone()
        for name, parameter in attached.model.named_parameters()
        for key, value in attached.optimizer.state[parameter].items()
    }
    with attached.ema_weights():
        averages = {f"average {name}": value.clone() for name, value in attached.model.state_dict().items()}
    masks = {f"mask {name}": mask for name, mask in attached.masks.items()}
    numbers = {"step": torch.tensor(attached.step), "round": torch.tensor(attached.round)}
    rates = {"lr": torch.tensor([group["lr"] for group in attached.optimizer.param_groups])}
    return {**attached.model.state_dict(), **slots, **averages, **masks, **numbers, **rates}


@cache
def uninterrupted(recipe: str, method: str) -> tuple[dict[str, Tensor], list[tuple[int, int, float]]]:
    attached, epochs = train(recipe, method)
    return everything(attached), epochs


def assert_same(attached: Attached, recipe: str, method: str) -> None:
    found, expected = everything(attached), uninterrupted(recipe, method)[0]
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@settings(max_examples=15)
@given(
    recipe=st.sampled_from(list(CASES)),
    method=st.sampled_from(list(METHODS)),
    saves=st.sets(st.integers(1, NUM_STEPS), max_size=4),
    kills=st.lists(st.integers(1, NUM_STEPS), min_size=1, max_size=3, unique=True),  # a saved step is not repeated
    noise=st.integers(0, 9),
)
def test_interrupted_after_any_step_and_resumed(
    recipe: str, method: str, saves: set[int], kills: list[int], noise: int
) -> None:
    store = MemoryStore()
    for dies in sorted(kills):
        torch.manual_seed(noise)  # random numbers drawn before do not matter
        with pytest.raises(Killed):
            train(recipe, method, Mortal(store, saves, dies))
    last = Mortal(store, saves, None)
    attached, epochs = train(recipe, method, last)
    assert_same(attached, recipe, method)
    # It resumed from the last state saved before the last kill.
    begun = max((step for step in saves if step <= max(kills)), default=0)
    assert last.offered == [*range(begun + 1, NUM_STEPS + 1), NUM_STEPS]
    assert epochs == uninterrupted(recipe, method)[1][begun // STEPS_PER_EPOCH :]


@pytest.mark.parametrize("dies", [4, 9, 14])
def test_a_training_scaled_by_the_density_it_starts_with_resumes_alike(dies: int) -> None:
    """The density falls while it trains; a resumed training has the learning rate of its first step, not a new one."""
    recipe = Recipe(batch_size=8, optimizer="adamw", lr=0.01, warmup=0.0, density_scaling="supar")
    gmp = methods.create("gmp", density=0.2, start_fraction=0.0, num_steps=NUM_STEPS, update_interval=2)

    def trained(progress: TrainingCheckpoint | None = None) -> dict[str, Tensor]:
        trainer = Trainer(data(), recipe, EngineOptions(device="cpu"))
        model, optimizer = trainer.place(network())
        attached = attach(model, optimizer, gmp, data().example_input(), scope=Masks.full(model), seed=1)
        trainer.train([Job(attached=attached, epochs=EPOCHS, seed=5, progress=progress)])
        return dict(model.state_dict())

    store, every = MemoryStore(), set(range(1, NUM_STEPS + 1))
    with pytest.raises(Killed):
        trained(Mortal(store, every, dies))
    resumed, whole = trained(Mortal(store, every, None)), trained()
    assert [name for name in whole if not torch.equal(resumed[name], whole[name])] == []


@pytest.mark.item(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", CASES)
def test_samples_come_in_the_same_order_if_killed_five_times_an_epoch(
    recipe: str, method: str, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    """After every one of the five steps of an epoch, or after random ones of them."""
    fed: dict[tuple[int, int], list[int]] = {}
    order = ResidentFeed._order

    def noted(self: ResidentFeed, epoch: int, draw: torch.Generator) -> dict[str, Tensor]:
        tables = order(self, epoch, draw)
        for step, rows in enumerate(tables["order"].tolist()):
            assert fed.setdefault((epoch, step), rows) == rows, "another order than before the kill"
        return tables

    monkeypatch.setattr(ResidentFeed, "_order", noted)
    for number in range(trials.count(quick=1, full=20)):
        kills = list(range(1, NUM_STEPS + 1)) if number == 0 else sorted(trials.draw.sample(range(1, NUM_STEPS), 5))
        store = MemoryStore()
        with trials.one(f"killed after steps {kills}"):
            for dies in kills:
                with pytest.raises(Killed):
                    train(recipe, method, Mortal(store, {dies}, dies))
            attached, _ = train(recipe, method, TrainingCheckpoint(store, "partial-test-0"))
            assert_same(attached, recipe, method)
            trials.add("kills", len(kills))
    assert len(fed) == NUM_STEPS


def changed_(attached: Attached) -> None:
    """Other weights, statistics of batch norm, averages, momentum, learning rates and random numbers."""
    with torch.no_grad():
        for tensor in [*attached.model.parameters(), *attached.model.buffers()]:
            tensor.add_(1) if tensor.is_floating_point() else tensor.add_(3)
        for group in attached.optimizer.param_groups:
            group["lr"] *= 7
        for parameter in attached.model.parameters():
            attached.optimizer.state[parameter] = {"momentum_buffer": torch.full_like(parameter, 9.0)}
        assert attached._ema is not None
        for average in attached._ema._means.values():
            average.add_(5)
    torch.manual_seed(999)


@pytest.mark.parametrize(
    "is_changed", [pytest.param(False, marks=pytest.mark.item(8)), pytest.param(True, marks=pytest.mark.item(5))]
)
def test_a_loaded_state_is_exact_whatever_was_there_before(is_changed: bool, trials: Trials) -> None:
    """And sparse: pruned weights and their optimizer state are zero, the number of active weights is that saved."""
    for _ in range(trials.count(quick=6, full=60)):
        recipe, method = trials.draw.choice(list(CASES)), trials.draw.choice(list(METHODS))
        last, store, kept = trials.draw.randint(1, NUM_STEPS), MemoryStore(), list[Attached]()
        with trials.one(f"{recipe} {method} killed after step {last}"):
            with pytest.raises(Killed):
                train(recipe, method, Mortal(store, {last}, last, kept))
            saved, checkpoint = everything(kept[0]), TrainingCheckpoint(store, "partial-test-0")
            attached = begun(recipe, method)[1]
            if is_changed:
                changed_(attached)
            assert checkpoint.load(attached) is not None
            loaded = everything(attached)
            assert [name for name in saved if not torch.equal(saved[name], loaded[name])] == []
            assert attached.masks.num_on == kept[0].masks.num_on
            parameters = dict(attached.model.named_parameters())
            for name, mask in attached.masks.items():
                state = attached.optimizer.state[parameters[name]].values()
                for tensor in (parameters[name], *(value for value in state if value.shape == mask.shape)):
                    assert not tensor[~mask].any()
            assert_same(train(recipe, method, checkpoint)[0], recipe, method)


class Injected:
    """A NaN or an infinity at the n-th step of the engine, in the loss, a gradient, the weights or the statistics."""

    KINDS = ("loss", "gradients", "weights", "statistics")

    def __init__(self, kind: str = "", value: float = math.nan, at: int = 0) -> None:
        self.kind, self.value, self.at = kind, value, at
        self.num_steps = 0

    @contextmanager
    def patched(self) -> Iterator[None]:
        with replaced(EagerStep, "_backward", self._backward(EagerStep._backward)):
            yield

    def _backward(self, real: Callable[[EagerStep, int], None]) -> Callable[[EagerStep, int], None]:
        def injected(step: EagerStep, number: int) -> None:
            self.num_steps += 1
            kind, model = self.kind if self.num_steps == self.at else "", step.attached.model
            poisoned = replaced(eager_step, "cross_entropy", lambda *a, **k: self.value * cross_entropy(*a, **k))
            with poisoned if kind == "loss" else nullcontext():
                real(step, number)
            weight = next(model.parameters())
            assert weight.grad is not None
            targets = {
                "gradients": weight.grad,
                "weights": weight.detach(),
                "statistics": next(model.buffers(), weight),
            }
            if kind in targets:
                targets[kind].detach().fill_(self.value)

        return injected


def assert_finite(stages: Store) -> None:
    for stage in stages.names():
        for name, tensor in stages.load(stage).tensors.items():
            assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), f"{name} in {stage}"


@pytest.mark.item(14)
@pytest.mark.parametrize("kind", Injected.KINDS)
def test_an_injected_nan_ends_a_discovery_and_no_checkpoint_holds_it(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: Trials
) -> None:
    """At any step of any stage, however often it is saved; the next run goes on from what is finite."""
    whole = Injected()
    with RunDir.open(tmp_path / "whole", {}) as folder, whole.patched():
        expected = discovered(folder.stages, monkeypatch, often=False)
    for number in range(trials.count(quick=1, full=10)):
        at, often, value = trials.draw.randint(1, whole.num_steps), number % 2 == 0, trials.draw.choice(VALUES)
        monkeypatch.setattr(stages, "SECONDS_BETWEEN_SAVES", -1.0 if often else 60.0)
        with trials.one(f"{value} in the {kind} of step {at} of {whole.num_steps}"):
            with RunDir.open(tmp_path / str(number), {}) as folder:
                with Injected(kind, value, at).patched(), pytest.raises(RunFailed, match=r"became|not finite"):
                    discovered(folder.stages, monkeypatch, often=False)
                assert_finite(folder.stages)
                again = discovered(folder.stages, monkeypatch, often=False)
            assert again["report"] == expected["report"]


@pytest.mark.item(14)
@pytest.mark.parametrize("kind", ["loss", "gradients", "weights"])
def test_an_injected_nan_ends_the_command_with_a_sentence(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: Trials, capfd: pytest.CaptureFixture[str]
) -> None:
    common = ("train", "--method", "rigl", "--method-option", "update_interval=10", "--epochs", "2", "--threads", "1")
    command = (*common, "--quiet", "--model-option", "widths=8,8", "--out")
    whole = Injected()
    with whole.patched():
        assert leave(*command, str(tmp_path / "whole")) == 0
    for number in range(trials.count(quick=1, full=20)):
        at, value, out = trials.draw.randint(1, whole.num_steps), trials.draw.choice(VALUES), tmp_path / str(number)
        monkeypatch.setattr(stages, "SECONDS_BETWEEN_SAVES", -1.0 if number % 2 == 0 else 60.0)
        capfd.readouterr()
        with trials.one(f"{value} in the {kind} of step {at} of {whole.num_steps}"):
            with Injected(kind, value, at).patched():
                assert leave(*command, str(out)) in (1, 2)
            [said] = capfd.readouterr().err.splitlines()
            assert said.startswith("pathgrow: ")
            assert_finite(RunDir(out).stages)
            assert leave(*command, str(out)) == 0
            assert (out / "network.safetensors").read_bytes() == (tmp_path / "whole/network.safetensors").read_bytes()


@pytest.mark.item(14)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", Injected.KINDS)
def test_an_injected_nan_in_the_training_of_a_user_is_not_stored(kind: str, tmp_path: Path, trials: Trials) -> None:
    split, num_steps = data().train, 0
    assert isinstance(split, Split)
    images, labels = split.images.float() / 255, split.labels

    def search(store: Store, at: int = 0, value: float = math.nan) -> dict[str, Tensor]:
        nonlocal num_steps
        num_steps = 0

        def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
            nonlocal num_steps
            model.train()
            for rows in [rows for _ in range(epochs) for rows in torch.randperm(len(labels)).split(8)]:
                num_steps += 1
                hit = kind if num_steps == at else ""
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
                (loss * value if hit == "loss" else loss).backward()
                weight, statistics = next(model.parameters()), next(model.buffers())
                if hit == "gradients" and weight.grad is not None:
                    weight.grad.fill_(value)
                optimizer.step()
                if hit in ("weights", "statistics"):
                    (weight if hit == "weights" else statistics).detach().fill_(value)

        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        discover(
            model, optimizer, fit, lambda model: float(model.eval()(images).argmax(1).eq(labels).float().mean()),
            data().example_input(), budget=4, store=store, progress=False,
        )  # fmt: skip
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    expected = search(MemoryStore())
    total = num_steps
    for number in range(trials.count(quick=1, full=20)):
        at, value = trials.draw.randint(1, total), trials.draw.choice(VALUES)
        with trials.one(f"{value} in the {kind} of step {at} of {total}"):
            with RunDir.open(tmp_path / str(number), {}) as folder:
                with pytest.raises(RunFailed, match="not finite"):
                    search(folder.stages, at, value)
                assert_finite(folder.stages)
                again = search(folder.stages)
            assert all(torch.equal(tensor, expected[name]) for name, tensor in again.items())


def test_saves_are_spaced_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks once per step; the time since the last save counts, not since the start."""
    saved: list[int] = []
    num_steps = 0

    class Every4(TrainingCheckpoint):
        def save(self, attached: Attached, step: int, noise: Tensor) -> None:
            saved.append(step)

    def step_counted(self: EagerStep, step: int) -> None:
        nonlocal num_steps
        num_steps += 1
        train_step(self, step)

    train_step = EagerStep.__call__
    monkeypatch.setattr(EagerStep, "__call__", step_counted)
    monkeypatch.setattr(time, "monotonic", lambda: float(num_steps))
    train("sgd", "growing", Every4(MemoryStore(), "partial-test-0", seconds=3.5))
    assert saved == [4, 8, 12, NUM_STEPS], "and the finished state"


def test_every_part_of_the_state_matters() -> None:
    """A training that loses it ends with other weights."""
    expected = uninterrupted("sgd", "growing")[0]
    assert expected["5.weight"].count_nonzero() == int(expected["mask 5.weight"].sum())
    for name in expected:
        if name.startswith("average") and name.endswith("weight"):
            assert not torch.equal(expected[name], expected[name.removeprefix("average ")])
    assert not torch.equal(uninterrupted("sgd", "swapping")[0]["mask 5.weight"], expected["mask 5.weight"])
    store = MemoryStore()
    with pytest.raises(Killed):
        train("sgd", "growing", Mortal(store, {7}, 7))
    stage = store.load("partial-test-0")
    other = torch.Generator().manual_seed(3).get_state()
    tensors = {name: other if name.startswith("noise") else tensor for name, tensor in stage.tensors.items()}
    store.save("partial-test-0", stage.metadata, tensors)
    attached, _ = train("sgd", "growing", TrainingCheckpoint(store, "partial-test-0"))
    assert not torch.equal(attached.model[5].weight, expected["5.weight"]), (
        "dropout continues with its own random state"
    )


@pytest.mark.parametrize("last", [4, 5, NUM_STEPS])
def test_a_run_directory_stores_the_state_exactly(tmp_path: Path, last: int) -> None:
    with RunDir.open(tmp_path / "run", {}) as folder, pytest.raises(Killed):
        train("adamw", "swapping", Mortal(folder.stages, {last}, last))
    with RunDir.open(tmp_path / "run", {}) as folder:
        attached, _ = train("adamw", "swapping", TrainingCheckpoint(folder.stages, "partial-test-0"))
    assert_same(attached, "adamw", "swapping")


def discovered(
    store: Store, monkeypatch: pytest.MonkeyPatch, dies: tuple[str, int] | None = None, *, often: bool = True
) -> dict:
    """A discovery that saves after every step if `often`, and dies at one of them."""

    class Often(TrainingCheckpoint):
        def __init__(self, store: Store, name: str, **others: object) -> None:
            super().__init__(store, name, **{**others, "seconds": -1.0})

        def save(self, attached: Attached, step: int, noise: Tensor) -> None:
            super().save(attached, step, noise)
            if dies == (self.name, step):
                raise Killed

    if often:
        monkeypatch.setattr(stages, "TrainingCheckpoint", Often)
    began: list[str] = []

    class StageLog(Callback):
        def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
            began.append(stage)

    trainer = Trainer(data(), CASES["sgd"], EngineOptions(device="cpu"))
    model, optimizer = trainer.place(network())
    found = discover(
        model, optimizer, trainer, trainer.evaluate(data().val), data().example_input(), store=store, budget=8,
        finish="static", start_density=0.1, gamma=0.5, eval_weights="ema", reference="dense",
        callback=StageLog(),
        rule="trajectory",  # its seed network is trained in several parts
    )  # fmt: skip
    report = dataclasses.replace(found.report(), timing=TimingReport())
    return {"report": report, "weights": {n: t.clone() for n, t in model.state_dict().items()}, "began": began}


EXPECTED: list[dict] = []
"""The uninterrupted discovery, computed once."""


@pytest.mark.parametrize(
    "dies",
    [
        ("partial-seed-0", 3),
        ("partial-seed-1", 2),
        ("partial-round-001-0", 5),
        ("partial-dense-0", 33),
        ("partial-final-0", 12),
    ],
)
def test_a_discovery_resumes_in_the_middle_of_a_stage(dies: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = discovered(MemoryStore(), monkeypatch) if not EXPECTED else EXPECTED[0]
    EXPECTED[:] = [expected]
    store = MemoryStore()
    with pytest.raises(Killed):
        discovered(store, monkeypatch, dies)
    left = store.load(dies[0])
    assert left is not None
    assert left.metadata["step"] == dies[1]
    assert left.tensors
    again = discovered(store, monkeypatch)
    assert again["report"] == expected["report"]
    assert all(torch.equal(tensor, again["weights"][name]) for name, tensor in expected["weights"].items())
    stage = dies[0].removeprefix("partial-").rpartition("-")[0]
    assert again["began"] == expected["began"][expected["began"].index(stage) :]
    partials = [name for name in store._stages if name.startswith("partial-")]
    assert len(partials) >= 5
    assert [name for name in partials if store.load(name).tensors] == [], "no partial training is left"


def test_a_partial_training_is_saved_after_its_interval() -> None:
    partial = TrainingCheckpoint(MemoryStore(), "partial-seed-0", seconds=60.0)
    assert [partial.is_due(step, seconds) for step, seconds in ((1, 59.9), (1, 60.1), (63, 61.0), (64, 5.0))] == [
        False, True, True, False,
    ]  # fmt: skip
