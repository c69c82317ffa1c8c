"""A run directory: everything a run writes, and everything it needs to resume after a kill.

config.json             fully resolved, written before anything else
env.json                versions and device the run started on
.lock                   held by the process that works in the directory
stages/                 finished stages: metadata, tensors, hashes
metrics.jsonl           one row per event, tagged with its stage
curve.csv               the observed points
masks/round_004.safetensors
network.safetensors     the returned model, plain weights; its masks are in network_masks.safetensors
report.json             its presence means that the run is finished
manifest.sha256         written last: the hash of every file above but the lock

A directory may come from somebody else. Nothing outside it is ever written or deleted: links, pipes and devices in
place of these files are refused. A finished run is only read, so it may be on a read-only medium.
"""

from __future__ import annotations

import csv
import errno
import functools
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from filelock import FileLock, Timeout

from pathgrow import atomic
from pathgrow.checkpoint import strict_json
from pathgrow.checkpoint.manifest import MANIFEST, check_entries, damaged_files, write_manifest
from pathgrow.checkpoint.stage_files import Metrics, StageFiles, serialize
from pathgrow.errors import RunFailed, UserError
from pathgrow.version import __version__

if sys.platform != "win32":
    import fcntl
if TYPE_CHECKING:  # torch takes seconds to import, which reading a run directory should not
    from torch import nn

    from pathgrow.masks import Masks

_METRICS = "metrics.jsonl"
_DRAWN = ("curve.png", "report.html")
_LOCK_SECONDS = 0.1
"""How long opening waits for the lock: a reader that asks who works here holds it for an instant."""
_BITS_DEPEND_ON = ("python", "torch", "numpy", "machine", "torch_threads", "device", "device_name")
"""If one of these changes before a run is resumed, results may differ in the last bits."""


class EnvironmentChangedWarning(UserWarning):
    """A run resumes under other versions or on another device than it started with."""


class RunInUse(UserError):
    """Another process works in the run directory."""


class RunDir:
    """The files of one run.

    `RunDir(path)` reads. A run works in `RunDir.open(path, config)`, which checks, locks and cleans up.

    >>> import tempfile
    >>> path = tempfile.mkdtemp()
    >>> with RunDir.open(path, {"seed": 0}) as run_dir:
    ...     run_dir.log("seed", epoch=1, loss=0.5)
    ...     run_dir.stages.save("seed", {"score": 0.9})
    >>> with RunDir.open(path, {"seed": 0}) as run_dir:
    ...     run_dir.stages.load("seed").metadata
    {'score': 0.9}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._metrics = Metrics(self.path / _METRICS)
        self.stages = StageFiles(self.path / "stages", self._metrics, lambda: self.seconds, self._own)
        self.is_owner = False
        """Whether this process holds the lock."""
        self._is_open = False
        self._seconds_before = 0.0
        self._opened_at: float | None = None
        self._created: list[Path] = []
        """Directories, and the lock file, that opening created."""
        self._is_new = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], config: Mapping[str, Any], *, device: str = "cpu") -> RunDir:
        """Start a run, or resume the run of this config.

        A finished run is locked only if a lost stage has to run again. Whatever prevents opening (another config,
        another process, unrelated files, missing permissions) is a `UserError` and changes nothing.
        """
        run_dir = cls(path)
        resolved: dict[str, Any] = strict_json.nulled(dict(config))
        if fault := strict_json.fault(resolved, "config"):
            raise UserError(f"{fault}; a config must consist of numbers, strings, lists and dicts")
        run_dir._is_open = True
        if run_dir.finished and run_dir.has_manifest:
            run_dir._compare_config(resolved)
            return run_dir
        try:
            run_dir._acquire()
        except UserError:
            if not run_dir.finished:
                raise
            run_dir._compare_config(resolved)  # on a read-only medium, killed before its manifest was written
            return run_dir
        try:
            run_dir._seconds_before, run_dir._opened_at = run_dir.stages.seconds, time.monotonic()
            run_dir._prepare(resolved, device)
        except BaseException:
            run_dir.discard_if_unused()
            run_dir._remove_created()
            run_dir.close()
            raise
        return run_dir

    def close(self) -> None:
        """Release the lock, so that other processes can work in the directory."""
        self.is_owner, self._is_open, self._opened_at = False, False, None
        self._lock.release()

    def discard_if_unused(self) -> None:
        """Remove all traces of a run that was refused before it trained anything, so that another can start here.

        What existed before the run stays, even an empty directory.
        """
        if not self._is_new or (self.path / _METRICS).is_file() or any(self.path.rglob("*.safetensors")):
            return
        shutil.rmtree(self.path / "stages", ignore_errors=True)
        for name in ("env.json", "config.json"):
            (self.path / name).unlink(missing_ok=True)
        self._remove_created()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, UserError):
            self.discard_if_unused()
        if error is None and self.is_owner and self.finished:
            try:
                write_manifest(self.path)
            except (OSError, RunFailed, UserError) as fault:  # the result is worth more than its hashes
                warnings.warn(f"the run finished, but its manifest could not be written: {fault}", stacklevel=2)
        self.close()

    # State of the run

    @property
    def config(self) -> dict[str, Any] | None:
        """The resolved config, or None if no run was started here."""
        # Nothing else says what the stages belong to: without this file the directory cannot be opened.
        advice = "restore it, choose another directory (--out or store=), or delete the whole directory to start over"
        return strict_json.read_object(self.path / "config.json", advice) if self._has("config.json") else None

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and device the run started on; empty if they were not stored."""
        advice = "delete it and rerun the same command"
        return strict_json.read_object(self.path / "env.json", advice) if self._has("env.json") else {}

    @property
    def finished(self) -> bool:
        """Whether the run is finished, so that repeating it does nothing."""
        return self._has("report.json")

    @property
    def has_manifest(self) -> bool:
        """Whether its manifest was written, the last file of a run."""
        return self._has(MANIFEST)

    @property
    def worker(self) -> str | None:
        """The process that works in this directory now ("another process (pid 4711)"), or None."""
        if sys.platform == "win32":
            return None  # unknown
        # Opened for reading, so that nothing in the directory changes.
        with suppress(OSError), open(self._lock.lock_file, "rb", opener=atomic.plain) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return self._lock_holder()
        return None

    @property
    def seconds(self) -> float:
        """How long all processes that opened this directory have worked on the run.

        For a process that was killed, the time up to the last stage or mid-training checkpoint that it stored.
        """
        if self._opened_at is None:
            return self.stages.seconds
        return self._seconds_before + time.monotonic() - self._opened_at

    def report(self) -> dict[str, Any]:
        """Return the report of a finished run."""
        advice = "delete it and rerun the command of this run, which writes it again"
        return strict_json.read_object(self.path / "report.json", advice)

    def damage(self) -> dict[str, str]:
        """Return what is wrong with each damaged file, after reading all of them; in an unfinished run, with stages."""
        try:
            check_entries(self.path)
            if not self.finished:
                return {"config.json": "is missing"} if self.config is None else self.stages.damage()
            unknown = {} if self.has_manifest else {MANIFEST: "is missing, so files cannot be verified"}
            return unknown | damaged_files(self.path)
        except UserError as error:
            return {"this run": f"cannot be verified: {error}"}

    @property
    def is_store(self) -> bool:
        """Whether the Python function `discover` stores its stages here: its caller has the data and the network."""
        return "data" not in (self.config or {})

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All rows logged so far, oldest first."""
        return self._metrics.rows()

    # Outputs

    def log(self, stage: str, **row: Any) -> None:
        """Append a row to the metrics, before its stage is saved; wall-clock values belong under `time`."""
        self._metrics.append(stage, row)

    def drop_rows(self, stage: str) -> None:
        """Drop the rows of a stage from the metrics."""
        self._metrics.keep(lambda name: name != stage)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write the report, which marks the run as finished. Non-finite numbers become null."""
        self._write_json("report.json", strict_json.nulled(report))

    def write_curve(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the observed points to curve.csv, with a column for each key of any row."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic.write_text(self.path / "curve.csv", text.getvalue())

    def save_masks(self, round: int, masks: Masks) -> Path:
        """Save the masks of a round to masks/round_004.safetensors."""
        path = self.path / "masks" / f"round_{round:03d}.safetensors"
        atomic.make_folder(path.parent)
        masks.save(path)
        return path

    def save_network(self, model: nn.Module, masks: Masks) -> str:
        """Save the returned model, plain weights and masks; return the SHA-256 of the weights file."""
        from torch import Tensor

        masks.save(self.path / "network_masks.safetensors")
        # Modules may add state of their own that is not a tensor (`get_extra_state`).
        data = serialize({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})
        atomic.write_bytes(self.path / "network.safetensors", data)
        return hashlib.sha256(data).hexdigest()

    # Opening

    @functools.cached_property
    def _lock(self) -> FileLock:
        # Not per thread: whichever thread closes the directory releases the lock.
        return FileLock(self.path / ".lock", thread_local=False)

    def _own(self) -> bool:
        """Lock the directory if it was opened without; False in a process that only reads."""
        if self._is_open and not self.is_owner:
            self._acquire()
        return self.is_owner

    def _acquire(self) -> None:
        """Create the directory, or check that it is a run directory, and lock it."""
        try:
            check_entries(self.path)
            self._lock_directory()
        except Timeout as error:
            raise RunInUse(
                f"{self.path} is in use by {self._lock_holder()}: wait for it, or choose another directory"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                self._remove_created()
                raise UserError(
                    f"cannot write to {self.path} ({error.strerror}): choose a writable directory (--out or store=)"
                ) from error
            # Some network file systems have no locks; a run there is worth more than the protection.
        self.is_owner = True
        with suppress(OSError), open(self._lock.lock_file, "wb", opener=atomic.plain) as file:
            file.write(f"{os.getpid()}\n".encode())  # Windows locks the content as well

    def _lock_directory(self) -> None:
        file = Path(self._lock.lock_file)
        for attempts_left in reversed(range(10)):
            try:
                self._make_directories()
                if not self.path.is_dir():  # a dangling link; or removed again, see below
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                is_new = not file.exists()
                self._lock.acquire(timeout=_LOCK_SECONDS)
            except FileNotFoundError:  # another run was refused here at this moment and removed its directory
                if not attempts_left:
                    raise
                continue
            self._created += [file] if is_new else []
            return

    def _make_directories(self) -> None:
        """Create the directory and its parents one by one, since those that others create are not ours to remove."""
        missing = []
        for path in (self.path, *self.path.parents):
            if path.exists():
                break
            missing.append(path)
        for path in reversed(missing):
            with suppress(FileExistsError):
                path.mkdir()
                self._created.append(path)

    def _remove_created(self) -> None:
        """Remove the lock file and the directories that opening created, up to the first that holds anything else."""
        with suppress(OSError):  # not empty, or an open file cannot be removed (Windows)
            while self._created:
                path = self._created.pop()
                path.rmdir() if path.is_dir() else path.unlink()

    def _lock_holder(self) -> str:
        try:
            pid = atomic.read_bytes(Path(self._lock.lock_file)).decode("ascii", "replace").strip()
        except OSError:
            pid = ""
        return f"another process (pid {pid})" if pid.isdecimal() else "another process"

    def _prepare(self, config: dict[str, Any], device: str) -> None:
        """Write the config or compare it, then bring the directory back to its last consistent state."""
        self._is_new = not self._has("config.json")
        if self._is_new:
            self._write_json("config.json", config)
        else:
            self._compare_config(config)
        if self.finished:
            return
        for name in (MANIFEST, *_DRAWN):  # of a report that was deleted
            atomic.discard(self.path / name)
        self._check_environment(device)
        atomic.sweep(self.path)
        atomic.sweep(self.path / "masks")
        self.stages.sweep()
        finished_stages = set(self.stages.names())
        self._metrics.keep(finished_stages.__contains__)

    def _compare_config(self, config: dict[str, Any]) -> None:
        found = self.config or {}
        if (made_by := _command(found)) != (command := _command(config)):
            raise UserError(
                f"{self.path} holds a run of `{made_by}`, not of `{command}`: choose another directory "
                "(--out or store=)"
            )
        if differing := strict_json.differences(found, config):
            more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise UserError(
                f"{self.path} holds a run with another config: {'; '.join(differing[:3])}{more}"
                ": choose another directory (--out or store=), or delete this one to start over"
            )

    def _check_environment(self, device: str) -> None:
        now = _describe_environment(device)
        if not self._has("env.json"):
            self._write_json("env.json", now)
            return
        before = self.environment
        changed = [
            f"{key} {before.get(key)} -> {now.get(key)}" for key in _BITS_DEPEND_ON if before.get(key) != now.get(key)
        ]
        if changed:
            warnings.warn(
                f"{self.path} was started in another environment ({'; '.join(changed)}); "
                "it resumes, but results may differ in the last bits from an uninterrupted run",
                EnvironmentChangedWarning,
                stacklevel=4,
            )

    def _has(self, name: str) -> bool:
        try:
            os.lstat(self.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise strict_json.unreadable(self.path / name, error) from error
        return True

    def _write_json(self, name: str, value: Any) -> None:
        atomic.write_text(self.path / name, strict_json.dumps(value, indent=1) + "\n")


def _command(config: Mapping[str, Any]) -> str:
    """What a config belongs to: one of the commands, or the Python function, which knows no dataset."""
    if "data" not in config:
        return "pathgrow.discover"
    return "pathgrow train" if "epochs" in config else "pathgrow discover"


def _describe_environment(device: str) -> dict[str, Any]:
    """Describe the environment of this process; nothing in here names a person or a machine."""
    import numpy
    import torch

    return {
        "pathgrow": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "torch_threads": torch.get_num_threads(),
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
    }


@functools.cache
def _commit() -> str | None:
    """Return the commit of the source tree this package runs from; None when installed as a wheel."""
    root = Path(__file__).resolve().parents[3]
    if sys.platform == "win32" or not (root / ".git").exists() or not (root / "src" / "pathgrow").is_dir():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
