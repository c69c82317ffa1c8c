"""Two gloo ranks train as one process does with the joined batch, with equal masks, and survive a kill."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
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
from pathgrow.distributed.process_group import join_process_group
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods import create
from pathgrow.methods.method import Method, NetworkView
from pathgrow.runs import stages
from pathgrow.runs.records import Callback, Record
from pathgrow.sparse import training_state
from pathgrow.sparse.attach import Attached
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.eager_step import EagerStep
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe
from tests.support.ranks import Rank, together
from tests.support.swapping import swapping
from tests.support.toy import Script

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


GROW_FOUR_ROUNDS = Script(probe=(), last=4)
RECIPE = Recipe(
    lr=0.05, batch_size=32, accumulate=2, clip_norm=1.0, label_smoothing=0.1, augment=Augment(crop_padding=1, flip=True)
)


def digits() -> Dataset:
    whole = data.load("digits")

    def first(split: Split | data.dataset.StreamedSplit, num: int) -> Split:
        assert isinstance(split, Split)
        return Split(split.images[:num], split.labels[:num], split.mean, split.std)

    # 75 is odd, so ranks evaluate parts of different sizes.
    return Dataset("digits", whole.classes, first(whole.train, 256), first(whole.val, 75), first(whole.test, 75))


def perceptron(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10))


def normed(seed: int) -> nn.Module:
    """A network with batch norm, dropout and constant weights, so that all scores are ties."""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(384, 10)
    )
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.05)
    return model


def by_local_chance(net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
    """Pick with the global generator, which differs between ranks; picks must not do that."""
    return top_k({name: torch.rand(mask.shape) for name, mask in candidates.items()}, candidates, count, draw)


def method_by(name: str) -> Method:
    return Method(name="local", start=by_local_chance, grow=by_local_chance) if name == "local" else create(name)


class StageLog(Callback):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        self.stages.append(record.stage)


def discovered(build: Any, method: str, recipe: Recipe = RECIPE, **options: Any) -> dict[str, Any]:
    """Run a discovery that grows in four rounds; return what this rank, or a single process, saw of it."""
    options = {"finish": "static", "start_density": 0.1, "rule": GROW_FOUR_ROUNDS, "budget": 4} | options
    changes: list[str] = []
    check = Attached._check_masks

    def noted(self: Attached) -> None:
        check(self)
        changes.append(hashlib.sha256(b"".join(mask.numpy().tobytes() for mask in self.masks.values())).hexdigest())

    Attached._check_masks = noted  # type: ignore[method-assign]
    try:
        with join_process_group("cpu") as comm:
            log = StageLog()
            dataset = digits()
            trainer = Trainer(dataset, recipe, EngineOptions(device="cpu"))
            model, optimizer = trainer.place(build(comm.rank))  # the weights of rank 0 count
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
                callback=log,
                seed=1,
                **options,
            )
            momentum = [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
            return {
                "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
                "momentum": momentum,
                "masks": found.masks.digest(),
                "rounds": [(r.num_on, r.num_samples, r.update_flops) for r in found.rounds],
                "scores": [(r.point.score, r.point.loss) for r in found.rounds],
                "probes": [(r.stage, r.num_on, r.num_samples) for r in found.probes],
                "last": (found.network.stage, found.network.num_epochs, found.network.point.epochs),
                "changes": changes,
                "stages": log.stages,
                "test": found.examine(trainer.evaluate(dataset.test))[0].score,
            }
    finally:
        Attached._check_masks = check  # type: ignore[method-assign]


def agreeing(ranks: list[Rank]) -> dict[str, Any]:
    """Return the result of both ranks, which must agree."""
    assert [rank.code for rank in ranks] == [0, 0], [rank.output for rank in ranks]
    first, second = (rank.value for rank in ranks)
    assert same(first["weights"], second["weights"])
    for name in ("masks", "rounds", "probes", "last", "scores", "changes", "test"):
        assert first[name] == second[name], name
    assert second["stages"] == []  # only rank 0 calls back
    return first


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


@pytest.mark.parametrize("method", ["gcg", "gradient_growth"])
def test_two_ranks_are_one_process_with_the_joined_batch(method: str, tmp_path: Path) -> None:
    ranks = agreeing(together(tmp_path, discovered, perceptron, method))
    alone = discovered(perceptron, method)
    assert len(alone["rounds"]) == 5
    for name in ("masks", "rounds", "stages", "test"):
        assert ranks[name] == alone[name], name
    for score, wanted in zip(ranks["scores"], alone["scores"], strict=True):
        assert score == pytest.approx(wanted, rel=1e-4)
    for tensor, wanted in zip(ranks["momentum"], alone["momentum"], strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-3, atol=1e-5)
    for tensor, wanted in zip(ranks["weights"].values(), alone["weights"].values(), strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-3, atol=1e-5)


class Noisy(nn.Module):
    """A linear classifier that also draws random numbers and records them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.noise: list[list[float]] = []

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.noise.append(torch.rand(4).tolist())
        logits: Tensor = self.layer(images.flatten(1))
        return logits


def two_epochs() -> tuple[list[tuple[int, int, float]], list[list[float]]]:
    """Return the epochs that this rank reports, and the random numbers it drew in training."""
    epochs: list[tuple[int, int, float]] = []
    with join_process_group("cpu"):
        torch.manual_seed(3)
        trainer = Trainer(digits(), RECIPE, EngineOptions(device="cpu"), on_epoch=lambda *epoch: epochs.append(epoch))
        model, optimizer = trainer.place(Noisy())
        trainer(model, optimizer, 2)
        assert isinstance(model, Noisy)
        return epochs, model.noise


class WithUnusedLayer(Noisy):
    """A network with a layer that the forward pass does not use."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.unused = nn.Linear(64, 10).requires_grad_(not frozen)


def train_unused_layer(frozen: bool) -> str:
    with join_process_group("cpu"):
        trainer = Trainer(digits(), RECIPE, EngineOptions(device="cpu"))
        model, optimizer = trainer.place(WithUnusedLayer(frozen))
        try:
            trainer(model, optimizer, 1)
        except UserError as error:
            return str(error)
    return "trained"


def test_unused_parameters_are_refused_unless_frozen(tmp_path: Path) -> None:
    free, frozen = (together(tmp_path / str(frozen), train_unused_layer, frozen) for frozen in (False, True))
    for rank in free:
        assert "do not contribute to its loss" in rank.value, rank.output
        assert "freeze them with requires_grad_(False)" in rank.value
    assert [rank.value for rank in frozen] == ["trained", "trained"]


def test_rank_0_reports_the_mean_loss_and_each_rank_has_its_own_dropout(tmp_path: Path) -> None:
    first, second = (rank.value for rank in together(tmp_path, two_epochs))
    epochs, noise = two_epochs()
    assert [epoch[:2] for epoch in epochs] == [(1, 2), (2, 2)]
    assert first[0] == [(done, of, pytest.approx(loss, rel=1e-5)) for done, of, loss in epochs]
    assert second[0] == []
    assert first[1] == noise
    assert len({tuple(drawn) for drawn in first[1] + second[1]}) == 2 * len(noise) == 2 * 2 * 8 * 2


def test_ranks_of_a_search_train_the_same_probes(tmp_path: Path) -> None:
    """The rule runs on every rank, with the scores of rank 0: a rank that decided differently would hang."""
    options = {"rule": "probe", "budget": 8, "delta": 0.05}
    ranks = agreeing(together(tmp_path, partial(discovered, **options), perceptron, "gcg"))
    *_, (stage, num_on, _) = ranks["probes"]
    assert (stage, num_on) == ("probe-dense", 64 * 24 + 24 * 16)
    assert len({num_samples for _, _, num_samples in ranks["probes"]}) == 1


def hidden_weights(method: str) -> dict[str, Any]:
    """Return masks and hidden weights of this rank, which starts with different weights."""
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
def test_hidden_weights_are_those_of_rank_0(method: str, tmp_path: Path) -> None:
    first, second = together(tmp_path, hidden_weights, method)
    assert (first.code, second.code) == (0, 0), first.output + second.output
    assert first.value.pop("masks") == second.value.pop("masks")
    assert first.value
    assert same(first.value, second.value)


def longer_on_later_ranks(records: Sequence[Record]) -> int:
    """As if it followed from the wall-clock seconds of the records, which differ between ranks."""
    return len(records) + 3 * int(os.environ.get("RANK", "0"))


@pytest.mark.parametrize(
    ("options", "goes_on"),
    [({}, False), ({"rule": "probe", "budget": 8, "delta": 0.05}, True)],
    ids=["scripted", "searched"],
)
def test_rank_0_decides_the_length_of_the_final_training(
    options: dict[str, Any], goes_on: bool, tmp_path: Path
) -> None:
    options = {**options, "final_epochs": longer_on_later_ranks}
    ranks = agreeing(together(tmp_path, partial(discovered, **options), perceptron, "gcg"))
    num_before = len(ranks["rounds"]) + len(ranks["probes"])
    stage, num_trained, num_in_all = ranks["last"]
    assert (stage, num_in_all) == ("final", num_before)
    assert (num_trained < num_in_all) == goes_on, "a probed network continues from its probe"
    alone = discovered(perceptron, "gcg", **options)
    for name in ("masks", "rounds", "probes", "last", "test"):
        assert ranks[name] == alone[name], name
    for tensor, wanted in zip(ranks["weights"].values(), alone["weights"].values(), strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.item(7)
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
def test_masks_are_equal_on_all_ranks_after_every_update(method: str, options: dict[str, str], tmp_path: Path) -> None:
    ranks = agreeing(together(tmp_path, partial(discovered, **options), normed, method))
    # The start and every growth; a final network is loaded into a model with all weights, which the trunk never has.
    assert len(set(ranks["changes"])) == len(ranks["rounds"]) + (ranks["last"][0] == "final")
    assert len(ranks["changes"]) > 2 * len(ranks["rounds"])


def outcome(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `work`, or the message of its error."""
    try:
        return work(*arguments)
    except RunFailed as error:
        return str(error)


def discovered_in(folder: Path, die_at: int | None, dying: tuple[str, ...] = ("0", "1")) -> dict[str, Any]:
    """Run a discovery in a directory of this rank; ranks in `dying` are killed after `die_at` steps."""
    stages.SECONDS_BETWEEN_SAVES = 0.0
    training_state._STEPS_BETWEEN_CHECKS = 8
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
    found = discovered(normed, "gcg", recipe, store=place, seed_epochs=1, rule=Script(probe=(), last=1), budget=2)
    return {**found, "num_steps": num_steps}


@pytest.mark.item(7)
def test_killed_ranks_resume_with_the_same_bits_and_only_rank_0_writes(tmp_path: Path) -> None:
    undisturbed = agreeing(together(tmp_path / "said", discovered_in, tmp_path / "undisturbed", None))
    killed = together(tmp_path / "said", discovered_in, tmp_path / "killed", 16 + 12)  # in the first round of growth
    assert [rank.code for rank in killed] == [-signal.SIGKILL] * 2
    assert (tmp_path / "killed/rank-0/stages/seed.json").exists()
    resumed = agreeing(together(tmp_path / "said", discovered_in, tmp_path / "killed", None))
    assert same(resumed["weights"], undisturbed["weights"])
    assert (resumed["masks"], resumed["scores"]) == (undisturbed["masks"], undisturbed["scores"])
    # Saved are all 16 steps of the seed training, and 8 of the interrupted round.
    assert resumed["num_steps"] == undisturbed["num_steps"] - 16 - 8
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["rank-0"]


def test_a_rank_killed_during_training_ends_the_other(tmp_path: Path) -> None:
    first, second = together(tmp_path / "said", outcome, discovered_in, tmp_path, 20, ("1",))
    assert (first.code, second.code) == (0, -signal.SIGKILL)
    assert first.value.startswith("lost the connection to another rank")


def rewired() -> tuple[dict[str, Tensor], str]:
    """Train a network whose masks follow its dense gradients every fourth step."""
    with join_process_group("cpu") as comm:
        trainer = Trainer(digits(), RECIPE, EngineOptions(device="cpu"))
        model, optimizer = trainer.place(perceptron(0))
        method = swapping(density=0.2, every=4, num=20)
        sparse = attach(model, optimizer, method, trainer.data.example_input(), comm=comm)
        before = sparse.masks.digest()
        trainer.train([Job(attached=sparse, epochs=3, seed=5)])
        assert sparse.masks.digest() != before
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}, sparse.masks.digest()


def test_mask_updates_use_the_dense_gradients_of_the_joined_batch(tmp_path: Path) -> None:
    ranks = together(tmp_path, rewired)
    assert [rank.code for rank in ranks] == [0, 0], [rank.output for rank in ranks]
    (weights, masks), (others, other_masks) = (rank.value for rank in ranks)
    wanted, wanted_masks = rewired()
    assert masks == other_masks == wanted_masks
    assert same(weights, others)
    for name, tensor in wanted.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-5)


def clipped_loops() -> dict[tuple[str, bool], tuple[list[float], list[Tensor], str]]:
    """Clip in a loop of one's own over DDP, or in one process over the joined batch; norms, weights and masks."""
    found = {}
    with join_process_group("cpu") as comm:
        draw = torch.Generator().manual_seed(3)
        inputs, labels = torch.randn(8, 16, 6, generator=draw), torch.randint(0, 3, (8, 16), generator=draw)
        for name, declared in itertools.product(("rigl", "itop", "snfs", "set"), (True, False)):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).double()
            optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
            options = {"comm": comm} if declared else {}
            method = create(name, density=0.3, num_steps=16, update_interval=2)
            sparse = attach(model, optimizer, method, scope=Masks.full(model), **options)
            module = DistributedDataParallel(model) if comm.size > 1 else model
            norms = []
            for x, y in zip(inputs.double(), labels, strict=True):
                optimizer.zero_grad()
                rows = slice(comm.rank, None, comm.size)
                nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
                optimizer.step()
            found[name, declared] = norms, [p.detach().clone() for p in model.parameters()], sparse.masks.digest()
    return found


def test_clipping_in_a_loop_over_ddp(tmp_path: Path) -> None:
    """Dense gradients are averaged before they are hidden from clipping, whether or not `comm` is passed."""
    ranks = together(tmp_path, clipped_loops)
    assert [rank.code for rank in ranks] == [0, 0], [rank.output for rank in ranks]
    for key, (norms, weights, masks) in clipped_loops().items():
        for rank in ranks:
            assert rank.value[key][0] == pytest.approx(norms)
            assert rank.value[key][2] == masks
            for mine, truth in zip(rank.value[key][1], weights, strict=True):
                torch.testing.assert_close(mine, truth)


UNSYNCED = {"init_sync": False} if "init_sync" in signature(DistributedDataParallel).parameters else {}
"""Weights that differ stay different, where torch has that option (since 2.7)."""


def own_loop(drifting: bool) -> str:
    """Run a user-defined DDP loop; if `drifting`, the weights of rank 1 change silently."""
    with join_process_group("cpu") as comm:
        inputs, labels = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(64) % 10

        def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
            parallel = DistributedDataParallel(model, **UNSYNCED)
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
            return 0.5 + 0.1 * comm.rank  # the score of rank 0 counts

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
            rule=Script(probe=(), last=2),
            seed_epochs=1,
            budget=2,
            finish="static",
        )
        return f"{found.masks.digest()} {found.score} {[record.num_samples for record in found.rounds]}"


def test_a_user_defined_loop_can_be_distributed(tmp_path: Path) -> None:
    first, second = (rank.value for rank in together(tmp_path, own_loop, False))
    assert first == second
    assert first.endswith(" 0.5 [64, 64, 64]")  # samples of both ranks


def test_weights_that_drift_apart_are_detected(tmp_path: Path) -> None:
    ranks = together(tmp_path, outcome, own_loop, True)
    assert all("the trained weights of rank 1 differ from those of rank 0" in rank.value for rank in ranks)
