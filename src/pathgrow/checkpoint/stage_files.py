"""The stages of a run on disk: `<stage>.json`, and `<stage>.safetensors` where the stage has tensors.

The JSON goes last and carries the SHA-256 of the tensor file and of itself, so it alone says whether the stage is
there. A stage that does not match its hashes counts as never finished; it is moved aside, never deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from pathgrow import atomic
from pathgrow.checkpoint import strict_json
from pathgrow.checkpoint.store import Metadata, Stage
from pathgrow.errors import RunFailed, UserError

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class DamagedStageWarning(UserWarning):
    """A stored stage does not match its hash; it is computed again."""


class _DamageError(Exception):
    """Why a stage cannot be trusted."""


class StageFiles:
    """Stages in one folder; implements `Store`. Not locked: `RunFolder.open` is.

    Each record notes the time on `clock` at which it was written.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.folder = folder
        self._clock = clock

    def load(self, stage: str, *, set_aside: bool = True) -> Stage | None:
        """The stage as it was saved, or None if it never finished or is damaged.

        Only the owner of the folder may set a damaged stage aside: to a reader, a stage that is being replaced at this
        very moment looks damaged too.
        """
        record_path = self._record_path(stage)
        try:
            record = _read_record(record_path, stage)
            tensors = self._read_tensors(record["tensors"])
        except FileNotFoundError:
            return None
        except _DamageError as damage:
            self._report_damage(stage, damage, set_aside=set_aside)
            return None
        return Stage(record["facts"], tensors)

    def metadata(self, stage: str) -> Metadata | None:
        """The facts of a stage without its tensors; None if it is not there or damaged. Changes nothing."""
        try:
            metadata: Metadata = _read_record(self._record_path(stage), stage)["facts"]
        except (FileNotFoundError, _DamageError):
            return None
        return metadata

    def has_tensors(self, stage: str) -> bool:
        """Whether a stage has tensors, which are not looked at."""
        return self._tensor_file(self._record_path(stage), stage) is not None

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Remember a finished stage; a stage of this name stays whole until the new one is."""
        metadata = dict(metadata)
        if fault := strict_json.fault(metadata, "facts"):
            raise RunFailed(
                f"stage {stage!r} cannot be stored: {fault}, and a stage holds finite numbers, strings, lists and "
                "dicts only, so that it comes back equal; look at what the stage computed"
            )
        record_path = self._record_path(stage)
        previous = self._tensor_file(record_path, stage)
        entry = None
        if tensors:
            # Beside the file in use, not over it: its record must stay true until the new record replaces it.
            names = (f"{stage}.safetensors", f"{stage}.new.safetensors")
            name = names[1] if previous == names[0] else names[0]
            data = serialize(tensors)
            atomic.write_bytes(self.folder / name, data)
            entry = {"file": name, "sha256": hashlib.sha256(data).hexdigest()}
        self._write_record(record_path, stage, metadata, entry)
        if previous is not None and (entry is None or entry["file"] != previous):
            atomic.discard(self.folder / previous)

    def delete_tensors(self, stage: str) -> None:
        """Free the tensors of a stage; its facts stay."""
        record_path = self._record_path(stage)
        try:
            record = _read_record(record_path, stage)
        except FileNotFoundError:
            return
        except _DamageError as damage:
            self._report_damage(stage, damage, set_aside=True)
            return
        if record["tensors"] is not None:
            written = record_path.stat()
            self._write_record(record_path, stage, record["facts"], None)
            os.utime(record_path, ns=(written.st_atime_ns, written.st_mtime_ns))  # stages are told in order of time
            atomic.discard(self.folder / record["tensors"]["file"])

    def names(self) -> list[str]:
        """Finished stages, oldest first; hashes are checked when a stage is loaded."""
        records = [(path.stat().st_mtime_ns, path.stem) for path in self.folder.glob("*.json")]
        return [name for _, name in sorted(records) if _NAME.fullmatch(name)]

    @property
    def seconds(self) -> float:
        """The latest time that a stage notes; 0 where none does."""
        noted = [0.0]
        for stage in self.names():
            try:
                noted.append(float(_read_record(self._record_path(stage), stage).get("seconds", 0.0)))
            except (FileNotFoundError, _DamageError):
                continue
        return max(noted)

    def sweep(self) -> None:
        """Remove what killed writers left: temporary files, and tensors whose record was never written."""
        atomic.sweep(self.folder)
        for path in self.folder.glob("*.safetensors"):
            stage = path.name.partition(".")[0]
            try:
                entry = _read_record(self._record_path(stage), stage)["tensors"]
            except FileNotFoundError:
                entry = None
            except _DamageError:
                continue
            if entry is None or entry["file"] != path.name:
                atomic.discard(path)

    def _record_path(self, stage: str) -> Path:
        if not _NAME.fullmatch(stage):
            raise UserError(f"stage name {stage!r} is no file name: use letters, digits, '_' and '-' only")
        return self.folder / f"{stage}.json"

    def _write_record(
        self, path: Path, stage: str, metadata: Mapping[str, Any], tensors: dict[str, str] | None
    ) -> None:
        body = {"format": FORMAT, "stage": stage, "facts": metadata, "tensors": tensors, "seconds": self._clock()}
        atomic.write_text(path, strict_json.dumps({**body, "sha256": _digest(body)}, indent=1))

    def _tensor_file(self, record_path: Path, stage: str) -> str | None:
        try:
            entry = _read_record(record_path, stage)["tensors"]
        except (FileNotFoundError, _DamageError):
            return None
        return None if entry is None else str(entry["file"])

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
            raise _DamageError(f"{entry['file']} is no safetensors file") from error

    def _report_damage(self, stage: str, damage: _DamageError, *, set_aside: bool) -> None:
        if set_aside:
            # Kept for a person to look at. The record goes first: without it the stage is not there.
            for path in (self._record_path(stage), *sorted(self.folder.glob(f"{stage}.*safetensors"))):
                if path.exists():
                    os.replace(path, path.with_name(path.name + ".bad"))
        done = "moved aside as .bad and computed again" if set_aside else "left as it is"
        warnings.warn(
            f"stage {stage!r} in {self.folder} is damaged ({damage}); {done}", DamagedStageWarning, stacklevel=4
        )


def serialize(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a safetensors file; equal tensors give equal bytes.

    Copies lift two limits of the format: no views of one storage (tied weights), no strides.
    """
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(copies)


def _read_record(path: Path, stage: str) -> dict[str, Any]:
    try:
        record = strict_json.loads(path.read_bytes())
    except ValueError as error:
        raise _DamageError(f"{path.name} is not JSON") from error
    if not isinstance(record, dict) or record.pop("sha256", None) != _digest(record):
        raise _DamageError(f"{path.name} does not match its SHA-256")
    if record["format"] != FORMAT:
        raise UserError(
            f"{path} has stage format {record['format']!r}, wanted {FORMAT}: it was written by another version of "
            "pathgrow; resume it with that version, or choose another --out"
        )
    if record["stage"] != stage:
        raise _DamageError(f"{path.name} holds stage {record['stage']!r}")
    return record


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(strict_json.dumps(body).encode()).hexdigest()
