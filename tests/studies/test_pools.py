"""Workers on other engines: a Ray cluster of two nodes, one of which dies, and SLURM's interface with local jobs."""

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
asks = "?"
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
