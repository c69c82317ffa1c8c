"""`pathgrow data`: archives from a server of our own, resumed, verified, unpacked; what is on disk, examined."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import http.server
import io
import multiprocessing
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pathgrow import data
from pathgrow.data import download
from pathgrow.data.official import OFFICIAL
from pathgrow.errors import RunFailed, UserError
from tests.support import command


class Server:
    """Serves one file under any name; can break off, lie, and ignore ranges."""

    def __init__(self) -> None:
        self.content = b""
        self.breaks_after: int | None = None
        self.knows_ranges = True
        self.ranges: list[str | None] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers["Range"]
                outer.ranges.append(asked)
                start = int(asked[6:-1]) if asked and outer.knows_ranges else 0
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(outer.content) - 1}/{len(outer.content)}")
                self.send_header("Content-Length", str(len(outer.content) - start))
                self.end_headers()
                body = outer.content[start:]
                self.wfile.write(body if outer.breaks_after is None else body[: outer.breaks_after])

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/cifar-10-python.tar.gz"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose archive is a tiny cifar10 and counts as the official one."""
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


THERE = [".pathgrow-get.lock", "cifar-10-batches-py", "cifar-10-python.tar.gz"]


def test_a_set_is_downloaded_verified_and_unpacked(server: Server, tmp_path: Path) -> None:
    told: list[str] = []
    download.get("cifar10", tmp_path / "new" / "data", told.append)
    assert names(tmp_path / "new" / "data") == THERE
    assert len(data.load("cifar10", tmp_path / "new" / "data").test) == 20
    assert told[0].startswith("downloading http://127.0.0.1")
    download.get("cifar10", tmp_path / "new" / "data", told.append)
    assert "is there already" in told[-1]
    assert len(server.ranges) == 1


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 100_000
    with pytest.raises(UserError, match="could not be downloaded"):
        download.get("cifar10", tmp_path, quiet)
    assert names(tmp_path) == [".cifar-10-python.tar.gz.part", ".pathgrow-get.lock"]
    server.breaks_after = None
    download.get("cifar10", tmp_path, quiet)
    assert server.ranges == [None, "bytes=100000-"]
    assert names(tmp_path) == THERE


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / ".cifar-10-python.tar.gz.part").write_bytes(b"x" * 50_000)
    download.get("cifar10", tmp_path, quiet)
    assert names(tmp_path) == THERE


def test_a_wrong_piece_is_found_out_and_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".cifar-10-python.tar.gz.part").write_bytes(b"x" * 50_000)
    with pytest.raises(UserError, match="does not have the official checksum"):
        download.get("cifar10", tmp_path, quiet)
    assert names(tmp_path) == [".pathgrow-get.lock"]
    download.get("cifar10", tmp_path, quiet)
    assert names(tmp_path) == THERE


@pytest.mark.parametrize("change", [b"more", None])
def test_other_content_is_never_unpacked(change: bytes | None, server: Server, tmp_path: Path) -> None:
    server.content = server.content + change if change else bytes(len(server.content))
    wanted = "longer than the official file" if change else "does not have the official checksum"
    with pytest.raises(UserError, match=wanted):
        download.get("cifar10", tmp_path, quiet)
    assert names(tmp_path) == [".pathgrow-get.lock"]


def test_a_set_appears_whole_or_not_at_all(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stops it before its last step, a rename, leaves no folder that looks like the set."""
    replace = os.replace

    def stopped(source: Path, target: Path) -> None:
        if Path(target).name == "cifar-10-batches-py":
            assert len(list(Path(source).iterdir())) > 5
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(RunFailed, match="No space left"):
        download.get("cifar10", tmp_path, quiet)
    assert names(tmp_path) == [".pathgrow-get.lock", "cifar-10-python.tar.gz"]


def test_an_archive_that_is_there_is_used_if_it_is_the_official_one(server: Server, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(server.content[:-1])
    with pytest.raises(UserError, match=r"it was not unpacked; delete it and get http"):
        download.get("cifar10", tmp_path, quiet)
    assert not (tmp_path / "cifar-10-batches-py").exists()
    archive.write_bytes(server.content)
    (tmp_path / ".pathgrow-unpacking-killed").mkdir()
    download.get("cifar10", tmp_path, quiet)
    assert server.ranges == []
    assert names(tmp_path) == THERE


def test_a_folder_that_holds_something_else_is_no_set(server: Server, tmp_path: Path) -> None:
    """Get and check say the same: each would otherwise send people to the other."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for ask in (lambda: download.get("cifar10", tmp_path, print), lambda: data.load("cifar10", tmp_path)):
        with pytest.raises(UserError, match=f"no data_batch_1, so it is no copy of cifar10: delete {folder} and get"):
            ask()
    folder.rmdir()
    assert download.get("cifar10", tmp_path, print) == folder


def test_processes_that_want_the_same_set_take_turns(server: Server, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=download.get, args=("cifar10", tmp_path, quiet)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    assert server.ranges == [None]
    assert names(tmp_path) == THERE


def test_official_pins() -> None:
    for official in OFFICIAL.values():
        assert official.url.startswith("https://")
        assert len(official.sha256) == 64
        assert official.archive.endswith((".tar.gz", ".zip"))
        assert all(len(md5) == 32 for md5 in official.md5.values())


# The commands.


def leave(*arguments: str) -> int:
    data._from_disk.cache_clear()
    return command.leave("data", *arguments)


def test_without_a_network_it_says_what_to_put_where(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.close()
    assert leave("get", "cifar10", "--data-root", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert server.url in said
    assert OFFICIAL["cifar10"].sha256 in said
    assert f"put it at {tmp_path / 'cifar-10-python.tar.gz'}" in said
    assert f"`pathgrow data get cifar10 --data-root {tmp_path}` again" in said


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["get", "imagenet"], 2, "imagenet cannot be downloaded: lay it out as DIR/train/<class>/*.JPEG"),
        (["get", "folder"], 2, "folder cannot be downloaded: lay it out as"),
        (["get", "cifar"], 2, "did you mean cifar10"),
        (["check", "cifar"], 2, "did you mean cifar10"),
        (["check", "cifar10"], 2, "pathgrow data get cifar10"),
        (["check", "folder"], 2, "name it with --data-root"),
        (["get", "digits"], 0, "come with the installation"),
        (["check", "digits"], 0, "embedded in the installation"),
        (["get"], 2, "NAME"),
        (["gte", "digits"], 2, "gte"),
    ],
)
def test_commands_answer_in_a_sentence(
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


def test_the_list_names_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave() == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == list(data.names())
    assert leave("list") == 0
    assert capsys.readouterr().out == listed


def test_check_tells_official_from_other_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "data")
    assert leave("get", "cifar10", "--data-root", root) == 0
    assert "use it with: --data cifar10 --data-root" in capsys.readouterr().out
    assert leave("check", "cifar10", "--data-root", root) == 0
    said = capsys.readouterr().out
    assert "not the official set: 100 training and 20 test images instead of 50,000 and 10,000" in said
    assert "train         90 images" in said
    assert said.count("other bytes than the official file") == 6

    folder = tmp_path / "data" / "cifar-10-batches-py"
    md5 = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in OFFICIAL["cifar10"].md5}
    official = dataclasses.replace(OFFICIAL["cifar10"], num_train=100, num_test=20, md5=md5)
    monkeypatch.setitem(OFFICIAL, "cifar10", official)
    assert leave("check", "cifar10", "--data-root", root) == 0
    said = capsys.readouterr().out
    assert said.startswith("cifar10: the official set\n")
    assert "file test_batch: official" in said
    monkeypatch.setitem(OFFICIAL, "cifar10", dataclasses.replace(official, md5=md5 | {"test_batch": "0" * 32}))
    assert leave("check", "cifar10", "--data-root", root) == 0
    assert "official counts, but other bytes" in capsys.readouterr().out

    (folder / "test_batch").write_bytes(b"")
    assert leave("check", "cifar10", "--data-root", root) == 2
    assert "test_batch is damaged" in capsys.readouterr().err


def test_check_of_folders(layouts: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = layouts.by_class("cat", "dog")
    assert leave("check", "folder", "--data-root", str(root)) == 0
    assert "reads well; images of 6 x 5 pixels, held in memory" in capsys.readouterr().out
    layouts.picture(root / "cat" / "large.png", (50, 60))
    assert leave("check", "folder", "--data-root", str(root)) == 0
    assert "were not decoded; images are streamed from them at 5 x 5 pixels" in capsys.readouterr().out
    layouts.root = root / "below" / "imagenet"
    layouts.by_class("train/cat", "train/dog", "val/cat", "val/dog", num=30)
    assert leave("check", "imagenet", "--data-root", str(root / "below")) == 0
    assert f"folder        {layouts.root}\n" in capsys.readouterr().out


def test_check_reads_the_files_and_not_the_decoded_copy(
    layouts: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pathgrow.data.decoded.MIN_IMAGES", 1)
    folder = layouts.tiny_imagenet()
    data.load("tiny-imagenet", layouts.root)
    victim = folder / "val" / "images" / "val_1.JPEG"
    victim.write_bytes(bytes(victim.stat().st_size))  # the same size: the copy still counts as that of this folder
    data._from_disk.cache_clear()
    data.load("tiny-imagenet", layouts.root)
    assert leave("check", "tiny-imagenet", "--data-root", str(layouts.root)) == 2
    assert "val_1.JPEG cannot be read as an image" in capsys.readouterr().err
