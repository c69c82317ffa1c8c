"""`pathgrow.discover` with a folder: its report lies there when it is over, and the same call repeats nothing."""

from __future__ import annotations

import csv
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import pathgrow
from pathgrow.checkpoint import MemoryStore, RunDir
from pathgrow.errors import RunFailed, UserError
from pathgrow.report import html
from pathgrow.runs import discovery
from pathgrow.trainer.process_group import join_process_group
from tests.support.command import leave
from tests.support.ranks import together
from tests.support.toy import INPUTS, Script, World

WRITTEN = ["curve.csv", "curve.png", "report.html", "report.json"]


def found_by(world: World, **options: Any) -> pathgrow.Discovery:
    given = {"rule": Script(), "budget": 8, "start_density": 0.1, **options}
    return pathgrow.discover(world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1], **given)


def left(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name in WRITTEN)


def test_a_finished_call_leaves_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = found_by(World(), store=tmp_path)
    assert left(tmp_path) == WRITTEN
    written = json.loads((tmp_path / "report.json").read_text())
    run_seconds = written["timing"].pop("run_seconds")
    assert run_seconds > written["timing"]["seconds"] > 0
    assert written == json.loads(json.dumps(found.report()))
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], float(row["density"])) for row in rows] == [
        *(("rough", record.point.density) for record in found.rounds),
        *(("probe", record.point.density) for record in found.probes),
    ]
    assert html.page(json.loads((tmp_path / "report.json").read_text())) == (tmp_path / "report.html").read_text()
    assert leave("show", str(tmp_path)) == 0
    shown = capsys.readouterr()
    assert "of the switchable weights" in shown.out
    assert shown.err == "", "nothing that a call leaves is missing"


def test_the_same_call_again_writes_only_what_is_gone(tmp_path: Path) -> None:
    found_by(World(), store=tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in WRITTEN}
    (tmp_path / "report.html").unlink()
    world = World()
    found_by(world, store=tmp_path)
    assert world.fits == []
    assert {name: (tmp_path / name).read_bytes() for name in WRITTEN} == before
    (tmp_path / "curve.csv").unlink()
    assert RunDir(tmp_path).missing == ["curve.csv"]
    (tmp_path / "report.json").unlink()
    found_by(World(), store=tmp_path)
    assert (tmp_path / "curve.csv").read_bytes() == before["curve.csv"]


@pytest.mark.parametrize("fault", [OSError("no space left"), UserError("somebody works in it"), RunFailed("damaged")])
def test_a_report_that_cannot_be_written_does_not_cost_the_discovery(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*anything: object) -> None:
        raise fault

    with monkeypatch.context() as broken:
        broken.setattr(html, "write_all", fail)
        with pytest.warns(UserWarning, match=f"is over, but its report could not be written: {fault}"):
            found = found_by(World(), store=tmp_path)
    assert found.density > 0
    assert "report.html" not in left(tmp_path)
    found_by(World(), store=tmp_path)
    assert left(tmp_path) == WRITTEN


def test_a_call_that_is_broken_off_leaves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    whole = world.evaluate

    def failing(model: torch.nn.Module) -> Any:
        return whole(model) if len(world.fits) < 3 else float("nan")

    world.evaluate = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(RunFailed):
        found_by(world, store=tmp_path)
    assert left(tmp_path) == []
    assert leave("show", str(tmp_path)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "an unfinished call of discover" in shown
    assert "not running; the same call goes on from there" in shown
    found_by(World(), store=tmp_path)
    assert left(tmp_path) == WRITTEN


def found_together(store: str) -> list[str]:
    """In one of several processes, each of which has a folder of this name."""
    with join_process_group("cpu") as comm:
        place = Path(f"{store}-{comm.rank}")
        found_by(World(), store=place, comm=comm, target_density=0.2)
        return left(place) if place.exists() else []


def test_of_several_processes_the_first_leaves_the_report(tmp_path: Path) -> None:
    first, second = together(tmp_path, found_together, str(tmp_path / "store"))
    assert (first.code, second.code) == (0, 0), second.output
    assert first.value == WRITTEN
    assert second.value == []


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found_by(World())
    found_by(World(), store=MemoryStore())
    assert list(tmp_path.iterdir()) == []


def test_the_public_name_is_the_loop_with_its_parameters_and_description() -> None:
    assert inspect.signature(pathgrow.discover) == inspect.signature(discovery.discover)
    assert pathgrow.discover.__doc__ == discovery.discover.__doc__


def test_a_warning_points_at_whoever_called() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        world = World()
        world.evaluate = lambda model: 70.0  # type: ignore[method-assign, assignment]
        found_by(world, rule="trajectory", target_density=None)
    assert [warning.filename for warning in told if "delta" in str(warning.message)] == [__file__]
