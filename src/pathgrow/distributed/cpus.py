"""The number of CPUs that a process may use, which may be less than the machine has."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def available_cpus(root: Path = Path("/")) -> int:
    """Return the CPUs of this process: those of its affinity, SLURM task and cgroup, and at most OMP_NUM_THREADS.

    Processes that `torchrun` started on one machine share them equally. It sets OMP_NUM_THREADS=1 by itself, so that
    value does not count there.
    """
    num = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_ranks, threads = max([1, *_setting("LOCAL_WORLD_SIZE")]), _setting("OMP_NUM_THREADS")
    shared = min([num, *_setting("SLURM_CPUS_PER_TASK"), *_cgroup_limits(root)])
    return max(1, min([shared // num_ranks, *(threads if threads != [1] or num_ranks == 1 else [])]))


def _setting(name: str) -> list[int]:
    value = os.environ.get(name, "").partition(",")[0].strip()  # OMP_NUM_THREADS may list nested levels
    return [int(value)] if value.isdecimal() and int(value) else []


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield the CPU quotas of the cgroup of this process and of those around it, rounded down."""
    with suppress(OSError):  # not Linux
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")  # version 1 has a tree for each controller
            own = top / place.lstrip("/")
            for folder in (own, *own.parents[: len(own.parts) - len(top.parts)]):
                yield from _quota(folder)


def _quota(folder: Path) -> Iterator[int]:
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError):  # no such file; or "max", which is no limit
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if int(quota) > 0:
                yield max(1, int(quota) // int(period))
