"""Archives: good ones unpack as they are, of bad ones nothing lands outside the folder."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pathgrow.data import archives
from pathgrow.errors import RunFailed, UserError

GOOD = {"set/a": b"alpha", "set/deep/b.bin": bytes(range(256)) * 5000, "set/empty": b""}
LIMIT = 2_000_000


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w:gz", format=format) as packed:
        for info, content in members:
            packed.addfile(info, io.BytesIO(content))
    return path


def entry(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, link
    return info, content


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return path


def with_mode(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_plain_archives_unpack_as_they_are(kind: str, tmp_path: Path) -> None:
    archive = tmp_path / f"good.{kind}"
    if kind == "zip":
        zipped(archive, ("set/", b""), *GOOD.items())
    else:
        tar(archive, entry("set", kind=tarfile.DIRTYPE), *(entry(name, content) for name, content in GOOD.items()))
    (tmp_path / "to").mkdir()
    archives.unpack(archive, tmp_path / "to", LIMIT)
    assert files(tmp_path / "to") == GOOD


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "tar climbs": lambda p: tar(p / "x.tar.gz", entry("set/../../evil", b"x")),
    "tar climbs at once": lambda p: tar(p / "x.tar.gz", entry("../evil", b"x")),
    "tar absolute": lambda p: tar(p / "x.tar.gz", entry(f"{p}/evil", b"x")),
    "tar backslash": lambda p: tar(p / "x.tar.gz", entry("..\\evil", b"x")),
    "tar drive": lambda p: tar(p / "x.tar.gz", entry("C:evil", b"x")),
    "tar control letters": lambda p: tar(p / "x.tar.gz", entry("set/\x1b[31m", b"x")),
    "tar symlink": lambda p: tar(p / "x.tar.gz", entry("set/link", kind=tarfile.SYMTYPE, link=str(p))),
    "tar write through symlink": lambda p: tar(
        p / "x.tar.gz", entry("set", kind=tarfile.SYMTYPE, link=str(p)), entry("set/evil", b"x")
    ),
    "tar hard link": lambda p: tar(p / "x.tar.gz", entry("set/link", kind=tarfile.LNKTYPE, link="/etc/passwd")),
    "tar character device": lambda p: tar(p / "x.tar.gz", entry("set/null", kind=tarfile.CHRTYPE)),
    "tar block device": lambda p: tar(p / "x.tar.gz", entry("set/disk", kind=tarfile.BLKTYPE)),
    "tar fifo": lambda p: tar(p / "x.tar.gz", entry("set/pipe", kind=tarfile.FIFOTYPE)),
    "tar duplicate": lambda p: tar(p / "x.tar.gz", entry("set/a", b"1"), entry("set/a", b"2")),
    "tar duplicate in another case": lambda p: tar(p / "x.tar.gz", entry("set/a", b"1"), entry("SET/A", b"2")),
    "tar duplicate in another spelling": lambda p: tar(p / "x.tar.gz", entry("set/a", b"1"), entry("./set//a", b"2")),
    "tar file below a file": lambda p: tar(p / "x.tar.gz", entry("set", b"1"), entry("set/evil", b"2")),
    "tar file over a folder": lambda p: tar(p / "x.tar.gz", entry("set/a", b"1"), entry("set", b"2")),
    "tar bomb": lambda p: tar(p / "x.tar.gz", entry("set/zeros", bytes(LIMIT + 1))),
    "tar bomb in pieces": lambda p: tar(p / "x.tar.gz", *(entry(f"set/{i}", bytes(LIMIT // 4)) for i in range(5))),
    "tar bomb in a header": lambda p: _long_header(p / "x.tar.gz"),
    "tar sparse": lambda p: _sparse(p / "x.tar.gz"),
    "zip climbs": lambda p: zipped(p / "x.zip", ("set/../../evil", b"x")),
    "zip absolute": lambda p: zipped(p / "x.zip", (f"{p}/evil", b"x")),
    "zip backslash": lambda p: zipped(p / "x.zip", ("..\\evil", b"x")),
    "zip symlink": lambda p: zipped(p / "x.zip", (with_mode("set/link", stat.S_IFLNK | 0o777), str(p).encode())),
    "zip device": lambda p: zipped(p / "x.zip", (with_mode("set/null", stat.S_IFCHR | 0o666), b"")),
    "zip duplicate": lambda p: _zip_duplicate(p / "x.zip"),
    "zip bomb": lambda p: zipped(p / "x.zip", ("set/zeros", bytes(LIMIT + 1))),
    "zip nameless": lambda p: zipped(p / "x.zip", (".", b"x")),
}


def _long_header(path: Path) -> Path:
    """A name of 100 MB, a few kB when packed: it would be read into memory before any member is seen."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 100_000_000
    with gzip.open(path, "wb") as packed:
        packed.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(100):
            packed.write(b"a" * 1_000_000)
    return path


def _sparse(path: Path) -> Path:
    info, content = entry("set/holes", b"")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.size": "1000", "GNU.sparse.map": "0,0"}
    return tar(path, (info, content))


def _zip_duplicate(path: Path) -> Path:
    with pytest.warns(UserWarning, match="Duplicate"):
        return zipped(path, ("set/a", b"1"), ("set/a", b"2"))


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused_and_nothing_lands_outside(kind: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    archive = HOSTILE[kind](tmp_path / "made")
    inside = tmp_path / "made" / "to" / "here"
    inside.mkdir(parents=True)
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(inside)}
    with pytest.raises(UserError, match="was refused because it") as caught:
        archives.unpack(archive, inside, LIMIT)
    assert str(caught.value).isprintable()
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(inside)} == before
    assert all(path.is_file() or path.is_dir() for path in inside.rglob("*"))
    assert not [path for path in inside.rglob("*") if path.is_symlink()]
    assert sum(len(content) for content in files(inside).values()) <= LIMIT


def test_damaged_archives_are_one_sentence(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    content = random.integers(0, 256, 20_000, dtype=np.uint8).tobytes()
    good = [
        tar(tmp_path / "x.tar.gz", entry("set/a", content)),
        zipped(tmp_path / "x.zip", ("set/a", content), ("set/b", content)),
    ]
    refused = []
    for archive in good:
        whole = archive.read_bytes()
        variants = [whole[:cut] for cut in random.integers(0, len(whole) - 30, 20)]
        for place in [*random.integers(0, len(whole), 20), *random.integers(0, 60, 20), *range(-80, -1, 2)]:
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(random.integers(8))
            variants.append(bytes(flipped))
        for number, variant in enumerate(variants):
            archive.write_bytes(variant)
            to = tmp_path / f"{archive.name}-{number}"
            to.mkdir()
            try:
                archives.unpack(archive, to, LIMIT)
            except UserError as error:
                refused.append(str(error))
            assert sum(len(content) for content in files(to).values()) <= 3 * len(content)
    assert len(refused) > 80
    assert all(sentence.isprintable() for sentence in refused)


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", ("set/a", b"secret"))
    content = bytearray(archive.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[central + 8] |= 1
    archive.write_bytes(content)
    (tmp_path / "to").mkdir()
    with pytest.raises(UserError, match="was refused"):
        archives.unpack(archive, tmp_path / "to", LIMIT)


def test_a_full_disk_is_no_fault_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(tmp_path / "x.zip", ("set/a", b"x"))
    (tmp_path / "to").mkdir()

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(RunFailed, match="No space left"):
        archives.unpack(archive, tmp_path / "to", LIMIT)
