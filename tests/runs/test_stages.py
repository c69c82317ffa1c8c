"""Any stage can be lost or damaged: it runs again, the log says so, and the result has the same bits."""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pathgrow.checkpoint import RunDir, stage_files
from pathgrow.checkpoint.stage_files import DamagedStageWarning
from pathgrow.errors import UserError
from tests.support.catalogue import Trials
from tests.support.command import assert_same, leave
from tests.support.toy import Script, World, without_timing

pytestmark = pytest.mark.filterwarnings("ignore:training improved no network")


@pytest.fixture(autouse=True, scope="module")
def _no_fsync() -> Iterator[None]:
    """Nothing here loses power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


CALLS: dict[str, dict[str, Any]] = {
    "fresh": {"rule": Script(probe=(0, 1), last=2)},
    "grown": {"rule": Script(probe=(1,), last=2), "final": "grown"},
    "dense": {"rule": Script(probe=(0, 1), last=2), "reference": "dense"},
    "continued": {"rule": Script(probe=(0, 1), last=2, density=0.1), "budget": 8, "final_epochs": 6},
}


def delete_record(stages: Path, stage: str) -> None:
    (stages / f"{stage}.json").unlink()


def delete_tensors(stages: Path, stage: str) -> None:
    (stages / f"{stage}.safetensors").unlink(missing_ok=True)


def flip_tensors(stages: Path, stage: str) -> None:
    path = stages / f"{stage}.safetensors"
    if path.exists():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))


def truncate_record(stages: Path, stage: str) -> None:
    path = stages / f"{stage}.json"
    path.write_bytes(path.read_bytes()[:-9])


def rewrite(stages: Path, stage: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a stage and give it a valid hash."""
    path = stages / f"{stage}.json"
    record = json.loads(path.read_text())
    del record["sha256"]
    change(record)
    path.write_text(json.dumps({**record, "sha256": stage_files._digest(record)}))


def strip_tensors(stages: Path, stage: str) -> None:
    rewrite(stages, stage, lambda record: record.update(tensors=None))


DAMAGES = [delete_record, delete_tensors, flip_tensors, truncate_record, strip_tensors]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The stages of each call, and its result."""
    folder = tmp_path_factory.mktemp("stored")
    return {name: (folder / name, result(folder / name, options)) for name, options in CALLS.items()}


def result(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The result of a discovery with stored stages, without the time to draw it."""
    with warnings.catch_warnings(), RunDir.open(path, {}) as run_dir:
        warnings.simplefilter("ignore")
        return without_timing(World().discover(store=run_dir.stages, **options))


@pytest.mark.item(10)
@pytest.mark.parametrize("call", CALLS)
def test_a_lost_stage_runs_again_with_the_same_bits(
    call: str, stored: dict[str, Any], tmp_path: Path, trials: Trials
) -> None:
    """Every stage, damaged in two of the ways, or in all of them."""
    whole, expected = stored[call]
    stages = RunDir(whole).stages.names()
    assert {"start", "seed", "round-001", "probe-001", "weights-002"} < set(stages)
    for number, stage in enumerate(stages * trials.count(quick=2, full=len(DAMAGES))):
        damage = DAMAGES[(number + list(CALLS).index(call)) % len(DAMAGES)]
        path = tmp_path / str(number)
        shutil.copytree(whole, path)
        damage(path / "stages", stage)
        with trials.one(f"{damage.__name__} {stage}"):
            assert result(path, CALLS[call]) == expected


def test_all_stages_but_one_are_lost(stored: dict[str, Any], tmp_path: Path) -> None:
    whole, expected = stored["fresh"]
    for kept in RunDir(whole).stages.names():
        path = tmp_path / kept
        shutil.copytree(whole, path)
        for stage in RunDir(whole).stages.names():
            if stage != kept:
                delete_record(path / "stages", stage)
        assert result(path, CALLS["fresh"]) == expected, kept


def test_a_finished_discovery_whose_final_stage_is_damaged_trains_it_again(tmp_path: Path) -> None:
    """The probe that it continues from was deleted when it was stored, so that is trained again too."""
    options = {"rule": Script(probe=(0, 1), last=2, density=0.2), "budget": 16}
    expected = without_timing(World().discover(store=tmp_path, **options))
    assert not (tmp_path / "stages" / "probe-001.safetensors").exists()
    flip_tensors(tmp_path / "stages", "final")
    world = World()
    with pytest.warns(DamagedStageWarning) as said:
        assert without_timing(world.discover(store=tmp_path, **options)) == expected
    assert len(world.fits) in (1, 2)
    messages = [str(warning.message) for warning in said]
    assert "stage 'final' in " in messages[0]
    assert "moved aside as .bad, will run again" in messages[0]
    if len(world.fits) == 2:
        assert "is trained again, because what it left for later stages is lost" in messages[1]
    assert RunDir(tmp_path).damage() == {}


def test_a_stage_lost_after_the_search_leaves_the_returned_network_alone(tmp_path: Path) -> None:
    world, options = World(), {"rule": Script(probe=(0, 1), last=2, density=0.2)}
    with RunDir.open(tmp_path, {}) as run_dir:
        found = world.discover(store=run_dir.stages, **options)
        masks, returned = found.masks_at(1), found.masks.clone()
        state = copy.deepcopy((world.model.state_dict(), world.optimizer.state_dict()))
        shutil.rmtree(tmp_path / "stages")
        with pytest.warns(DamagedStageWarning, match="'round-001' is trained again"):
            assert found.masks_at(1) == masks
    assert found.masks == returned
    assert str(state) == str((world.model.state_dict(), world.optimizer.state_dict()))
    world.fit(world.model, world.optimizer, 1)
    assert all(bool((world.model.get_parameter(name)[~mask] == 0).all()) for name, mask in returned.items())


# Records with the right hash and a wrong field

ODD = [None, -1, 1.5, "x", [], {}, True, 10**400]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key in the metadata of a stage; of lists the first item."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def changed(metadata: Any, at: tuple[Any, ...], odd: Any) -> None:
    for key in at[:-1]:
        metadata = metadata[key]
    if odd is places:
        del metadata[at[-1]]
    else:
        metadata[at[-1]] = odd


@pytest.mark.item(4)
@pytest.mark.parametrize("stage", ["start", "seed", "round-002", "probe-001", "final", "weights-002"])
def test_an_odd_field_is_one_sentence_or_runs_again(
    stage: str, stored: dict[str, Any], tmp_path: Path, trials: Trials
) -> None:
    """Each field of each kind of stage deleted and replaced in turn; values that could be right are accepted."""
    whole = stored["fresh"][0]
    record = json.loads((whole / "stages" / f"{stage}.json").read_text())
    path, odds = tmp_path / "run", [places, *ODD]
    num = trials.count(quick=1, full=len(odds))
    for number, at in enumerate(places(record["metadata"])):
        for odd in (odds * 2)[number % len(odds) :][:num]:
            shutil.copytree(whole, path)
            rewrite(path / "stages", stage, lambda record, at=at, odd=odd: changed(record["metadata"], at, odd))
            with trials.one(f"{stage} {at} {'deleted' if odd is places else odd}"), suppress(UserError):
                result(path, CALLS["fresh"])
            shutil.rmtree(path)


# The commands


@pytest.mark.parametrize(
    ("line", "stages"),
    [
        ("discover --finish static --budget 4 --start-density 0.2 --rule exponential", ["final", "seed", "round-002"]),
        ("train --method gcg --density 0.4 --epochs 3 --method-option start_density=0.2", ["final", "round-001"]),
        (
            "train --method imp --density 0.6 --epochs 1 --method-option rewind_step=3",
            ["level-2", "weights-003", "plan"],
        ),
    ],
)
def test_a_command_trains_a_lost_stage_again(
    line: str, stages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*line.split(), "--model-option", "widths=8,8", "--threads", "1", "--out"]
    whole = tmp_path / "whole"
    assert leave(*words, str(whole), "--quiet") == 0
    for stage in stages:
        out = Path(shutil.copytree(whole, tmp_path / stage))
        (out / "report.json").unlink()
        rewrite(out / "stages", stage, lambda record: record["metadata"].clear())
        capsys.readouterr()
        assert leave(*words, str(out)) == 0
        assert f"pathgrow: warning: stage '{stage}' is " in capsys.readouterr().err
        assert_same(out, whole)
