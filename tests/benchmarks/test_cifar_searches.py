"""The searches of `benchmarks.cifar_searches` and their ladders, on trainings of a second."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cifar_searches, replayed_searches
from benchmarks.cifar_searches import dense_scores, search, table
from pathgrow.checkpoint import RunDir
from pathgrow.checkpoint.stage_files import StageFiles
from pathgrow.data.dataset import Dataset
from pathgrow.density.shrink import ShrinkRule
from pathgrow.errors import UserError
from pathgrow.runs import discovery
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.session import Session
from tests.support.faults import Killed

CONFIG = DiscoverConfig.from_dict(
    {"data": "digits", "model": "mlp", "budget": 2, "delta": 0.05, "max_cost": 1.0, "seed": 3}
)
LADDER = [0.3, 0.1]
pytestmark = pytest.mark.filterwarnings("ignore:a budget of 2 epochs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a search with a ladder."""
    path = tmp_path_factory.mktemp("searches") / "whole"
    search(CONFIG, path, LADDER)
    return path


def test_beside_the_ladder_a_line_is_that_of_the_command(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "draw_figures", lambda _: None)
    report, found = discovery.run_discovery(CONFIG, tmp_path / "command").as_json(), search(CONFIG, whole, LADDER)
    assert [(row["density"], row["epochs"]) for row in found["curve"]["rounds"]] == [(1.0, 1)]
    for name in ("answer", "curve", "ledger"):
        assert found[name] == report[name]
    assert [row["phase"] for row in found["timing"]["phases"]] == [row["phase"] for row in report["timing"]["phases"]]
    for name in ("network.safetensors", "network_masks.safetensors", "curve.csv"):
        assert (whole / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert len(list((whole / "masks").iterdir())) == len(list((tmp_path / "command" / "masks").iterdir()))
    test = report["network"]["test"]
    assert found["test"] == [test["score"], test["loss"]]


def test_the_ladder_has_the_densities_asked_for_and_is_pruned_from_the_rounds(whole: Path) -> None:
    found, stages = search(CONFIG, whole, LADDER), RunDir(whole).stages
    assert [rung["density"] for rung in found["ladder"]] == pytest.approx(LADDER, abs=1e-4)
    # The rounds are of 30% after 2 epochs and of 16.5% after 3; the last phase takes one.
    assert [rung["epochs"] for rung in found["ladder"]] == [3, 4]
    assert [rung["val"] for rung in found["ladder"]] == [stages.metadata(f"final-{k}")["score"] for k in (2, 3)]
    assert all(0.8 < rung["test"] <= 1 for rung in found["ladder"])


def test_each_network_of_the_ladder_is_tested_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the validation images as test images, both scores are the same."""
    load = DiscoverConfig.load_data

    def load_data(self: DiscoverConfig) -> Dataset:
        data = load(self)
        return replace(data, test=data.val)

    monkeypatch.setattr(DiscoverConfig, "load_data", load_data)
    found = search(CONFIG, tmp_path, LADDER)
    dense, sparse = (rung["val"] for rung in found["ladder"])
    assert dense != sparse
    assert [rung["test"] for rung in found["ladder"]] == [dense, sparse]
    assert found["test"] == found["val"]


def test_the_time_of_a_search_is_without_its_ladder(whole: Path) -> None:
    times = {
        name: json.loads((whole / "stages" / f"{name}.json").read_text())["seconds"] for name in ("decided", "final-2")
    }
    assert search(CONFIG, whole, LADDER)["wall"] <= times["decided"] < times["final-2"]


@pytest.mark.parametrize(("last", "again"), [("final-3", ["final-3"]), ("ladder", []), ("report", [])])
def test_a_killed_search_resumes_with_its_ladder(
    last: str, again: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, announce, trained = StageFiles.save, Session.announce, list[str]()

    def save_or_die(self: StageFiles, stage: str, *args: Any) -> None:
        if stage == last:
            raise Killed
        save(self, stage, *args)

    def die(*_: object) -> None:
        raise Killed

    def note(self: Session, stage: str, *args: Any) -> None:
        trained.append(stage)
        announce(self, stage, *args)

    with monkeypatch.context() as patch:
        patch.setattr(StageFiles, "save", save_or_die)
        if last == "report":
            patch.setattr(RunDir, "write_report", die)
        with pytest.raises(Killed):
            search(CONFIG, tmp_path / "killed", LADDER)
    wall = RunDir(tmp_path / "killed").stages.metadata("decided")["wall"]
    monkeypatch.setattr(Session, "announce", note)
    found, expected = search(CONFIG, tmp_path / "killed", LADDER), search(CONFIG, whole, LADDER)
    assert trained == again
    assert found["wall"] == wall
    for name in ("wall", "timing"):
        del found[name], expected[name]
    assert found == expected


def test_a_finished_search_is_only_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar_searches, "open_session", None)
    found = search(CONFIG, whole, LADDER)
    assert found["wall"] > 0
    assert json.loads(json.dumps(found)) == found


def test_another_ladder_is_refused(whole: Path) -> None:
    """Its networks would be taken for those of the first one."""
    with pytest.raises(UserError, match="another ladder"):
        search(CONFIG, whole, [0.2, 0.1])


def test_a_line_without_a_check_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShrinkRule, "check", lambda *_: None)
    found = search(CONFIG, tmp_path, [])
    assert (found["check"], found["ladder"]) == (None, [])
    json.dumps(found)


def row(seed: int, shift: float = 0.0, **more: Any) -> dict[str, Any]:
    """A line of a search with a ladder; pooled over its images 1.2 and 0.4 points below 0.93, for a shift of 0."""
    ladder = [(0.1, 0.92, 0.917), (0.2, 0.93, 0.924)]
    return {
        "seed": seed, "answer": {"operating_density": 0.12, "interval": [0.1, 0.2]}, "density": 0.15,
        "val": [0.92, 0.3], "test": [0.91, 0.3], "ledger": {"relative": 0.9}, "wall": 400.0,
        "ladder": [
            {"density": density + 1e-6, "val": val + shift, "test": test + shift, "epochs": 130}
            for density, val, test in ladder
        ],
        **more,
    }  # fmt: skip


def test_the_table_has_the_mean_gaps_and_where_they_reach_delta() -> None:
    rows = [row(1, 0.5), row(1, 0.001), row(2, -0.001)]  # the first line of seed 1 has been replaced
    lines = table(rows, [0.94, 0.92], 0.01).splitlines()
    assert [line[:7] for line in lines[:2]] == ["seed 1:", "seed 2:"]
    # A quarter of the way from 10% to 20%: 0.1 * 2 ** 0.25.
    assert lines[2:] == [
        "10.0%: 1.20 points below dense (2 networks)",
        "20.0%: 0.40 points below dense (2 networks)",
        "within 1 points of dense: 11.9%",
    ]
    for delta, last in ((0.008, "0.8 points of dense: 14.1%"), (0.02, "10.0% or less"), (0.003, "none")):
        assert table(rows, [0.93], delta).endswith(last)


def test_without_a_dense_network_of_this_length_the_table_says_so(tmp_path: Path) -> None:
    file = tmp_path / "cifar10_resnet32.jsonl"
    lines = [("dense", 80, 0.5), ("dense", 160, 0.9), ("ladder", 160, 0.5), ("dense, alone", 160, 0.5)]
    dense = [
        {"kind": kind, "epochs": epochs, "val": [val, 0.1], "test": [val + 0.03, 0.1]} for kind, epochs, val in lines
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in dense))
    assert dense_scores(file, 160) == pytest.approx([0.92])
    assert dense_scores(file, 40) == dense_scores(tmp_path / "cifar100_resnet56.jsonl", 160) == []
    assert table([row(1)], [], 0.01).splitlines()[1:] == [
        "no dense network of as many epochs has a line to compare the ladder with"
    ]


def test_the_command_leaves_one_line_of_each_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searched: list[tuple[int, int, float]] = []

    def found(config: DiscoverConfig, folder: Path, densities: list[float]) -> dict[str, Any]:
        searched.append((config.seed, config.budget, config.max_density))
        line = row(config.seed)
        del line["seed"]
        return line

    def run(*more: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["", "--ladder", "0.1", "0.2", *more])
        cifar_searches.main()
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed") and "answer" in line]

    monkeypatch.setattr(cifar_searches, "search", found)
    monkeypatch.setattr(cifar_searches, "RESULTS", tmp_path / "new")
    assert len(run("--seeds", "1", "2", "2")) == 2
    assert len(run("--seeds", "1", "3")) == 3
    assert len(run("--seeds", "1", "--max-density", "0.5")) == 1
    assert len(run("--seeds", "1", "--budget", "80")) == 1
    assert len(run("--table")) == 3
    assert len(run("--seeds", "2", "--max-density", "0.5")) == 2
    assert searched == [(1, 160, 1.0), (2, 160, 1.0), (3, 160, 1.0), (1, 160, 0.5), (1, 80, 1.0), (2, 160, 0.5)]
    assert len((tmp_path / "new" / "cifar10_resnet32_searches.jsonl").read_text().splitlines()) == len(searched)
    with pytest.raises(SystemExit):  # before the search, not after it
        run("--seeds", "4", "--max-density", "0.15")
    assert len(searched) == 6


def test_the_replay_reads_the_lines_of_this_benchmark(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Like older ones, which have three numbers of each network."""
    found = search(CONFIG, whole, LADDER)
    line = {"data": "digits", "seed": 3, "budget": 2, "delta": 0.05, **found}
    curve = {
        part: [[one["density"], one["epochs"], one["score"]] for one in found["curve"][part]]
        for part in ("rounds", "probes", "finished")
    }
    (tmp_path / "lines.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({**line, "curve": curve}) + "\n")
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "lines.jsonl")])
    replayed_searches.main()
    new, old = capsys.readouterr().out.splitlines()
    assert new == old
    assert new.startswith("digits seed 3")
