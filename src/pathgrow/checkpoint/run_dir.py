"""A run folder: everything a run leaves behind, and all it needs to go on after a kill.

config.json             resolved in full, written before anything else
environment.json                what it ran on
.lock                   one process at a time
stages/                 finished stages: facts, tensors, hashes
metrics.jsonl           a row per event, tagged by stage
curve.csv               the observed points
masks/round_004.safetensors
network.safetensors     the network handed back, plain weights; its masks in network_masks.safetensors
report.json             written last, by rename: its presence means finished
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from pathgrow import atomic
from pathgrow.checkpoint import environment, network_file, strict_json
from pathgrow.checkpoint import lock as locks
from pathgrow.checkpoint.metrics import Metrics
from pathgrow.checkpoint.stage_files import StageFiles
from pathgrow.checkpoint.store import Metadata, Stage
from pathgrow.errors import UserError
from pathgrow.masks import Masks

_METRICS = "metrics.jsonl"
_LEFT_BEHIND = (_METRICS, "curve.csv", "network.safetensors", "network_masks.safetensors")
"""What every finished run of a command has written before its report."""


class EnvironmentChangedWarning(UserWarning):
    """A run goes on under other versions than it began with; its last bits may differ."""


class RunDir:
    """The files of one run; implements `Store`.

    `RunFolder(path)` is for reading. A run works in `RunFolder.open(path, config)`, which checks, locks and cleans up.

    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> with RunDir.open(place, {"seed": 0}) as folder:
    ...     folder.log("seed", epoch=1, loss=0.5)
    ...     folder.save("seed", {"score": 0.9})
    >>> with RunDir.open(place, {"seed": 0}) as folder:
    ...     folder.load("seed").metadata
    {'score': 0.9}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stages = StageFiles(self.path / "stages", lambda: self.seconds)
        self._seconds_before = 0.0
        self._opened_at: float | None = None
        self._metrics = Metrics(self.path / _METRICS)
        self._lock: locks.Lock | None = None
        self._is_new = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], config: Mapping[str, Any], *, device: str = "cpu") -> RunDir:
        """Begin a run, or go on with the one of this very config.

        Anything that stands in the way (another config, another process, other files, no permission) is a `UserError`,
        and nothing is touched.
        """
        folder = cls(path)
        wanted = strict_json.nulled(dict(config))
        if fault := strict_json.fault(wanted, "config"):
            raise UserError(
                f"{fault}; a config holds numbers, strings, lists and dicts only, so that it can be written"
            )
        folder._take()
        try:
            folder._seconds_before, folder._opened_at = folder._stages.seconds, time.monotonic()
            folder._settle(wanted, device)
        except BaseException:
            folder.withdraw()
            folder._leave()
            raise
        return folder

    def close(self) -> None:
        """Let others work in the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = self._opened_at = None

    def withdraw(self) -> None:
        """Leave nothing of a run that was refused before it trained anything: another may then begin there.

        Whatever was there before it stays, an empty folder too.
        """
        if not self._is_new or (self.path / _METRICS).is_file() or any(self.path.rglob("*.safetensors")):
            return
        shutil.rmtree(self.path / "stages", ignore_errors=True)
        for name in ("env.json", "config.json"):
            (self.path / name).unlink(missing_ok=True)
        self._leave()

    def _leave(self) -> None:
        """Let others work in the folder, or remove it if it was made for this run and holds nothing."""
        if self._lock is not None:
            self._lock.undo()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, UserError):
            self.withdraw()
        self.close()

    # Stages

    def load(self, stage: str) -> Stage | None:
        """The stage as it was saved, or None if it never finished; a damaged stage is moved aside with a warning."""
        is_owner = self._lock is not None
        was_there = is_owner and stage in self.stages
        found = self._stages.load(stage, set_aside=is_owner)
        if was_there and found is None:
            self._metrics.keep(lambda name: name != stage)
        return found

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Store a finished stage atomically, after its metrics have reached the disk."""
        self._metrics.sync()
        self._stages.save(stage, metadata, tensors)

    def metadata(self, stage: str) -> Metadata | None:
        """The facts of a finished stage without its tensors."""
        return self._stages.metadata(stage)

    def has_tensors(self, stage: str) -> bool:
        """Whether a finished stage has tensors, which are not read."""
        return self._stages.has_tensors(stage)

    def delete_tensors(self, stage: str) -> None:
        """Free the tensors of a stage that no later stage needs; its facts stay."""
        self._stages.delete_tensors(stage)

    @property
    def stages(self) -> list[str]:
        """Finished stages, oldest first."""
        return self._stages.names()

    # What is known of the run

    @property
    def config(self) -> dict[str, Any] | None:
        """The resolved config, or None where no run ever began."""
        path = self.path / "config.json"
        # Nothing else tells what the stages belong to: without this file the folder could not be opened any more.
        mend = "restore it, choose another --out, or delete the whole folder to begin anew"
        return _read_object(path, mend) if path.is_file() else None

    @property
    def environment(self) -> dict[str, Any]:
        """What the run began on; empty where that was not noted."""
        path = self.path / "env.json"
        return _read_object(path, "delete it and give the same command again") if path.is_file() else {}

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, so that repeating it does nothing."""
        return (self.path / "report.json").is_file()

    @property
    def worker(self) -> str | None:
        """The process that works in this folder now, in words; None if there is none."""
        return locks.holder(self.path)

    @property
    def seconds(self) -> float:
        """How long the run has been worked on, by all processes that opened its folder.

        Of one that was killed, the time up to the last stage or half-done training that it stored.
        """
        if self._opened_at is None:
            return self._stages.seconds
        return self._seconds_before + time.monotonic() - self._opened_at

    def report(self) -> dict[str, Any]:
        """What a finished run found."""
        return _read_object(
            self.path / "report.json", "delete it and give the command of this run again, which writes it anew"
        )

    @property
    def missing(self) -> list[str]:
        """Files that a finished run wrote and that are no longer there."""
        if not self.finished:
            return []
        if self.is_store:
            return [] if (self.path / "curve.csv").is_file() else ["curve.csv"]
        # A discovery kept the masks of each round that its report lists; a training keeps only its last ones.
        curve = self.report().get("curve") or {}
        masks = [_masks_of(round) for round in range(len(curve.get("rough", ())))]
        return [name for name in (*_LEFT_BEHIND, *masks) if not (self.path / name).is_file()]

    @property
    def is_store(self) -> bool:
        """Whether a call of `discover` keeps its stages here: it knows no data by name, and its caller the network."""
        return "data" not in (self.config or {})

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All rows logged so far, oldest first."""
        return self._metrics.rows()

    # What a run writes beside its stages

    def log(self, stage: str, **row: Any) -> None:
        """Add a row to the metrics, before its stage is saved; wall-clock values belong under `time` only."""
        self._metrics.append(stage, row)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write the report, last of all. Numbers that are not finite become null."""
        atomic.write_text(self.path / "report.json", strict_json.dumps(strict_json.nulled(report), indent=1) + "\n")

    def write_curve(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the observed points as curve.csv, with a column for each key that any row has."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic.write_text(self.path / "curve.csv", text.getvalue())

    def save_masks(self, round: int, masks: Masks) -> Path:
        """Write the masks of a round as masks/round_004.safetensors."""
        path = self.path / _masks_of(round)
        path.parent.mkdir(exist_ok=True)
        masks.save(path)
        return path

    def save_network(self, model: nn.Module, masks: Masks) -> str:
        """Write the network handed back, plain weights and masks; returns the SHA-256 of the file of weights."""
        masks.save(self.path / "network_masks.safetensors")
        return network_file.save_weights(model.state_dict(), self.path / "network.safetensors")

    def load_network_(self, model: nn.Module) -> Masks:
        """Load the network handed back into `model`; returns its masks. A model of another kind is a `UserError`."""
        network_file.load_weights_(model, self.path / "network.safetensors")
        masks = Masks.load(self.path / "network_masks.safetensors")
        masks.check(model)
        return masks

    # Opening

    def _take(self) -> None:
        """Make the folder, or check that it is a run folder, and lock it."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, wanted a folder: choose another --out, or move the file away")
        if self.path.is_dir() and self.config is None:
            try:
                strangers = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
            except FileNotFoundError:  # another run was refused there just now, and took its folder along
                strangers = []
            if strangers:
                raise UserError(
                    f"{self.path} holds {strangers[0]!r} but no config.json, so it is no run folder: "
                    "choose a new or empty folder with --out"
                )
        try:
            self._lock = locks.Lock(self.path)
        except OSError as error:
            raise UserError(
                f"cannot write in {self.path} ({error.strerror}): choose a folder you may write in with --out"
            ) from error

    def _settle(self, wanted: dict[str, Any], device: str) -> None:
        """Write the config or compare it, then bring the folder back to its last good state."""
        found = self.config
        self._is_new = found is None
        if found is None:
            atomic.write_text(self.path / "config.json", strict_json.dumps(wanted, indent=1) + "\n")
        elif differing := _differences(found, wanted):
            raise UserError(
                f"{self.path} holds a run of another config: {'; '.join(differing[:3])}"
                f"{f'; and {len(differing) - 3} more' if len(differing) > 3 else ''}"
                ": choose another --out, or delete the folder to begin anew"
            )
        if self.finished:
            return
        self._note_environment(device)
        atomic.sweep(self.path)
        atomic.sweep(self.path / "masks")
        self._stages.sweep()
        finished_stages = set(self.stages)
        self._metrics.keep(finished_stages.__contains__)

    def _note_environment(self, device: str) -> None:
        now = environment.describe(device)
        path = self.path / "env.json"
        if not path.is_file():
            atomic.write_text(path, strict_json.dumps(now, indent=1) + "\n")
        elif changes := environment.changes(self.environment, now):
            warnings.warn(
                f"{self.path} was begun in another environment ({'; '.join(changes)}); "
                "it goes on, but may differ in the last bits from an undisturbed run",
                EnvironmentChangedWarning,
                stacklevel=4,
            )


def _masks_of(round: int) -> str:
    return f"masks/round_{round:03d}.safetensors"


def _read_object(path: Path, mend: str) -> dict[str, Any]:
    """The JSON object in a file; `mend` says what to do if there is none."""
    try:
        value = strict_json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): wanted a file of a pathgrow run") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): {mend}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, wanted a JSON object: {mend}")
    return value


def _differences(found: Any, wanted: Any, key: str = "") -> list[str]:
    """The keys in which two configs differ, in words and in the order of `wanted`."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = dict.fromkeys([*wanted, *found])
        inside = (_differences(found.get(k, _ABSENT), wanted.get(k, _ABSENT), f"{key}.{k}" if key else k) for k in keys)
        return [difference for differences in inside for difference in differences]
    # 1 and True and 1.0 are equal in Python, and different configs.
    same = found is wanted or (type(found) is type(wanted) and found == wanted)
    return [] if same else [f"{key} was {_show(found)}, now {_show(wanted)}"]


_ABSENT = object()


def _show(value: Any) -> str:
    return "not there" if value is _ABSENT else strict_json.dumps(value)
