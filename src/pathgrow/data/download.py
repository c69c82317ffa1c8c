"""Download published datasets, and compare copies on disk with the published ones.

An archive is used only if its SHA-256 is the published one. It is unpacked into a temporary directory, which is then
renamed, so a dataset is present completely or not at all.
"""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathgrow import atomic, data
from pathgrow.data.dataset import Dataset, Paths, Split
from pathgrow.data.images import CACHE_FILE, lock_between_processes
from pathgrow.data.official import OFFICIAL, Official, find_official, replace_advice, resolve_root
from pathgrow.errors import UserError

_BLOCK = 2**20
_TIMEOUT_S = 30
_UNPACKING = ".pathgrow-unpacking-"

Report = Callable[[str], None]
"""Receives one line per step."""


def download(name: str, root: Path, report: Report) -> Path:
    """Put a published dataset into `root` and return its directory; an existing copy is kept."""
    official = OFFICIAL[name]
    folder, archive = root / official.folder, root / official.archive
    with atomic.writing(root):
        root.mkdir(parents=True, exist_ok=True)
    with lock_between_processes(root / ".pathgrow-get.lock") as is_locked:
        if is_locked:
            for left_over in root.glob(f"{_UNPACKING}*"):  # of killed processes
                shutil.rmtree(left_over, ignore_errors=True)
        if folder.exists():
            if not (folder / official.marker).exists():
                raise UserError(
                    f"{folder} is not a copy of {name} (no {official.marker}): {replace_advice(name, folder)}"
                )
            report(f"{folder} already exists; verify it with `pathgrow data check {name} --data-root {root}`")
            return folder
        if archive.exists():
            report(f"using {archive}")
            if _file_hash(archive, "sha256") != official.sha256:
                raise UserError(
                    f"checksum mismatch for {archive} (expected SHA-256 {official.sha256}): delete it and download "
                    f"{official.url}"
                )
        else:
            _fetch(name, official, archive, report)
        report(f"unpacking to {folder}")
        _unpack(official, archive, folder)
    return folder


def _fetch(name: str, official: Official, archive: Path, report: Report) -> None:
    """Download and verify an archive under a temporary name."""
    temporary = archive.with_name(f".{archive.name}.part")
    report(f"downloading {official.url} ({official.num_bytes / 1e6:.0f} MB)")
    try:
        digest = _stream(official, temporary, report)
        if digest != official.sha256:
            raise UserError(
                f"checksum mismatch for {official.url} (expected SHA-256 {official.sha256}, got {digest}); "
                "download discarded"
            )
        with atomic.writing(archive):
            atomic.install(temporary, archive)
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        raise UserError(
            f"cannot download {official.url} ({getattr(error, 'reason', None) or error}): download the file on another "
            f"machine (SHA-256 {official.sha256}), save it as {archive}, and rerun "
            f"`pathgrow data get {name} --data-root {archive.parent}`"
        ) from error
    finally:
        atomic.discard(temporary)


def _stream(official: Official, target: Path, report: Report) -> str:
    """Write the archive to `target` and return its SHA-256."""
    digest = hashlib.sha256()
    num_bytes = num_reported = 0
    with urllib.request.urlopen(official.url, timeout=_TIMEOUT_S) as response:
        with atomic.writing(target):
            target.touch()
        with open(target, "wb") as output:
            while block := response.read(_BLOCK):
                num_bytes += len(block)
                if num_bytes > official.num_bytes:
                    raise http.client.HTTPException("longer than the official file")
                digest.update(block)
                with atomic.writing(target):
                    output.write(block)
                if num_bytes - num_reported > official.num_bytes / 10:
                    num_reported = num_bytes
                    report(f"{num_bytes / 1e6:.0f} of {official.num_bytes / 1e6:.0f} MB")
    if num_bytes < official.num_bytes:
        raise http.client.HTTPException(f"connection closed after {num_bytes:,} bytes")
    return digest.hexdigest()


def _unpack(official: Official, archive: Path, folder: Path) -> None:
    # Zip archives have no filters, and Python before 3.11.4 has none at all; the checksum was verified in any case.
    is_tar = archive.suffix != ".zip"
    options: dict[str, Any] = {"filter": "data"} if is_tar and hasattr(tarfile, "data_filter") else {}
    with atomic.writing(folder):
        temporary = Path(tempfile.mkdtemp(prefix=_UNPACKING, dir=folder.parent))
        try:
            try:
                if archive.suffix == ".txt":
                    (temporary / official.folder).mkdir()
                    shutil.copyfile(archive, temporary / official.folder / official.marker)
                else:
                    shutil.unpack_archive(archive, temporary, **options)
            except (tarfile.TarError, zipfile.BadZipFile, shutil.ReadError, EOFError, zlib.error) as error:
                raise UserError(f"cannot unpack {archive} ({error}): delete it and download {official.url}") from error
            if not (temporary / official.folder).is_dir():
                raise UserError(f"{archive} has no directory {official.folder}: download {official.url}")
            os.replace(temporary / official.folder, folder)
            atomic.sync_folder(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_dataset(name: str, root: str | None) -> list[str]:
    """Read a dataset (only the file names if it is streamed), compare it with the published one, and describe it.

    A dataset that cannot be read raises a `UserError`.
    """
    official = OFFICIAL.get(name)
    folder = resolve_root(root) if official is None else find_official(name, resolve_root(root))
    atomic.discard(folder / CACHE_FILE)  # read the files themselves, not the decoded copy
    dataset = data.load(name, root)
    md5 = {} if official is None else official.md5
    same = {file: _file_hash(folder / file, "md5") == expected for file, expected in md5.items()}
    paths = getattr(dataset.train, "paths", None)
    if isinstance(paths, Paths):
        folder = paths.folder  # streamed datasets may be one level below the root
    if name == "digits":
        verdict = "bundled"
    else:
        verdict = _storage(dataset) if official is None else _verdict(dataset, official, all(same.values()))
    return [
        f"{name}: {verdict}",
        *([f"  directory     {folder}"] if name != "digits" else []),
        f"  classes       {dataset.classes:,}",
        f"  sample shape  {' x '.join(map(str, dataset.shape))}",
        *(f"  {part:<14}{len(getattr(dataset, part)):,} samples" for part in ("train", "val", "test")),
        *(f"  {file:<13} {'official' if same[file] else 'differs from the official file'}" for file in same),
    ]


def _verdict(dataset: Dataset, official: Official, files_match: bool) -> str:
    num_train, num_test = len(dataset.train) + len(dataset.val), len(dataset.test)
    if (num_train, num_test) != (official.num_train, official.num_test):
        return (
            f"readable, but not the official dataset: {num_train:,} training and {num_test:,} test samples instead of "
            f"{official.num_train:,} and {official.num_test:,}"
        )
    if not files_match:
        return "readable, with the official number of samples, but the files differ from the official ones"
    return "the official dataset" if official.md5 else "readable, with the official number of samples"


def _storage(dataset: Dataset) -> str:
    size = " x ".join(map(str, dataset.shape[1:]))
    if isinstance(dataset.train, Split):
        return f"readable; {size} pixels, held in memory"
    return f"files found (not decoded); streamed from disk at {size} pixels"


def _file_hash(path: Path, algorithm: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error})") from error
