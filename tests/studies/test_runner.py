"""The runner: real worker processes, killed ones included, and progress."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pathgrow.checkpoint import RunDir
from pathgrow.errors import RunFailed
from pathgrow.runs.training import train
from pathgrow.studies import runner
from pathgrow.studies.definition import Cell, parse_study
from pathgrow.studies.pools import LocalPool, WorkerPool
from pathgrow.studies.runner import StudyProgress, run_study
from pathgrow.studies.worker import Ending, failure, forget_failures, work
from tests.support.catalogue import Trials
from tests.support.faults import in_a_child

TEXT = """
question = "?"
set = {method = "set", epochs = 1, density = 0.3, model_options = {widths = [16]}}
grid.seed = [0, 1, 2, 3, 4, 5]
"""


class Scripted(WorkerPool):
    """Workers of this process, which end as a script says; "done" really works."""

    def __init__(self, num: int, script: Sequence[Ending | None]) -> None:
        self.num, self.script, self.started = num, iter(script), list[bool]()

    def start(self, out: Path, cells: Sequence[Cell], *, is_alone: bool) -> Any:
        self.started.append(is_alone)
        ending = next(self.script)
        return (len(self.started), work(out, cells, is_alone=is_alone) if ending == "done" else ending)

    def ended(self, workers: Sequence[Any], timeout: float) -> dict[Any, Ending | None]:
        return {workers[0]: workers[0][1]}

    def stop(self, workers: Sequence[Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("num", "script", "alone", "num_lost"),
    [
        (1, ["done"], [True], 0),
        (2, [None, "out of memory", "done"], [False, False, False], 1),
        (2, ["out of memory", "done"], [False, False], 0),
        (2, ["out of memory", "out of memory", "done"], [False, False, True], 0),
    ],
)  # fmt: skip
def test_dead_workers_are_replaced_and_memory_is_left_to_others(
    num: int, script: list[Ending | None], alone: list[bool], num_lost: int, tmp_path: Path
) -> None:
    cells = parse_study("mine", TEXT).cells()[:2]
    pool = Scripted(num, script)
    outcome = run_study(cells, tmp_path, pool)
    assert (outcome.num_finished, outcome.failed, outcome.num_lost) == (2, {}, num_lost)
    assert pool.started[: len(alone)] == alone
    assert run_study(cells, tmp_path, Scripted(num, [])).num_finished == 2  # nothing is left to start


def test_workers_that_die_before_they_take_a_cell_are_not_replaced_forever(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="workers died"):
        run_study(parse_study("mine", TEXT).cells()[:1], tmp_path, Scripted(1, [None] * 100))


@pytest.mark.item(16)
def test_killed_processes_lose_nothing(tmp_path: Path, trials: Trials) -> None:
    """Workers are killed while they hold cells; every cell ends with one result, that of an undisturbed run."""
    num = trials.count(quick=6, full=100)
    cells = parse_study("mine", TEXT.replace("[0, 1, 2, 3, 4, 5]", str(list(range(num))))).cells()
    pool, killed = LocalPool(trials.count(quick=2, full=8)), dict[str, int]()
    num_kills = trials.count(quick=2, full=20)

    def kill() -> None:
        while len(killed) < num_kills:
            for cell in [cell for cell in cells if cell.name not in killed]:
                holder = RunDir(tmp_path / cell.name).worker or ""
                pid = int("".join(filter(str.isdigit, holder.partition("pid")[2])) or 0)
                if pid and pid not in killed.values() and len(killed) < num_kills:
                    killed[cell.name] = pid
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    outcome = run_study(cells, tmp_path, pool)
    thread.join(1)
    assert (outcome.num_finished, outcome.failed, outcome.num_lost) == (num, {}, len(killed))
    assert len(killed) == num_kills
    trials.add("workers killed", len(killed))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".study") == sorted(c.name for c in cells)
    for cell in cells:
        with trials.one(cell.name):
            assert RunDir(tmp_path / cell.name).damage() == {}
            rows = (tmp_path / cell.name / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(row)["stage"] for row in rows] == ["training"] * 2, "its start and its end, once"


def _work_when_closed(go: int, out: Path, cell: Cell) -> None:
    os.read(go, 1)  # until the parent closes the other end
    work(out, [cell], num_threads=1)
    os._exit(0)


@pytest.mark.item(16)
def test_processes_that_start_in_the_same_second_lose_nothing(tmp_path: Path, trials: Trials) -> None:
    """A process for every cell; a fifth of them is killed, and another study finishes what they began."""
    num = trials.count(quick=10, full=500)
    cells = parse_study("mine", TEXT.replace("[0, 1, 2, 3, 4, 5]", str(list(range(num))))).cells()
    train(cells[0].config(tmp_path), tmp_path / "imports")  # once, so that the forks share what is loaded
    forget_failures(tmp_path, cells)
    go, other_end = os.pipe()
    started: dict[int, Cell] = {}
    for cell in cells:
        if (child := os.fork()) == 0:
            os.close(other_end)
            _work_when_closed(go, tmp_path, cell)
        started[child] = cell
    os.close(go)
    begin = time.monotonic()
    os.close(other_end)
    victims = trials.draw.sample(list(started), num // 5)
    while victims:  # each while it works on its cell
        for child in list(victims):
            if os.waitpid(child, os.WNOHANG)[0]:
                victims.remove(child)
                started.pop(child)
                trials.add("cells finished before they could be killed")
            elif RunDir(tmp_path / started[child].name).worker is not None:
                os.kill(child, signal.SIGKILL)
                victims.remove(child)
        time.sleep(0.01)
    endings = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started]
    assert set(endings) <= {0, -signal.SIGKILL}
    trials.add("processes killed", endings.count(-signal.SIGKILL))
    trials.peak("seconds until all processes ended", time.monotonic() - begin)
    outcome = run_study(cells, tmp_path, LocalPool(2))
    assert (outcome.num_finished, outcome.failed) == (num, {})
    names = {path.name for path in tmp_path.iterdir()} - {".study", "imports"}
    assert names == {cell.name for cell in cells}
    for cell in cells:
        with trials.one(cell.name):
            assert RunDir(tmp_path / cell.name).damage() == {}
            rows = (tmp_path / cell.name / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(row)["stage"] for row in rows] == ["training"] * 2, "its start and its end, once"


LARGE = """
question = "?"
set = {method = "set", epochs = 1, density = 0.3}
grid.size = [{model_options.widths = [8000, 8000]}, {model_options.widths = [16]}, {model_options.widths = [8]}]
"""


def _work_in_little_memory(out: Path) -> None:
    cells = parse_study("mine", LARGE).cells()
    forget_failures(out, cells)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 600 * 2**20, resource.RLIM_INFINITY))
    if work(out, cells) == "out of memory":  # others may do with the memory that is left
        assert work(out, cells, is_alone=True) == "done"


@pytest.mark.item(16)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_cell_that_is_too_large_fails_alone(tmp_path: Path, trials: Trials) -> None:
    cells = parse_study("mine", LARGE).cells()
    for number in range(trials.count(quick=1, full=5)):
        out = tmp_path / str(number)
        with trials.one(f"attempt {number}"):
            assert not in_a_child(_work_in_little_memory, out)
            reasons = {cell.name: failure(out, cell) for cell in cells}
            [(large, reason)] = [(name, reason) for name, reason in reasons.items() if reason is not None]
            assert large == cells[0].name
            assert "memory" in reason
            assert [RunDir(out / name).finished for name in reasons if name != large] == [True, True]


def test_only_cells_that_left_a_trace_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = parse_study("mine", TEXT).cells()
    forget_failures(tmp_path, cells)
    train(cells[0].config(tmp_path), tmp_path / cells[0].name)
    (tmp_path / cells[1].name).mkdir()  # started, not finished
    (tmp_path / ".study" / f"{cells[2].name}.failed").write_text("no data")  # before it had a directory
    (tmp_path / ".study" / f"{cells[3].name}.attempts").write_text(".")
    looked_at = list[str]()
    finished = RunDir.finished.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(RunDir, "finished", property(lambda run: (looked_at.append(run.path.name), finished(run))[1]))
    assert runner._settled(tmp_path, cells) == {cells[0].name: None, cells[2].name: "no data"}
    assert looked_at == [cells[0].name, cells[1].name]


def test_time_left_follows_from_the_prices_of_the_cells() -> None:
    cells = parse_study("mine", TEXT).cells()
    now, text = [0.0], io.StringIO()
    progress = StudyProgress(Console(file=text, width=200), lambda: now[0])
    progress.begin(cells, cells[2:])
    assert progress.seconds_left is None
    now[0] = 20.0
    progress.settle({cells[2].name: None, cells[3].name: "diverged"}, 2)
    assert text.getvalue().splitlines() == [
        "2 cells of 6 finished before.",
        f"[3/6, 1 min 00 s left] {cells[2].name}",
        f"[4/6, 1 failed, 20 s left] {cells[3].name} failed: diverged",
    ]
