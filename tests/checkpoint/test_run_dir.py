"""Run directories: locking, configs, environments, and the files that a run writes."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import filelock
import pytest
import safetensors.torch
import torch
from torch import nn, optim

from pathgrow import discover
from pathgrow.checkpoint import RunDir, run_dir, stage_files, strict_json
from pathgrow.checkpoint.manifest import MANIFEST, read_manifest
from pathgrow.checkpoint.run_dir import EnvironmentChangedWarning
from pathgrow.checkpoint.stage_files import DamagedStageWarning
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from tests.support.catalogue import Trials
from tests.support.command import leave, unprivileged
from tests.support.hostile import traversals

CONFIG = {"seed": 0, "delta": 0.01, "model": {"name": "mlp", "widths": [64, 10]}}


@pytest.fixture
def folder(tmp_path):
    with RunDir.open(tmp_path / "run", CONFIG) as opened:
        yield opened


@pytest.fixture
def command_dir(tmp_path):
    with RunDir.open(tmp_path / "run", {**CONFIG, "data": "digits"}) as opened:
        yield opened


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def interrupted(place: Path, error: Exception, meanwhile: Callable[[RunDir], object] = id) -> None:
    """Start a run, do something in its directory, and end it with an error."""
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(type(error)))
        meanwhile(stack.enter_context(RunDir.open(place, CONFIG)))
        raise error


def refused(place: Path, meanwhile: Callable[[RunDir], object] = id) -> None:
    interrupted(place, UserError("bad input"), meanwhile)


# Config and environment


def test_config_and_environment_are_written_before_the_first_stage(folder):
    assert json.loads((folder.path / "config.json").read_text()) == CONFIG
    environment = json.loads((folder.path / "env.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["torch_threads"] == torch.get_num_threads()
    assert folder.config == CONFIG
    assert not folder.finished


def test_the_same_config_opens_again_whatever_the_order_of_keys(folder):
    folder.stages.save("seed", {"score": 1})
    folder.close()
    same = {"model": {"widths": (64, 10), "name": "mlp"}, "delta": 0.01, "seed": 0}
    with RunDir.open(folder.path, same) as again:
        assert again.stages.load("seed").metadata == {"score": 1}


def test_another_config_is_refused_with_the_keys_that_differ(folder):
    folder.close()
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    other = {"seed": True, "delta": 0.02, "model": {"name": "mlp", "widths": [64, 9], "bias": False}}
    with pytest.raises(UserError) as error:
        RunDir.open(folder.path, other)
    message = str(error.value)
    assert "seed was 0, now true; delta was 0.01, now 0.02; model.widths was [64, 10], now [64, 9]; and 1 " in message
    assert "--out" in message
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    RunDir.open(folder.path, CONFIG).close()


@pytest.mark.parametrize(("before", "now"), [(1, True), (0, False), (1, 1.0), (2.0, 2)])
def test_values_that_python_compares_equal_are_different_configs(tmp_path, before, now):
    RunDir.open(tmp_path, {"x": before}).close()
    with pytest.raises(UserError, match=f"x was {json.dumps(before)}, now {json.dumps(now)}"):
        RunDir.open(tmp_path, {"x": now})


def test_a_config_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is not JSON"):
        RunDir.open(tmp_path, CONFIG)
    with pytest.raises(UserError, match=r"config\.scope is a set"):
        RunDir.open(tmp_path / "run", {"scope": {1}})


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_the_advice_about_a_damaged_config_works(folder, content):
    folder.stages.save("seed", {"score": 0.5})
    folder.close()
    (folder.path / "config.json").write_text(content)
    with pytest.raises(UserError, match="delete the whole directory to start over"):
        RunDir.open(folder.path, CONFIG)
    shutil.rmtree(folder.path)
    with RunDir.open(folder.path, CONFIG) as again:
        assert again.stages.names() == []


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_the_advice_about_a_damaged_report_works(folder, content):
    folder.stages.save("seed", {"score": 0.5})
    (folder.path / "report.json").write_text(content)
    with pytest.raises(UserError, match="delete it and rerun the command of this run"):
        folder.report()
    folder.close()
    (folder.path / "report.json").unlink()
    with RunDir.open(folder.path, CONFIG) as again:
        assert not again.finished
        assert again.stages.load("seed").metadata == {"score": 0.5}


def test_a_changed_environment_is_reported_and_the_first_one_kept(folder):
    folder.close()
    path = folder.path / "env.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps({**environment, "torch": "1.0"}))
    with pytest.warns(EnvironmentChangedWarning, match=r"torch 1\.0 -> "):
        RunDir.open(folder.path, CONFIG).close()
    assert json.loads(path.read_text())["torch"] == "1.0"


def test_everything_that_bits_depend_on_is_compared(folder):
    path = folder.path / "env.json"
    now = json.loads(path.read_text())
    folder.close()
    reported = set()
    for key in now:
        path.write_text(json.dumps({**now, key: "another"}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            RunDir.open(folder.path, CONFIG).close()
        reported |= {key} if any(f"({key} another -> " in str(warning.message) for warning in caught) else set()
    assert reported == {"python", "torch", "numpy", "machine", "torch_threads", "device", "device_name"}


def test_unrelated_files_and_directories_are_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        RunDir.open(file, CONFIG)
    with pytest.raises(UserError, match="cannot write to"):
        RunDir.open(file / "below", CONFIG)
    with pytest.raises(UserError, match=r"holds 'file' but no config\.json"):
        RunDir.open(tmp_path, CONFIG)
    assert file.read_text() == "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_unwritable_directory_is_refused(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # tests may run as root, who may write everywhere
    with pytest.raises(UserError, match="Permission denied"):
        RunDir.open(tmp_path / "run", CONFIG)


def test_a_directory_killed_before_its_config_was_written_opens(tmp_path):
    (tmp_path / ".lock").write_text("4711\n")
    (tmp_path / ".config.json.01234567.tmp").write_text('{"se')
    (tmp_path / ".notes.tmp").write_text("mine")
    with RunDir.open(tmp_path, CONFIG) as folder:
        assert folder.config == CONFIG
    assert left_in(tmp_path) == [".lock", ".notes.tmp", "config.json", "env.json"], "other files stay"


def test_the_time_of_a_run_adds_up_over_its_processes(tmp_path, monkeypatch):
    """For a killed process, the last stored stage counts."""
    now = 1000.0
    monkeypatch.setattr("pathgrow.checkpoint.run_dir.time", types.SimpleNamespace(monotonic=lambda: now))
    first = RunDir.open(tmp_path, CONFIG)
    now += 10
    first.stages.save("seed", {"score": 0.5}, {"x": torch.zeros(2)})
    now += 5
    first.stages.save("partial-round_001-0", {"step": 7})
    now += 3  # lost by a kill
    assert first.seconds == 18
    first.close()
    assert RunDir(tmp_path).seconds == 15
    now += 5000
    with RunDir.open(tmp_path, CONFIG) as second:
        now += 2
        second.stages.delete_tensors("seed")
        assert second.seconds == 17
        now += 4
    now += 50
    assert second.seconds == RunDir(tmp_path).seconds == 15, "deleting tensors does not finish a stage"
    assert second.stages.load("seed").metadata == {"score": 0.5}
    (tmp_path / "stages" / "seed.json").write_text("{}")
    assert RunDir(tmp_path).seconds == 15, "a damaged stage says nothing"


# Refused runs leave nothing


def test_a_refused_run_makes_way_for_another(folder):
    folder.stages.save("plan", {"epochs": 3})
    folder.discard_if_unused()
    folder.close()
    with RunDir.open(folder.path, {"seed": 1}) as again:
        assert again.stages.load("plan") is None
        assert again.config == {"seed": 1}


def test_a_run_that_has_trained_is_not_discarded(folder):
    folder.stages.save("seed", {"score": 1}, {"x": torch.zeros(2)})
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    folder.discard_if_unused()
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    folder.close()
    with RunDir.open(folder.path, CONFIG) as again:
        again.discard_if_unused()
        assert again.stages.load("seed").metadata == {"score": 1}


def test_the_work_of_an_earlier_process_is_not_discarded(folder):
    folder.stages.save("plan", {"epochs": 3})
    folder.close()
    with RunDir.open(folder.path, CONFIG) as again:
        again.discard_if_unused()
        assert again.stages.load("plan").metadata == {"epochs": 3}


def test_a_refused_run_removes_the_directories_it_created(tmp_path):
    refused(tmp_path / "runs" / "digits" / "first")
    assert left_in(tmp_path) == []


def test_a_refused_run_leaves_existing_files(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".note").write_text("to be kept")
    refused(mine)
    assert left_in(tmp_path) == ["mine", "mine/.note"]
    refused(mine / "below")
    assert left_in(tmp_path) == ["mine", "mine/.note"]


def test_an_existing_lock_file_stays(tmp_path):
    (tmp_path / ".lock").touch()
    refused(tmp_path)
    assert left_in(tmp_path) == [".lock"]


def test_files_that_others_added_meanwhile_stay(tmp_path):
    refused(tmp_path / "run", lambda folder: (folder.path / "notes.txt").write_text("mine"))
    assert left_in(tmp_path) == ["run", "run/notes.txt"]


def test_a_run_that_failed_otherwise_can_resume(tmp_path):
    interrupted(tmp_path / "run", RuntimeError("no memory"), lambda folder: folder.stages.save("plan", {"epochs": 3}))
    assert RunDir(tmp_path / "run").stages.metadata("plan") == {"epochs": 3}


def test_refusing_another_config_leaves_no_lock_file(tmp_path):
    """The lock file may be missing, e.g. in a copy without hidden files."""
    RunDir.open(tmp_path, CONFIG).close()
    (tmp_path / ".lock").unlink()
    before = left_in(tmp_path)
    with pytest.raises(UserError, match="another config"):
        RunDir.open(tmp_path, {"seed": 1})
    assert left_in(tmp_path) == before


def test_a_directory_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="cannot write to"):
        RunDir.open(tmp_path / "link", CONFIG)
    assert left_in(tmp_path) == ["link"]


@pytest.mark.parametrize(
    "line",
    [
        # rewinds beyond the end
        "train --method imp --method-option rewind_step=9999 --density 0.8 --epochs 1 -q --model-option widths=8,8",
        "discover --finish static --model-option widths=8,8 --start-density 1e-9 --budget 2 -q",  # less than one path
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
        discover(model, optimizer, untouched, untouched, torch.zeros(1, 3), store=tmp_path / "run")
    assert left_in(tmp_path) == []


# Locking


def test_a_second_opening_is_refused_and_names_the_process(folder):
    with pytest.raises(UserError, match=f"in use by another process \\(pid {os.getpid()}\\)"):
        RunDir.open(folder.path, CONFIG)
    assert RunDir(folder.path).worker == f"another process (pid {os.getpid()})"
    folder.close()
    assert RunDir(folder.path).worker is None
    RunDir.open(folder.path, CONFIG).close()


def test_a_reader_does_not_keep_a_run_from_opening(folder, monkeypatch):
    """A reader takes the lock for an instant to find out whether another process holds it."""
    folder.close()
    reader = filelock.FileLock(folder.path / ".lock", thread_local=False)
    reader.acquire()
    monkeypatch.setattr(run_dir, "_LOCK_SECONDS", 5.0)
    timer = threading.Timer(0.1, reader.release)
    timer.start()
    with RunDir.open(folder.path, CONFIG):
        assert RunDir(folder.path).worker is not None
    timer.join()


@pytest.mark.item(17)
def test_a_killed_process_leaves_no_stale_lock(tmp_path):
    code = f"""
import filelock, time
lock = filelock.FileLock({str(tmp_path / ".lock")!r})
lock.acquire()
print("locked", flush=True)
time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    holder.stdout.readline()
    with pytest.raises(UserError, match="in use by another process"):
        RunDir.open(tmp_path, CONFIG)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    RunDir.open(tmp_path, CONFIG).close()


def test_a_forked_worker_does_not_keep_the_lock(folder):
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        folder.close()  # as if the parent had been killed while the child lives
        RunDir.open(folder.path, CONFIG).close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def locked(path: Path) -> RunDir:
    run = RunDir(path)
    run._acquire()
    return run


def refuse(run: RunDir) -> None:
    """As `RunDir.open` ends when the run cannot start."""
    run._remove_created()
    run.close()


def test_a_lock_file_removed_while_waiting_is_created_again(tmp_path, monkeypatch):
    """The waiting process has the old file open, so a third could lock a new file of the same name."""
    fcntl = pytest.importorskip("fcntl")
    first = locked(tmp_path / "run")
    flock = fcntl.flock

    def meanwhile(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        refuse(first)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    second = locked(tmp_path / "run")
    assert left_in(tmp_path) == ["run", "run/.lock"]
    with pytest.raises(UserError, match="in use"):
        locked(tmp_path / "run")
    second.close()


def test_a_directory_removed_before_its_lock_is_opened_is_created_again(tmp_path, monkeypatch):
    first = locked(tmp_path / "above" / "run")
    open_file = os.open

    def meanwhile(*args: object) -> int:
        monkeypatch.setattr(os, "open", open_file)
        refuse(first)
        return open_file(*args)

    monkeypatch.setattr(os, "open", meanwhile)
    second = locked(tmp_path / "above" / "run")
    assert left_in(tmp_path) == ["above", "above/run", "above/run/.lock"]
    refuse(second)
    assert left_in(tmp_path) == []


def test_no_two_of_many_processes_hold_the_lock_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "_LOCK_SECONDS", 0.0)
    paths = [tmp_path / str(number) / "run" for number in range(40)]
    inside: list[int] = []
    crowds: list[list[int]] = []
    taken: set[Path] = set()
    together = threading.Barrier(6)

    def come_and_go(me: int) -> None:
        for path in paths:
            together.wait()
            for _ in range(4):
                with suppress(UserError):  # in use
                    run = locked(path)
                    inside.append(me)
                    if len(inside) > 1:
                        crowds.append(list(inside))
                    inside.remove(me)
                    taken.add(path)
                    refuse(run)

    threads = [threading.Thread(target=come_and_go, args=(me,)) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crowds == []
    assert taken == set(paths)


# Metrics, report, curve


def test_metrics_of_unfinished_stages_and_torn_lines_are_dropped_on_opening(folder):
    folder.log("seed", epoch=1, loss=0.5, time={"seconds": 1.0})
    folder.stages.save("seed", {})
    folder.log("round_001", epoch=1, loss=math.nan)
    folder.close()
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "seed", "epo')
    assert folder.metrics[1] == {"stage": "round_001", "epoch": 1, "loss": None}
    with RunDir.open(folder.path, CONFIG) as again:
        assert again.metrics == [{"stage": "seed", "epoch": 1, "loss": 0.5, "time": {"seconds": 1.0}}]


def test_complete_metrics_are_not_rewritten(folder):
    folder.log("seed", loss=0.1)
    folder.stages.save("seed", {})
    folder.close()
    before = (folder.path / "metrics.jsonl").stat().st_ino
    RunDir.open(folder.path, CONFIG).close()
    assert (folder.path / "metrics.jsonl").stat().st_ino == before


def test_a_report_is_strict_json_and_means_finished(folder):
    folder.write_report({"score": math.nan, "interval": (0.1, 0.2)})
    assert folder.finished
    assert folder.report() == {"score": None, "interval": [0.1, 0.2]}
    assert strict_json.loads((folder.path / "report.json").read_bytes())


@pytest.mark.parametrize("number", ["NaN", "1e999", "-1e999"])
def test_a_damaged_report_is_refused(folder, number):
    (folder.path / "report.json").write_text(f'{{"score": {number}}}')
    with pytest.raises(UserError, match=r"report\.json is not JSON"):
        folder.report()


def test_a_curve_has_a_column_for_every_key(folder):
    folder.write_curve([{"round": 0, "density": 0.1 + 0.2}, {"round": 1, "density": 0.5, "loss": None}])
    assert (folder.path / "curve.csv").read_text() == "round,density,loss\n0,0.30000000000000004,\n1,0.5,\n"


# Finished runs are only read


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


@pytest.fixture
def finished(tmp_path):
    with RunDir.open(tmp_path / "run", CONFIG) as folder:
        folder.stages.save("final", {"score": 0.5}, {"x": torch.zeros(2)})
        folder.write_report({"score": 0.5})
    return folder.path


def test_a_finished_run_is_not_changed_by_opening_it(finished):
    (finished / ".lock").unlink()
    before = stamps(finished)
    with RunDir.open(finished, CONFIG) as again:
        assert again.finished
        assert again.stages.load("final").metadata == {"score": 0.5}
        again.stages.delete_tensors("seed")
    assert stamps(finished) == before
    with pytest.raises(UserError, match="another config"):
        RunDir.open(finished, {"seed": 1})
    assert stamps(finished) == before


@pytest.mark.skipif(sys.platform == "win32", reason="permissions")
@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_finished_run_opens_in_a_read_only_directory(finished, has_manifest):
    if not has_manifest:
        (finished / MANIFEST).unlink()
    finished.chmod(0o555)
    before = stamps(finished)
    with unprivileged(finished.parent):
        with RunDir.open(finished, CONFIG) as again:
            assert again.report() == {"score": 0.5}
            assert again.stages.load("final").metadata == {"score": 0.5}
        assert RunDir(finished).worker is None
    finished.chmod(0o755)
    assert stamps(finished) == before


def test_a_lost_stage_of_a_finished_run_is_stored_again_under_the_lock(finished):
    (finished / "stages" / "final.safetensors").write_bytes(b"damaged")
    with RunDir.open(finished, CONFIG) as again:
        assert not again.is_owner
        with pytest.warns(DamagedStageWarning, match="moved aside"):
            assert again.stages.load("final") is None
        assert again.is_owner
        with pytest.raises(UserError, match="in use"):
            RunDir.open(finished, CONFIG).stages.save("final", {"score": 0.5})
        again.stages.save("final", {"score": 0.5}, {"x": torch.zeros(2)})
    assert RunDir(finished).damage() == {}, "with a new manifest"


def test_a_manifest_is_dropped_with_its_report_and_written_again(finished):
    (finished / "report.json").unlink()
    with RunDir.open(finished, CONFIG) as again:
        assert not (finished / MANIFEST).exists()
        again.write_report({"score": 0.6})
    assert again.damage() == {}


def test_a_run_killed_before_its_manifest_gets_it_later(finished):
    (finished / MANIFEST).unlink()
    assert RunDir(finished).damage() == {MANIFEST: "is missing, so files cannot be verified"}
    RunDir.open(finished, CONFIG).__exit__(None, None, None)
    assert RunDir(finished).damage() == {}


def test_a_manifest_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    folder = RunDir.open(tmp_path, CONFIG)
    folder.write_report({})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="manifest could not be written: .*No space left"):
        folder.__exit__(None, None, None)


# Directories that somebody else made

OUTSIDE = "the only copy"
posix = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")


@pytest.fixture
def outside(tmp_path):
    """Files outside the run directory, which must not change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("thesis.txt", "seed.safetensors", "seed.json", ".x.01234567.tmp"):
        (folder / name).write_text(OUTSIDE)
    yield folder
    assert sorted(path.name for path in folder.iterdir()) == [
        ".x.01234567.tmp",
        "seed.json",
        "seed.safetensors",
        "thesis.txt",
    ]
    assert {path.read_text() for path in folder.iterdir()} == {OUTSIDE}


NAMES = [".lock", "metrics.jsonl", "config.json", "env.json", "curve.csv", "network.safetensors", "report.html"]


def run_everything(path: Path) -> None:
    with RunDir.open(path, CONFIG) as run:
        run.log("seed", loss=1.0)
        run.stages.save("seed", {"score": 1}, {"x": torch.zeros(2)})
        run.save_masks(0, Masks({"0.weight": torch.tensor([[True, False]])}))
        run.write_curve([{"score": 1}])
        run.write_report({})


@posix
@pytest.mark.item(25)
@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
@pytest.mark.parametrize("name", [*NAMES, "stages/seed.json", "stages/seed.safetensors", "masks/round_000.safetensors"])
def test_links_and_pipes_are_refused(folder, outside, name, kind, is_finished):
    folder.stages.save("seed", {"score": 1}, {"x": torch.zeros(2)})
    folder.save_masks(0, Masks({"0.weight": torch.tensor([[True, False]])}))
    folder.close()
    if is_finished:
        (folder.path / "report.json").write_text("{}")
    place = folder.path / name
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(outside / ("thesis.txt" if kind == "link" else "new.txt"))
    if is_finished and name != "config.json":
        run = RunDir.open(folder.path, CONFIG)
        assert run.report() == {}
        assert not run.is_owner
        run.close()
    else:
        with pytest.raises(UserError, match="a symbolic link" if "link" in kind else "not a regular file"):
            run_everything(folder.path)
    reader = RunDir(folder.path)
    assert reader.worker is None
    with suppress(UserError):
        assert reader.stages.metadata("seed") in ({"score": 1}, None)
        reader.metrics  # noqa: B018
    assert reader.damage()


@posix
@pytest.mark.item(25)
@pytest.mark.parametrize("name", ["stages", "masks"])
def test_a_folder_that_leads_outside_is_refused(folder, outside, name):
    folder.stages.save("seed", {"score": 1})
    folder.close()
    shutil.rmtree(folder.path / name, ignore_errors=True)
    (folder.path / name).symlink_to(outside)
    with pytest.raises(UserError, match=f"{name} is a symbolic link"):
        run_everything(folder.path)
    if name == "stages":
        with pytest.raises(UserError, match="is a symbolic link"):
            RunDir(folder.path).stages.load("seed")


@posix
@pytest.mark.parametrize("name", ["stages", "masks"])
def test_a_folder_replaced_by_a_link_during_a_run_ends_it(folder, outside, name):
    (folder.path / name).symlink_to(outside)
    masks = Masks({"0.weight": torch.tensor([[True, False]])})
    write = {"stages": lambda: folder.stages.save("seed", {}, {**masks}), "masks": lambda: folder.save_masks(0, masks)}
    with pytest.raises((UserError, RunFailed), match="is a symbolic link"):
        write[name]()


@posix
@pytest.mark.item(25)
@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_a_second_hard_link_keeps_its_content(folder, outside, name):
    folder.log("seed", loss=1.0)
    folder.stages.save("seed", {"score": 1})
    folder.close()
    place = folder.path / name
    if name == ".lock":
        place.unlink()
        os.link(outside / "thesis.txt", place)
    else:
        os.link(place, folder.path.parent / "backup")
    run_everything(folder.path)
    if name == "metrics.jsonl":
        assert (folder.path.parent / "backup").read_text().count("\n") == 1
        assert len(RunDir(folder.path).metrics) == 2


@posix
@pytest.mark.item(25)
def test_names_that_lead_outside_are_refused(folder, outside, trials: Trials):
    """As the name of a stage, of a tensor file with its own valid hash, and of a file in the manifest."""
    target = outside / "thesis.txt"
    folder.stages.save("seed", {"score": 1}, {"x": torch.zeros(2)})
    path = folder.path / "stages" / "seed.json"
    whole = {file: file.read_bytes() for file in path.parent.iterdir()}
    record = json.loads(path.read_text())
    del record["sha256"]
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    for name in traversals(f"{outside.name}/{target.name}"):
        with trials.one(f"stage {name!r}"):
            for use in (folder.stages.load, folder.stages.delete_tensors, lambda name: folder.stages.save(name, {})):
                with pytest.raises(UserError, match="a stage name must"):
                    use(name)
        with trials.one(f"tensors {name!r}"):
            changed = {**record, "tensors": {"file": name, "sha256": digest}}
            path.write_text(json.dumps({**changed, "sha256": stage_files._digest(changed)}))
            with pytest.warns(DamagedStageWarning, match=r"tensors\.file must be 'seed\.safetensors'"):
                assert folder.stages.load("seed") is None
            for file, content in whole.items():
                file.write_bytes(content)
        with trials.one(f"manifest {name!r}"):
            (folder.path / MANIFEST).write_text(f"{digest}  {name}\n")
            with pytest.raises(UserError, match="is damaged"):
                read_manifest(folder.path)
            (folder.path / MANIFEST).unlink()


@pytest.mark.parametrize("removed", ["", "stages"])
def test_a_directory_removed_during_a_run_ends_it_or_is_created_again(folder, removed):
    folder.stages.save("seed", {"score": 1}, {"x": torch.zeros(2)})
    shutil.rmtree(folder.path / removed)
    if removed:
        folder.stages.save("final", {"score": 1})
        assert folder.stages.names() == ["final"]
        return
    for write in (
        lambda: folder.stages.save("final", {"score": 1}),
        lambda: folder.log("final", loss=1.0),
        lambda: folder.write_report({}),
        lambda: folder.save_masks(0, Masks({"0.weight": torch.tensor([[True]])})),
    ):
        with pytest.raises(RunFailed, match="directory was removed or renamed"):
            write()
    assert not folder.path.exists()


@pytest.mark.parametrize("name", ["config.json", "env.json", "report.json"])
def test_deeply_nested_json_is_one_sentence(finished, name):
    (finished / name).write_text('{"a":' * 5000 + "1" + "}" * 5000)
    run = RunDir(finished)
    read = {"config.json": lambda: run.config, "env.json": lambda: run.environment, "report.json": run.report}[name]
    with pytest.raises(UserError, match=f"{name} is not JSON \\(nested more than 64 levels deep\\)"):
        read()


@posix
def test_files_of_another_user_are_one_sentence(finished):
    (finished / "report.json").unlink()
    (finished / "metrics.jsonl").write_text("{}")
    for name in ("metrics.jsonl", "stages/final.json"):
        (finished / name).chmod(0)
    with unprivileged(finished.parent):
        with pytest.raises(UserError, match=r"cannot read .*metrics\.jsonl \(Permission denied\)"):
            _ = RunDir(finished).metrics
        with pytest.raises(UserError, match=r"cannot read .*final\.json \(Permission denied\)"):
            RunDir(finished).stages.load("final")
    finished.chmod(0)
    with unprivileged(finished.parent):
        for look in (lambda run: run.finished, lambda run: run.config):
            with pytest.raises(UserError, match=r"cannot read .* \(Permission denied\)"):
                look(RunDir(finished))
        with pytest.raises(UserError, match="Permission denied"):
            RunDir.open(finished, CONFIG)
    finished.chmod(0o755)


# The returned model


def model(width=4, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def masks_of(net):
    masks = Masks.full(net)
    masks["0.weight"][0, 0] = False
    return masks


def test_weights_masks_and_buffers_load_back(folder):
    net = model()
    net[1].running_mean.fill_(3)
    folder.save_network(net, masks_of(net))
    other = model(seed=1)
    other.load_state_dict(safetensors.torch.load_file(folder.path / "network.safetensors"))
    assert Masks.load(folder.path / "network_masks.safetensors") == masks_of(net)
    for name, tensor in net.state_dict().items():
        assert tensor.equal(other.state_dict()[name])


def test_equal_networks_have_equal_hashes(folder):
    first = folder.save_network(model(), masks_of(model()))
    assert first == folder.save_network(model(), masks_of(model()))
    assert first != folder.save_network(model(seed=1), masks_of(model()))


def test_masks_of_a_round_are_written_atomically(folder, monkeypatch):
    net = model()
    path = folder.save_masks(4, masks_of(net))
    assert path == folder.path / "masks" / "round_004.safetensors"
    assert Masks.load(path) == masks_of(net)

    def killed(_path):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.save_masks(5, masks_of(net))
    assert not (folder.path / "masks" / "round_005.safetensors").exists()
