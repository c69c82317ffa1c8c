"""The command line in this process: dispatch, messages and exit codes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pathgrow.cli import main
from pathgrow.errors import RunFailed
from pathgrow.report.compare_table import TABLE_FORMATS
from pathgrow.report.schema import RunReport
from pathgrow.version import __version__
from tests.support.catalogue import Trials
from tests.support.command import leave
from tests.support.faults import in_a_child
from tests.support.sample_report import discovery_report, training_report

DISCOVER = [
    ("--data digit", "unknown dataset 'digit': did you mean digits"),
    ("--model resnet21", "resnet20"),
    ("--rule prob", "did you mean probe"),
    ("--method gcq", "did you mean gcg"),
    ("--method GCG", "did you mean gcg"),
    ("--method rigl", "method 'rigl' does not grow"),
    ("--budget 0", "budget must be >= 1, got 0 (e.g. 160)"),
    ("--epochs 0", "budget must be >= 1, got 0 (e.g. 160)"),
    ("--budget many", "budget must be an integer >= 1, got 'many'"),
    ("--delta -0.1", "delta must be > 0, got -0.1"),
    ("--delta small", "delta must be a positive number or percentage of the score, got 'small'"),
    ("--delta nan", "delta must be a number > 0, got nan"),
    ("--delta inf", "delta must be a number > 0, got inf"),
    ("--delta 1", "delta must be a drop in accuracy < 1, got 1.0 (e.g. 0.01)"),
    ("--reference sparse", "reference must be a number or 'dense', got 'sparse' (e.g. 0.93)"),
    ("--reference 97", "reference must be an accuracy in [0, 1], got 97.0 (e.g. 0.97)"),
    ("--reference 1.2", "reference must be an accuracy in [0, 1], got 1.2 (e.g. 0.93)"),
    ("--reference -0.5", "reference must be an accuracy in [0, 1], got -0.5 (e.g. 0.93)"),
    ("--rough quick", "rough must be epochs (an integer >= 1), a fraction of the budget"),
    ("--rough 1.5", "rough must be epochs"),
    ("--start-density 0", "start_density must be in (0, 1], got 0.0"),
    ("--target-density 0.2", "use `pathgrow train --method gcg --density D`"),
    ("--target-density=0.2", "use `pathgrow train --method gcg --density D`"),
    ("--final new", "final must be one of 'fresh', 'grown', got 'new'"),
    ("--select-by both", "select_by must be one of 'delta', 'gain', got 'both'"),
    ("--eval-weights raw", "eval_weights must be one of 'current', 'ema', got 'raw'"),
    ("--gamma 0", "gamma must be > 0, got 0.0 (e.g. 0.25)"),
    ("--fold 8", "fold of digits must be in [0, 7], got 8"),
    ("--fold -1", "fold must be >= 0, got -1"),
    ("--seed -1", "seed must be >= 0, got -1"),
    ("--threads 0", "threads must be >= 1, got 0"),
    ("--recipe digit", "unknown recipe 'digit': did you mean digits"),
    ("--lr 0", "lr must be > 0, got 0.0"),
    ("--batch-size 0", "batch_size must be >= 1, got 0"),
    ("--weight-decay -1", "weight_decay must be >= 0, got -1.0"),
    ("--weight-decay much", "weight_decay must be a number >= 0, got 'much'"),
    ("--model-option widths", "--model-option must be NAME=VALUE, got 'widths'"),
    ("--model-option widhts=8,8", "did you mean widths"),
    ("--model-option widths=8", "widths must be a list, got 8 (e.g. 64,64)"),
    ("--model-option widths=", "--model-option must be NAME=VALUE, got 'widths=' (e.g. width=8)"),
    ("--model-option inputs=7", "mlp with inputs=7, widths=[64, 64] cannot process the 1x8x8 samples"),
    ("--model resnet20 --model-option in_channels=3 --threads 1", "in_channels=3"),
    ("--data-root /data", "/data"),
    ("--data cifar10", "cifar10"),
    ("--data cifar10 --data-root /nowhere", "/nowhere"),
    ("--data cifar10 --data-root /dev/null", "/dev/null"),
    ("--data cifar100 --data-root /dev", "/dev"),
    ("--data folder", "--data-root"),
    ("--device gpu", "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
    ("--device cuda:1000", "device cuda:1000 is not available"),
    ("--device cpu --step cuda_graph", "step 'cuda_graph' needs a GPU, got device cpu"),
    ("--step catured", "step must be one of 'auto', 'cuda_graph', 'eager', got 'catured'"),
    ("--precision fp16", "precision must be one of 'auto', 'fp32', 'bf16', got 'fp16'"),
    ("--compile of", "compile must be one of 'auto', 'on', 'off', got 'of'"),
    ("--method os.path:join", "os.path:join"),
    ("--method builtins:dict", "builtins:dict"),
    ("--method os:getcwd", "os:getcwd"),
    ("--method pathgrow.methods:fixed", "fixed"),
    ("--method :gcg", ":gcg"),
    ("--method ..os:getcwd", "..os:getcwd"),
    ("--no-such-option", "unknown option --no-such-option"),
    ("--dleta 0.1", "unknown option --dleta, did you mean --delta"),
    ("--delta", "--delta: expected one argument (see `pathgrow discover --help`)"),
    ("digits", "unknown argument digits (see `pathgrow discover --help`)"),
]
TRAIN = [
    ("", "a method is required: pass --method NAME, see `pathgrow methods`"),
    ("--methd rigl", "unknown option --methd, did you mean --method"),
    ("--method rigel", "unknown method 'rigel': did you mean rigl"),
    ("--method rigl --density 0", "density must be in (0, 1], got 0.0 (e.g. 0.1)"),
    ("--method rigl --density 1.5", "density must be in (0, 1], got 1.5"),
    ("--method rigl --density much", "density must be a number in (0, 1], got 'much'"),
    ("--method rigl --density", "--density: expected one argument (see `pathgrow train --help`)"),
    ("--method dense --density 0.1", "method 'dense' takes no density"),
    ("--method gcg", "method 'gcg' requires --density; use `pathgrow discover` to search"),
    ("--method gcg --density 0.1 --method-option start_density=0.2", "0.2"),
    ("--method gcg --density 0.0001", "keeps 1 of 8192 weights"),
    ("--method rigl --method-option updat_interval=3", "did you mean update_interval"),
    ("--method rigl --method-option density=0.1", "density is not a method option here; use --density 0.1"),
    ("--method rigl --method-option update_interval", "--method-option must be NAME=VALUE, got 'update_interval'"),
    ("--method rigl --method-option num_steps=", "--method-option must be NAME=VALUE, got 'num_steps='"),
    ("--method random --method-option allocation=er_", "known: equal, er, er_matrix, erk, plain, uniform"),
    ("--method rigl --scope some", "scope must be one of 'auto', 'default', 'resnet', 'vit', 'all', got 'some'"),
    ("--method rigl --match flop", "match must be one of 'none', 'parameters', 'prunable', 'flops', got 'flop'"),
    ("--method rigl --match-budget 7", "requires --match"),
    ("--method rigl --match flops --match-budget -1", "match_budget must be > 0, got -1.0"),
    ("--method rigl --match flops --match-run /nowhere", "/nowhere"),
    ("--method rigl --epochs 0", "epochs must be >= 1, got 0 (e.g. 80)"),
    ("--method rigl --budget 0", "epochs must be >= 1, got 0 (e.g. 80)"),
    ("--method rigl --max-concurrent 2", "unknown option --max-concurrent"),
    ("--method imp --epochs 1 --method-option rewind_step=500", "500"),
    ("--method rigl --data folder --data-root /nowhere", "/nowhere"),
    ("--method rigl --data digit", "did you mean digits"),
]
OTHERS = [
    ("discver", "unknown command 'discver': did you mean discover? (known: check, compare, data, "),
    ("zzz", "unknown command 'zzz' (known: check, compare, data, "),
    ("--versoin", "unknown option --versoin, did you mean --version? (see `pathgrow --help`)"),
    ("show", "DIR (see `pathgrow show --help`)"),
    ("show /nowhere/at/all", "/nowhere/at/all"),
    ("compare", "DIR (see `pathgrow compare --help`)"),
    ("methods STR", "unknown method 'STR': did you mean str"),
    ("data get", "NAME (see `pathgrow data get --help`)"),
    ("data gt digits", "unknown `pathgrow data` command 'gt': did you mean get? (known: check, get, list)"),
    ("data foo", "unknown `pathgrow data` command 'foo' (known: check, get, list)"),
    ("data --foo", "unknown option --foo (see `pathgrow data --help`)"),
    ("data get digit", "unknown dataset 'digit': did you mean digits"),
]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{command} {line}", message)
        for command, table in (("discover", DISCOVER), ("train", TRAIN))
        for line, message in table
    ]
    + OTHERS,
)
def test_wrong_input_is_one_message_and_exit_code_2(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert leave(*line.split()) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("pathgrow: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    if "imp" not in line and "0.0001" not in line:  # refused later, when the run directory is open
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_missing_gpu_is_one_message(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("discover", "--device", device) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"pathgrow: device {device} is not available, torch sees 0 GPUs; use device cpu")
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RunFailed("the training loss became nan in epoch 3 of 4"), 1, "the training loss became nan in epoch 3 of 4"),
        (KeyboardInterrupt(), 130, "interrupted; finished stages are kept, rerun the command to resume"),
    ],
)
def test_a_run_that_ends_early_has_its_own_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("pathgrow.runs.discovery.run_discovery", fail)
    assert leave("discover", "--quiet") == code
    assert capsys.readouterr().err == f"pathgrow: {message}\n"


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("pathgrow.runs.discovery.run_discovery", fail)
    with pytest.raises(ZeroDivisionError):
        main.main(["discover", "--quiet"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/data/x"), "cannot access /data/x (Permission denied)"),
        (MemoryError(), "out of memory (MemoryError); finished stages are kept"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory (CUDA out of memory. "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory (DefaultCPUAllocator"),
    ],
)
def test_a_fault_of_the_machine_is_one_sentence(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("pathgrow.runs.discovery.run_discovery", fail)
    assert leave("discover", "--quiet") == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"pathgrow: {message}")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), OSError("no file in particular")])
def test_other_faults_keep_their_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("pathgrow.runs.discovery.run_discovery", fail)
    with pytest.raises(type(error)):
        main.main(["discover", "--quiet"])


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("--version") == 0
    assert capsys.readouterr().out == f"pathgrow {__version__}\n"
    assert leave("--help") == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in main.COMMANDS if name != "data")
    assert leave() == 2, "without a command"
    assert capsys.readouterr() == (text, "")
    for name in main.COMMANDS:
        assert leave(*name.split(), "--help") == 0
        text = capsys.readouterr().out
        assert f"usage: pathgrow {name}" in text
        assert name != "data" or ("pathgrow data get NAME" in text and "pathgrow data check NAME" in text)


def test_a_user_defined_method_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from pathgrow.methods import erk as my_method\n")
    # As the installed script starts: without the working directory on the path.
    start = "import sys; sys.path[:] = [p for p in sys.path if p]; from pathgrow.cli.main import main; main()"
    command = [sys.executable, "-c", start, "methods", "mine:my_method"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mine:my_method\n")


OPTIONAL = ("triton", "pandas", "psutil", "cupy", "IPython", "tensorflow", "pytz", "pyarrow", "tensorboard", "dill")


STANDARD = ("signal", "enum", "typing", "re", "numbers", "inspect", "textwrap", "argparse", "dataclasses", "json")


def test_nothing_else_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    """Modules that torch and others import if they exist, and those of Python, planted where a command runs."""
    for name in (*OPTIONAL, *STANDARD):
        (tmp_path / f"{name}.py").write_text(f"open('{name} was run', 'w')\nraise ImportError\n")
    line = "train --method random --density 0.5 --epochs 1 --model-option widths=4,4 --quiet --out run"
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])}
    command = [sys.executable, "-m", "pathgrow", *line.split()]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.glob("* was run")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned elsewhere")
def test_servers_of_worker_processes_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "multiprocessing.py").write_text("open('it was run', 'w')\nraise ImportError\n")
    start = """if True:
        import sys
        sys.path[:], sys.argv = [entry for entry in sys.path if entry], ["pathgrow"]
        import pathgrow, torch
        from multiprocessing import forkserver
        from pathgrow.studies.pools import LocalPool
        LocalPool(jobs=1)
        forkserver.connect_to_new_process([])  # waits until the server has started
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", start], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["multiprocessing.py"]


def test_the_working_directory_is_on_the_path_for_a_method_on_the_command_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "my_methods.py").write_text("from pathgrow.methods import erk as mine\n")
    options = "--density 0.5 --epochs 1 --model-option widths=4,4 --quiet"
    for method, is_there in (("rigl", False), ("my_methods:mine", True)):
        assert leave(*f"train --method {method} {options} --out {method[:2]}".split()) == 0
        assert ("" in sys.path) == is_there
    assert leave(*f"train --method my_methods:theirs {options}".split()) == 2
    assert "module 'my_methods' has no function 'theirs'" in capsys.readouterr().err


ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\r\n\ud800"


def with_escapes(value: Any, keys: bool) -> Any:
    if isinstance(value, dict):
        return {f"{name}{ESCAPES}" if keys else name: with_escapes(item, keys) for name, item in value.items()}
    if isinstance(value, list):
        return [with_escapes(item, keys) for item in value]
    return f"{value}{ESCAPES}" if isinstance(value, str) else value


def assert_harmless(capsys: pytest.CaptureFixture[str]) -> str:
    printed = "".join(capsys.readouterr())
    assert [line for line in printed.split("\n") if not line.isprintable()] == []
    return " ".join(printed.split())


@pytest.mark.parametrize("report", [discovery_report(), training_report()], ids=["discover", "train"])
def test_escape_sequences_in_a_report_are_not_printed(
    report: RunReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = with_escapes(report.as_json(), keys=False) | {"command": report.command}
    config = with_escapes(values["config"], keys=True) | values["config"]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "env.json").write_text(json.dumps({"device": f"cpu{ESCAPES}", "device_name": ESCAPES}))
    for written in (values, values | {"config": config}, {"format": ESCAPES, "version": ESCAPES}, {ESCAPES: 1}):
        (tmp_path / "report.json").write_text(json.dumps(written))
        for command in ("show", "check", "compare", *(f"compare --format {name}" for name in TABLE_FORMATS)):
            leave(*command.split(), str(tmp_path))
            assert_harmless(capsys)


def test_escape_sequences_in_an_unfinished_run_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["train", "--method", "dense", "--epochs", "1", "--model-option", "widths=4,4", "--out", str(tmp_path)]
    (tmp_path / "config.json").write_text(json.dumps({"data": ESCAPES, "epochs": 1, ESCAPES: ESCAPES}))
    row = {"stage": f"round-{ESCAPES}", "event": "begin"}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"stage": "round-" + "9" * 5000}) + "\n")
    assert leave("show", str(tmp_path)) == 0
    assert "unfinished run" in assert_harmless(capsys)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert leave("show", str(tmp_path)) == 0
    assert "in stage round-?]0;owned" in assert_harmless(capsys)
    assert leave(*line) == 2
    assert "another config" in assert_harmless(capsys)


def test_escape_sequences_in_names_of_directories_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = ESCAPES.replace("\ud800", "")
    pictures = tmp_path / "pictures"
    for name in ("a", odd):
        (pictures / name).mkdir(parents=True)
    assert leave("discover", "--data", "folder", "--data-root", str(pictures)) == 2
    assert "contains no images" in assert_harmless(capsys)
    line = ["train", "--method", "dense", "--epochs", "1", "--model-option", "widths=4,4", "--out"]
    assert leave(*line, str(tmp_path / odd)) == 0
    assert "Wrote to " in assert_harmless(capsys)
    for words in (["show"], ["check"], ["compare"], ["compare", "--format", "csv"], ["compare", "--format", "json"]):
        assert leave(*words, str(tmp_path / odd)) == 0
        assert_harmless(capsys)
        assert leave(*words, str(tmp_path / odd / "nowhere")) == 2
        assert_harmless(capsys)


def test_a_closed_pipe_ends_without_a_traceback() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])}
    command = f"{sys.executable} -m pathgrow methods | head -1"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout
    assert done.stderr == ""


def _run_out_of_memory(out: Path) -> None:
    """A run that is too large for the address space, then ten that are not, in one process."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 600 * 2**20, resource.RLIM_INFINITY))
    common = ("--density", "0.5", "--epochs", "1", "--quiet", "--threads", "1", "--out")
    large = leave("train", "--method", "set", "--model-option", "widths=30000,30000", *common, str(out / "large"))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    small = ("train", "--method", "set", "--model-option", "widths=16,16")
    codes = [leave(*small, "--seed", str(seed), *common, str(out / str(seed))) for seed in range(10)]
    after = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    (out / "codes.json").write_text(json.dumps([large, codes, after - resident]))


@pytest.mark.item(15)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_after_a_run_out_of_memory_others_pass(tmp_path: Path, trials: Trials) -> None:
    for number in range(trials.count(quick=1, full=5)):
        out = tmp_path / str(number)
        out.mkdir()
        with trials.one(f"attempt {number}"):
            assert not in_a_child(_run_out_of_memory, out)
            large, codes, growth = json.loads((out / "codes.json").read_text())
            assert large in (1, 2)
            assert codes == [0] * 10
            trials.peak("MB more after ten further runs", growth / 2**20)
            assert growth < 200 * 2**20
