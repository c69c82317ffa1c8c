"""One process at a time in a folder, and nothing left of a run that was refused."""

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from torch import nn, optim, zeros

from pathgrow import discover
from pathgrow.checkpoint import RunDir
from pathgrow.checkpoint.lock import Lock
from pathgrow.errors import UserError
from tests.support.command import leave

CONFIG = {"seed": 0}


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def broken_off(place: Path, error: Exception, meanwhile: Callable[[RunDir], object] = id) -> None:
    """Begin a run, do something in its folder, and end it by an error."""
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(type(error)))
        meanwhile(stack.enter_context(RunDir.open(place, CONFIG)))
        raise error


def refused(place: Path, meanwhile: Callable[[RunDir], object] = id) -> None:
    broken_off(place, UserError("bad input"), meanwhile)


def test_a_refused_run_takes_along_the_folders_that_were_made_for_it(tmp_path):
    refused(tmp_path / "runs" / "digits" / "first")
    assert left_in(tmp_path) == []


def test_a_refused_run_leaves_what_the_user_had_made(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".note").write_text("to be kept")
    refused(mine)
    assert left_in(tmp_path) == ["mine", "mine/.note"]
    refused(mine / "below")
    assert left_in(tmp_path) == ["mine", "mine/.note"]


def test_a_lock_that_was_there_before_stays(tmp_path):
    (tmp_path / ".lock").touch()
    refused(tmp_path)
    assert left_in(tmp_path) == [".lock"]


def test_what_others_put_into_the_folder_meanwhile_stays(tmp_path):
    refused(tmp_path / "run", lambda folder: (folder.path / "notes.txt").write_text("mine"))
    assert left_in(tmp_path) == ["run", "run/notes.txt"]


def test_a_run_that_failed_otherwise_can_go_on(tmp_path):
    broken_off(tmp_path / "run", RuntimeError("no memory"), lambda folder: folder.save("plan", {"epochs": 3}))
    assert RunDir(tmp_path / "run").metadata("plan") == {"epochs": 3}


def test_the_folder_of_another_config_gets_no_lock_from_a_refusal(tmp_path):
    """As in a copy that was made without hidden files."""
    RunDir.open(tmp_path, CONFIG).close()
    (tmp_path / ".lock").unlink()
    before = left_in(tmp_path)
    with pytest.raises(UserError, match="another config"):
        RunDir.open(tmp_path, {"seed": 1})
    assert left_in(tmp_path) == before


def test_who_waited_for_a_removed_lock_begins_again(tmp_path, monkeypatch):
    """The waiting process has the old file open: a third one could lock a new file of its name."""
    fcntl = pytest.importorskip("fcntl")
    place = tmp_path / "run"
    first = Lock(place)
    flock = fcntl.flock

    def meanwhile(descriptor: int, operation: int) -> None:
        first.undo()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    second = Lock(place)
    monkeypatch.undo()
    assert left_in(tmp_path) == ["run", "run/.lock"]
    with pytest.raises(UserError, match="in use"):
        Lock(place)
    second.undo()
    assert left_in(tmp_path) == []


def test_a_folder_that_vanishes_before_its_lock_is_opened_is_made_again(tmp_path, monkeypatch):
    place = tmp_path / "above" / "run"
    first = Lock(place)
    open_file = os.open

    def meanwhile(*args: object) -> int:
        first.undo()
        return open_file(*args)

    monkeypatch.setattr(os, "open", meanwhile)
    second = Lock(place)
    monkeypatch.undo()
    assert left_in(tmp_path) == ["above", "above/run", "above/run/.lock"]
    second.undo()
    assert left_in(tmp_path) == []


def test_many_who_come_and_go_are_never_two_at_a_time(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    monkeypatch.setattr("pathgrow.checkpoint.lock.time.sleep", lambda seconds: None)
    places = [tmp_path / str(number) / "run" for number in range(40)]
    inside: list[int] = []
    crowds: list[list[int]] = []
    taken: set[Path] = set()
    together = threading.Barrier(6)

    def come_and_go(me: int) -> None:
        for place in places:
            together.wait()
            for _ in range(4):
                with suppress(UserError):  # in use
                    lock = Lock(place)
                    inside.append(me)
                    if len(inside) > 1:
                        crowds.append(list(inside))
                    inside.remove(me)
                    taken.add(place)
                    lock.undo()

    threads = [threading.Thread(target=come_and_go, args=(me,)) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crowds == []
    assert taken == set(places)


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="cannot write in"):
        RunDir.open(tmp_path / "link", CONFIG)
    assert left_in(tmp_path) == ["link"]


@pytest.mark.parametrize(
    "line",
    [
        # rewinds past its end
        "train --method imp --method-option rewind_step=9999 --density 0.8 --epochs 1 -q --model-option widths=8,8",
        "discover --model-option widths=8,8 --start-density 1e-9 --budget 2 --quiet",  # less than one path
    ],
)
def test_a_refused_command_leaves_nothing(tmp_path, line, capsys):
    assert leave(*line.split(), "--out", str(tmp_path / "runs" / "first")) == 2
    assert "pathgrow" in capsys.readouterr().err
    assert left_in(tmp_path) == []


def test_a_refused_call_leaves_nothing(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def untouched(*args: object) -> float:
        raise AssertionError("refused before anything is trained")

    with pytest.raises(UserError, match="could not be run on example_input"):
        discover(model, optimizer, untouched, untouched, zeros(1, 3), store=tmp_path / "run")
    assert left_in(tmp_path) == []
