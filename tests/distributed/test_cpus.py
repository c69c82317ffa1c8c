"""Limits on CPUs are respected: affinity, environment, cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pathgrow.distributed.cpus import available_cpus

LIMITS = ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def _sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 16),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "3,2"}, 3),
        ({"OMP_NUM_THREADS": "64"}, 16),
        ({"OMP_NUM_THREADS": "many"}, 16),
        ({"OMP_NUM_THREADS": "0"}, 16),
        ({"SLURM_CPUS_PER_TASK": "2"}, 2),
        ({"SLURM_CPUS_PER_TASK": "6", "OMP_NUM_THREADS": "5"}, 5),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}, 4),  # set by torchrun
        ({"LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "32"}, 1),
    ],
)
def test_the_environment_limits_the_cpus(
    environment: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert available_cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 16),
        ("0::/", {"cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "150000 100000"}, 1),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/slurm/job_7", {"slurm/job_7/cpu.max": "max 100000", "slurm/cpu.max": "200000 100000"}, 2),
        ("0::/gone/in/this/namespace", {"cpu.max": "500000 100000"}, 5),
        ("3:cpuset:/\n2:cpu,cpuacct:/docker/7", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        (
            "2:cpu,cpuacct:/docker/7\n0::/",
            {"cpu/docker/7/cpu.cfs_quota_us": "400000\n", "cpu/docker/7/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        ("", {}, 16),
    ],
)
def test_a_cgroup_limits_the_cpus(cgroup: str, files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in {
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cpus(tmp_path) == expected
