"""`pathgrow study`: one study from its file to its figure, and what the command refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import leave

TEXT = """
question = "Does it run?\\u001b[31m"
set = { epochs = 1, model_options = { widths = [16] } }
[[part]]
grid.method = ["random", "dense"]
[[part]]
set = { method = "random", density = 0.4, data = "folder", data_root = "nowhere" }
"""


def test_a_study_from_its_file_to_its_figure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The dataset of the last cell does not exist: it fails, and the others are finished and shown."""
    study, out = tmp_path / "mine.toml", tmp_path / "out"
    study.write_text(TEXT)
    assert leave("study", str(study), "--out", str(out), "--jobs", "1") == 1
    said = capfd.readouterr()
    assert said.out.startswith("Does it run??[31m\n3 cells, about ")
    assert "2 of 3 cells finished" in said.out
    assert "1 of 3 cells failed (folder-mlp-random" in said.err
    assert "nowhere does not exist" in said.err
    assert leave("study", "table", str(study), "--out", str(out)) == 0
    table = capfd.readouterr().out
    assert "Does it run??[31m 2 of 3 cells finished, 1 failed." in table
    assert "\x1b" not in said.out + said.err + table
    assert leave("study", "figure", str(study), "--out", str(out)) == 0
    assert (out / "mine.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("study growth-rule", "unknown study 'growth-rule': did you mean growth-rules"),
        ("study growth-rules --scale small", "unknown scale of study 'growth-rules' 'small'"),
        ("study growth-rules --jobs 0", "jobs must be >= 1, got 0 (e.g. 4)"),
        ("study growth-rules --gpus 2", "gpus must be <= 1, got 2"),
        ("study growth-rules --on cloud", "unknown place to run (--on) 'cloud' (known: local, ray, slurm)"),
        ("study table growth-rules --out nowhere", "nowhere has no finished cell of study 'growth-rules'"),
        ("study", "required: NAME|FILE.toml"),
    ],
)
def test_mistakes_in_the_command(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(*line.split()) == 2
    assert message in capsys.readouterr().err


def test_the_list_has_questions_and_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("study", "list") == 0
    said = capsys.readouterr().out
    assert "growth-rules\n  Which growth rule finds the best masks" in said
    assert "  short  27 cells, about " in said
    assert "GPU minutes, by the speed of ResNet-32." in said
