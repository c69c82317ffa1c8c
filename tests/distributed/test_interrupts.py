"""Signals save the training in progress, and the resumed run ends with the bits of an undisturbed one.

Nothing is trained twice: the steps before and after the signal are those of the undisturbed run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pathgrow import data, discover
from pathgrow.checkpoint import RunDir
from pathgrow.cli import main
from pathgrow.data.dataset import Split
from pathgrow.distributed import interrupts
from pathgrow.distributed.interrupts import Interrupted
from pathgrow.sparse import training_state
from pathgrow.sparse.training_state import unfinished_steps
from pathgrow.studies import pools
from pathgrow.studies.definition import Cell, parse_study
from pathgrow.studies.pools import LocalPool
from pathgrow.studies.runner import run_study
from pathgrow.studies.worker import forget_failures
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.eager_step import EagerStep
from pathgrow.trainer.recipes import Recipe
from tests.support.catalogue import Trials
from tests.support.command import assert_same, leave
from tests.support.faults import Signalled, in_a_child
from tests.support.ranks import CONTEXT, together

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
COMMANDS = {
    "train": "train --method rigl --method-option update_interval=10 --epochs 2 --model-option widths=8,8",
    "gts": "discover --budget 6 --model-option widths=8,8",
    "static": "discover --finish static --start-density 0.05 --delta 0.03 --budget 6 --model-option widths=8,8",
}


@pytest.fixture(autouse=True)
def nothing_ignored() -> Iterator[None]:
    """A shell that runs the tests in the background lets them ignore SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(command: str, out: Path) -> int:
    return leave(*COMMANDS[command].split(), "--threads", "1", "--quiet", "--out", str(out))


def stopped_by(name: str) -> str:
    return f"pathgrow: stopped by {name}; what is trained so far is kept, rerun the command to resume\n"


@pytest.mark.item(13)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", ["train", "gts", pytest.param("static", marks=pytest.mark.slow)])
def test_a_signal_saves_and_the_next_run_resumes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], trials: Trials
) -> None:
    """At any call of a function in any phase: during a step, an evaluation, a choice of masks, a save."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a signal loses nothing that the kernel has
    whole = Signalled()
    with whole.patched():
        assert run(command, tmp_path / "whole") == 0
    assert all(whole.counts.values()), whole.counts
    for phase in whole.counts if command == "train" or trials.full else ("evaluation", "save"):
        for number in range(trials.count(quick=1, full={"train": 80, "gts": 20, "static": 5}[command])):
            name = SIGNALS[number % 4] if trials.full else trials.draw.choice(SIGNALS)
            at, signum, out = trials.draw.randint(1, whole.counts[phase]), getattr(signal, name), tmp_path / "run"
            before, first, second = signal.getsignal(signum), Signalled(phase, at, signum), Signalled()
            capfd.readouterr()
            with trials.one(f"{name} at call {at} in {phase}"):
                with first.patched():
                    assert run(command, out) == 128 + signum
                assert signal.getsignal(signum) is before
                assert capfd.readouterr().err == stopped_by(name)
                with second.patched():
                    assert run(command, out) == 0
                assert_same(out, tmp_path / "whole")
                assert first.num_steps + second.num_steps == whole.num_steps, "trained twice"
                trials.add(f"in {phase}")
            shutil.rmtree(out, ignore_errors=True)


def test_a_signal_in_a_destructor_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    def close() -> None:
        with interrupts.signal_handlers():
            Closing()
            time.sleep(5)

    with pytest.raises(Interrupted, match="SIGTERM"):
        close()
    assert capfd.readouterr().err == ""


def test_a_signal_that_c_code_turns_into_another_error_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the import of numpy does."""

    def import_badly(**_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Interrupted:
            raise ImportError("PyCapsule_Import could not import module") from None

    monkeypatch.setitem(main.COMMANDS, "methods", replace(main.COMMANDS["methods"], run=import_badly))
    assert leave("methods") == 128 + signal.SIGTERM
    assert capfd.readouterr().err == stopped_by("SIGTERM")


@pytest.mark.item(13)
@pytest.mark.parametrize("name", ["pathgrow.errors", "pathgrow.registry", "pathgrow.cli", "pathgrow.cli.main"])
def test_ctrl_c_while_the_command_is_imported_prints_no_traceback(tmp_path: Path, name: str) -> None:
    customize = f"""
import importlib.abc, os, signal, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
    (tmp_path / "sitecustomize.py").write_text(customize)
    path = os.pathsep.join([str(tmp_path), str(Path(main.__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-m", "pathgrow", "methods"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_handlers_of_others_are_left_alone() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda signum, _: got.append(signum))
    try:
        with interrupts.signal_handlers():
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == [signal.SIGUSR1]


# The call of a user


def steps_of(out: Path) -> int:
    return (out / "steps").stat().st_size


def call_in(out: Path, die_at: int = 0, signum: int = 0, *, has_engine: bool = True) -> None:
    """A discovery of a program: with the trainer of the package or a function. The n-th step sends a signal."""
    dataset = data.load("digits")
    split = dataset.train
    assert isinstance(split, Split)
    trainer = Trainer(dataset, Recipe(lr=0.05, batch_size=128), EngineOptions(device="cpu"))
    torch.manual_seed(0)
    model, optimizer = trainer.place(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)))
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    num_steps = 0

    def before_step(*_: object) -> None:
        nonlocal num_steps
        num_steps += 1
        with open(out / "steps", "ab") as file:
            file.write(b".")
        if num_steps == die_at:
            os.kill(os.getpid(), signum)

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        images, labels = split.images.float() / 16, split.labels
        for _ in range(epochs):
            for rows in torch.randperm(len(labels)).split(128):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimizer.step()

    hook = register_optimizer_step_pre_hook(before_step)
    try:
        found = discover(
            model, optimizer, trainer if has_engine else fit, trainer.evaluate(dataset.val), dataset.example_input(),
            budget=4, store=out / "run", progress=False,
        )  # fmt: skip
        torch.save((found.density, model.state_dict()), out / "found.pt")
    except KeyboardInterrupt:
        assert all(torch.equal(tensor, initial[name]) for name, tensor in model.state_dict().items())
        os.kill(os.getpid(), signal.SIGKILL)  # for `in_a_child`
    finally:
        hook.remove()


@pytest.mark.item(13)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_engine", [True, False], ids=["engine", "fit"])
def test_a_signal_in_the_call_of_a_user_does_what_it_would_have_done(
    has_engine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    """After a save, if the trainer of the package trains; a `fit` of the user loses the stage in progress."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    (tmp_path / "whole").mkdir()
    call_in(tmp_path / "whole", has_engine=has_engine)
    density, weights = torch.load(tmp_path / "whole" / "found.pt")
    num_steps = steps_of(tmp_path / "whole")
    for number in range(trials.count(quick=2, full=80)):
        name, out = SIGNALS[-number % 4], tmp_path / str(number)
        signum, at = getattr(signal, name), trials.draw.randint(1, num_steps)
        out.mkdir()
        with trials.one(f"{name} at step {at}"):
            by = signal.SIGKILL if name == "SIGINT" else signum
            assert in_a_child(lambda out=out, at=at, n=signum: call_in(out, at, n, has_engine=has_engine), by=by)
            assert not in_a_child(lambda out=out: call_in(out, has_engine=has_engine))
            again, tensors = torch.load(out / "found.pt")
            assert again == density
            assert all(torch.equal(tensor, weights[key]) for key, tensor in tensors.items())
            assert not has_engine or steps_of(out) == num_steps, "trained twice"


# Studies

STUDY = """
question = "?"
set = {method = "set", epochs = 30, density = 0.3, model_options = {widths = [8]}, threads = 1}
grid.seed = [0, 1]
"""


def worker_in(out: Path, cells: Sequence[Cell], die_at: int) -> None:
    """A worker that gets a signal in a step."""
    real = EagerStep.__call__

    def step(self: EagerStep, number: int) -> None:
        if self.attached.step + 1 == die_at:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, number)

    EagerStep.__call__ = step  # type: ignore[method-assign]
    pools._process(out, cells, True, 1, None)


@pytest.fixture(scope="module")
def undisturbed_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    assert run_study(parse_study("mine", STUDY).cells(), out, LocalPool(2)).failed == {}
    return out


def assert_continues(cells: Sequence[Cell], out: Path, whole: Path) -> None:
    """The study ends as if nothing had happened."""
    assert "".join(path.read_text() for path in (out / ".study").glob("*.attempts")) == "", "no fault of the cells"
    assert run_study(cells, out, LocalPool(2)).failed == {}
    for cell in cells:
        assert_same(out / cell.name, whole / cell.name)


@pytest.mark.item(13)
def test_workers_of_a_study_save_when_they_are_stopped(undisturbed_study: Path, tmp_path: Path, trials: Trials) -> None:
    cells = parse_study("mine", STUDY).cells()[:1]
    for number in range(trials.count(quick=1, full=20)):
        out, at = tmp_path / str(number), trials.draw.randint(1, 300)
        forget_failures(out, cells)
        with trials.one(f"step {at}"):
            worker = CONTEXT.Process(target=worker_in, args=(out, cells, at))
            worker.start()
            worker.join()
            assert worker.exitcode == 128 + signal.SIGTERM
            assert list(unfinished_steps(RunDir(out / cells[0].name)).values()) == [at]
            assert_continues(cells, out, undisturbed_study)


@pytest.mark.item(13)
@pytest.mark.slow
def test_a_signal_to_a_study_saves_all_its_cells(tmp_path: Path, trials: Trials) -> None:
    text = STUDY.replace("epochs = 30", "epochs = 600")  # still busy when the signal comes
    cells, whole = parse_study("mine", text).cells(), tmp_path / "whole"
    assert run_study(cells, whole, LocalPool(2)).failed == {}
    (tmp_path / "mine.toml").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])}
    for number in range(trials.count(quick=1, full=20)):
        name, out = SIGNALS[number % 4], tmp_path / str(number)
        folders = [RunDir(out / cell.name) for cell in cells]
        command = [sys.executable, "-m", "pathgrow", "study", str(tmp_path / "mine.toml"), "--jobs", "2", "--out", out]
        with trials.one(name):
            study = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            while study.poll() is None and not all(folder.worker for folder in folders):
                time.sleep(0.01)
            time.sleep(trials.draw.uniform(0, 1))
            study.send_signal(getattr(signal, name))
            assert study.communicate(timeout=60)[1].endswith(stopped_by(name))
            assert study.returncode == 128 + getattr(signal, name)
            trials.add("trainings of a study saved", sum(len(unfinished_steps(folder)) for folder in folders))
            assert_continues(cells, out, whole)


# Ranks


def rank_in(out: Path, die_at: int, dying: Sequence[int], signum: int) -> None:
    """One rank of a training; the ranks in `dying` get a signal in a step."""
    training_state._STEPS_BETWEEN_CHECKS = 8
    rank, real = os.environ["RANK"], EagerStep.__call__
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def step(self: EagerStep, number: int) -> None:
        with open(out / f"steps-{rank}", "ab") as file:
            file.write(b".")
        if self.attached.step + 1 == die_at and int(rank) in dying:
            os.kill(os.getpid(), signum)
        real(self, number)

    EagerStep.__call__ = step  # type: ignore[method-assign]
    assert leave(*COMMANDS["train"].split(), "--device", "cpu", "--threads", "1", "--quiet", "--out", str(out)) == 0


@pytest.mark.item(13)
def test_a_signal_to_one_rank_saves_the_training_of_all(tmp_path: Path, trials: Trials) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert [rank.code for rank in together(tmp_path / "said", rank_in, whole, 0, (), 0)] == [0, 0]
    num_steps = (whole / "steps-0").stat().st_size
    for number in range(trials.count(quick=1, full=20)):
        name, out = SIGNALS[number % 4], tmp_path / str(number)
        signum, at, dying = (
            getattr(signal, name),
            trials.draw.randint(1, num_steps),
            trials.draw.choice([(0,), (1,), (0, 1)]),
        )
        out.mkdir()
        with trials.one(f"{name} to ranks {dying} at step {at} of {num_steps}"):
            ranks = together(tmp_path / "said", rank_in, out, at, dying, signum)
            assert [rank.code for rank in ranks] == [128 + signum] * 2
            assert "".join(rank.output for rank in ranks) == stopped_by(name)
            assert [rank.code for rank in together(tmp_path / "said", rank_in, out, 0, (), 0)] == [0, 0]
            assert_same(out, whole)
            for rank in (0, 1):
                assert (out / f"steps-{rank}").stat().st_size == num_steps, "trained twice"
