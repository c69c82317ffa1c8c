"""Every value of a config reaches what is trained: seed and fold at the first training, all options in `discover`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pathgrow import attach, data, methods, models
from pathgrow.checkpoint import RunDir
from pathgrow.density.types import Point
from pathgrow.distributed.comm import SINGLE_PROCESS
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.report.progress import ProgressBar
from pathgrow.rng import derive
from pathgrow.runs.bench import Bench
from pathgrow.runs.config import DiscoverConfig, DiscoverOptions, TrainConfig
from pathgrow.runs.growth import grow
from pathgrow.runs.plan import Plan
from pathgrow.runs.records import Record
from pathgrow.runs.run_discovery import run as run_experiment
from pathgrow.runs.training import train
from pathgrow.trainer import Trainer
from pathgrow.trainer.interface import Job

SHARED: dict[str, Any] = {"model_options": {"widths": [16]}, "threads": 1, "seed": 5, "fold": 3}


class Enough(BaseException):
    """Nothing need be trained."""


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[Trainer, Job, nn.Module]]:
    """The first training of a run, as it would begin: its trainer, its job, and a model that was not touched."""

    def first(run: Callable[[], Any]) -> tuple[Trainer, Job, nn.Module]:
        seen: list[tuple[Trainer, Job, dict[str, Tensor]]] = []

        def stop(self: Trainer, jobs: Sequence[Job]) -> list[int]:
            (job,) = jobs
            # Copied: a run that is broken off gives the model back as it came.
            seen.append((self, job, {name: w.detach().clone() for name, w in job.attached.model.named_parameters()}))
            raise Enough

        monkeypatch.setattr(Trainer, "train", stop)
        with pytest.raises(Enough):
            run()
        ((trainer, job, weights),) = seen
        model = models.create("mlp", 10, seed=5, inputs=64, widths=[16])
        for name, weight in model.named_parameters():
            on = job.attached.masks[name] if name in job.attached.masks else torch.ones_like(weight, dtype=torch.bool)
            assert torch.equal(weights[name], weight.detach() * on), "the weights of this seed, under the masks"
        wanted, other = data.load("digits", None, 0, 3), data.load("digits", None, 0, 0)
        for split in ("train", "val", "test"):
            assert torch.equal(getattr(trainer.data, split).labels, getattr(wanted, split).labels)
        assert not torch.equal(wanted.val.labels, other.val.labels), "folds differ"
        return trainer, job, model

    return first


def test_seed_and_fold_reach_a_training(begin: Callable[..., Any], tmp_path: Path) -> None:
    config = TrainConfig.from_dict({**SHARED, "method": "random", "density": 0.3, "epochs": 2})
    trainer, job, model = begin(lambda: train(config, tmp_path / "run"))
    assert job.seed == derive(5, "level-000", "fit", 0)
    example = trainer.data.example_input()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = attach(model, optimizer, methods.create("random", density=0.3), example, seed=5)
    assert job.attached.masks == expected.masks


def test_threads_are_those_of_the_config_for_as_long_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def stop(self: Trainer, jobs: Sequence[Job]) -> list[int]:
        seen.append(torch.get_num_threads())
        raise Enough

    monkeypatch.setattr(Trainer, "train", stop)
    before = torch.get_num_threads()
    config = TrainConfig.from_dict({**SHARED, "method": "random", "density": 0.3, "epochs": 2, "threads": before + 1})
    with pytest.raises(Enough):
        train(config, tmp_path / "run")
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_a_config_for_several_processes_is_not_run_by_one(tmp_path: Path) -> None:
    config = TrainConfig.from_dict({**SHARED, "method": "random", "density": 0.3, "epochs": 2, "ranks": 2})
    with pytest.raises(UserError, match="this config is for 2 processes and 1 were started"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["train", "discover"])
def test_seed_and_fold_reach_growth(what: str, begin: Callable[..., Any], tmp_path: Path) -> None:
    if what == "train":
        grown = TrainConfig.from_dict({**SHARED, "method": "gcg", "density": 0.4, "epochs": 2})
        trainer, job, model = begin(lambda: train(grown, tmp_path / "run"))
    else:
        searched = DiscoverConfig.from_dict({**SHARED, "budget": 4})
        trainer, job, model = begin(lambda: run_experiment(searched, tmp_path / "run"))
    assert job.seed == derive(5, "seed", "fit", 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = attach(model, optimizer, methods.create("gcg"), trainer.data.example_input(), seed=5)
    assert job.attached.masks == expected.masks


OTHER: dict[str, Any] = {
    "budget": 7, "delta": 0.03, "reference": 0.5, "rule": "exponential", "method": "gradient_growth", "gamma": 0.7,
    "start_density": 0.11, "target_density": 0.6, "seed_epochs": 2, "rough": 3, "final": "grown",
    "probe_fraction": 0.4, "head_start": False, "answer": "gain", "observe": "average",
}  # fmt: skip
"""Another value than the default for everything that a config and `discover` have in common."""


def test_all_options_of_a_discovery_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {field.name for field in dataclasses.fields(DiscoverConfig)}
    common = {field.name for field in dataclasses.fields(DiscoverOptions)} & own
    assert set(OTHER) == common, "a new option needs a value here"
    seen: dict[str, Any] = {}

    def stop(*arguments: Any, **options: Any) -> None:
        seen.update(options)
        raise Enough

    monkeypatch.setattr(importlib.import_module("pathgrow.runs.run_discovery"), "discover", stop)
    config = DiscoverConfig.from_dict({**SHARED, **OTHER})
    assert all(OTHER[name] != getattr(DiscoverConfig, name) for name in OTHER)
    with pytest.raises(Enough):
        run_experiment(config, tmp_path / "run")
    assert {name: seen[name] for name in OTHER} == OTHER
    assert seen["seed"] == 5
    # Methods that read gradients have what to read them from.
    batch = next(iter(seen["batches"]()))
    model = models.create("mlp", 10, seed=5, inputs=64, widths=[16])
    assert float(seen["loss"](model, batch).detach()) > 0


def test_growth_to_a_density_is_a_discovery_as_long_as_its_budget_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left for the last training: the budget less all that was trained, and looked at, before."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        importlib.import_module("pathgrow.runs.growth"), "discover", lambda *given, **options: seen.update(options)
    )
    given = {**SHARED, "method": "gcg", "density": 0.4, "epochs": 9, "match": "flops", "recipe": {"batch_size": 64}}
    config = TrainConfig.from_dict({**given, "method_options": {"gamma": 0.8, "start_density": 0.1}})
    bench = Bench.made(config, None, ProgressBar(), SINGLE_PROCESS)
    an_epoch = 14 * 64 * 100
    grow(bench, Plan(epochs=21, match="flops", budget=30.0 * an_epoch))
    assert (seen["budget"], seen["gamma"], seen["target_density"], seen["seed"]) == (21, 0.8, 0.4, 5)
    assert (seen["method"].start_density, seen["scope"]) == (0.1, bench.scope)

    def record(num_samples: int, sample_flops: int, growth_flops: int) -> Record:
        point = Point(round=0, density=0.1, epochs=1, score=0.5)
        return Record(
            stage="round-001", point=point, density_model=0.1, num_on=9, num_epochs=1, num_samples=num_samples,
            sample_flops=sample_flops, growth_flops=growth_flops, seconds=0.0,
        )  # fmt: skip

    # Four epochs' worth of training at half the price, seven of looking: nineteen of thirty are left.
    before = [record(8 * 14 * 64, 50, 0), record(14 * 64 * 0, 100, 7 * an_epoch)]
    assert seen["final_epochs"](before) == 30 - 4 - 7
    assert seen["final_epochs"]([record(40 * 14 * 64, 100, 0)]) == 1, "one at least"
    grow(bench, Plan(epochs=21, match="none"))
    assert seen["final_epochs"] is None


def test_test_scores_are_those_of_the_test_split_and_of_their_own_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the network as it is written, scored here; the dense reference is told apart by its number of weights."""
    plain = Trainer.evaluate
    seen: dict[int, tuple[float, float]] = {}

    def watched(self: Trainer, split: Any) -> Callable[[nn.Module], Any]:
        score = plain(self, split)

        def scored(model: nn.Module) -> Any:
            found = score(model)
            if split is self.data.test:
                seen[sum(int(weight.count_nonzero()) for weight in model.parameters() if weight.dim() > 1)] = found
            return found

        return scored

    monkeypatch.setattr(Trainer, "evaluate", watched)
    small = {**SHARED, "budget": 2, "start_density": 0.2, "target_density": 0.3, "reference": "dense"}
    report = run_experiment(DiscoverConfig.from_dict(small), tmp_path / "run")
    sparse, dense = sorted(seen)
    assert dense == 64 * 16 + 16 * 10
    assert sparse < dense / 2
    assert (report["network"]["test"]["score"], report["network"]["test"]["loss"]) == tuple(seen[sparse])
    assert (report["dense"]["test"]["score"], report["dense"]["test"]["loss"]) == tuple(seen[dense])
    # The same by hand, from the files.
    assert report["weights_sha256"] == sha256((tmp_path / "run" / "network.safetensors").read_bytes()).hexdigest()
    folder, test = RunDir(tmp_path / "run"), data.load("digits", None, 0, 3).test
    model = models.create("mlp", 10, seed=0, inputs=64, widths=[16])
    model.load_state_dict(load_file(folder.path / "network.safetensors"))
    masks = Masks.load(folder.path / "network_masks.safetensors")
    assert masks.num_on == report["network"]["num_on"] == round(0.3 * masks.num)
    with torch.no_grad():
        right = float((model.eval()(test.normalised()).argmax(1) == test.labels).double().mean())
    assert right == pytest.approx(report["network"]["test"]["score"], abs=1e-6)
