"""Workers forked from a fresh process, on a Ray cluster of two nodes, one of which dies, and in local submitit jobs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.studies import pools
from pathgrow.studies.definition import Cell, parse_study
from pathgrow.studies.pools import LocalPool, RayPool, SlurmPool, create_pool
from pathgrow.studies.runner import run_study

TEXT = """
question = "?"
set = {method = "set", epochs = 2, density = 0.3, model_options = {widths = [16]}}
grid.seed = [0, 1, 2, 3, 4, 5]
"""


@pytest.fixture
def cells() -> list[Cell]:
    return parse_study("mine", TEXT).cells()


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that others start find the package where this one does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def cluster(importable: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of two nodes with one (pretended) GPU each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_ray_retries_the_cells_of_a_node_that_dies_on_another_one(
    cluster: Any, cells: list[Cell], tmp_path: Path
) -> None:
    second = cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=80 * 2**20)
    cluster.wait_for_nodes()
    pool = RayPool(gpus=0.5)
    assert pool.num == 4  # two GPUs, half of one each

    def die() -> None:
        while not any(RunDir(tmp_path / cell.name).finished for cell in cells):
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    thread = threading.Thread(target=die)
    thread.start()
    outcome = run_study(cells, tmp_path, pool)
    thread.join()
    assert (outcome.num_finished, outcome.failed) == (6, {})
    assert outcome.num_lost >= 1
    assert all(RunDir(tmp_path / cell.name).damage() == {} for cell in cells)


@pytest.mark.slow
def test_slurm_jobs_work_through_the_cells_and_are_replaced(
    importable: None, cells: list[Cell], tmp_path: Path
) -> None:
    """With submitit's local executor, whose jobs are processes; one of them is killed."""
    pytest.importorskip("submitit")
    pool = SlurmPool(2, folder=tmp_path / "logs", options={"cluster": "local", "timeout_min": 10})
    killed = list[str]()
    start = pool.start

    def start_and_kill(*given: Any, **more: Any) -> Any:
        job = start(*given, **more)
        if not killed:
            killed.append(job.job_id)
            job.cancel(check=False)
        return job

    pool.start = start_and_kill  # type: ignore[method-assign]
    outcome = run_study(cells, tmp_path / "out", pool)
    assert (outcome.num_finished, outcome.failed, outcome.num_lost) == (6, {}, 1)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"requires {package}: pip install 'pathgrow\\[{name}\\]'"):
        create_pool(name, folder=tmp_path, options={})


@pytest.mark.parametrize(
    ("num_gpus", "jobs", "gpus", "num"),
    [(0, None, None, 3), (0, 2, None, 2), (2, None, None, 2), (2, None, 0.25, 8), (2, None, 0.0, 3), (2, 1, 0.25, 1)],
)
def test_the_number_of_local_workers(
    num_gpus: int, jobs: int | None, gpus: float | None, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_visible_gpus", lambda: num_gpus)
    monkeypatch.setattr(pools, "available_cpus", lambda: 3)
    assert LocalPool(jobs, gpus).num == num


@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned elsewhere")
def test_workers_are_forked_from_a_server_that_has_imported_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ignores modules that it cannot import, and every worker would import torch by itself."""
    named: list[list[str]] = []
    monkeypatch.setattr(
        multiprocessing.get_context("forkserver"), "set_forkserver_preload", lambda names: named.append(names)
    )
    LocalPool(1)
    code = f"import gc, sys, {named[0][0]}; print(gc.isenabled(), 'pathgrow.studies.worker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True True\n"


FRESH = """
import os, signal, sys
from pathlib import Path
from pathgrow.distributed.interrupts import Interrupted, signal_handlers
from pathgrow.studies.pools import LocalPool
with signal_handlers():
    pool = LocalPool(3)
    waiting = [worker for worker, _ in pool._waiting]
    from pathgrow.studies.definition import parse_study
    from pathgrow.studies.runner import run_study
    cells = parse_study("mine", Path("mine.toml").read_text()).cells()
    {}
"""
in_a_fresh_process = pytest.mark.skipif(
    sys.platform != "linux" or pools._is_cuda_built(), reason="workers come from a server elsewhere, and with CUDA"
)


def fresh(folder: Path, text: str, code: str) -> list[str]:
    """Run code in a process that has not imported torch before it makes its pool; return what it prints."""
    (folder / "mine.toml").write_text(text)
    run = subprocess.run(
        [sys.executable, "-c", FRESH.replace("{}", code)], capture_output=True, text=True, cwd=folder, timeout=60
    )
    return (run.stdout + run.stderr).splitlines()


@in_a_fresh_process
def test_a_fresh_process_forks_its_workers_and_lets_those_go_that_it_does_not_need(tmp_path: Path) -> None:
    code = """
    outcome = run_study(cells[:1], Path("out"), pool)
    print(len(waiting), outcome.num_finished, outcome.num_lost)
    for worker in waiting: worker.join(60)
    print([worker.exitcode for worker in waiting])
    """
    assert fresh(tmp_path, TEXT, code) == ["3 1 0", "[0, 0, 0]"]


@in_a_fresh_process
def test_a_process_that_runs_no_study_does_not_wait_for_its_workers(tmp_path: Path) -> None:
    """Python waits for child processes as it exits."""
    assert fresh(tmp_path, TEXT, "print(len(waiting))") == ["3"]


@in_a_fresh_process
def test_forked_workers_that_die_are_replaced(tmp_path: Path) -> None:
    code = """
    os.kill(waiting[0].pid, signal.SIGKILL)
    waiting[0].join()
    outcome = run_study(cells, Path("out"), pool)
    print(outcome.num_finished, outcome.num_lost)
    """
    assert fresh(tmp_path, TEXT, code) == ["6 1"]


@in_a_fresh_process
def test_forked_workers_save_their_training_when_the_study_is_stopped(tmp_path: Path) -> None:
    """They inherit the handlers of a command, which would let a signal end them at once."""
    code = """
    pool.ended = lambda workers, timeout: stop(workers[0].pid)
    def ticks(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
    def stop(pid):
        while not any(Path("out").glob("*/metrics.jsonl")): pass
        announced = ticks(pid)
        while ticks(pid) < announced + 50: pass  # half a second of computing: it trains
        signal.raise_signal(signal.SIGTERM)
    try:
        run_study(cells[:1], Path("out"), pool)
    except Interrupted:
        print(*(path.name for path in Path("out").glob("*/stages/partial-*.json")))
    """
    assert fresh(tmp_path, TEXT.replace("epochs = 2", "epochs = 1000"), code) == ["partial-training-0.json"]
