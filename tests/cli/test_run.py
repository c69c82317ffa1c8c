"""`pathgrow discover`, `train` and `show` from start to end: what they print, and the run directories they leave."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from pathgrow.checkpoint import RunDir
from tests.support.command import leave, unprivileged
from tests.support.trainings import report

SMALL = "--finish static --model-option widths=12,8 --budget 4 --start-density 0.2 --rule exponential"


@pytest.fixture(scope="module")
def discovered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `discover`; copy it before changing it."""
    out = tmp_path_factory.mktemp("discovered") / "run"
    assert leave("discover", *SMALL.split(), "--out", str(out), "--quiet") == 0
    return out


def test_train_prints_the_result_and_show_prints_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = f"--method-option update_interval=5 --model-option widths=8,8 --out {out}"
    line = f"train --method rigl --density 0.5 --epochs 2 {options}"
    assert leave(*line.split()) == 0
    first = capsys.readouterr().out
    assert "50.0% of the prunable weights (288 of 576)" in first
    written, _, shown = first.partition("\n")
    again_hint, _, shown = shown.partition("\n")
    assert again_hint == f"Show this run again: pathgrow show {out}. Compare runs: pathgrow compare {out} ..."
    assert leave(*line.split()) == 0
    again = capsys.readouterr().out
    already = written.replace(f"Wrote to {out}:", f"This run was already finished; {out} holds")
    assert again == f"{already}\n{again_hint}\n{shown}", "nothing is written again"
    assert leave("show", str(out)) == 0
    assert capsys.readouterr().out == shown
    assert leave("show", str(out), "--delta", "0.02") == 2
    assert "a training has no accuracy-density curve" in capsys.readouterr().err


def test_verify_trains_the_dense_network_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("discover", "--verify", "--plan", "--budget", "8") == 0
    assert "dense baseline: 1 x 8 epochs at 100% density" in capsys.readouterr().out
    assert leave("discover", "--verify", "--reference", "0.9") == 2
    assert "--verify trains the dense network, but --reference is 0.9: pass only one" in capsys.readouterr().err


def test_a_plan_imports_the_finishers_that_the_command_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "from pathgrow import methods",
        "def thin(*, density=0.1):",
        "    return methods.create('set', density=density)",
    )
    (tmp_path / "planned_finisher.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    line = ["discover", "--plan", "--budget", "8", "--finish", "static", "--finish", "planned_finisher:thin"]
    assert leave(*line) == 0
    assert "Plan: digits-mlp" in capsys.readouterr().out


def test_verify_is_no_part_of_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    with RunDir.open(out, {"data": "digits", "reference": None}) as run_dir:
        run_dir.log("train-1", event="end")
    assert leave("discover", "--verify", "--out", str(out)) == 2
    message = capsys.readouterr().err
    assert "holds a search without a reference, and --verify is a search of its own" in message
    assert "choose another --out; or only compare, with `pathgrow train --method dense`" in message


def test_the_directory_of_a_refused_run_can_be_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"train --method imp --density 0.8 --epochs 1 --quiet --model-option widths=8,8 --out {tmp_path / 'run'}"
    assert leave(*line.split(), "--method-option", "rewind_step=500") == 2
    assert "500" in capsys.readouterr().err
    assert leave(*line.split()) == 0


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("train --epochs 2 --batch-size 64 --method rigl --method-option update_interval=100", "mask"),
        ("train --epochs 2 --batch-size 64 --method imp --density 0.8 --method-option rewind_step=20", "step 20"),
        ("discover --finish static --budget 4 --start-density 0.2 --rule exponential --delta 0.0022", "450 validation"),
    ],
)
def test_quiet_hides_warnings_that_the_report_keeps(
    line: str, warning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*line.split(), "--model-option", "widths=8,8", "--out"]
    assert leave(*words, str(tmp_path / "loud")) == 0
    loud = capsys.readouterr().err
    assert "pathgrow: warning: " in loud
    assert warning in loud
    assert leave(*words, str(tmp_path / "quiet"), "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert any(warning in note for note in report(tmp_path / "quiet")["notes"])


def test_a_model_for_square_images_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(40):
        place = tmp_path / "pictures" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 8), (number, 0, 0)).save(place / f"{number}.png")
    line = ["discover", "--data", "folder", "--data-root", str(tmp_path / "pictures"), "--model", "vit"]
    assert leave(*line, "--model-option", "patch=4", "--out", str(tmp_path / "run")) == 2
    printed = capsys.readouterr().err
    assert "cannot process the 3x8x16 samples" in printed
    assert printed.endswith("it takes square images; crop them or choose another model\n")
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_directory_of_another_run_or_a_file_is_refused(
    discovered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")
    for out in (discovered, tmp_path / "file", tmp_path / "file" / "below"):
        assert leave("discover", "--out", str(out)) == 2
        printed = capsys.readouterr().err
        assert str(out) in printed
        assert printed.count("\n") == 1
    assert (tmp_path / "file").read_text() == "precious"


def test_a_directory_of_another_command_names_that_command(
    discovered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave("train", "--method", "rigl", "--out", str(discovered)) == 2
    assert f"{discovered} holds a run of `pathgrow discover`, not of `pathgrow train`: " in capsys.readouterr().err
    with RunDir.open(tmp_path / "store", {"budget": 4, "seed": 0}):
        pass
    assert leave("discover", "--out", str(tmp_path / "store")) == 2
    assert "holds a run of `pathgrow.discover`, not of `pathgrow discover`: " in capsys.readouterr().err


def test_missing_files_of_a_run_are_reported_and_restored(
    discovered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(discovered, tmp_path / "run")
    command = ["discover", *SMALL.split(), "--out", str(out)]
    network, masks = ((out / name).read_bytes() for name in ("network.safetensors", "masks/round_000.safetensors"))
    (out / "network.safetensors").unlink()
    assert leave(*command) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].endswith(f"{out} holds report.html, curve.png, report.json and more.")
    assert printed.err == (
        "pathgrow: warning: files of this run are damaged: network.safetensors is missing; "
        f"to restore them, delete {out / 'report.json'} and rerun the command\n"
    )
    shutil.rmtree(out / "masks")
    (out / "metrics.jsonl").unlink()
    assert leave("show", str(out)) == 0
    printed = capsys.readouterr()
    assert "masks/round_000.safetensors is missing, masks/" in printed.err
    assert printed.err.endswith("metrics.jsonl is written during training only\n")
    assert printed.err.count("\n") == 1

    (out / "report.json").unlink()  # as advised
    assert leave(*command) == 0
    assert "masks" not in capsys.readouterr().err
    assert (out / "network.safetensors").read_bytes() == network
    assert (out / "masks" / "round_000.safetensors").read_bytes() == masks


@pytest.mark.parametrize("name", ["network.safetensors", "report.html", "curve.csv", "stages/seed.json"])
def test_a_flipped_bit_is_found_by_check_and_reported_by_show(
    discovered: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(discovered, tmp_path / "run")
    assert leave("check", str(out)) == 0
    assert capsys.readouterr() == (f"{out}: no file is damaged or missing\n", "")
    data = bytearray((out / name).read_bytes())
    data[len(data) // 2] ^= 4
    (out / name).write_bytes(data)
    assert leave("check", str(out)) == 1
    fault = f"{name} does not match its SHA-256 in manifest.sha256"
    assert capsys.readouterr() == ("", f"pathgrow: {out} is damaged: {fault}\n")
    for command in (["show", str(out)], ["discover", *SMALL.split(), "--out", str(out)]):
        assert leave(*command) == 0
        assert f"files of this run are damaged: {fault}; to restore them, delete " in capsys.readouterr().err

    (out / "report.json").unlink()  # as advised
    assert leave("discover", *SMALL.split(), "--out", str(out), "--quiet") == 0
    assert leave("check", str(out)) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="permissions")
def test_a_finished_run_is_shown_from_a_read_only_directory(
    discovered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(discovered, tmp_path / "run")
    (out / ".lock").unlink()
    command = ["discover", *SMALL.split(), "--out", str(out)]
    assert leave(*command) == 0
    expected = capsys.readouterr()
    for path in (out, out / "stages", out / "masks"):
        path.chmod(0o555)
    before = {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    with unprivileged(tmp_path):
        assert leave(*command) == 0
    assert capsys.readouterr() == expected
    assert {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))} == before
    for path in (out, out / "stages", out / "masks"):
        path.chmod(0o755)


def test_check_verifies_the_stages_of_an_unfinished_run(
    discovered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(discovered, tmp_path / "run")
    (out / "report.json").unlink()
    assert leave("check", str(out)) == 0
    assert capsys.readouterr().out == f"{out}: no file is damaged or missing (unfinished run)\n"
    (out / "stages" / "seed.safetensors").write_bytes(b"")
    assert leave("check", str(out)) == 1
    assert "stages/seed.json is damaged: seed.safetensors does not match its SHA-256" in capsys.readouterr().err
    (out / "config.json").write_text("{")
    assert leave("check", str(out)) == 1
    assert "config.json is not JSON" in capsys.readouterr().err
    assert leave("check", str(tmp_path)) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_number_of_threads(discovered: Path, tmp_path: Path) -> None:
    out = shutil.copytree(discovered, tmp_path / "run")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "threads": 3}))
    assert leave("discover", *SMALL.split(), "--out", str(out), "--quiet") == 0, "three threads still"
    assert leave("discover", *SMALL.split(), "--out", str(out), "--quiet", "--threads", "2") == 2
    assert (RunDir(out).config or {})["threads"] == 3
