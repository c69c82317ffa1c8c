"""Configs: strict, equal after JSON, built without data or models, and every value reaches what is trained."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pathgrow import attach, data, methods, models
from pathgrow.augment import Augment
from pathgrow.checkpoint import RunDir
from pathgrow.cli import main
from pathgrow.errors import UserError, short
from pathgrow.masks import Masks
from pathgrow.report.schema import Score
from pathgrow.rng import derive
from pathgrow.runs.config import DiscoverConfig, RunConfig, TrainConfig
from pathgrow.runs.discovery import run_discovery
from pathgrow.runs.search_options import SearchOptions
from pathgrow.runs.training import train
from pathgrow.trainer import Trainer, recipes
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe
from tests.support.catalogue import Trials
from tests.support.finished_runs import finished
from tests.support.hostile import TEXTS, traversals

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
            # Copied: an interrupted run restores the model.
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
        expected, other = data.load("digits", None, 0, 3), data.load("digits", None, 0, 0)
        for split in ("train", "val", "test"):
            assert torch.equal(getattr(trainer.data, split).labels, getattr(expected, split).labels)
        assert not torch.equal(expected.val.labels, other.val.labels), "folds differ"
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
    with pytest.raises(UserError, match="this config is for 2 processes"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["train", "discover"])
def test_seed_and_fold_reach_growth(what: str, begin: Callable[..., Any], tmp_path: Path) -> None:
    if what == "train":
        grown = TrainConfig.from_dict({**SHARED, "method": "gcg", "density": 0.4, "epochs": 2})
        trainer, job, model = begin(lambda: train(grown, tmp_path / "run"))
    else:
        searched = DiscoverConfig.from_dict({**SHARED, "finish": "static", "budget": 4})
        trainer, job, model = begin(lambda: run_discovery(searched, tmp_path / "run"))
    assert job.seed == derive(5, "seed", "fit", 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = attach(model, optimizer, methods.create("gcg"), trainer.data.example_input(), seed=5)
    assert job.attached.masks == expected.masks


OTHER: dict[str, Any] = {
    "finish": "static",
    "budget": 7, "delta": 0.03, "reference": 0.5, "rule": "exponential", "method": "gradient_growth", "gamma": 0.7,
    "start_density": 0.11, "seed_epochs": 2, "rough": 3, "final": "grown", "probe_fraction": 0.4, "warm_start": False,
    "select_by": "gain", "eval_weights": "ema", "max_density": 0.4, "max_cost": 0.7,
    "preset": "paper", "final_epochs": 9, "delta_is_relative": True,
}  # fmt: skip
"""A value other than the default for every option of a search."""


def test_all_options_of_a_discovery_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(OTHER) == {field.name for field in dataclasses.fields(SearchOptions)}, "a new option needs a value here"
    seen: list[tuple[Any, Any]] = []

    def stop(*arguments: Any) -> None:
        seen.append(arguments)
        raise Enough

    monkeypatch.setattr("pathgrow.runs.discovery.search", stop)
    monkeypatch.setattr("pathgrow.runs.options.DiscoverOptions.refuse_unused", lambda options: None)  # not all at once
    config = DiscoverConfig.from_dict({**SHARED, **OTHER})
    assert all(OTHER[name] != getattr(SearchOptions, name) for name in OTHER)
    with pytest.raises(Enough):
        run_discovery(config, tmp_path / "run")
    [(session, options)] = seen
    assert {name: getattr(options, name) for name in OTHER} == OTHER
    assert session.seed == 5
    # Methods that use gradients have a loss and batches.
    batch = next(iter(session._batches()))
    model = models.create("mlp", 10, seed=5, inputs=64, widths=[16])
    assert float(session._loss(model, batch).detach()) > 0


def test_a_tolerance_in_percent_is_stored_as_a_fraction_of_the_score() -> None:
    config, plain = (DiscoverConfig.from_dict({"delta": delta}) for delta in ("2%", 0.02))
    assert (config.delta, config.delta_is_relative) == (0.02, True)
    assert config.as_dict() == {**plain.as_dict(), "delta_is_relative": True}
    assert DiscoverConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert config.name != plain.name
    assert "delta_is_relative" not in plain.as_dict(), "directories of earlier runs keep their names"
    assert (config.search()["delta"], config.search()["delta_is_relative"]) == (0.02, True)
    for wrong, message in (("-1%", "a positive number or percentage"), ("150%", "a drop in accuracy < 1")):
        with pytest.raises(UserError, match=f"delta must be {message}"):
            DiscoverConfig.from_dict({"delta": wrong})


def test_test_scores_are_those_of_the_test_split_and_of_their_own_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the network as it is written, scored here; the dense baseline is recognized by its number of weights."""
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
    small = {**SHARED, "finish": "static", "budget": 2, "start_density": 0.2, "delta": 0.3, "reference": "dense"}
    report = run_discovery(DiscoverConfig.from_dict(small), tmp_path / "run")
    sparse, dense = sorted(seen)
    assert dense == 64 * 16 + 16 * 10
    assert sparse < dense / 2
    assert report.answer is not None
    assert report.network.test == Score(score=seen[sparse][0], loss=seen[sparse][1])
    assert report.answer.dense_test == Score(score=seen[dense][0], loss=seen[dense][1])
    # The same by hand, from the files.
    assert report.weights_sha256 == sha256((tmp_path / "run" / "network.safetensors").read_bytes()).hexdigest()
    folder, test = RunDir(tmp_path / "run"), data.load("digits", None, 0, 3).test
    model = models.create("mlp", 10, seed=0, inputs=64, widths=[16])
    model.load_state_dict(load_file(folder.path / "network.safetensors"))
    masks = Masks.load(folder.path / "network_masks.safetensors")
    assert masks.num_on == report.network.num_on == sparse - 16 * 10, "the output layer is dense"
    with torch.no_grad():
        right = float((model.eval()(test.normalized()).argmax(1) == test.labels).double().mean())
    assert right == pytest.approx(report.network.test.score, abs=1e-6)


SMALL = {
    "finish": "static",
    "budget": 4,
    "model_options": {"widths": [12]},
    "start_density": 0.2,
    "rule": "exponential",
}


def test_building_a_config_loads_no_data_and_makes_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(data, "load", refuse)
    monkeypatch.setattr(models, "create", refuse)
    searched = DiscoverConfig.from_dict({"data": "imagenet", "model": "resnet50"})
    trained = TrainConfig.from_dict({"data": "imagenet", "method": "rigl", "match": "flops", "match_run": "/nowhere"})
    assert (searched.threads, searched.model_options, trained.match_budget) == (None, {}, None)
    assert searched.name.startswith("imagenet-resnet50-")
    with pytest.raises(AssertionError, match="loaded"):
        searched.resolved()


@pytest.mark.parametrize(("limit", "expected"), [("OMP_NUM_THREADS", 1), ("SLURM_CPUS_PER_TASK", 3), ("OTHER", 4)])
def test_the_default_number_of_threads_respects_limits(
    limit: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv(limit, str(expected))
    large = DiscoverConfig.from_dict({"model_options": {"widths": [1024, 1024]}})
    assert large.resolved().threads == expected


def test_resolving_runs_a_model_once_for_all_seeds_and_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a study resolves a config for each of its cells."""
    created, create = [], models.create

    def counted(name: str, classes: int, **options: Any) -> Any:
        created.append(options)
        return create(name, classes, **options)

    monkeypatch.setattr(models, "create", counted)
    for seed in (0, 1):
        DiscoverConfig.from_dict({"seed": seed, "model_options": {"widths": [31]}}).resolved()
    assert len(created) == 1
    DiscoverConfig.from_dict({"model_options": {"widths": [37]}}).resolved()
    assert len(created) == 2
    for _ in range(2):  # what does not fit is refused every time
        with pytest.raises(UserError, match="cannot process"):
            DiscoverConfig.from_dict({"model_options": {"widths": [31], "inputs": 3}}).resolved()


def test_a_resolved_config_fits_the_data_and_names_every_value() -> None:
    config = DiscoverConfig.from_dict({"model": "resnet20", "model_options": {"width": 4}}).resolved()
    assert config.model_options == {"in_channels": 1, "width": 4, "image_size": 8}
    assert set(config.as_dict()["recipe"]) == {field.name for field in dataclasses.fields(Recipe)}
    assert config.threads is not None
    assert DiscoverConfig.from_dict({}).resolved().threads == 1, "a small model"
    assert DiscoverConfig.from_dict(config.as_dict()).resolved() == config
    assert DiscoverConfig.from_dict({}).resolved({"threads": 3}).threads == 3, "that of the run to be resumed"


def test_a_method_has_its_defaults_spelled_out() -> None:
    config = TrainConfig.from_dict({"method": "rigl", "density": 0.2, "threads": 1})
    known = methods.defaults("rigl")
    assert config.method_options == {name: known[name] for name in known if name not in ("density", "num_steps")}
    assert config.epochs == config.recipe.epochs
    assert config.name.startswith("digits-mlp-rigl-0.2-")
    assert TrainConfig.from_dict({"method": "rigl"}).density == known["density"]
    other_seed = TrainConfig.from_dict({**config.as_dict(), "seed": 3})
    assert other_seed.name == config.name.replace("seed0", "seed3")


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig.from_dict({"method": "rigl", "density": 1}),
        DiscoverConfig.from_dict(
            {
                **SMALL,
                "reference": "dense",
                "recipe_name": "wrn-rigl",
                "recipe": {"lr": 1, "milestones": [0.25], "augment": {"erase": 0.5}, "clip_norm": 2},
                "engine": {"device": "cpu", "precision": "bf16", "deterministic": True},
            }
        ),
        *(DiscoverConfig.from_dict({"recipe_name": name}) for name in recipes.names()),
    ],
    ids=lambda config: f"{type(config).__name__}-{config.recipe_name}",
)
def test_a_config_survives_json(config: RunConfig) -> None:
    assert type(config).from_dict(json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize("name", ["os:abort", "builtins:exit", "antigravity:geohash", "canary:method", "a:b:c", ":"])
@pytest.mark.parametrize("kind", [TrainConfig, DiscoverConfig])
def test_reading_a_config_imports_and_calls_nothing_that_it_names(
    kind: type[RunConfig], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "canary.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"reading a config does not import: pass it on the command line \(--method\)"):
        kind.from_dict({"method": name, "density": 0.5} if kind is TrainConfig else {"method": name})
    with pytest.raises(UserError, match="reading a config does not import"):
        dataclasses.replace(
            kind.from_dict({"method": "gcg", **({"density": 0.5} if kind is TrainConfig else {})}), method=name
        )
    assert "canary" not in sys.modules


def nested(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"x": value}
    return value


CODE = [
    "canary:method",
    "canary",
    "os:system",
    "builtins:eval",
    "__import__('os').mkdir('canary')",
    "!!python/object:x",
]
VALUES: list[Callable[[random.Random], Any]] = [
    lambda draw: draw.choice([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0, -0.0, 1.5]),
    lambda draw: draw.choice([0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**400, 10**5000, True, False, None]),
    lambda draw: draw.choice(["", "x", "1", "nan", "\x00", "\x1b[31m", "\ud800", "x" * 100_000, "auto", "none"]),
    lambda draw: draw.choice([*CODE, *TEXTS, *traversals("canary")]),
    lambda draw: nested(draw.choice([1, 3, 60, 500, 5000]), draw.choice([list, dict])),
    lambda draw: draw.choice([[], {}, [[]], [None], [1e309], {"": 1}, {"x": math.nan}, {1: 2}, [1] * 10_000, ["a", 1]]),
]
"""Values that no option takes, or only a few."""


def mutated(draw: random.Random, config: Any) -> Any:
    """A copy of a config with a value replaced, deleted or added somewhere."""
    if not isinstance(config, dict) or not config or draw.random() < 0.1:
        return draw.choice(VALUES)(draw)
    key = draw.choice([*config, draw.choice(["more", *CODE])])
    if draw.random() < 0.1:
        return {name: value for name, value in config.items() if name != key}
    inner = config.get(key)
    deeper = mutated(draw, inner) if isinstance(inner, dict) and inner else draw.choice(VALUES)(draw)
    return {**config, key: deeper}


@pytest.mark.item(19)
@pytest.mark.parametrize("kind", [TrainConfig, DiscoverConfig])
def test_fuzzed_configs_are_refused_or_survive_json_and_run_nothing(
    kind: type[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "canary.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    starts = [{"method": name, "density": 0.3} for name in methods.names() if "density" in methods.defaults(name)]
    valid = [kind.from_dict(start if kind is TrainConfig else {}).as_dict() for start in starts]
    modules, num_accepted = set(sys.modules), 0
    forbidden = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.mkdir", "os.remove", "exec")
    seen: list[str] = []
    events[:] = [lambda event, args: seen.append(event) if event in forbidden else None]
    num = trials.count(quick=300, full=5000)
    for _ in range(num):
        before = trials.draw.choice(valid)
        values: Any = before
        for _ in range(trials.draw.randint(1, 3)):
            values = mutated(trials.draw, values) if isinstance(values, dict) else values
        if not isinstance(values, dict):
            values = {"method": values}
        start = time.process_time()
        with trials.one({key: short(value) for key, value in values.items() if value is not before.get(key)}):
            try:
                made = kind.from_dict(values)
                num_accepted += 1
                assert kind.from_dict(json.loads(json.dumps(made.as_dict(), allow_nan=False))) == made
            except UserError as error:
                refused = str(error)
                is_sentence = refused.isprintable() and len(refused) < 5000
                assert is_sentence, refused[:200]
            seconds = time.process_time() - start
            trials.peak("seconds at most", seconds)
            assert seconds < 1
    events.clear()
    assert seen == []
    assert "canary" not in sys.modules
    assert {name for name in set(sys.modules) - modules if not name.startswith("pathgrow.")} == set()
    assert [path.name for path in tmp_path.iterdir()] == ["canary.py"]
    assert num_accepted < num / 2
    trials.add("accepted", num_accepted)


events: list[Callable[[str, Any], None]] = []
"""Called for every audit event; a hook of the interpreter cannot be removed."""
sys.addaudithook(lambda event, args: [hook(event, args) for hook in events] and None)


def test_a_config_may_name_a_function_that_the_program_has_imported() -> None:
    name = "pathgrow.methods.rigl:rigl"
    methods.entry(name)
    assert TrainConfig.from_dict({"method": name, "density": 0.5}).make_method(10).name == "rigl"


def test_a_recipe_is_looked_up_and_overridden() -> None:
    given = {"recipe_name": "wrn-rigl", "recipe": {"lr": 1, "milestones": [0.25], "augment": {"erase": 0.5}}}
    config = DiscoverConfig.from_dict(given)
    assert (config.recipe.lr, config.recipe.milestones, config.recipe.factor) == (1.0, (0.25,), 0.2)
    assert config.recipe.augment == Augment(crop_padding=4, flip=True, erase=0.5)
    assert config.budget == recipes.recipe("wrn-rigl").epochs
    assert DiscoverConfig.from_dict({}).recipe == recipes.recipe("digits")
    assert DiscoverConfig.from_dict({"data": "cifar10", "model": "vit"}).recipe_name == "cifar-vit"


def test_the_name_depends_on_everything_but_the_number_of_concurrent_networks() -> None:
    first, second = DiscoverConfig.from_dict({"seed": 1}), DiscoverConfig.from_dict({"seed": 2})
    assert first.name.removesuffix("seed1") == second.name.removesuffix("seed2")
    assert first.name.startswith("digits-mlp-")
    others = ({"delta": 0.02}, {"recipe": {"lr": 0.04}}, {"engine": {"precision": "bf16"}})
    names = [DiscoverConfig.from_dict({**other, "seed": 1}).name for other in others]
    assert len({first.name, *names}) == 4
    few, many = (DiscoverConfig.from_dict({**SMALL, "engine": {"max_concurrent": number}}) for number in (2, 9))
    assert (few.engine.max_concurrent, many.engine.max_concurrent) == (2, 9)
    assert (few.as_dict(), few.name) == (many.as_dict(), many.name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bugdet": 4}, "unknown key 'bugdet': did you mean budget"),
        ({"recipe": {"learning_rate": 1}}, "unknown recipe key 'learning_rate'"),
        ({"recipe": {"weight_dekay": 1}}, "unknown recipe key 'weight_dekay': did you mean weight_decay"),
        ({"recipe": {"lr": "fast"}}, "recipe.lr must be a number"),
        ({"recipe": {"lr": float("nan")}}, "recipe.lr must be a number"),
        ({"recipe": [1]}, "recipe must be a JSON object, got [1]"),
        ({"recipe": {"augment": {"flop": True}}}, "unknown recipe.augment key 'flop': did you mean flip"),
        ({"recipe": {"augment": 1}}, "recipe.augment must be a JSON object, got 1"),
        ({"recipe": {"milestones": [2]}}, "recipe.milestones[0] must be in (0, 1), got 2"),
        ({"recipe_name": "cifr"}, "unknown recipe 'cifr': did you mean cifar"),
        ({"recipe_name": 7}, "unknown recipe '7'"),
        ({"recipe_nam": "cifar"}, "unknown key 'recipe_nam': did you mean recipe_name"),
        ({"engine": {"devise": "cpu"}}, "unknown engine key 'devise': did you mean device"),
        ({"engine": {"deterministic": 1}}, "engine.deterministic must be true or false, got 1"),
        ({"engine": {"device": 0}}, "engine.device must be a string, got 0"),
        ({"engine": "cpu"}, "engine must be a JSON object, got 'cpu'"),
        ({"model_options": [1]}, "model_options must be a JSON object, got [1]"),
        ({"model_options": {"width": float("inf")}}, "model_options.width must be finite, got inf"),
        ({"model": 7}, "model must be a string, got 7"),
        ({"data": ["digits"]}, "data must be a string, got ['digits']"),
        ({"data_root": 5}, "data_root must be a string, got 5"),
        ({"seed": True}, "seed must be an integer >= 0, got True"),
        ({"seed": 1.0}, "seed must be an integer >= 0, got 1.0"),
        ({"fold": "first"}, "fold must be an integer >= 0, got 'first'"),
        ({"ranks": 0}, "ranks must be >= 1, got 0"),
        ({"warm_start": "no"}, "warm_start must be true or false, got 'no'"),
        ({"delta": float("inf")}, "delta must be a number > 0, got inf"),
        ({"rule": 3}, "rule must be a string, got 3"),
        ({"method": None}, "method must be a string, got None"),
        ({"target_density": 0.2}, "unknown key 'target_density'"),
    ],
)
def test_configs_are_strict(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        DiscoverConfig.from_dict(given)
    assert str(refused.value).startswith(message)


# The budget of another run


def matched(run: Path, match: str = "flops", **given: Any) -> TrainConfig:
    values = {"method": "random", "density": 0.25, "model_options": {"inputs": 64, "widths": [8]}, "threads": 1}
    return TrainConfig.from_dict({**values, "match": match, "match_run": str(run), **given})


def spender(path: Path, **given: Any) -> Path:
    return finished(path, model_options={"inputs": 64, "widths": [8]}, flops=12345, **given)


def test_the_budget_of_another_run_is_what_it_spent_in_the_same_unit(tmp_path: Path) -> None:
    run = spender(tmp_path / "run")
    values = json.loads((run / "report.json").read_text())
    values["ledger"] |= {"epochs_times_parameters": 700.5, "epochs_times_prunable": 600.25}
    (run / "report.json").write_text(json.dumps(values))
    budgets = [matched(run, match).resolved().match_budget for match in ("flops", "parameters", "prunable")]
    assert budgets == [12345, 700.5, 600.25]
    values["ledger"] |= {"epochs_times_prunable": None}
    (run / "report.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="does not report epochs x prunable; use --match flops"):
        matched(run, "prunable").resolved()


@pytest.mark.parametrize("other", [{"fold": 2}, {"model": "resnet20", "model_options": {}}, {"model_options": {}}])
def test_a_run_with_other_data_or_another_model_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="for the same data and model only"):
        matched(spender(tmp_path / "run"), **other).resolved()


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    run = spender(tmp_path / "run")
    (run / "report.json").unlink()
    with pytest.raises(UserError, match="is unfinished"):
        matched(run).resolved()


def test_a_matched_config_identifies_the_run_up_to_its_seed(tmp_path: Path) -> None:
    runs = [
        spender(tmp_path / str(number), **given)
        for number, given in enumerate([{}, {"seed": 4}, {"data_root": "other"}, {"recipe": {"lr": 0.3}}])
    ]
    first, seed, root, recipe = (matched(run).resolved().match_like for run in runs)
    assert first == seed == root != recipe


def test_a_budget_besides_a_run_must_agree_with_it(tmp_path: Path) -> None:
    run = spender(tmp_path / "run")
    with pytest.raises(UserError, match=r"match_budget is 3, but .* spent 12345: use --match-budget or --match-run"):
        matched(run, match_budget=3.0).resolved()
    resolved = matched(run).resolved()
    assert TrainConfig.from_dict(resolved.as_dict()).resolved() == resolved


EDGES = ["0", "-1", "1e-9", "1e30", "1e308", "1e309", "nan", "-inf", str(2**63), "1" + "0" * 40, "1" * 5000, "", "x"]
NEVER = {"1e30", "1e308", "1e309", "nan", "-inf", "1" + "0" * 40, "1" * 5000, "x"}
"""No number is one of these."""


@pytest.mark.parametrize(
    ("command", "kind", "given"),
    [("train", TrainConfig, ["--method=gcg", "--density=0.2"]), ("discover", DiscoverConfig, ["--finish=static"])],
)
def test_numbers_at_the_edge_are_refused_in_one_short_sentence(command: str, kind: type, given: list[str]) -> None:
    parser = main.COMMANDS[command].parser("pathgrow")
    text = {"--data", "--data-root", "--model", "--recipe", "--device", "--match-run", "--out", "--method", "--rule"}
    for action in parser._actions:
        for value in EDGES if action.nargs != 0 and (flag := action.option_strings[0]) not in text else ():
            try:
                values = main.parse([command, *given, f"{flag}={value}"])[1]
                kind.from_dict({name: each for name, each in values.items() if name not in ("out", "quiet")})
                accepted, said = True, ""
            except UserError as error:
                accepted, said = False, str(error)
            assert len(said) < 600
            assert not (accepted and value in NEVER), (flag, value)


@pytest.mark.parametrize(
    "values",
    [
        {"budget": 10**6},
        {"seed_epochs": 2**63 - 1},
        {"threads": 100_000},
        {"recipe": {"weight_decay": 1e308}},
        {"recipe": {"lr": 1e9}},
        {"gamma": 1e308},
        {"gamma": 1e-9},
        {"gamma": 1e-9, "finish": "auto", "max_density": 0.5},
        {"max_cost": 1e-9},
        {"seed": 2**63},
    ],
)
def test_ranges(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"must be (<= |>= 0|in \[0\.001)"):
        DiscoverConfig.from_dict({"finish": "static", **values})
