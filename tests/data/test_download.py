"""Downloads from a local server, verified and unpacked; checks of copies on disk; the `pathgrow data` commands."""

from __future__ import annotations

import copy
import dataclasses
import errno
import hashlib
import http.server
import io
import multiprocessing
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pathgrow import data
from pathgrow.data.download import download
from pathgrow.data.official import OFFICIAL
from pathgrow.errors import RunFailed, UserError
from tests.support import command


class Server:
    """Serves one file under any name, or a part of it."""

    def __init__(self) -> None:
        self.content = b""
        self.breaks_after: int | None = None
        self.num_requests = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.num_requests += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(outer.content)))
                self.end_headers()
                self.wfile.write(outer.content[: outer.breaks_after])

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/cifar-10-python.tar.gz"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose archive is a tiny cifar10 that counts as the official one."""
    layouts.cifar10(where="made/cifar-10-batches-py")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(layouts.root / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    served = Server()
    served.content = packed.getvalue()
    official = dataclasses.replace(
        OFFICIAL["cifar10"],
        url=served.url,
        sha256=hashlib.sha256(served.content).hexdigest(),
        num_bytes=len(served.content),
    )
    monkeypatch.setitem(OFFICIAL, "cifar10", official)
    for variable in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    yield served
    served.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def quiet(line: str) -> None:
    assert "\n" not in line


COMPLETE = [".pathgrow-get.lock", "cifar-10-batches-py", "cifar-10-python.tar.gz"]


def test_a_dataset_is_downloaded_verified_and_unpacked(server: Server, tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    lines: list[str] = []
    download("cifar10", root, lines.append)
    assert names(root) == COMPLETE
    assert len(data.load("cifar10", root).test) == 20
    assert lines[0].startswith("downloading http://127.0.0.1")
    download("cifar10", root, lines.append)
    assert "already exists" in lines[-1]
    assert server.num_requests == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content + b"more", "longer than the official file"),
        (lambda content: bytes(len(content)), r"checksum mismatch .* download discarded"),
    ],
)
def test_other_content_is_discarded(change: Any, words: str, server: Server, tmp_path: Path) -> None:
    official = server.content
    server.content = change(official)
    with pytest.raises(UserError, match=words):
        download("cifar10", tmp_path, quiet)
    assert names(tmp_path) == [".pathgrow-get.lock"]
    server.content = official
    download("cifar10", tmp_path, quiet)
    assert names(tmp_path) == COMPLETE


def test_a_broken_connection_is_one_sentence_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 100_000
    with pytest.raises(UserError, match=r"cannot download .*connection closed after 100,000 bytes") as caught:
        download("cifar10", tmp_path, quiet)
    assert str(caught.value).isprintable()
    assert names(tmp_path) == [".pathgrow-get.lock"]


def test_a_dataset_appears_completely_or_not_at_all(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step is a rename; whatever fails before leaves no folder that looks like the dataset."""
    replace = os.replace

    def stopped(source: Path, target: Path) -> None:
        if Path(target).name == "cifar-10-batches-py":
            assert len(list(Path(source).iterdir())) > 5
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(RunFailed, match="No space left"):
        download("cifar10", tmp_path, quiet)
    assert names(tmp_path) == [".pathgrow-get.lock", "cifar-10-python.tar.gz"]


def test_an_existing_archive_is_used_if_it_is_the_official_one(server: Server, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(server.content[:-1])
    with pytest.raises(UserError, match=r"checksum mismatch for .*: delete it and download http"):
        download("cifar10", tmp_path, quiet)
    assert not (tmp_path / "cifar-10-batches-py").exists()
    archive.write_bytes(server.content)
    (tmp_path / ".pathgrow-unpacking-killed").mkdir()
    download("cifar10", tmp_path, quiet)
    assert server.num_requests == 0
    assert names(tmp_path) == COMPLETE


def test_a_hostile_archive_is_never_unpacked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum differs; even with the official checksum, nothing would be written outside of the target."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("../evil")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    root = tmp_path / "root"
    root.mkdir()
    (root / "cifar-10-python.tar.gz").write_bytes(packed.getvalue())
    with pytest.raises(UserError, match="checksum mismatch"):
        download("cifar10", root, quiet)
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    monkeypatch.setitem(OFFICIAL, "cifar10", dataclasses.replace(OFFICIAL["cifar10"], sha256=sha256))
    with pytest.raises(UserError, match="cannot unpack"):
        download("cifar10", root, quiet)
    assert names(root) == [".pathgrow-get.lock", "cifar-10-python.tar.gz"]
    assert names(tmp_path) == ["root"]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    made.size = 4 if kind == tarfile.REGTYPE else 0
    return made


BATCHES = "cifar-10-batches-py"
ARCHIVES: dict[str, list[tarfile.TarInfo]] = {
    "parent": [member("../evil")],
    "parent inside": [member(f"{BATCHES}/../../evil")],
    "absolute": [member("{outside}/evil")],
    "backslashes": [member("..\\evil")],
    "symbolic link": [member(f"{BATCHES}/x", tarfile.SYMTYPE, "{outside}"), member(f"{BATCHES}/x/evil")],
    "relative link": [member(f"{BATCHES}/x", tarfile.SYMTYPE, "../../../outside"), member(f"{BATCHES}/x/evil")],
    "chain of links": [
        member(f"{BATCHES}/a", tarfile.SYMTYPE, ".."), member(f"{BATCHES}/b", tarfile.SYMTYPE, "a/../../outside"),
        member(f"{BATCHES}/b/evil"),
    ],
    "hard link": [member(f"{BATCHES}/x", tarfile.LNKTYPE, "{outside}/thesis.txt"), member(f"{BATCHES}/x")],
    "relative hard link": [member(f"{BATCHES}/x", tarfile.LNKTYPE, "../../outside/thesis.txt")],
    "device": [member(f"{BATCHES}/x", tarfile.CHRTYPE)],
    "block device": [member(f"{BATCHES}/x", tarfile.BLKTYPE)],
    "pipe": [member(f"{BATCHES}/data_batch_1", tarfile.FIFOTYPE)],
    "duplicate": [member(f"{BATCHES}/x", tarfile.SYMTYPE, "{outside}/thesis.txt"), member(f"{BATCHES}/x")],
    "set user id": [member(f"{BATCHES}/x", mode=0o4777)],
    "link as the folder": [member(BATCHES, tarfile.SYMTYPE, "{outside}")],
}  # fmt: skip


@pytest.mark.item(22)
@pytest.mark.parametrize("kind", [*ARCHIVES, "zip parent", "zip absolute", "bomb", "truncated"])
def test_hostile_archives_write_nothing_outside(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if their checksum were the official one; a bomb, which has another, is not unpacked at all."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "thesis.txt").write_text("the only copy")
    archive = root / "cifar-10-python.tar.gz"
    if kind.startswith("zip"):
        archive = root / "cifar-10-python.zip"
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr("../evil" if kind == "zip parent" else f"{outside}/evil", "evil")
            zipped.writestr(f"{BATCHES}/x", "")
    else:
        with tarfile.open(archive, "w:gz") as packed:
            if kind != "link as the folder":
                packed.addfile(member(BATCHES, tarfile.DIRTYPE, mode=0o755))
            for info in ARCHIVES.get(kind, []):
                entry = copy.copy(info)
                entry.name, entry.linkname = (text.format(outside=outside) for text in (info.name, info.linkname))
                packed.addfile(entry, io.BytesIO(b"evil"))
            if kind == "bomb":
                zeros = member(f"{BATCHES}/x")
                zeros.size = 2**26
                packed.addfile(zeros, io.BytesIO(bytes(zeros.size)))
    if kind == "truncated":
        archive.write_bytes(archive.read_bytes()[:-30])
    official = dataclasses.replace(OFFICIAL["cifar10"], url=f"https://127.0.0.1/{archive.name}")
    if kind != "bomb":
        official = dataclasses.replace(official, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setitem(OFFICIAL, "cifar10", official)
    with suppress(UserError):
        download("cifar10", root, quiet)
        inside = list((root / BATCHES).rglob("*"))
        assert all(path.is_file() and not path.is_symlink() for path in inside)
        assert all(not path.stat().st_mode & 0o6000 for path in inside)
    assert names(tmp_path) == ["outside", "root"]
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"thesis.txt": "the only copy"}
    assert set(names(root)) <= {".pathgrow-get.lock", archive.name, BATCHES}
    assert kind != "bomb" or not (root / BATCHES).exists()


def test_zip_archives_are_unpacked(layouts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.tiny_imagenet()
    archive = Path(shutil.make_archive(str(tmp_path / "tiny-imagenet-200"), "zip", layouts.root))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(OFFICIAL, "tiny-imagenet", dataclasses.replace(OFFICIAL["tiny-imagenet"], sha256=sha256))
    download("tiny-imagenet", tmp_path, quiet)
    assert len(data.load("tiny-imagenet", tmp_path).test) == 6


def test_a_folder_with_other_content_is_not_a_copy(server: Server, tmp_path: Path) -> None:
    """Download and load give the same advice; otherwise each would refer to the other."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for ask in (lambda: download("cifar10", tmp_path, print), lambda: data.load("cifar10", tmp_path)):
        with pytest.raises(UserError, match=rf"not a copy of cifar10 \(no data_batch_1\): delete {folder}, then run"):
            ask()
    folder.rmdir()
    assert download("cifar10", tmp_path, print) == folder


@pytest.mark.item(18)
def test_concurrent_downloads_wait_for_each_other(server: Server, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=download, args=("cifar10", tmp_path, quiet)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    assert server.num_requests == 1
    assert names(tmp_path) == COMPLETE


def test_official_checksums_are_well_formed() -> None:
    for official in OFFICIAL.values():
        assert official.url.startswith("https://")
        assert len(official.sha256) == 64
        assert official.archive.endswith((".tar.gz", ".zip", ".txt"))
        assert all(len(md5) == 32 for md5 in official.md5.values())


# Commands.


def leave(*arguments: str) -> int:
    data._load_from_disk.cache_clear()
    return command.leave("data", *arguments)


def test_without_a_network_the_message_says_where_to_put_the_file(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.close()
    assert leave("get", "cifar10", "--data-root", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert server.url in said
    assert OFFICIAL["cifar10"].sha256 in said
    assert f"save it as {tmp_path / 'cifar-10-python.tar.gz'}" in said
    assert f"rerun `pathgrow data get cifar10 --data-root {tmp_path}`" in said


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["get", "imagenet"], 2, "imagenet cannot be downloaded: arrange it as DIR/train/<class>/*.JPEG"),
        (["get", "folder"], 2, "folder cannot be downloaded: arrange it as"),
        (["get", "cifar"], 2, "did you mean cifar10"),
        (["check", "cifar"], 2, "did you mean cifar10"),
        (["check", "cifar10"], 2, "pathgrow data get cifar10"),
        (["check", "folder"], 2, "requires --data-root"),
        (["get", "digits"], 0, "nothing to download"),
        (["check", "digits"], 0, "bundled"),
        (["get"], 2, "NAME"),
        (["gte", "digits"], 2, "gte"),
    ],
)
def test_commands_answer_in_one_sentence(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert leave(*arguments) == code
    said = capsys.readouterr()
    assert words in (said.err if code else said.out)
    assert said.err.count("\n") == (1 if code else 0)
    assert list(tmp_path.iterdir()) == []


def test_the_list_contains_every_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave() == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == list(data.names())
    assert leave("list") == 0
    assert capsys.readouterr().out == listed


def test_check_compares_with_the_official_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "data")
    assert leave("get", "cifar10", "--data-root", root) == 0
    assert "use it with --data cifar10 --data-root" in capsys.readouterr().out
    assert leave("check", "cifar10", "--data-root", root) == 0
    said = capsys.readouterr().out
    assert "not the official dataset: 100 training and 20 test samples instead of 50,000 and 10,000" in said
    assert "train         90 samples" in said
    assert said.count("differs from the official file") == 6

    folder = tmp_path / "data" / "cifar-10-batches-py"
    md5 = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in OFFICIAL["cifar10"].md5}
    official = dataclasses.replace(OFFICIAL["cifar10"], num_train=100, num_test=20, md5=md5)
    monkeypatch.setitem(OFFICIAL, "cifar10", official)
    assert leave("check", "cifar10", "--data-root", root) == 0
    said = capsys.readouterr().out
    assert said.startswith("cifar10: the official dataset\n")
    assert "test_batch    official" in said
    monkeypatch.setitem(OFFICIAL, "cifar10", dataclasses.replace(official, md5=md5 | {"test_batch": "0" * 32}))
    assert leave("check", "cifar10", "--data-root", root) == 0
    assert "official number of samples, but the files differ" in capsys.readouterr().out

    (folder / "test_batch").write_bytes(b"")
    assert leave("check", "cifar10", "--data-root", root) == 2
    assert "test_batch is not an official CIFAR file" in capsys.readouterr().err


def test_check_of_folders(layouts: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = layouts.by_class("cat", "dog")
    assert leave("check", "folder", "--data-root", str(root)) == 0
    assert "readable; 6 x 5 pixels, held in memory" in capsys.readouterr().out
    layouts.picture(root / "cat" / "large.png", (50, 60))
    assert leave("check", "folder", "--data-root", str(root)) == 0
    assert "files found (not decoded); streamed from disk at 5 x 5 pixels" in capsys.readouterr().out
    layouts.root = root / "below" / "imagenet"
    layouts.by_class("train/cat", "train/dog", "val/cat", "val/dog", num=30)
    assert leave("check", "imagenet", "--data-root", str(root / "below")) == 0
    assert f"directory     {layouts.root}\n" in capsys.readouterr().out


def test_check_reads_the_files_and_not_the_decoded_copy(
    layouts: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pathgrow.data.images._MIN_CACHED", 1)
    folder = layouts.tiny_imagenet()
    data.load("tiny-imagenet", layouts.root)
    victim = folder / "val" / "images" / "val_1.JPEG"
    victim.write_bytes(bytes(victim.stat().st_size))  # of the same size, so the decoded copy is still used
    data._load_from_disk.cache_clear()
    data.load("tiny-imagenet", layouts.root)
    assert leave("check", "tiny-imagenet", "--data-root", str(layouts.root)) == 2
    assert "cannot decode" in capsys.readouterr().err
