"""Discovery: run directories, resumption, progress, errors."""

from __future__ import annotations

import copy
import csv
import json
import logging
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pathgrow
from pathgrow import methods
from pathgrow.checkpoint import MemoryStore, RunDir
from pathgrow.distributed.process_group import join_process_group
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.report import html
from pathgrow.report.loading import load_finished
from pathgrow.runs.api import discover
from pathgrow.runs.records import SearchForecast
from pathgrow.trainer import Trainer
from pathgrow.trainer.recipes import recipe
from tests.support.command import leave
from tests.support.ranks import together
from tests.support.toy import (
    INPUTS,
    Call,
    Killed,
    MortalStore,
    Script,
    World,
    killed_at_every_save,
    network,
    without_timing,
)


def test_repeating_gives_the_same_bits_another_seed_different_ones() -> None:
    first = without_timing(World().discover())
    assert first == without_timing(World().discover())
    other = without_timing(World().discover(seed=1))
    assert other["masks_sha256"] != first["masks_sha256"]


@pytest.mark.parametrize("final", ["fresh", "grown"])
@pytest.mark.parametrize("saves_the_last", [True, False])
def test_killed_at_any_save_and_resumed_ends_with_the_same_bits(final: str, saves_the_last: bool) -> None:
    rule = Script(probe=(0, 1), last=2)
    # functions, start, seed and its weights, dense, two rounds with theirs, two probes, final network, seven trainings
    assert killed_at_every_save(saves_the_last, final=final, reference="dense", rule=rule) == 12 + 7


@pytest.mark.parametrize("kind", [str, Path])
def test_a_run_directory_as_a_store(tmp_path: Path, kind: Callable[[Path], object]) -> None:
    """A kill in the third call of `fit`; everything before it is found again by a new process' model."""
    uninterrupted = World().discover()
    dying, place = World(), kind(tmp_path / "runs" / "first")

    class Calls(list[Call]):
        def append(self, call: Call) -> None:
            super().append(call)
            if len(self) == 3:
                raise Killed

    dying.fits = Calls()
    with pytest.raises(Killed):
        dying.discover(store=place)
    world = World()
    found = world.discover(store=place)
    assert without_timing(found) == without_timing(uninterrupted)
    num_stages = len(found.rounds) + len(found.probes) + 1
    assert len(world.fits) == num_stages - 2, "two stages were stored before the kill"
    assert found.masks_at(0) == uninterrupted.masks_at(0), "the run directory is readable after the discovery"
    again = World()
    assert without_timing(again.discover(store=place)) == without_timing(uninterrupted)
    assert again.fits == []
    with pytest.raises(UserError, match=r"another config: gamma was null, now 0.5"):
        World().discover(store=place, gamma=0.5)


def test_an_interrupted_discovery_restores_the_model() -> None:
    world = World()
    weights, lr = copy.deepcopy(world.model.state_dict()), world.optimizer.param_groups[0]["lr"]
    store = MortalStore(5, saves_the_last=True)
    with pytest.raises(Killed):
        world.discover(store=store)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in world.model.state_dict().items())
    assert not world.optimizer.state
    assert world.optimizer.param_groups[0]["lr"] == lr
    assert without_timing(world.discover(store=store)) == without_timing(World().discover())


WRITTEN = ["curve.csv", "curve.png", "report.html", "report.json"]


def found_by(world: World, **options: Any) -> pathgrow.Discovery:
    given = {"finish": "static", "rule": Script(), "budget": 8, "start_density": 0.1, **options}
    return pathgrow.discover(world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1], **given)


def written(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name in WRITTEN)


def test_a_finished_call_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = found_by(World(), store=tmp_path)
    assert written(tmp_path) == WRITTEN
    values = json.loads((tmp_path / "report.json").read_text())
    run_seconds = values["timing"]["run_seconds"]
    assert run_seconds > values["timing"]["seconds"] > 0
    in_file = {key: values[key] for key in ("timing", "weights_sha256")}
    assert values == json.loads(json.dumps(found.report().as_json())) | in_file
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], float(row["density"])) for row in rows] == [
        *(("rough", record.point.density) for record in found.rounds),
        *(("probe", record.point.density) for record in found.probes),
    ]
    assert html.page(load_finished(tmp_path)) == (tmp_path / "report.html").read_text()
    capsys.readouterr()  # the progress
    assert leave("show", str(tmp_path)) == 0
    shown = capsys.readouterr()
    assert "of the prunable weights" in shown.out
    assert "Sequential, seed 0" in shown.out
    assert shown.err == "", "no file is reported missing"


@pytest.mark.parametrize("finish", ["static", "gts"])
@pytest.mark.parametrize("is_saved", [False, True], ids=["store", "save"])
def test_a_call_leaves_a_run_directory_like_the_command(
    finish: str, is_saved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, world = tmp_path / "run", World()
    options = {} if finish == "static" else {"rule": "probe", "start_density": None, "finish": "gts", "delta": 0.1}
    found = found_by(world, name="toy <1>", **options, **({} if is_saved else {"store": place}))
    if is_saved:
        found.save(place)
        found.save(place)  # finished: the same network once more
    timing = RunDir(place).report()["timing"]
    assert timing["run_seconds"] >= timing["seconds"], "of the search, also if the directory was made after it"
    for command in ("check", "show", "compare"):
        assert leave(command, str(place)) == 0
    assert "toy <1>, seed 0" in capsys.readouterr().out
    loaded = network(seed=1)
    assert pathgrow.load_network(place, loaded) == found.masks
    assert world.evaluate(loaded) == world.evaluate(world.model)
    assert len(list((place / "masks").iterdir())) == len(found.trunk.records)
    other = found_by(World(seed=1), name="toy <1>", **options)
    with pytest.raises(UserError, match="holds another network of a run with the same options"):
        other.save(place)


def test_runs_of_equal_options_are_told_apart_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        found_by(World(), name=name).save(tmp_path / name)
    assert leave("compare", *map(str, sorted(tmp_path.iterdir())), "--format", "csv") == 0
    assert "name first" in (table := capsys.readouterr().out)
    assert "name second" in table


def test_a_repeated_call_writes_only_what_is_missing(tmp_path: Path) -> None:
    found_by(World(), store=tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in WRITTEN}
    (tmp_path / "report.html").unlink()
    world = World()
    found_by(world, store=tmp_path)
    assert world.fits == []
    assert {name: (tmp_path / name).read_bytes() for name in WRITTEN} == before
    (tmp_path / "curve.csv").unlink()
    assert RunDir(tmp_path).damage() == {"curve.csv": "is missing"}
    (tmp_path / "report.json").unlink()
    found_by(World(), store=tmp_path)
    assert (tmp_path / "curve.csv").read_bytes() == before["curve.csv"]


@pytest.mark.parametrize("fault", [OSError("no space left"), UserError("somebody works in it"), RunFailed("damaged")])
def test_a_report_that_cannot_be_written_is_a_warning(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*anything: object) -> None:
        raise fault

    with monkeypatch.context() as broken:
        broken.setattr(html, "write_all", fail)
        with pytest.warns(UserWarning, match=f"the discovery finished, but writing its report failed: {fault}"):
            found = found_by(World(), store=tmp_path)
    assert found.density > 0
    assert "report.html" not in written(tmp_path)
    found_by(World(), store=tmp_path)
    assert written(tmp_path) == WRITTEN


def test_an_interrupted_call_writes_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    whole = world.evaluate

    def failing(model: torch.nn.Module) -> Any:
        return whole(model) if len(world.fits) < 3 else float("nan")

    world.evaluate = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(RunFailed):
        found_by(world, store=tmp_path)
    assert written(tmp_path) == []
    assert leave("show", str(tmp_path)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "unfinished call of discover" in shown
    assert "not running; repeat the call to resume" in shown
    found_by(World(), store=tmp_path)
    assert written(tmp_path) == WRITTEN


def found_together(store: str) -> list[str]:
    """In one of several processes, each of which has a folder of this name."""
    with join_process_group("cpu") as comm:
        place = Path(f"{store}-{comm.rank}")
        found_by(World(), store=place, comm=comm)
        return written(place) if place.exists() else []


def test_only_rank_0_writes_the_report(tmp_path: Path) -> None:
    first, second = together(tmp_path, found_together, str(tmp_path / "store"))
    assert (first.code, second.code) == (0, 0), second.output
    assert first.value == WRITTEN
    assert second.value == []


def test_without_a_run_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found_by(World())
    found_by(World(), store=MemoryStore())
    assert list(tmp_path.iterdir()) == []


class Watcher(pathgrow.Callback):
    """Notes the stages and their epochs."""

    def __init__(self) -> None:
        self.forecasts: list[SearchForecast] = []
        self.epochs: dict[str, list[tuple[int, int]]] = {}

    def on_run_start(self, forecast: SearchForecast) -> None:
        self.forecasts.append(forecast)

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        self.epochs[stage] = []

    def on_epoch(self, stage: str, done: int, epochs: int, loss: float | None = None) -> None:
        self.epochs[stage].append((done, epochs))


@pytest.mark.parametrize("trainer", [False, True], ids=["fit", "Trainer"])
def test_epochs_of_every_training_are_reported(trainer: bool) -> None:
    """Of a user's fit from the second stage on: the samples of the first tell how long an epoch is."""
    first, second, world = Watcher(), Watcher(), World()
    if trainer:
        digits = pathgrow.data.load("digits")
        engine = Trainer(digits, recipe("digits"))
        model, optimizer = engine.place(pathgrow.models.create("mlp", digits.classes, seed=0, inputs=64, widths=[8]))
        fit, evaluate, example = engine, engine.evaluate(digits.val), digits.example_input()
    else:
        model, optimizer, fit, evaluate, example = (
            world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1],
        )  # fmt: skip
    found = discover(model, optimizer, fit, evaluate, example, budget=8, delta=0.1, callback=[first, second])  # type: ignore[arg-type]
    assert first.epochs == second.epochs
    lengths = {record.stage: record.num_epochs for record in found.trained}
    for number, (stage, epochs) in enumerate(first.epochs.items()):
        expected = 0 if number == 0 and not trainer else lengths[stage]
        assert epochs == [(k + 1, lengths[stage]) for k in range(expected)]
    [forecast] = first.forecasts
    assert forecast.budget == 8
    costs = [forecast.cost_of_record(record) for record in found.trained]
    assert sum(cost for cost in costs if cost) == pytest.approx(found.ledger.relative, rel=1e-6)


def test_progress_is_shown_unless_it_is_silenced(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = found_by(World(), callback=pathgrow.LoggingCallback("mine", logging.DEBUG), progress=False)
    assert capsys.readouterr() == ("", "")
    with caplog.at_level(logging.DEBUG, "mine"):
        found_by(World(), callback=pathgrow.LoggingCallback("mine", logging.DEBUG))
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 2 + len(found.trained), "one when it starts, one estimate"
    assert "round 0 starts: density 9.9%, 1 epoch (stage 1 of about" in lines[0]
    assert f"cost so far {found.ledger.relative:.2f} dense trainings" in lines[-1]
    assert [line.partition("] ")[2].split(" (")[0] for line in lines] == [
        message.split(" (")[0] for message in caplog.messages
    ]


def test_a_logging_callback_can_be_used_again(caplog: pytest.LogCaptureFixture) -> None:
    callback, runs = pathgrow.LoggingCallback("mine", logging.DEBUG), []
    with caplog.at_level(logging.DEBUG, "mine"):
        for _ in range(2):
            caplog.clear()
            found_by(World(), callback=callback, progress=False)
            runs.append([re.sub(r", [^,]* left", "", message) for message in caplog.messages])
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("options", "name"),
    [({}, r"score 0\.\d+"), ({"num_val": 32}, r"accuracy \d\d\.\d\d%"), ({"metric": "F1"}, r"F1 0\.\d+")],
)
def test_progress_names_the_score(options: dict[str, object], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found_by(World(), **options)
    assert len(re.findall(rf"density [\d.]+%, {name} \(stage", capsys.readouterr().err)) > 2


def test_the_progress_of_a_pretrained_network_counts_trainings(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world = World()
        world.fit(world.model, world.optimizer, 300)
        world.optimizer.param_groups[0]["lr"] = 0.1
        options = {"finish": "gts", "rule": "probe", "start_density": None, "start": "pretrained", "delta": 0.1}
        options["seed_epochs"] = None
        world.discover(**options)
    assert re.search(r"pretrained model: density 100%, score [\d.]+$", capsys.readouterr().err, re.MULTILINE)


def test_a_stored_call_says_where_it_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found_by(World(), store=tmp_path)
    first = capsys.readouterr().err
    assert "Resuming" not in first
    found_by(World(), store=tmp_path)
    assert (
        capsys.readouterr()
        .err.splitlines()[0]
        .endswith(
            "done. They are used as they are; whether data that fit loads itself has changed since cannot be checked."
        )
    )
    rows = RunDir(tmp_path).metrics
    assert [row["event"] for row in rows if row["stage"] == "round-001"] == ["begin", "end"]


def test_warnings_point_at_the_caller() -> None:
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        world = World()
        world.evaluate = lambda model: 70.0  # type: ignore[method-assign, assignment]
        found_by(world, rule="trajectory")
    assert [warning.filename for warning in expected if "delta" in str(warning.message)] == [__file__]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gama": 0.5}, "did you mean gamma"),
        ({"start_density": 0.0}, r"start_density must be .*in \(0, 1\], got 0.0"),
        ({"start_density": 1.5}, "start_density"),
        ({"target_density": 0.2}, "takes no target_density; use `pathgrow train --method gcg --density"),
        ({"method": methods.create("gcg", target_density=0.2)}, "has target_density 0.2, but discover searches"),
        ({"method": methods.create("gcg", gamma=1.0), "gamma": 0.5}, "gamma is 0.5, but the method has gamma=1"),
        ({"delta": 0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"budget": 0}, "budget"),
        ({"budget": 2.5}, "budget"),
        ({"reference": "sparse"}, "reference"),
        ({"reference": math.inf}, "reference"),
        ({"gamma": -0.1}, "gamma"),
        ({"rough": 0}, "rough"),
        ({"rough": 1.5}, "rough"),
        ({"rough": "quick"}, "rough"),
        ({"rough": True}, "rough"),
        ({"seed_epochs": 0}, "seed_epochs"),
        ({"probe_fraction": 0.0}, "probe_fraction"),
        ({"final": "new"}, "fresh"),
        ({"select_by": "both"}, "delta"),
        ({"eval_weights": "raw"}, "ema"),
        ({"method": "gcgg"}, "did you mean gcg"),
        ({"rule": "prob"}, "did you mean probe"),
        ({"num_val": 0}, "num_val"),
        ({"num_val": 0.5}, "num_val"),
        ({"store": 3}, "a directory or a Store"),
        ({"store": MemoryStore}, "a directory or a Store"),
        ({"callback": print}, "callback must be an instance of pathgrow.Callback"),
        ({"callback": [pathgrow.Callback(), print]}, "callback must be an instance of pathgrow.Callback, or several"),
    ],
)
def test_invalid_options_are_refused_before_training(options: dict, sentence: str) -> None:
    world = World()
    weights = copy.deepcopy(world.model.state_dict())
    with pytest.raises(UserError, match=sentence):
        world.discover(**options)
    assert world.fits == []
    assert all(torch.equal(tensor, weights[name]) for name, tensor in world.model.state_dict().items())


@pytest.mark.parametrize(
    ("fit", "evaluate", "sentence"),
    [
        (
            lambda model, optimizer: None,
            None,
            r"fit must accept fit\(model, optimizer, epochs\), but its signature is \(model, optimizer\)",
        ),
        (lambda model, optimizer, epochs, data: None, None, r"missing a required argument: 'data'"),
        (
            None,
            lambda model, data: 0.5,
            r"evaluate must accept evaluate\(model\), but its signature is \(model, data\)",
        ),
        (None, lambda: 0.5, r"evaluate must accept evaluate\(model\), but its signature is \(\)"),
        (3, None, r"fit must be a function fit\(model, optimizer, epochs\), got int"),
    ],
)
def test_functions_with_wrong_signatures_are_refused_before_training(
    fit: object, evaluate: object, sentence: str
) -> None:
    world = World()
    with pytest.raises(UserError, match=sentence):
        discover(
            world.model,
            world.optimizer,
            fit or world.fit,
            evaluate or world.evaluate,
            INPUTS[:1],
            budget=8,
            finish="static",
        )
    assert world.fits == []


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, "long"])
def test_an_invalid_number_of_final_epochs_is_refused_before_training(wrong: Any) -> None:
    world = World()
    with pytest.raises(UserError, match=rf"final_epochs must be .* got {wrong!r}"):
        world.discover(final_epochs=wrong)
    assert world.fits == []


def test_a_final_epochs_function_with_a_wrong_signature_is_refused_before_training() -> None:
    world = World()
    with pytest.raises(UserError, match=r"final_epochs must accept final_epochs\(records\), but its signature is \(\)"):
        world.discover(final_epochs=lambda: 3)
    assert world.fits == []


def test_functions_may_name_their_parameters_freely() -> None:
    from pathgrow.runs.checks import check_functions

    check_functions(lambda m, o, n, extra=1: None, lambda *anything: None)
    check_functions(max, min)  # written in C; one of them may not say what it takes


def test_without_an_example_input_one_is_guessed() -> None:
    given, world = World(), World()
    expected = without_timing(given.discover())
    settings = {"finish": "static", "rule": Script(), "start_density": 0.1, "budget": 16, "seed_epochs": 2}
    found = discover(world.model, world.optimizer, world.fit, world.evaluate, **settings)
    assert without_timing(found) == expected


@pytest.mark.parametrize("example_input", [torch.ones(1, 7), (INPUTS[:1], INPUTS[:1]), torch.ones(1, 2, 2, 2)])
def test_an_example_input_that_does_not_fit_the_model(example_input: object) -> None:
    world = World()
    with pytest.raises(UserError, match="the model could not be run on example_input: ") as caught:
        discover(world.model, world.optimizer, world.fit, world.evaluate, example_input, budget=8, finish="static")
    assert isinstance(caught.value.__cause__, RuntimeError | TypeError | ValueError)
    assert world.fits == []


def test_a_method_without_growth_is_refused() -> None:
    from pathgrow.methods import fixed

    with pytest.raises(UserError, match="does not grow"):
        World().discover(method=fixed(Masks.full(network())))
