"""Published data sets: the archive is got, verified, then unpacked, each whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pathgrow import atomic
from pathgrow.data.archives import unpack
from pathgrow.data.official import OFFICIAL, Official
from pathgrow.data.places import renew
from pathgrow.data.waiting import turn
from pathgrow.errors import UserError

_BLOCK = 2**20
_TIMEOUT_S = 30
_APART = ".pathgrow-unpacking-"
"""Archives are unpacked beside the final folder, which then appears in one step."""
_NETWORK = (OSError, http.client.HTTPException)  # URLError and timeouts are OSErrors

Tell = Callable[[str], None]


def get(name: str, root: Path, tell: Tell) -> Path:
    """Put a published data set into `root` and return its folder; one that is there is left alone.

    Parameters
    ----------
    tell
        Called with a line for each step.
    """
    official = OFFICIAL[name]
    folder = root / official.folder
    with atomic.writing(root):
        root.mkdir(parents=True, exist_ok=True)
    with turn(root / ".pathgrow-get.lock") as alone:
        if alone:
            for left_over in root.glob(f"{_APART}*"):  # of killed commands
                shutil.rmtree(left_over, ignore_errors=True)
        if folder.exists():
            if not (folder / official.marker).exists():
                raise UserError(f"{folder} has no {official.marker}, so it is no copy of {name}: {renew(name, folder)}")
            tell(f"{folder} is there already; `pathgrow data check {name} --data-root {root}` examines it")
            return folder
        archive = root / official.archive
        if archive.exists():
            tell(f"using {archive}")
        else:
            _download(name, official, archive, tell)
        _verify(official, archive)
        tell(f"unpacking to {folder}")
        _unpack(official, archive, folder)
    return folder


def _download(name: str, official: Official, archive: Path, tell: Tell) -> None:
    """Fetch the archive under a temporary name; a piece that an earlier try left is continued."""
    piece = archive.with_name(f".{archive.name}.part")
    tell(f"downloading {official.url} ({official.num_bytes / 1e6:.0f} MB)")
    try:
        _fetch(official, piece, tell)
    except _NETWORK as error:
        raise UserError(
            f"{official.url} could not be downloaded ({getattr(error, 'reason', None) or error}): "
            f"get this file (SHA-256 {official.sha256}) on a machine with a network, put it at {archive}, "
            f"and give `pathgrow data get {name} --data-root {archive.parent}` again"
        ) from error
    if _sha256(piece) != official.sha256:
        atomic.discard(piece)
        raise UserError(
            f"what {official.url} sent does not have the official checksum (SHA-256 {official.sha256}) "
            "and was thrown away: try again, or get the file elsewhere"
        )
    with atomic.writing(archive):
        atomic.install(piece, archive)


def _fetch(official: Official, piece: Path, tell: Tell) -> None:
    done = piece.stat().st_size if piece.exists() else 0
    if done >= official.num_bytes:
        done = 0  # whole but never renamed, or not ours: cheaper to fetch than to reason about
    request = urllib.request.Request(official.url, headers={"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        goes_on = response.status == 206 and str(response.headers["Content-Range"]).startswith(f"bytes {done}-")
        if done and goes_on:
            tell(f"going on after {done / 1e6:.0f} MB")
        else:
            done = 0  # a server that starts over
        with atomic.writing(piece):
            piece.touch()
        with open(piece, "ab" if done else "wb") as output:
            _copy(response, output, piece, official.num_bytes - done, tell)


def _copy(source: IO[bytes], output: IO[bytes], piece: Path, left: int, tell: Tell) -> None:
    tenth = max(_BLOCK, left // 10)
    since_told = total = 0
    while block := source.read(_BLOCK):
        total += len(block)
        if total > left:
            atomic.discard(piece)
            raise http.client.HTTPException("it is longer than the official file")
        with atomic.writing(piece):
            output.write(block)
        since_told += len(block)
        if since_told >= tenth:
            since_told = 0
            tell(f"{total / 1e6:.0f} of {left / 1e6:.0f} MB")
    if total < left:
        raise http.client.HTTPException(f"it broke off after {total:,} bytes; the next try goes on from there")


def _verify(official: Official, archive: Path) -> None:
    found = _sha256(archive)
    if found != official.sha256:
        raise UserError(
            f"{archive} has the SHA-256 {found}, the official file has {official.sha256}: "
            f"it was not unpacked; delete it and get {official.url}"
        )


def _unpack(official: Official, archive: Path, folder: Path) -> None:
    with atomic.writing(folder):
        apart = Path(tempfile.mkdtemp(prefix=_APART, dir=folder.parent))
    try:
        unpack(archive, apart, official.max_unpacked)
        if not (apart / official.folder / official.marker).exists():
            raise UserError(f"{archive} holds no {official.folder}/{official.marker}: get the official archive")
        with atomic.writing(folder):
            os.replace(apart / official.folder, folder)
            atomic.sync_folder(folder.parent)
    finally:
        shutil.rmtree(apart, ignore_errors=True)


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): delete it and try again") from error
