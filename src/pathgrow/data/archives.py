"""Archives unpacked member by member, so that nothing is ever written outside the folder they are unpacked to.

Only plain files and folders with plain names are taken. One member that is anything else (a link, a device, a name that
climbs out, a second file of the same name, more bytes than the set can have) refuses the whole archive; the caller
unpacks into a folder of its own and throws that away.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from pathgrow.atomic import writing
from pathgrow.errors import UserError

MAX_MEMBERS = 500_000
_BLOCK = 2**20
_ENCRYPTED = 1
_DAMAGE = (
    OSError,  # gzip says so for bad checksums
    EOFError,
    ValueError,
    NotImplementedError,  # compression methods of other programs
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


class _Refused(Exception):
    """Why an archive is not unpacked."""


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    is_folder: bool
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    """Unpack a .zip or .tar.gz into an empty folder; `max_bytes` bounds what all files take together."""
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    guard = _Guard(max_bytes)
    try:
        for member in members(archive, max_bytes):
            parts = guard.admit(member)
            target = folder.joinpath(*parts)
            if member.is_folder:
                with writing(target):
                    target.mkdir(parents=True, exist_ok=True)
            else:
                _write(member, target)
    except _Refused as error:
        raise UserError(f"{archive} was refused because it {error}: delete it and get the official one") from error
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{archive} is damaged ({reason}): delete it and get the official one") from error


class _Guard:
    """What was unpacked so far, and whether a member may join it."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes_left = self.max_bytes = max_bytes
        self.files: set[tuple[str, ...]] = set()
        self.folders: set[tuple[str, ...]] = {()}

    def admit(self, member: _Member) -> tuple[str, ...]:
        """The parts of the name, if it is harmless and new."""
        parts = _parts(member.name)
        # Folded: on many systems `a` and `A` are one file, and the second would replace the first.
        folded = tuple(part.casefold() for part in parts)
        if folded in self.files or (folded in self.folders and not member.is_folder):
            raise _Refused(f"has {_shown(member.name)} twice")
        above = [folded[:depth] for depth in range(len(folded))]
        if any(part in self.files for part in above):
            raise _Refused(f"puts {_shown(member.name)} below a file")
        self.folders.update(above)
        (self.folders if member.is_folder else self.files).add(folded)
        self.bytes_left -= member.size
        if self.bytes_left < 0 or member.size < 0:
            raise _Refused(f"unpacks to more than {self.max_bytes:,} bytes")
        if len(self.files) + len(self.folders) > MAX_MEMBERS:
            raise _Refused(f"has more than {MAX_MEMBERS:,} members")
        return parts


def _parts(name: str) -> tuple[str, ...]:
    if not name or name.startswith("/") or "\\" in name or ":" in name or not name.isprintable():
        raise _Refused(f"has a member with the name {_shown(name)}")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or any(len(os.fsencode(part)) > 200 for part in parts) or not 0 < len(parts) <= 16:
        raise _Refused(f"has a member with the name {_shown(name)}")
    return parts


def _shown(name: str) -> str:
    return repr(name[:80])


def _write(member: _Member, target: Path) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=False)  # never follows a link, never replaces
    with open(target, "wb") as output, member.open() as source:
        left = member.size
        while left:
            block = source.read(min(left, _BLOCK))
            if not block:
                raise EOFError(f"{member.name} breaks off")
            left -= len(block)
            with writing(target):
                output.write(block)


def _tar_members(archive: Path, max_bytes: int) -> Iterator[_Member]:
    # Headers and padding of each member come on top of its content.
    with gzip.open(archive) as packed, tarfile.open(fileobj=_Bounded(packed, 2 * max_bytes), mode="r:") as tar:
        for info in tar:
            plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()
            if not plain and info.type != tarfile.DIRTYPE:
                raise _Refused(f"has {_shown(info.name)}, which is no plain file or folder")
            yield _Member(info.name, info.size if plain else 0, not plain, partial(_content, tar, info))


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(info)
    assert content is not None  # plain files only
    return content


def _zip_members(archive: Path, max_bytes: int) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            name, is_folder = info.orig_filename, info.is_dir()  # the name as it is, not cut at a zero byte
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was made on Windows
            if kind not in (0, stat.S_IFDIR if is_folder else stat.S_IFREG) or info.flag_bits & _ENCRYPTED:
                raise _Refused(f"has {_shown(name)}, which is no plain file or folder")
            yield _Member(name, 0 if is_folder else info.file_size, is_folder, partial(packed.open, info))


class _Bounded(io.RawIOBase):
    """A stream that ends with an error after so many bytes: a tar can announce a header of any length."""

    def __init__(self, source: gzip.GzipFile, max_bytes: int) -> None:
        self._source = source
        self._max_bytes = max_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._source.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset > self._max_bytes:
            raise _Refused(f"unpacks to more than {self._max_bytes:,} bytes")
        return self._source.seek(offset)

    def read(self, size: int = -1) -> bytes:
        if size < 0 or self._source.tell() + size > self._max_bytes:
            raise _Refused(f"unpacks to more than {self._max_bytes:,} bytes")
        return self._source.read(size)
