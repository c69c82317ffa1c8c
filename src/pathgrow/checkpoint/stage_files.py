"""Stages of a run on disk: `<stage>.json`, and `<stage>.safetensors` for its tensors, if it has any.

The JSON record is written last and holds the SHA-256 of the tensor file and of itself, so the record alone decides
whether a stage exists. A stage that does not match its hashes counts as unfinished; it is moved aside, never deleted.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from pathgrow import atomic
from pathgrow.checkpoint import strict_json
from pathgrow.checkpoint.store import Metadata, Stage
from pathgrow.errors import RunFailed, UserError

_STAGE_FORMAT = 2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class DamagedStageWarning(UserWarning):
    """A stored stage does not match its hash and runs again."""


class _DamageError(Exception):
    """Why a stage cannot be trusted."""


class Metrics:
    """Metrics of a run: one JSON object per line, tagged with the stage it belongs to.

    When a stage has to run again, its rows are dropped. The metrics of a resumed run are therefore those of an
    uninterrupted one, except for wall-clock values under "time". Rows are written before their stage is saved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, stage: str, row: dict[str, Any]) -> None:
        """Append one row; non-finite numbers become null. Survives a kill immediately, a power cut after `sync`."""
        line = strict_json.dumps(strict_json.nulled({"stage": stage, **row})) + "\n"
        # One unbuffered write: a kill leaves complete lines, or one torn last line that `rows` drops.
        with atomic.writing(self.path), open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def rows(self) -> list[dict[str, Any]]:
        """Return all complete rows, oldest first."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [row for line in lines if (row := _parse_row(line)) is not None]

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Drop the rows of every stage for which `is_kept` is false, and a torn last line."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if is_kept(str(row["stage"]))]
        text = "".join(strict_json.dumps(row) + "\n" for row in kept)
        if text.encode() != self.path.read_bytes():
            atomic.write_text(self.path, text)

    def sync(self) -> None:
        """Flush all rows to disk."""
        if self.path.exists():
            with atomic.writing(self.path):
                atomic.sync(self.path)
                atomic.sync_folder(self.path.parent)


class StageFiles:
    """Stages in one directory, with the metrics logged for them; implements `Store`.

    Parameters
    ----------
    metrics
        Flushed before a stage is saved; rows of a damaged stage are dropped.
    clock
        Each record stores the time on this clock at which it was written.
    """

    def __init__(self, folder: Path, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.is_owner = False
        """Whether this process holds the lock of the run directory. Only the owner moves damaged stages aside: a stage
        that is being replaced looks damaged to a reader."""
        self._metrics = metrics
        self._clock = clock

    def load(self, stage: str) -> Stage | None:
        """Return the stage as it was saved, or None if it never finished or is damaged."""
        try:
            record = self._record(stage)
            tensors = self._read_tensors(record["tensors"])
        except FileNotFoundError:
            return None
        except _DamageError as damage:
            self._report_damage(stage, damage)
            return None
        return Stage(record["metadata"], tensors)

    def metadata(self, stage: str) -> Metadata | None:
        """Return the metadata of a stage without reading its tensors; None if it is missing or damaged."""
        record = self._intact(stage)
        return None if record is None else record["metadata"]

    def has_tensors(self, stage: str) -> bool:
        """Return whether a stage has tensors, without reading them."""
        return self._tensor_file(stage) is not None

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Store a finished stage; a stage of the same name stays intact until the new one is complete."""
        metadata = dict(metadata)
        if fault := strict_json.fault(metadata, "metadata"):
            raise RunFailed(
                f"stage {stage!r} cannot be stored: {fault}; metadata must be finite numbers, strings, lists and dicts"
            )
        self._metrics.sync()
        previous = self._tensor_file(stage)
        entry = None
        if tensors:
            # Not over the file in use: its record must stay valid until the new record replaces it.
            names = (f"{stage}.safetensors", f"{stage}.new.safetensors")
            name = names[1] if previous == names[0] else names[0]
            data = serialize(tensors)
            atomic.write_bytes(self.folder / name, data)
            entry = {"file": name, "sha256": hashlib.sha256(data).hexdigest()}
        self._write_record(stage, metadata, entry)
        if previous is not None and (entry is None or entry["file"] != previous):
            atomic.discard(self.folder / previous)

    def delete_tensors(self, stage: str) -> None:
        """Delete the tensors of a stage; its metadata stay."""
        try:
            record = self._record(stage)
        except FileNotFoundError:
            return
        except _DamageError as damage:
            self._report_damage(stage, damage)
            return
        if record["tensors"] is not None:
            self._write_record(stage, record["metadata"], None, record["seconds"])  # `names` sorts by time
            atomic.discard(self.folder / record["tensors"]["file"])

    def names(self) -> list[str]:
        """Return finished stages, oldest first; hashes are checked when a stage is loaded."""
        names = [path.stem for path in self.folder.glob("*.json") if _NAME.fullmatch(path.stem)]
        # By the stored time: a copied directory has new file times.
        return sorted(names, key=lambda name: ((self._intact(name) or {}).get("seconds", 0.0), name))

    @property
    def seconds(self) -> float:
        """Latest time stored in a record, 0 if there is none."""
        records = (self._intact(stage) for stage in self.names())
        return max((float(record["seconds"]) for record in records if record is not None), default=0.0)

    def sweep(self) -> None:
        """Remove what a killed writer left: temporary files, and tensors whose record was never written."""
        atomic.sweep(self.folder)
        for path in self.folder.glob("*.safetensors"):
            stage = path.name.partition(".")[0]
            try:
                entry = self._record(stage)["tensors"]
            except FileNotFoundError:
                entry = None
            except _DamageError:
                continue
            if entry is None or entry["file"] != path.name:
                atomic.discard(path)

    def _record_path(self, stage: str) -> Path:
        if not _NAME.fullmatch(stage):
            raise UserError(f"a stage name must consist of letters, digits, '_' and '-', got {stage!r}")
        return self.folder / f"{stage}.json"

    def _record(self, stage: str) -> dict[str, Any]:
        path = self._record_path(stage)
        try:
            record = strict_json.loads(path.read_bytes())
        except ValueError as error:
            raise _DamageError(f"{path.name} is not JSON") from error
        if not isinstance(record, dict) or record.pop("sha256", None) != _digest(record):
            raise _DamageError(f"{path.name} does not match its SHA-256")
        if record["format"] != _STAGE_FORMAT:
            raise UserError(
                f"{path} has stage format {record['format']!r}, expected {_STAGE_FORMAT}: it was written by another "
                "version of pathgrow; resume it with that version, or choose another directory (--out or store=)"
            )
        if record["stage"] != stage:
            raise _DamageError(f"{path.name} holds stage {record['stage']!r}")
        return record

    def _intact(self, stage: str) -> dict[str, Any] | None:
        """Return the record of a stage, or None if it is missing or damaged."""
        with suppress(FileNotFoundError, _DamageError):
            return self._record(stage)
        return None

    def _write_record(
        self, stage: str, metadata: Metadata, tensors: dict[str, str] | None, seconds: float | None = None
    ) -> None:
        body = {
            "format": _STAGE_FORMAT,
            "stage": stage,
            "metadata": metadata,
            "tensors": tensors,
            "seconds": self._clock() if seconds is None else seconds,
        }
        atomic.write_text(self._record_path(stage), strict_json.dumps({**body, "sha256": _digest(body)}, indent=1))

    def _tensor_file(self, stage: str) -> str | None:
        record = self._intact(stage)
        return None if record is None or record["tensors"] is None else str(record["tensors"]["file"])

    def _read_tensors(self, entry: dict[str, str] | None) -> dict[str, Tensor]:
        if entry is None:
            return {}
        try:
            data = (self.folder / entry["file"]).read_bytes()
        except FileNotFoundError as error:
            raise _DamageError(f"{entry['file']} is missing") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise _DamageError(f"{entry['file']} does not match its SHA-256")
        try:
            return safetensors.torch.load(data)
        except SafetensorError as error:
            raise _DamageError(f"{entry['file']} is not a safetensors file") from error

    def _report_damage(self, stage: str, damage: _DamageError) -> None:
        if self.is_owner:
            # Kept for inspection. The record goes first: without it the stage does not exist.
            for path in (self._record_path(stage), *sorted(self.folder.glob(f"{stage}.*safetensors"))):
                if path.exists():
                    os.replace(path, path.with_name(path.name + ".bad"))
            self._metrics.keep(lambda name: name != stage)
        action = "moved aside as .bad, will run again" if self.is_owner else "left unchanged"
        warnings.warn(
            f"stage {stage!r} in {self.folder} is damaged ({damage}); {action}", DamagedStageWarning, stacklevel=3
        )


def serialize(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a safetensors file; equal tensors give equal bytes.

    Copies lift two limits of the format: no views of one storage (tied weights), contiguous tensors only.
    """
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(copies)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(strict_json.dumps(body).encode()).hexdigest()


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = strict_json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "stage" in row else None
