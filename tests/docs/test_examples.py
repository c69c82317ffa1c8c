"""The examples run as they are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from pathgrow.errors import UserError

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fast_cifar_trains_on_small_data(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy, images_per_second = load("fast_cifar").main(["--data", "digits", "--epochs", "2", "--width", "8"])
    assert accuracy > 0.5
    assert images_per_second > 0
    *epochs, summary = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in epochs] == ["epoch 1/2", "epoch 2/2"]
    assert summary.startswith(f"density 10.0%: test accuracy {accuracy:.2%}, ")


def test_fast_cifar_without_data_says_how_to_download_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pathgrow data get cifar10"):
        load("fast_cifar").main(["--data-root", str(tmp_path / "nowhere")])


def test_the_plain_loop_ends_with_rounded_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    density, accuracy = load("plain_loop").main(epochs=24, warmup=4, every=2)
    assert density < 1
    assert accuracy > 0.5
    last = capsys.readouterr().out.splitlines()[-1]
    number = r"[\d.]{1,4}%"
    bound = rf"Lower bound: {number} density \(90% interval {number} to {number}\), enough to stay within 0.01 of "
    assert re.match(rf"{bound}the densest network grown \({number}\)\. The dense network was not trained, ", last)
