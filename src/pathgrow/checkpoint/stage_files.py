"""Stages of a run on disk: `<stage>.json`, and `<stage>.safetensors` for its tensors, if it has any.

The JSON record is written last and holds the SHA-256 of the tensor file and of itself, so the record alone decides
whether a stage exists. A stage that does not match its hashes counts as unfinished; it is moved aside, never deleted.
A record is read through a schema, and its tensors only from the file that a stage of its name has.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathgrow import atomic
from pathgrow.checkpoint import strict_json
from pathgrow.checkpoint.store import Metadata, Stage
from pathgrow.config import from_json, option, to_json
from pathgrow.errors import RunFailed, UserError, is_int

if TYPE_CHECKING:  # torch takes seconds to import, which reading records should not
    from torch import Tensor

_STAGE_FORMAT = 2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class DamagedStageWarning(UserWarning):
    """A stored stage does not match its hash and runs again."""


class _DamageError(Exception):
    """Why a stage cannot be trusted."""


@dataclass(frozen=True, kw_only=True)
class _TensorFile:
    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class _StageRecord:
    """What `<stage>.json` holds, apart from its own hash."""

    format: int = _STAGE_FORMAT
    stage: str
    metadata: Mapping[str, Any]
    tensors: _TensorFile | None
    seconds: float = option(at_least=0)

    def __post_init__(self) -> None:
        if self.tensors is not None and self.tensors.file not in _tensor_names(self.stage):
            raise UserError(f"tensors.file must be {_tensor_names(self.stage)[0]!r}, got {self.tensors.file!r}")


def _tensor_names(stage: str) -> tuple[str, str]:
    """The names that the tensor file of a stage can have: while it is replaced, there are two."""
    return f"{stage}.safetensors", f"{stage}.new.safetensors"


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
        with atomic.writing(self.path), open(self.path, "ab", buffering=0, opener=atomic.plain) as file:
            file.write(line.encode())

    def rows(self) -> list[dict[str, Any]]:
        """Return all complete rows, oldest first."""
        return _parse_rows(self._content() or b"")

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Drop the rows of every stage for which `is_kept` is false, and a torn last line."""
        content = self._content()
        if content is None:
            return
        kept = [row for row in _parse_rows(content) if is_kept(row["stage"])]
        text = "".join(strict_json.dumps(row) + "\n" for row in kept)
        # A copy made of hard links (a backup) must not get the rows that follow.
        if text.encode() != content or self.path.stat().st_nlink > 1:
            atomic.write_text(self.path, text)

    def sync(self) -> None:
        """Flush all rows to disk."""
        if self.path.exists():
            with atomic.writing(self.path):
                atomic.sync(self.path)
                atomic.sync_folder(self.path.parent)

    def _content(self) -> bytes | None:
        try:
            return atomic.read_bytes(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise strict_json.unreadable(self.path, error) from error


class StageFiles:
    """Stages in one directory, with the metrics logged for them; implements `Store`.

    Parameters
    ----------
    metrics
        Flushed before a stage is saved; rows of a damaged stage are dropped.
    clock
        Each record stores the time on this clock at which it was written.
    own
        Locks the run directory, unless this process holds the lock; returns False in a process that only reads. Called
        before anything is changed.
    """

    def __init__(
        self,
        folder: Path,
        metrics: Metrics,
        clock: Callable[[], float],
        own: Callable[[], bool] = lambda: True,
    ) -> None:
        self.folder = folder
        self._metrics = metrics
        self._clock = clock
        self._own = own

    def load(self, stage: str) -> Stage | None:
        """Return the stage as it was saved, or None if it never finished or is damaged."""
        try:
            record = self._record(stage)
            tensors = self._read_tensors(record.tensors)
        except FileNotFoundError:
            return None
        except _DamageError as damage:
            self._report_damage(stage, damage)
            return None
        return Stage(record.metadata, tensors)

    def metadata(self, stage: str) -> Metadata | None:
        """Return the metadata of a stage without reading its tensors; None if it is missing or damaged."""
        record = self._intact(stage)
        return None if record is None else record.metadata

    def number(self, stage: str, key: str) -> int:
        """Return an integer of the metadata of a stage; 0 if it is missing, damaged or of another type."""
        value = (self.metadata(stage) or {}).get(key)
        return value if is_int(value) else 0

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
        self._record_path(stage)
        self._own()
        atomic.make_folder(self.folder)
        self._metrics.sync()
        previous = self._tensor_file(stage)
        entry = None
        if tensors:
            # Not over the file in use: its record must stay valid until the new record replaces it.
            names = _tensor_names(stage)
            name = names[1] if previous == names[0] else names[0]
            data = serialize(tensors)
            atomic.write_bytes(self.folder / name, data)
            entry = _TensorFile(file=name, sha256=hashlib.sha256(data).hexdigest())
        self._write_record(stage, metadata, entry)
        if previous is not None and (entry is None or entry.file != previous):
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
        if record.tensors is not None:
            self._own()
            self._write_record(stage, record.metadata, None, record.seconds)  # `names` sorts by time
            atomic.discard(self.folder / record.tensors.file)

    def names(self) -> list[str]:
        """Return finished stages, oldest first; hashes are checked when a stage is loaded."""
        self._check_folder()
        found = [path.stem for path in self.folder.glob("*.json") if _NAME.fullmatch(path.stem)]
        # By the stored time: a copied directory has new file times.
        times = {name: 0.0 if (record := self._intact(name)) is None else record.seconds for name in found}
        return sorted(found, key=lambda name: (times[name], name))

    def damage(self) -> dict[str, str]:
        """Return what is wrong with each damaged stage, by the path of its record, after reading all of them."""
        found = {}
        for stage in self.names():
            try:
                self._read_tensors(self._record(stage).tensors)
            except FileNotFoundError:
                continue
            except _DamageError as damage:
                found[f"stages/{stage}.json"] = f"is damaged: {damage}"
        return found

    @property
    def seconds(self) -> float:
        """Latest time stored in a record, 0 if there is none."""
        records = (self._intact(stage) for stage in self.names())
        return max((record.seconds for record in records if record is not None), default=0.0)

    def sweep(self) -> None:
        """Remove what a killed writer left: temporary files, and tensors whose record was never written."""
        self._check_folder()
        atomic.sweep(self.folder)
        for path in self.folder.glob("*.safetensors"):
            stage = path.name.partition(".")[0]
            if not _NAME.fullmatch(stage) or path.name not in _tensor_names(stage):
                continue
            try:
                entry = self._record(stage).tensors
            except FileNotFoundError:
                entry = None
            except _DamageError:
                continue
            if entry is None or entry.file != path.name:
                atomic.discard(path)

    def _check_folder(self) -> None:
        if self.folder.is_symlink():
            raise UserError(f"{self.folder} is a symbolic link; a run directory must contain its own stages")

    def _record_path(self, stage: str) -> Path:
        if not _NAME.fullmatch(stage):
            raise UserError(f"a stage name must consist of letters, digits, '_' and '-', got {stage!r}")
        self._check_folder()
        return self.folder / f"{stage}.json"

    def _record(self, stage: str) -> _StageRecord:
        path = self._record_path(stage)
        content = _read(path)
        try:
            record = strict_json.loads(content)
        except ValueError as error:
            raise _DamageError(f"{path.name} is not JSON") from error
        if not isinstance(record, dict) or record.pop("sha256", None) != _digest(record):
            raise _DamageError(f"{path.name} does not match its SHA-256")
        if record.get("format") != _STAGE_FORMAT:
            raise UserError(
                f"{path} has stage format {record.get('format')!r}, expected {_STAGE_FORMAT}: it was written by "
                "another version of pathgrow; resume it with that version, or choose another directory "
                "(--out or store=)"
            )
        try:
            found = from_json(_StageRecord, record)
        except UserError as error:
            raise _DamageError(f"{path.name}: {error}") from error
        if found.stage != stage:
            raise _DamageError(f"{path.name} holds stage {found.stage!r}")
        return found

    def _intact(self, stage: str) -> _StageRecord | None:
        """Return the record of a stage, or None if it is missing or damaged."""
        with suppress(FileNotFoundError, _DamageError):
            return self._record(stage)
        return None

    def _write_record(
        self, stage: str, metadata: Metadata, tensors: _TensorFile | None, seconds: float | None = None
    ) -> None:
        seconds = self._clock() if seconds is None else seconds
        body = to_json(_StageRecord(stage=stage, metadata=metadata, tensors=tensors, seconds=seconds))
        atomic.write_text(self._record_path(stage), strict_json.dumps({**body, "sha256": _digest(body)}, indent=1))

    def _tensor_file(self, stage: str) -> str | None:
        record = self._intact(stage)
        return None if record is None or record.tensors is None else record.tensors.file

    def _read_tensors(self, entry: _TensorFile | None) -> dict[str, Tensor]:
        if entry is None:
            return {}
        import safetensors.torch

        try:
            data = _read(self.folder / entry.file)
        except FileNotFoundError as error:
            raise _DamageError(f"{entry.file} is missing") from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _DamageError(f"{entry.file} does not match its SHA-256")
        try:
            return safetensors.torch.load(data)
        except safetensors.SafetensorError as error:
            raise _DamageError(f"{entry.file} is not a safetensors file") from error

    def _report_damage(self, stage: str, damage: _DamageError) -> None:
        # Only the owner moves anything: a stage that is being replaced looks damaged to a reader.
        is_owner = self._own()
        if is_owner:
            # Kept for inspection. The record goes first: without it the stage does not exist.
            names = [f"{stage}.json", *_tensor_names(stage)]
            for path in (self.folder / name for name in names):
                with atomic.writing(path), suppress(FileNotFoundError):
                    os.replace(path, path.with_name(path.name + ".bad"))
            self._metrics.keep(lambda name: name != stage)
        action = "moved aside as .bad, will run again" if is_owner else "left unchanged"
        warnings.warn(
            f"stage {stage!r} in {self.folder} is damaged ({damage}); {action}", DamagedStageWarning, stacklevel=3
        )


def serialize(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a safetensors file; equal tensors give equal bytes.

    Copies lift two limits of the format: no views of one storage (tied weights), contiguous tensors only.
    """
    import safetensors.torch

    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(copies)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(strict_json.dumps(body).encode()).hexdigest()


def _parse_rows(content: bytes) -> list[dict[str, Any]]:
    """The complete rows among lines that may be torn or damaged."""
    rows = []
    for line in content.split(b"\n")[:-1]:
        with suppress(ValueError):
            row = strict_json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("stage"), str):
                rows.append(row)
    return rows


def _read(path: Path) -> bytes:
    """The content of a file of a stage; a file that cannot be read is damaged, unless permissions are to blame."""
    try:
        return atomic.read_bytes(path)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise strict_json.unreadable(path, error) from error
    except OSError as error:
        raise _DamageError(f"{path.name} cannot be read: {error.strerror or error}") from error
