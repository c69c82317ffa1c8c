"""A run killed at any point leaves a store that loads: the old stage or the new one, never half of either."""

import contextlib
import errno
import os
import stat
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathgrow import atomic as atomic_module
from pathgrow.checkpoint import MemoryStore, RunDir
from pathgrow.errors import RunFailed
from tests.support.catalogue import Trials
from tests.support.faults import FileSystem, Killed, failing, in_a_child, kill_this_process, raise_killed, replaced

CONFIG = {"seed": 0}
STAGES = ("seed", "round_001", "probe_1")


@pytest.fixture(autouse=True, scope="module")
def _no_fsync():
    """A kill loses nothing that was passed to the kernel: fsync matters for power cuts only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def value_of(stage):
    """Return the value of a stage; its metadata and tensors must agree."""
    if stage is None:
        return None
    if stage.tensors:
        assert stage.tensors["x"].tolist() == [stage.metadata["value"]] * 3
    return (stage.metadata["value"], bool(stage.tensors))


steps = st.lists(
    st.tuples(st.sampled_from(["save", "save_bare", "delete", "log"]), st.sampled_from(STAGES), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


def do(store, step, run_dir=None):
    action, stage, value = step
    if action == "save":
        store.save(stage, {"value": value}, {"x": torch.full((3,), value)})
    elif action == "save_bare":
        store.save(stage, {"value": value})
    elif action == "delete":
        store.delete_tensors(stage)
    elif run_dir is not None:
        run_dir.log(stage, value=value)


def killed_at(path, steps, die_at, done, die=raise_killed):
    """Run the steps until the kill and check the remaining store; return whether the kill happened."""
    expected = MemoryStore()  # what the directory must hold after each complete step
    dying = None
    killed = False
    with RunDir.open(path, CONFIG) as folder:
        try:
            with FileSystem(die_at, done, die).patched():
                for step in steps:
                    dying = step
                    do(folder.stages, step, folder)
                    do(expected, step)
                    dying = None
        except (Killed, RunFailed):
            killed = True

    before = {stage: value_of(expected.load(stage)) for stage in STAGES}
    if dying is not None:
        do(expected, dying)
    after = {stage: value_of(expected.load(stage)) for stage in STAGES}

    with warnings.catch_warnings(action="error"), RunDir.open(path, CONFIG) as resumed:  # a kill is not damage
        found = {stage: value_of(resumed.stages.load(stage)) for stage in STAGES}
        for stage in STAGES:
            assert found[stage] in (before[stage], after[stage])
        finished = {stage for stage in STAGES if found[stage] is not None}
        assert set(resumed.stages.names()) == finished
        assert {row["stage"] for row in resumed.metrics} <= finished
        # No temporary files are left, and the directory works as before.
        assert not list(path.rglob(".*.tmp"))
        assert len(list(path.rglob("*.safetensors"))) == sum(bool(value and value[1]) for value in found.values())
        resumed.stages.save("seed", {"value": 5}, {"x": torch.full((3,), 5)})
        assert value_of(resumed.stages.load("seed")) == (5, True)
    return killed


SCRIPT = [
    ("log", "seed", 1),
    ("save", "seed", 1),
    ("save", "seed", 2),
    ("save", "seed", 3),
    ("save_bare", "seed", 4),
    ("save", "seed", 5),
    ("save", "round_001", 6),
    ("delete", "seed", 0),
    ("save", "seed", 7),
]
"""Every kind of step, and every change from one kind to another."""


@pytest.mark.item(11)
def test_every_kill_point_of_a_script(tmp_path, trials: Trials):
    for done in (0.0, 0.4, 1.0):
        for die_at in range(1, 100):
            is_killed = True
            with trials.one(f"operation {die_at}, {done:.0%} done"):
                is_killed = killed_at(tmp_path / f"{done}_{die_at}", SCRIPT, die_at, done)
            if not is_killed:  # every kill point was reached
                break
        assert 40 < die_at < 99


@pytest.mark.item(9)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_a_failed_write_at_any_operation_loses_nothing(tmp_path, error: int, trials: Trials):
    num_ended = 0
    for done in (0.4, 0.0, 1.0)[: trials.count(quick=1, full=3)]:
        for at in range(1, 60):
            with trials.one(f"operation {at}, {done:.0%} done"):
                num_ended += killed_at(tmp_path / f"{at}_{done}", SCRIPT, at, done, failing(error))
    assert num_ended > 35  # a file that cannot be removed does not end the run


class Disk:
    """What a power cut leaves of a run directory: synced bytes, under names that were synced or not.

    Only os.fsync writes to it. A name may reach the disk earlier, so both cases are checked. Directories are assumed to
    exist.
    """

    def __init__(self, run: Path, looks: Callable[[Path], None]) -> None:
        self.run, self.looks = run, looks
        self.bytes: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.num_cuts = 0
        for place in (run, run / "stages"):
            place.mkdir(exist_ok=True)
            self.names[place.stat().st_ino] = self._listed(place)
        for file in filter(Path.is_file, run.iterdir()):
            self.bytes[file.stat().st_ino] = file.read_bytes()

    def patched(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(replaced(os, "fsync", self._fsync))
        stack.enter_context(replaced(atomic_module, "_fill", self._fill))
        return stack

    def cut(self) -> None:
        """Cut the power; `looks` checks what is left, with the old names and with the new ones."""
        self.num_cuts += 1
        for is_new in (False, True):
            left = self.run.with_name(f"left_{self.num_cuts}_{is_new}")
            for place in (self.run, self.run / "stages"):
                target = left / place.relative_to(self.run)
                target.mkdir(parents=True)
                listed = self._listed(place) if is_new else self.names[place.stat().st_ino]
                for name, number in listed.items():
                    (target / name).write_bytes(self.bytes.get(number, b""))
            with replaced(os, "fsync", lambda descriptor: None), replaced(atomic_module, "_fill", Path.write_bytes):
                self.looks(left)

    def _fsync(self, descriptor: int) -> None:
        self.cut()
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            self.names[about.st_ino] = self._listed(descriptor)
        else:
            self.bytes[about.st_ino] = os.pread(descriptor, about.st_size, 0)
        self.cut()

    def _fill(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.bytes.pop(path.stat().st_ino, None)  # inode of a deleted file, now reused

    @staticmethod
    def _listed(place: Path | int) -> dict[str, int]:
        with os.scandir(place) as entries:
            return {entry.name: entry.inode() for entry in entries if entry.is_file()}


@pytest.mark.item(11)
def test_a_power_cut_leaves_the_old_or_the_new_stage_and_every_saved_one(tmp_path, trials: Trials):
    expected = MemoryStore()
    allowed: list[dict] = []
    rows: list[str] = []

    def look(left: Path) -> None:
        with trials.one(left.name), warnings.catch_warnings(action="error"), RunDir.open(left, CONFIG) as resumed:
            found = {stage: value_of(resumed.stages.load(stage)) for stage in STAGES}
            assert all(any(found[stage] == may[stage] for may in allowed) for stage in STAGES)
            assert [row["stage"] for row in resumed.metrics] == [stage for stage in rows if found[stage] is not None]

    with RunDir.open(tmp_path / "run", CONFIG) as folder:
        disk = Disk(folder.path, look)
        with disk.patched():
            for step in SCRIPT:
                allowed = [{stage: value_of(expected.load(stage)) for stage in STAGES}]
                do(expected, step)
                allowed.append({stage: value_of(expected.load(stage)) for stage in STAGES})
                rows += [step[1]] * (step[0] == "log")
                do(folder.stages, step, folder)
                del allowed[0]  # from now on it must exist
                disk.cut()
    assert disk.num_cuts > 2 * 4 * len(SCRIPT)


@settings(max_examples=100, deadline=None)
@given(steps=steps, die_at=st.integers(1, 40), done=st.floats(0, 1))
def test_a_kill_in_any_script_leaves_a_loadable_store(tmp_path_factory, steps, die_at, done):
    killed_at(tmp_path_factory.mktemp("run"), steps, die_at, done)


@settings(max_examples=30, deadline=None)
@given(die_at=st.integers(1, 12), done=st.floats(0, 1))
def test_a_kill_while_the_directory_is_opened(tmp_path_factory, die_at, done):
    path = tmp_path_factory.mktemp("run")
    with contextlib.suppress(Killed), FileSystem(die_at, done).patched():
        RunDir.open(path, CONFIG).close()
    with RunDir.open(path, CONFIG) as folder:
        assert folder.config == CONFIG


def resumable_run(path):
    """A small run in stages, each computed from the previous one."""
    with RunDir.open(path, CONFIG) as folder:
        value = 0
        for number in range(6):
            name = f"round_{number:03d}"
            stage = folder.stages.load(name)
            if stage is None:
                for epoch in range(3):
                    folder.log(name, epoch=epoch, loss=1 / (1 + value + epoch), time=time.time())
                folder.stages.save(name, {"value": value + number}, {"x": torch.full((1000,), value + number)})
                stage = folder.stages.load(name)
            value = stage.metadata["value"]
            assert stage.tensors["x"].eq(value).all()
        rows = [{key: row[key] for key in row if key != "time"} for row in folder.metrics]
        folder.write_report({"value": value, "rows": rows})


@pytest.mark.item(17)
@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_is_a_day_off_changes_nothing(tmp_path, days: int, monkeypatch, trials: Trials):
    """Between any two processes of a run, with file times of the future or of the past."""
    resumable_run(tmp_path / "uninterrupted")
    expected = (tmp_path / "uninterrupted" / "report.json").read_bytes()
    now = time.time
    for at in range(10, 80, trials.count(quick=15, full=2)):
        path = tmp_path / str(at)
        with trials.one(f"killed at operation {at}"):
            with contextlib.suppress(Killed), FileSystem(at, 0.4).patched():
                resumable_run(path)
            for file in path.rglob("*"):
                os.utime(file, (now() + 86400 * days,) * 2)
            monkeypatch.setattr(time, "time", lambda: now() + 86400 * days)
            resumable_run(path)
            assert (path / "report.json").read_bytes() == expected


@pytest.mark.item(1)
def test_a_run_killed_repeatedly_ends_like_an_uninterrupted_one(tmp_path, trials: Trials):
    """With SIGKILL inside a save; the work of a stage is a few numbers, so that there can be many."""
    resumable_run(tmp_path / "uninterrupted")
    expected = (tmp_path / "uninterrupted" / "report.json").read_bytes()
    num_killed = 0
    for attempt in range(trials.count(quick=8, full=50)):
        path = tmp_path / f"run_{attempt}"
        with trials.one(f"run {attempt}"):
            while not RunDir(path).finished:
                # A stage takes about 13 operations, so the run advances.
                dying = FileSystem(trials.draw.randint(15, 50), trials.draw.random(), kill_this_process)
                num_killed += in_a_child(resumable_run, path, inside=dying.patched)
            resumable_run(path)
            assert (path / "report.json").read_bytes() == expected
    assert num_killed > 16
    trials.add("SIGKILLs in the saves of a run that only saves", num_killed)
