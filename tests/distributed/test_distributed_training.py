"""Two gloo ranks train as one process does with the joined batch, with the same masks, and survive a kill."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from pathgrow import attach, data, discover
from pathgrow.augment import Augment
from pathgrow.data.dataset import Dataset, Split
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods import create
from pathgrow.methods.method import Method, NetworkView
from pathgrow.runs import session
from pathgrow.runs.callback import Callback
from pathgrow.runs.records import Record
from pathgrow.sparse import partial as halfway
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.partial import Partial
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.eager_step import EagerStep
from pathgrow.trainer.interface import Job
from pathgrow.trainer.process_group import join_process_group
from pathgrow.trainer.recipes import Recipe
from tests.support.ranks import Rank, together
from tests.support.swapping import swapping

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

RECIPE = Recipe(
    lr=0.05, batch_size=32, accumulate=2, clip_norm=1.0, label_smoothing=0.1, augment=Augment(crop_padding=1, flip=True)
)


def digits() -> Dataset:
    whole = data.load("digits")

    def first(split: Split | data.dataset.StreamedSplit, num: int) -> Split:
        assert isinstance(split, Split)
        return Split(split.images[:num], split.labels[:num], split.mean, split.std)

    # 75 do not divide by two: ranks score parts of different sizes.
    return Dataset("digits", whole.classes, first(whole.train, 256), first(whole.val, 75), first(whole.test, 75))


def perceptron(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10))


def normed(seed: int) -> nn.Module:
    """With batch norm, dropout, and weights that are all alike: whatever scores them finds ties."""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(384, 10)
    )
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.05)
    return model


def by_local_chance(net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
    """Breaks the contract of picks: it draws from the global generator, which is another one in every process."""
    return top_k({name: torch.rand(mask.shape) for name, mask in candidates.items()}, candidates, count, draw)


def method_by(name: str) -> Method:
    return Method(name="local", start=by_local_chance, grow=by_local_chance) if name == "local" else create(name)


class Told(Callback):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        self.stages.append(record.stage)


def discovered(build: Any, method: str, recipe: Recipe = RECIPE, **options: Any) -> dict[str, Any]:
    """One discovery that grows to 20% from 10%, as this rank saw it; without ranks, as one process does."""
    options = {"start_density": 0.1, "target_density": 0.2, "budget": 4} | options
    changes: list[str] = []
    check = Attached._check_masks

    def noted(self: Attached) -> None:
        check(self)
        changes.append(hashlib.sha256(b"".join(mask.numpy().tobytes() for mask in self.masks.values())).hexdigest())

    Attached._check_masks = noted  # type: ignore[method-assign]
    try:
        with join_process_group("cpu") as comm:
            told = Told()
            dataset = digits()
            trainer = Trainer(dataset, recipe, EngineOptions(device="cpu"))
            model, optimizer = trainer.place(build(comm.rank))  # the weights of the first are those that count
            torch.manual_seed(100 + comm.rank)
            found = discover(
                model,
                optimizer,
                trainer,
                trainer.evaluate(dataset.val),
                dataset.example_input(),
                method=method_by(method),
                loss=trainer.loss,
                batches=trainer.batches,
                callback=told,
                seed=1,
                **options,
            )
            slots = [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
            return {
                "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
                "slots": slots,
                "masks": found.masks.digest(),
                "rounds": [(r.num_on, r.num_samples, r.update_flops) for r in found.rounds],
                "scores": [(r.point.score, r.point.loss) for r in found.rounds],
                "probes": [(r.stage, r.num_on, r.num_samples) for r in found.probes],
                "last": (found.network.stage, found.network.num_epochs, found.network.point.epochs),
                "changes": changes,
                "told": told.stages,
                "test": found.examine(trainer.evaluate(dataset.test))[0].score,
            }
    finally:
        Attached._check_masks = check  # type: ignore[method-assign]


def agreeing(ranks: list[Rank]) -> dict[str, Any]:
    """What both ranks came to, if they did."""
    assert [rank.code for rank in ranks] == [0, 0], [rank.said for rank in ranks]
    first, second = (rank.value for rank in ranks)
    assert same(first["weights"], second["weights"])
    for name in ("masks", "rounds", "probes", "last", "scores", "changes", "test"):
        assert first[name] == second[name], name
    assert second["told"] == []  # one rank tells
    return first


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


@pytest.mark.parametrize("method", ["gcg", "gradient_growth"])
def test_two_ranks_are_one_process_with_the_joined_batch(method: str, tmp_path: Path) -> None:
    ranks = agreeing(together(tmp_path, discovered, perceptron, method))
    alone = discovered(perceptron, method)
    assert len(alone["rounds"]) == 5
    for name in ("masks", "rounds", "told", "test"):
        assert ranks[name] == alone[name], name
    for score, wanted in zip(ranks["scores"], alone["scores"], strict=True):
        assert score == pytest.approx(wanted, rel=1e-4)
    for tensor, wanted in zip(ranks["slots"], alone["slots"], strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-3, atol=1e-5)
    for tensor, wanted in zip(ranks["weights"].values(), alone["weights"].values(), strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-3, atol=1e-5)


class Hissing(nn.Module):
    """A linear classifier that also draws noise, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.noise: list[list[float]] = []

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.noise.append(torch.rand(4).tolist())
        logits: Tensor = self.layer(images.flatten(1))
        return logits


def tells() -> tuple[list[tuple[int, int, float]], list[list[float]]]:
    """What this rank says of two epochs, and the noise that it trained with."""
    epochs: list[tuple[int, int, float]] = []
    with join_process_group("cpu"):
        torch.manual_seed(3)
        trainer = Trainer(digits(), RECIPE, EngineOptions(device="cpu"), on_epoch=lambda *epoch: epochs.append(epoch))
        model, optimizer = trainer.place(Hissing())
        trainer(model, optimizer, 2)
        assert isinstance(model, Hissing)
        return epochs, model.noise


class WithSpare(Hissing):
    """Has a layer that nothing passes through."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.spare = nn.Linear(64, 10).requires_grad_(not frozen)


def trains_with_a_spare_layer(frozen: bool) -> str:
    with join_process_group("cpu"):
        trainer = Trainer(digits(), RECIPE, EngineOptions(device="cpu"))
        model, optimizer = trainer.place(WithSpare(frozen))
        try:
            trainer(model, optimizer, 1)
        except UserError as error:
            return str(error)
    return "trained"


def test_parameters_without_a_part_in_the_loss_are_one_sentence_and_may_be_frozen(tmp_path: Path) -> None:
    free, frozen = (together(tmp_path / str(frozen), trains_with_a_spare_layer, frozen) for frozen in (False, True))
    for rank in free:
        assert "take no part in its loss" in rank.value, rank.said
        assert "freeze them with requires_grad_(False)" in rank.value
    assert [rank.value for rank in frozen] == ["trained", "trained"]


def test_one_rank_tells_the_loss_of_the_joined_batch_and_each_has_its_own_noise(tmp_path: Path) -> None:
    first, second = (rank.value for rank in together(tmp_path, tells))
    epochs, noise = tells()
    assert [epoch[:2] for epoch in epochs] == [(1, 2), (2, 2)]
    assert first[0] == [(done, of, pytest.approx(loss, rel=1e-5)) for done, of, loss in epochs]
    assert second[0] == []
    assert first[1] == noise
    assert len({tuple(drawn) for drawn in first[1] + second[1]}) == 2 * len(noise) == 2 * 2 * 8 * 2


def test_ranks_that_are_asked_how_dense_train_the_same_copies(tmp_path: Path) -> None:
    """The rule decides in each of them, from scores of the first: one that decided otherwise would wait for ever."""
    options = {"target_density": None, "budget": 8, "delta": 0.05}
    ranks = agreeing(together(tmp_path, partial(discovered, **options), perceptron, "gcg"))
    *_, (stage, num_on, _) = ranks["probes"]
    assert (stage, num_on) == ("probe-dense", 64 * 24 + 24 * 16)
    assert len({num_samples for _, _, num_samples in ranks["probes"]}) == 1


def hides_weights(method: str) -> dict[str, Any]:
    """What this rank came to, having begun with weights of its own."""
    with join_process_group("cpu") as comm:
        trainer = Trainer(digits(), RECIPE, EngineOptions(device="cpu"))
        model, optimizer = trainer.place(perceptron(comm.rank))
        sparse = attach(model, optimizer, create(method), scope=Masks.full(model), seed=1, comm=comm)
        trainer.train([Job(attached=sparse, epochs=1, seed=7)])
        sparse.load_state_dict(sparse.state_dict())
        hidden = {kind: part for kind, part in sparse.method_state.items() if isinstance(part, dict)}
        return {
            "masks": sparse.masks.digest(),
            **{f"{k} {n}": torch.as_tensor(t) for k, part in hidden.items() for n, t in part.items()},
        }


@pytest.mark.parametrize("method", ["str", "edge_popup"])
def test_hidden_weights_are_those_of_the_first_rank_too(method: str, tmp_path: Path) -> None:
    first, second = together(tmp_path, hides_weights, method)
    assert (first.code, second.code) == (0, 0), first.said + second.said
    assert first.value.pop("masks") == second.value.pop("masks")
    assert first.value
    assert same(first.value, second.value)


def longer_on_later_ranks(records: Sequence[Record]) -> int:
    """As where it follows from the seconds of records, which each process has its own of."""
    return len(records) + 3 * int(os.environ.get("RANK", "0"))


@pytest.mark.parametrize(
    ("options", "goes_on"),
    [({}, False), ({"target_density": None, "budget": 8, "delta": 0.05}, True)],
    ids=["to a target", "asked how dense"],
)
def test_the_last_training_is_as_long_as_the_first_rank_says(
    options: dict[str, Any], goes_on: bool, tmp_path: Path
) -> None:
    options = {**options, "final_epochs": longer_on_later_ranks}
    ranks = agreeing(together(tmp_path, partial(discovered, **options), perceptron, "gcg"))
    num_before = len(ranks["rounds"]) + len(ranks["probes"])
    stage, num_trained, num_in_all = ranks["last"]
    assert (stage, num_in_all) == ("final", num_before)
    assert (num_trained < num_in_all) == goes_on, "a network that was probed has some of its epochs behind it"
    alone = discovered(perceptron, "gcg", **options)
    for name in ("masks", "rounds", "probes", "last", "test"):
        assert ranks[name] == alone[name], name
    for tensor, wanted in zip(ranks["weights"].values(), alone["weights"].values(), strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gcg", {"eval_weights": "ema"}),
        ("gcg", {"final": "grown"}),
        ("random_growth", {}),
        ("gradient_growth", {}),
        ("local", {}),
    ],
)
def test_masks_are_equal_on_all_ranks_after_every_change(method: str, options: dict[str, str], tmp_path: Path) -> None:
    ranks = agreeing(together(tmp_path, partial(discovered, **options), normed, method))
    assert len(set(ranks["changes"])) == len(ranks["rounds"])  # start, and every growth
    assert len(ranks["changes"]) > 2 * len(ranks["rounds"])


def told(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` gives, or why it cannot."""
    try:
        return work(*arguments)
    except RunFailed as error:
        return str(error)


def often(stage: Any, name: str, **options: Any) -> Partial:
    return Partial(stage, name, seconds=0.0, **options)


def kept(folder: Path, die_at: int | None, dying: tuple[str, ...] = ("0", "1")) -> dict[str, Any]:
    """A discovery in a folder of this rank's own; ranks that are `dying` are killed after so many steps."""
    session.Partial = often  # type: ignore[assignment, misc]
    halfway._STEPS_BETWEEN_QUESTIONS = 8
    step, num_steps = EagerStep.__call__, 0

    def mortal(self: EagerStep, number: int) -> None:
        nonlocal num_steps
        step(self, number)
        num_steps += 1
        if num_steps == die_at and os.environ["RANK"] in dying:
            os.kill(os.getpid(), signal.SIGKILL)

    EagerStep.__call__ = mortal  # type: ignore[method-assign]
    recipe = Recipe(lr=0.05, batch_size=16)
    place = folder / f"rank-{os.environ['RANK']}"
    found = discovered(normed, "gcg", recipe, store=place, seed_epochs=1, target_density=0.12, budget=2)
    return {**found, "num_steps": num_steps}


def test_killed_ranks_go_on_with_the_same_bits_and_one_of_them_writes(tmp_path: Path) -> None:
    calm = agreeing(together(tmp_path / "said", kept, tmp_path / "calm", None))
    killed = together(tmp_path / "said", kept, tmp_path / "killed", 16 + 12)  # in the first round of growth
    assert [rank.code for rank in killed] == [-signal.SIGKILL] * 2
    assert (tmp_path / "killed/rank-0/stages/seed.json").exists()
    resumed = agreeing(together(tmp_path / "said", kept, tmp_path / "killed", None))
    assert same(resumed["weights"], calm["weights"])
    assert (resumed["masks"], resumed["scores"]) == (calm["masks"], calm["scores"])
    # All of the seed's 16 steps are saved, and 8 of the round that was broken off.
    assert resumed["num_steps"] == calm["num_steps"] - 16 - 8
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["rank-0"]


def test_a_rank_that_is_killed_in_a_training_ends_the_other(tmp_path: Path) -> None:
    first, second = together(tmp_path / "said", told, kept, tmp_path, 20, ("1",))
    assert (first.code, second.code) == (0, -signal.SIGKILL)
    assert first.value.startswith("lost the connection to another rank")


def rewired() -> tuple[dict[str, Tensor], str]:
    """A network whose masks follow its dense gradients every fourth step."""
    with join_process_group("cpu") as comm:
        trainer = Trainer(digits(), RECIPE, EngineOptions(device="cpu"))
        model, optimizer = trainer.place(perceptron(0))
        method = swapping(density=0.2, every=4, num=20)
        sparse = attach(model, optimizer, method, trainer.data.example_input(), comm=comm)
        before = sparse.masks.digest()
        trainer.train([Job(attached=sparse, epochs=3, seed=5)])
        assert sparse.masks.digest() != before
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}, sparse.masks.digest()


def test_rewiring_sees_the_dense_gradients_of_the_joined_batch(tmp_path: Path) -> None:
    ranks = together(tmp_path, rewired)
    assert [rank.code for rank in ranks] == [0, 0], [rank.said for rank in ranks]
    (weights, masks), (others, other_masks) = (rank.value for rank in ranks)
    wanted, wanted_masks = rewired()
    assert masks == other_masks == wanted_masks
    assert same(weights, others)
    for name, tensor in wanted.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-5)


def own_loop(drifting: bool) -> str:
    """Somebody's own loop with DDP, given the team; in one case rank 1's weights change behind everybody's back."""
    with join_process_group("cpu") as comm:
        inputs, labels = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(64) % 10

        def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
            parallel = DistributedDataParallel(model, init_sync=False)  # what is unequal before stays so
            for rows in torch.arange(64).split(16) * epochs:
                mine = rows[comm.rank :: comm.size]
                optimizer.zero_grad()
                nn.functional.cross_entropy(parallel(inputs[mine]), labels[mine]).backward()
                optimizer.step()
            if drifting and comm.rank == 1:
                next(model.parameters()).detach().mul_(1.001)

        def evaluate(model: nn.Module) -> float:
            statistics = comm.gather([buffer.tolist() for buffer in model.buffers()])
            assert statistics[0] == statistics[1]
            return 0.5 + 0.1 * comm.rank  # somebody's, on data of its own: the first rank's counts

        model = normed(comm.rank)
        next(model.parameters()).detach().add_(0.01 * comm.rank)
        found = discover(
            model,
            SGD(model.parameters(), lr=0.1),
            fit,
            evaluate,
            inputs[:1],
            comm=comm,
            method="random_growth",
            start_density=0.2,
            target_density=0.3,
            budget=2,
        )
        return f"{found.masks.digest()} {found.score} {[record.num_samples for record in found.rounds]}"


def test_any_loop_can_be_given_a_team(tmp_path: Path) -> None:
    first, second = (rank.value for rank in together(tmp_path, own_loop, False))
    assert first == second
    assert first.endswith(" 0.5 [64, 64, 64]")  # samples of both ranks


def test_weights_that_drift_apart_are_found(tmp_path: Path) -> None:
    ranks = together(tmp_path, told, own_loop, True)
    assert all("the trained weights of rank 1 differ from those of rank 0" in rank.value for rank in ranks)
