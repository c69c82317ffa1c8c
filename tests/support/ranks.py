"""Several processes on this machine, connected as by torchrun, for tests of distributed training."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Forked from a process that has imported everything and has no threads yet: one second each instead of five.
CONTEXT = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
if sys.platform != "win32":
    CONTEXT.set_forkserver_preload(
        [
            "pathgrow.runs.discovery",
            "pathgrow.report.html",
            "pathgrow.cli.main",
            "sklearn.datasets",
            "torch._dynamo",
        ]
    )
_TIMEOUT_SECONDS = 100.0


@dataclass
class Rank:
    """Exit code, return value and output of one process."""

    code: int | None
    value: Any
    output: str


def together(folder: Path, work: Callable[..., Any], *arguments: Any, num: int = 2) -> list[Rank]:
    """Run `work(*arguments)` in `num` processes at once, as torchrun would."""
    folder.mkdir(parents=True, exist_ok=True)
    # Like torchrun, which hosts the store in a separate process: it outlives every rank.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        CONTEXT.Process(target=_run_rank, args=(folder, rank, num, store.port, work, arguments), daemon=True)
        for rank in range(num)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_TIMEOUT_SECONDS)
    hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in hung:
        processes[rank].kill()
    assert not hung, f"ranks {hung} hung"
    return [_result(folder, rank, process.exitcode) for rank, process in enumerate(processes)]


def _result(folder: Path, rank: int, code: int | None) -> Rank:
    saved = folder / f"{rank}.pt"
    value = torch.load(saved, weights_only=False) if saved.exists() else None
    saved.unlink(missing_ok=True)
    return Rank(code, value, (folder / f"{rank}.txt").read_text())


def _run_rank(
    folder: Path, rank: int, num: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num), "LOCAL_WORLD_SIZE": str(num)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    torch.set_num_threads(1)
    with open(folder / f"{rank}.txt", "w") as output, redirect_stdout(output), redirect_stderr(output):
        torch.save(work(*arguments), folder / f"{rank}.pt")
