"""Signals save the training in progress, and the resumed command ends with the bits of an undisturbed one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pathgrow.cli import main
from pathgrow.runs.session import Session
from pathgrow.sparse.attach import Attached
from pathgrow.trainer.eager_step import EagerStep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
PLACES: dict[str, tuple[type, str]] = {
    "training": (EagerStep, "__call__"),
    "evaluation": (Session, "score"),
    "mask update": (Attached, "_update_masks_"),
}


def run(out: Path) -> int:
    options = (
        "--method rigl --method-option update_interval=10 --epochs 2 --model-option widths=8,8 --threads 1 --quiet"
    )
    with pytest.raises(SystemExit) as exit:
        main.main(["train", *options.split(), "--out", str(out)])
    return int(exit.value.code or 0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("signals") / "run"
    assert run(out) == 0
    return (out / "network.safetensors").read_bytes()


@pytest.fixture(autouse=True)
def nothing_ignored() -> Iterator[None]:
    """A shell that runs the tests in the background lets them ignore SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("name", "place"),
    [("SIGTERM", "training"), ("SIGUSR1", "evaluation"), ("SIGUSR2", "mask update"), ("SIGINT", "training")],
)
def test_a_signal_saves_and_the_next_run_resumes(
    name: str,
    place: str,
    undisturbed: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    owner, attribute = PLACES[place]
    real: Callable[..., Any] = getattr(owner, attribute)
    number = getattr(signal, name)
    calls = []

    def then_signalled(*args: Any, **kwargs: Any) -> Any:
        calls.append(real(*args, **kwargs) if place != "evaluation" else None)
        if len(calls) == (1 if place == "evaluation" else 3):
            os.kill(os.getpid(), number)
        return calls[-1]

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, then_signalled)
        assert run(tmp_path / "run") == 128 + number
    assert signal.getsignal(number) is before
    said = capsys.readouterr().err
    assert said == f"pathgrow: stopped by {name}; what is trained so far is kept, rerun the command to resume\n"
    assert list((tmp_path / "run" / "stages").glob("partial-*.safetensors")), "saved"
    steps: list[object] = []
    step: Callable[..., Any] = EagerStep.__call__
    monkeypatch.setattr(EagerStep, "__call__", lambda *args: steps.append(0) or step(*args))
    assert run(tmp_path / "run") == 0
    assert (tmp_path / "run" / "network.safetensors").read_bytes() == undisturbed
    if place == "evaluation":
        assert not steps, "everything was trained"
