"""A language model end to end: configs, reports of losses, resuming, and the smallest scale of the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pathgrow.checkpoint import StageFiles
from pathgrow.errors import UserError
from pathgrow.report.compare import compare_runs
from pathgrow.report.schema import RunReport
from pathgrow.report.text import findings
from pathgrow.runs import stages
from pathgrow.runs.config import DiscoverConfig, TrainConfig
from pathgrow.runs.discovery import run_discovery
from pathgrow.runs.training import train
from pathgrow.studies.definition import load_study
from pathgrow.studies.results import load_results, render_results, results_png
from pathgrow.studies.worker import work
from tests.support.command import assert_same
from tests.support.text_data import SMALL_GPT, write_text

QUICK = {"model": "gpt", "model_options": SMALL_GPT, "data": "text", "recipe": {"batch_size": 32}, "threads": 1}


@pytest.fixture(scope="module", autouse=True)
def _text(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("text")
    write_text(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATHGROW_DATA", str(root))
        yield


def trained(out: Path, method: str = "rigl", **given: Any) -> RunReport:
    density = {} if method == "dense" else {"density": 0.3}
    return train(TrainConfig.from_dict({**QUICK, "method": method, "epochs": 2, **density, **given}), out)


def discovered(out: Path, **given: Any) -> RunReport:
    return run_discovery(DiscoverConfig.from_dict({**QUICK, "budget": 6, "delta": 0.1, **given}), out)


def test_the_dataset_decides_the_mode_and_configs_of_images_do_not_mention_it() -> None:
    images, text = (TrainConfig.from_dict({"method": "dense", **given}) for given in ({}, QUICK))
    assert (images.mode, "mode" in images.as_dict()) == ("max", False)
    assert (text.mode, text.as_dict()["mode"]) == ("min", "min")
    assert TrainConfig.from_dict(text.as_dict()) == text
    for data, mode in (("digits", "min"), ("text", "max")):
        with pytest.raises(UserError, match=f"mode must be '.*' for {data}, got '{mode}'"):
            TrainConfig.from_dict({"method": "dense", "data": data, "mode": mode})


@pytest.mark.parametrize("given", [{"delta": 2.0}, {"reference": 1.5}])
def test_tolerances_and_references_of_losses_are_not_limited_to_accuracies(given: dict[str, Any]) -> None:
    assert DiscoverConfig.from_dict({**QUICK, **given}).search()["mode"] == "min"
    with pytest.raises(UserError, match="accuracy"):
        DiscoverConfig.from_dict(given)


@pytest.mark.filterwarnings("ignore:only . mask update")
@pytest.mark.parametrize("method", ["random", "set", "rigl", "gmp", "gcg", "gts"])
def test_every_method_of_the_study_trains_a_language_model(method: str, tmp_path: Path) -> None:
    report = trained(tmp_path, method)
    assert report.network.density == pytest.approx(0.3, abs=0.001)
    assert report.network.val.score == report.network.val.loss
    assert report.mode == "min"
    assert ("loss", f"{report.network.val.score:.5g} validation, {report.network.test.score:.5g} test") in findings(
        report
    )


class Killed(BaseException):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [trained, discovered], ids=["train", "discover"])
def test_an_interrupted_run_ends_with_identical_bits(
    run: Callable[[Path], RunReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted at a save, early and late; trainings are saved after every step."""
    run(tmp_path / "whole")
    save = StageFiles.save
    for after in (9, 30):
        saves = iter(range(after))

        def dying(files: StageFiles, stage: str, *stored: Any, saves: Iterator[int] = saves) -> None:
            save(files, stage, *stored)
            if next(saves, None) is None:
                raise Killed

        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(StageFiles, "save", dying)
            patch.setattr(stages, "SECONDS_BETWEEN_SAVES", 0.0)
            run(tmp_path / "killed")
            assert after > 9, "the run has more saves"
    run(tmp_path / "killed")
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("finish", ["gts", "static"])
def test_a_discovery_takes_the_lower_loss_for_the_better(finish: str, tmp_path: Path) -> None:
    report = discovered(tmp_path, finish=finish, recipe={"batch_size": 16, "lr": 0.01})
    assert (report.mode, report.curve.num_val) == ("min", None)
    assert report.answer is not None
    assert report.answer.status != "unlearned"
    assert report.reference is not None
    assert report.target_score is not None
    assert report.target_score > report.reference.score > 0, "delta allows a higher loss, and losses keep their sign"
    compared = (*report.curve.rounds, *report.curve.probes, *report.curve.finished)
    assert report.network.val.score < max(point.score for point in compared)


@pytest.mark.filterwarnings("ignore:only . mask update")
def test_losses_are_compared_as_numbers(tmp_path: Path) -> None:
    for method in ("dense", "rigl"):
        trained(tmp_path / method, method)
    rows = compare_runs([tmp_path / "dense", tmp_path / "rigl"]).rows
    assert {(row.mode, row.is_accuracy) for row in rows} == {("min", False)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"data": "text", "model": "mlp"},
            "mlp .* cannot process the 256 samples of text .* only model gpt reads text",
        ),
        ({"data": "digits", "model": "gpt"}, "gpt .* cannot process the 1x8x8 samples of digits .* only text is read"),
    ],
)
def test_models_of_images_and_text_are_not_interchangeable(
    given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path, 12_000)
    monkeypatch.setenv("PATHGROW_DATA", str(tmp_path))
    with pytest.raises(UserError, match=message):
        TrainConfig.from_dict({"method": "dense", **given}).resolved()


@pytest.mark.filterwarnings("ignore")
def test_the_study_at_its_smallest_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path, 12_000)
    monkeypatch.setenv("PATHGROW_DATA", str(tmp_path))
    study, out = load_study("language"), tmp_path / "out"
    cells = study.cells("smoke")
    (out / ".study").mkdir(parents=True)
    assert work(out, cells, is_alone=True, num_threads=1) == "done"
    results = load_results(study, "smoke", out)
    assert f"{len(cells)} of {len(cells)} cells finished. 2 blocks" in results.caption
    found = {(row.series, row.x): row.values for row in results.rows}
    for way in ("random", "set", "rigl", "gmp", "gcg", "gts"):
        for density in (0.1, 0.3):
            assert 2 < found[way, density]["val_loss"].mean < 3.5
    assert "val_loss" in found["dense", 1.0]
    loss = found["rigl", 0.1]["val_loss"].mean
    assert f"| rigl | 10.0% | {loss:.4f} | " in render_results(results, "markdown")
    assert results_png(results).startswith(b"\x89PNG")
