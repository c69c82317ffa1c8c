"""The command line in this process: parsing, lists, and one sentence with an exit code for everything that is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

from pathgrow import data, methods, models
from pathgrow.augment import Augment
from pathgrow.checkpoint import RunDir
from pathgrow.cli import main
from pathgrow.density import rules
from pathgrow.errors import RunFailed, UserError
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.run_discovery import expected_epochs
from pathgrow.runs.run_discovery import run as run_experiment
from pathgrow.trainer import EngineOptions, recipes
from pathgrow.trainer.recipes import Recipe
from pathgrow.version import __version__
from tests.support.command import leave

SMALL = {"budget": 4, "model_options": {"widths": [12]}, "start_density": 0.2, "rule": "exponential"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["discover", "--data", "digit"], "did you mean digits"),
        (["discover", "--model", "resnet21"], "resnet20"),
        (["discover", "--rule", "prob"], "did you mean probe"),
        (["discover", "--method", "gcq"], "did you mean gcg"),
        (["discover", "--method", "GCG"], "did you mean gcg"),
        (["methods", "STR"], "unknown method 'STR': did you mean str"),
        (["discover", "--budget", "0"], "budget must be"),
        (["discover", "--budget", "many"], "Invalid value for '--budget': 'many' was given, a whole number is wanted"),
        (["discover", "--delta", "-0.1"], "delta must be"),
        (["discover", "--delta", "small"], "'small' was given, a number is wanted"),
        (["discover", "--delta", "nan"], "nan was given"),
        (["discover", "--reference", "sparse"], "a score or `dense` is wanted"),
        (["discover", "--rough", "quick"], "epochs, a fraction of the budget or `adaptive`"),
        (["discover", "--rough", "1.5"], "rough must be"),
        (["discover", "--start-density", "0"], r"a density in (0, 1]"),
        (["discover", "--target-density", "1.2"], r"a density in (0, 1]"),
        (["discover", "--start-density", "0.5", "--target-density", "0.1"], "start lower"),
        (["discover", "--final", "new"], "known: fresh, grown"),
        (["discover", "--answer", "both"], "known: delta, gain"),
        (["discover", "--observe", "raw"], "known: annealed, average"),
        (["discover", "--gamma", "0"], "gamma must be"),
        (["discover", "--fold", "8"], "choose one of 0-7"),
        (["discover", "--seed", "-1"], "seed -1 was given"),
        (["discover", "--threads", "0"], "threads 0 was given"),
        (["discover", "--lr", "0"], "lr 0.0 was given"),
        (["discover", "--batch-size", "0"], "batch_size 0 was given"),
        (["discover", "--model-option", "widths"], "NAME=VALUE is wanted"),
        (["discover", "--model-option", "widhts=8,8"], "did you mean widths"),
        (["discover", "--data-root", "/data"], "leave it out"),
        (
            ["discover", "--model-option", "inputs=7"],
            "mlp with inputs=7, widths=[64, 64] cannot take the 1x8x8 samples",
        ),
        (["discover", "--model", "resnet20", "--model-option", "in_channels=3", "--threads", "1"], "in_channels=3"),
        (["discover", "--data", "cifar10"], "the folder that holds cifar10 is wanted"),
        (["discover", "--data", "cifar10", "--data-root", "/nowhere"], "data root /nowhere does not exist"),
        (["discover", "--data", "cifar10", "--data-root", "/dev/null"], "data root /dev/null is no folder"),
        (["discover", "--data", "cifar100", "--data-root", "/dev"], "/dev"),
        (["discover", "--data", "folder"], "name it with --data-root"),
        (["discover", "--recipe", "digit"], "unknown recipe 'digit': did you mean digits"),
        (["discover", "--weight-decay", "-1"], "weight_decay -1.0 was given"),
        (["discover", "--weight-decay", "much"], "'much' was given, a number is wanted"),
        (["discover", "--device", "gpu"], "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["discover", "--device", "cuda:1000"], "device cuda:1000 is not available, torch sees"),
        (["discover", "--device", "cpu", "--step", "cuda_graph"], "step 'cuda_graph' needs a GPU, got device cpu"),
        (["discover", "--step", "catured"], "step must be one of 'auto', 'cuda_graph', 'eager', got 'catured'"),
        (["discover", "--precision", "fp16"], "precision must be one of 'auto', 'fp32', 'bf16', got 'fp16'"),
        (["discover", "--compile", "of"], "compile must be one of 'auto', 'on', 'off', got 'of'"),
        (["discover", "--method", "os.path:join"], "wants a value for 'a'"),
        (["discover", "--method", "builtins:dict"], "'builtins:dict' is no function that returns a pathgrow.Method"),
        (["discover", "--method", "os:getcwd"], "gave a str, a pathgrow.Method is wanted"),
        (["discover", "--method", "pathgrow.methods:fixed"], "fixed"),
        (["discover", "--method", ":gcg"], "names no module"),
        (["discover", "--method", "..os:getcwd"], "names no module"),
        (["discover", "--reference", "97"], "an accuracy from 0 to 1 is wanted: give for example 0.97"),
        (["discover", "--reference", "1.2"], "an accuracy from 0 to 1 is wanted: give for example 0.93"),
        (
            ["discover", "--delta", "1.5"],
            "delta 1.5 was given, a loss of accuracy below 1 is wanted: give for example 0.01",
        ),
        (["discover", "--delta", "1"], "delta 1 was given, a loss of accuracy below 1 is wanted"),
        (["discover", "--delta", "inf"], "inf was given"),
        (["discover", "--reference", "-0.5"], "an accuracy from 0 to 1 is wanted: give for example 0.93"),
        (["discover", "--no-such-option"], "no-such-option"),
        (["discver"], "discver"),
        (["show"], "DIR"),
        (["show", "/nowhere/at/all"], "is not a directory"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert leave(*arguments) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.startswith("pathgrow: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []  # nothing was begun


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("cuda", "cuda:0"):
        assert leave("discover", "--device", device) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"pathgrow: device {device} is not available, torch sees 0 GPUs; use device cpu")
        assert said.count("\n") == 1


def test_a_failed_run_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*arguments: object) -> None:
        raise RunFailed("the training loss became nan in epoch 3 of 4")

    monkeypatch.setattr("pathgrow.runs.run_discovery.run", fail)
    assert leave("discover", "--quiet") == 1
    assert capsys.readouterr().err == "pathgrow: the training loss became nan in epoch 3 of 4\n"


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathgrow.runs.run_discovery.run", interrupt)
    assert leave("discover", "--quiet") == 130
    assert "same command again" in capsys.readouterr().err


def test_our_own_faults_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("pathgrow.runs.run_discovery.run", fault)
    with pytest.raises(ZeroDivisionError):
        main.main(["discover", "--quiet"])


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("--help") == 0
    wanted = capsys.readouterr().out
    assert leave() == 2
    said = capsys.readouterr()
    assert said.out == wanted
    assert said.err == ""


def test_every_rule_and_recipe_is_described_in_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for table in ("rules", "recipes"):
        assert leave(table) == 0
        told = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
        assert len(set(told)) == len(told)
        assert not [line for line in told if "see the module" in line or line.endswith((",", ";", ":"))]


def test_methods_are_listed_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("methods") == 0
    *blocks, legend = capsys.readouterr().out.split("\n\n")
    assert "f_S, f_D" in legend
    listed = []
    for block in blocks:
        heading, *lines = block.splitlines()
        about = dict(zip(lines[::2], lines[1::2], strict=True))
        for line, details in about.items():
            name, described = line.split(maxsplit=1)
            listed.append(name)
            assert f"{methods.entry(name).family}:" == heading
            assert described.endswith(".")
            assert re.fullmatch(r" {17}[\w+, ]*f_[SD].*; needs \w.*; (\w+=.+|no options)", details)
    assert listed == methods.names()


def test_lists_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert leave(*arguments) == 0
        return capsys.readouterr().out

    assert said("--version") == f"pathgrow {__version__}\n"
    assert [line.split()[0] for line in said("models").splitlines()] == list(models.names())
    assert [line.split()[0] for line in said("rules").splitlines()] == list(rules.names())
    told = {line.split()[0]: line for line in said("recipes").splitlines()}
    assert list(told) == recipes.names()
    assert told["cifar"].split(maxsplit=1)[1] == (
        "sgd lr 0.1 wd 0.0005, cosine, 160 epochs of batches of 128; crop_padding flip"
    )
    assert "not augmented" in told["digits"]
    assert "autoaugment-cifar" in told["cifar-vit"]
    assert [line.split()[0] for line in said("data").splitlines()] == list(data.names())
    help = said("discover", "--help")
    assert "--target-density" in help
    assert "widths=8,8" in help


def test_options_become_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[DiscoverConfig] = []
    monkeypatch.setattr("pathgrow.runs.run_discovery.run", lambda config, out, progress, comm: seen.append(config))
    line = "--reference 1 --rough 3 --model-option widths=8,9 --lr 0.5 --seed 7 --gamma 1 --out"
    assert leave("discover", "--quiet", *line.split(), str(tmp_path / "run")) == 0
    (config,) = seen
    assert (config.reference, config.rough, config.seed, config.gamma) == (1.0, 3, 7, 1.0)
    assert config.model_options == {"inputs": 64, "widths": [8, 9]}
    assert config.recipe == dataclasses.replace(DiscoverConfig.from_dict({}).recipe, lr=0.5)
    assert isinstance(config.rough, int)
    assert leave("discover", "--quiet", "--rough", "0.1", "--reference", "dense") == 0
    assert (seen[1].rough, seen[1].reference) == (0.1, "dense")


def test_recipe_and_engine_options_become_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DiscoverConfig] = []
    monkeypatch.setattr("pathgrow.runs.run_discovery.run", lambda config, *others: seen.append(config))
    assert leave("discover", "--quiet") == 0
    assert seen[-1].recipe_name == "digits"
    assert seen[-1].recipe == recipes.recipe("digits")
    assert seen[-1].budget == 80
    assert seen[-1].engine == EngineOptions()
    line = (
        "--recipe cifar-step --batch-size 16 --weight-decay 1 --device cpu --precision bf16 --step eager --compile on"
    )
    assert leave("discover", "--quiet", *line.split(), "--deterministic", "--max-concurrent", "3") == 0
    assert seen[-1].recipe_name == "cifar-step"
    assert seen[-1].recipe == dataclasses.replace(recipes.recipe("cifar-step"), batch_size=16, weight_decay=1.0)
    assert seen[-1].budget == 160
    assert seen[-1].engine == EngineOptions(
        device="cpu", precision="bf16", step="eager", compile="on", deterministic=True, max_concurrent=3
    )
    assert leave("discover", "--quiet", "--recipe", "cifar", "--budget", "7") == 0
    assert seen[-1].budget == 7


# Configs.


def test_how_many_train_at_once_is_no_part_of_what_a_run_is() -> None:
    few, many = (DiscoverConfig.from_dict({**SMALL, "engine": {"max_concurrent": number}}) for number in (2, 9))
    assert (few.engine.max_concurrent, many.engine.max_concurrent) == (2, 9)
    assert few.as_dict() == many.as_dict()
    assert few.name == many.name


def test_a_config_comes_back_equal_from_json() -> None:
    config = DiscoverConfig.from_dict(
        {
            **SMALL,
            "reference": "dense",
            "recipe_name": "wrn-rigl",
            "recipe": {"lr": 1, "milestones": [0.25], "augment": {"erase": 0.5}, "clip_norm": 2},
            "engine": {"device": "cpu", "precision": "bf16", "deterministic": True},
        }
    )
    assert DiscoverConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert (config.recipe.lr, config.recipe.milestones, config.recipe.factor) == (1.0, (0.25,), 0.2)
    assert config.recipe.augment == Augment(crop_padding=4, flip=True, erase=0.5)
    assert config.engine == EngineOptions(device="cpu", precision="bf16", deterministic=True)


@pytest.mark.parametrize("name", recipes.names())
def test_a_config_with_any_recipe_comes_back_equal_from_json(name: str) -> None:
    config = DiscoverConfig.from_dict({"recipe_name": name})
    assert config.recipe == recipes.recipe(name)
    assert config.budget == config.recipe.epochs
    assert DiscoverConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_a_config_is_resolved_in_full() -> None:
    config = DiscoverConfig.from_dict({"model": "resnet20", "model_options": {"width": 4}})
    assert config.model_options == {"in_channels": 1, "width": 4, "image_size": 8}
    assert set(config.as_dict()["recipe"]) == {field.name for field in dataclasses.fields(Recipe)}
    assert DiscoverConfig.from_dict({}).threads == 1


def test_the_name_tells_configs_apart_but_for_the_seed() -> None:
    first, second = DiscoverConfig.from_dict({"seed": 1}), DiscoverConfig.from_dict({"seed": 2})
    assert first.name.removesuffix("seed1") == second.name.removesuffix("seed2")
    assert first.name.startswith("digits-mlp-")
    others = ({"delta": 0.02}, {"recipe": {"lr": 0.04}}, {"engine": {"precision": "bf16"}})
    names = [DiscoverConfig.from_dict({**other, "seed": 1}).name for other in others]
    assert len({first.name, *names}) == 4


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"bugdet": 4}, "did you mean budget"),
        ({"recipe": {"learning_rate": 1}}, "unknown recipe key"),
        ({"recipe": {"lr": "fast"}}, "a number above 0 is wanted"),
        ({"recipe": [1]}, "a table of values is wanted"),
        ({"recipe": {"weight_dekay": 1}}, "unknown recipe key 'weight_dekay': did you mean weight_decay"),
        ({"recipe": {"augment": {"flop": True}}}, "unknown augment key 'flop': did you mean flip"),
        ({"recipe": {"augment": 1}}, "a table is wanted"),
        ({"recipe": {"milestones": [2]}}, "milestones"),
        ({"recipe_name": "cifr"}, "unknown recipe 'cifr': did you mean cifar"),
        ({"recipe_name": 7}, "unknown recipe '7'"),
        ({"recipe_nam": "cifar"}, "unknown config key 'recipe_nam': did you mean recipe_name"),
        ({"engine": {"devise": "cpu"}}, "unknown engine key 'devise': did you mean device"),
        ({"engine": {"deterministic": 1}}, "deterministic must be true or false, got 1"),
        ({"engine": {"device": 0}}, "device must be a string, got 0"),
        ({"engine": "cpu"}, "engine 'cpu' was given, a table of values is wanted"),
        ({"engine": {"device": "cpu", "step": "cuda_graph"}}, "step 'cuda_graph' needs a GPU, got device cpu"),
        ({"model_options": [1]}, "a table of values is wanted"),
        ({"model": 7}, "unknown model"),
        ({"data": ["digits"]}, "unknown data"),
        ({"seed": True}, "seed True was given"),
        ({"seed": 1.0}, "seed 1.0 was given"),
        ({"fold": "first"}, "fold 'first' was given, a whole number from 0 up"),
        ({"fold": [1]}, "fold \\[1\\] was given"),
        ({"data_root": 5}, "data_root 5 was given, the name of a folder"),
        ({"head_start": "no"}, "head_start must be true or false, got 'no'"),
        ({"delta": float("inf")}, "^delta inf was given, finite numbers are wanted"),
        ({"recipe": {"lr": float("nan")}}, "^recipe.lr nan was given, finite numbers are wanted"),
        ({"delta": "small"}, "delta"),
        ({"rule": 3}, "rule 3 was given, a name is wanted"),
        ({"method": None}, "method None was given"),
    ],
)
def test_configs_are_read_strictly(given: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        DiscoverConfig.from_dict(given)


# Run folders.


def test_a_run_with_a_recipe_of_another_data_set_and_bfloat16(tmp_path: Path) -> None:
    """All of the recipe is used: AdamW, soft targets, a policy and erasing on eight by eight grey pixels."""
    config = DiscoverConfig.from_dict(
        {
            **SMALL,
            "recipe_name": "cifar-vit",
            "recipe": {"augment": {"crop_padding": 1}, "accumulate": 2, "clip_norm": 1.0},
            "engine": {"device": "cpu", "precision": "bf16"},
            "target_density": 0.2,
        }
    )
    report = run_experiment(config, tmp_path / "run")
    assert report["config"]["recipe"]["augment"]["policy"] == "autoaugment-cifar"
    assert report["network"]["density"] == pytest.approx(0.2, abs=1e-2)
    assert report["ledger"]["samples"] % 128 == 0  # whole batches only


def test_the_environment_of_a_run_tells_the_device_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path, config: dict, *, device: str) -> None:
        raise UserError(f"opened for {device}")

    config = DiscoverConfig.from_dict(SMALL)
    monkeypatch.setattr(RunDir, "open", opened)
    cuda = dataclasses.replace(config.engine.resolve(), device=torch.device("cuda", 1))
    monkeypatch.setattr(EngineOptions, "resolve", lambda self: cuda)
    with pytest.raises(UserError, match=r"opened for cuda$"):
        run_experiment(config, tmp_path / "run")


def test_a_run_leaves_its_files_and_is_not_repeated(tmp_path: Path) -> None:
    config = DiscoverConfig.from_dict(SMALL)
    out = tmp_path / "run"
    before = expected_epochs(config, out)
    with RunDir.open(out, config.as_dict()) as folder:  # as a kill may leave it, its stage being stored
        folder.stages.save("partial-probe-099-0", {"step": 1}, {"noise/0": torch.zeros(1)})
    report = run_experiment(config, out)
    assert not list((out / "stages").glob("partial-*.safetensors"))
    assert expected_epochs(config, out) < before
    assert report == json.loads((out / "report.json").read_text())
    assert report["config"] == config.as_dict() == json.loads((out / "config.json").read_text())
    assert report["network"]["test"]["score"] > 0.2
    num_rounds = len(report["curve"]["rough"])
    assert len(list((out / "masks").iterdir())) == num_rounds
    assert len((out / "curve.csv").read_text().splitlines()) == 1 + num_rounds + len(report["curve"]["probes"])
    for name in ("network.safetensors", "network_masks.safetensors", "curve.png", "report.html", "metrics.jsonl"):
        assert (out / name).stat().st_size > 0

    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    assert run_experiment(config, out) == report
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}

    # Killed after the report was written: pictures and page are made up for.
    (out / "report.html").unlink()
    run_experiment(config, out)
    assert (out / "report.html").exists()


def test_gradient_growth_runs_from_a_config(tmp_path: Path) -> None:
    config = DiscoverConfig.from_dict({**SMALL, "method": "gradient_growth", "target_density": 0.3})
    report = run_experiment(config, tmp_path / "run")
    assert report["network"]["density"] == pytest.approx(0.3, abs=1e-3)


def test_a_network_for_squares_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(40):
        place = tmp_path / "pictures" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 8), (number, 0, 0)).save(place / f"{number}.png")
    line = ["discover", "--data", "folder", "--data-root", str(tmp_path / "pictures"), "--model", "vit"]
    assert leave(*line, "--model-option", "patch=4", "--out", str(tmp_path / "run")) == 2
    said = capsys.readouterr().err
    assert "cannot take the 3x8x16 samples" in said
    assert said.endswith("it takes square images, so choose another model or cut them\n")
    assert said.count("\n") == 1


def test_a_delta_finer_than_one_validation_image_is_told(tmp_path: Path) -> None:
    coarse = {**SMALL, "target_density": 0.2, "delta": 0.0022}
    with pytest.warns(UserWarning, match=r"one of 450 validation images is a step of 0.0022 in the score, more than"):
        run_experiment(DiscoverConfig.from_dict(coarse), tmp_path / "coarse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_experiment(DiscoverConfig.from_dict({**coarse, "delta": 0.0023}), tmp_path / "fine")


def test_a_quiet_discovery_shows_no_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--budget 4 --model-option widths=12,8 --start-density 0.2 --target-density 0.2 --delta 0.0022 --out"
    assert leave("discover", *options.split(), str(tmp_path / "told")) == 0
    assert "pathgrow: note: one of 450 validation images" in capsys.readouterr().err
    assert leave("discover", *options.split(), str(tmp_path / "quiet"), "-q") == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_folder_of_another_run_or_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_experiment(DiscoverConfig.from_dict({**SMALL, "target_density": 0.2}), tmp_path / "run")
    (tmp_path / "file").write_text("precious")
    for out, sentence in (("run", "holds a run of another config"), ("file", "is a file"), ("file/below", "--out")):
        assert leave("discover", "--out", str(tmp_path / out)) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
    assert (tmp_path / "file").read_text() == "precious"


def test_a_finished_run_says_which_of_its_files_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = "--budget 4 --model-option widths=12,8 --start-density 0.2 --target-density 0.2 --out"
    command = ["discover", *options.split(), str(out)]
    assert leave(*command) == 0
    said = capsys.readouterr()
    last = said.out.splitlines()[-1]
    assert last == (
        f"Written to {out}: report.html, curve.png, network.safetensors, report.json and more. "
        f"See it again with: pathgrow show {out}"
    )
    network = (out / "network.safetensors").read_bytes()

    (out / "network.safetensors").unlink()
    assert leave(*command) == 0
    said = capsys.readouterr()
    assert "network.safetensors" not in said.out.splitlines()[-1]
    assert "network.safetensors of this run can no longer be found" in said.err
    assert f"delete {out / 'report.json'} and give the same command again" in said.err

    (out / "report.json").unlink()  # as advised
    assert leave(*command) == 0
    assert "note:" not in capsys.readouterr().err
    assert (out / "network.safetensors").read_bytes() == network

    masks = (out / "masks" / "round_000.safetensors").read_bytes()
    shutil.rmtree(out / "masks")
    (out / "metrics.jsonl").unlink()
    for again in (command, ["show", str(out)]):
        assert leave(*again) == 0
        notes = capsys.readouterr().err.splitlines()
        assert len(notes) == 2
        assert "masks/round_000.safetensors of this run can no longer be found: to have them written anew" in notes[0]
        assert "metrics.jsonl of this run can no longer be found: only the same command with another --out" in notes[1]
    (out / "report.json").unlink()
    assert leave(*command) == 0
    assert "masks" not in capsys.readouterr().err
    assert (out / "masks" / "round_000.safetensors").read_bytes() == masks


def test_a_tolerance_that_every_density_meets_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = DiscoverConfig.from_dict({"budget": 4, "model_options": {"widths": [12]}, "delta": 0.99})
    report = run_experiment(config, tmp_path / "run")
    assert (report["answer"]["status"], report["answer"]["interval"][0]) == ("flat", 0.0)
    assert leave("show", str(tmp_path / "run")) == 0
    assert "lies within 99 points of dense" in " ".join(capsys.readouterr().out.split())


def test_the_thread_count_of_a_run_is_kept_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DiscoverConfig] = []
    config = DiscoverConfig.from_dict({**SMALL, "threads": 2, "target_density": 0.2})
    run_experiment(config, tmp_path / "run")
    monkeypatch.setattr("pathgrow.runs.run_discovery.run", lambda config, out, progress, comm: seen.append(config))
    assert leave("discover", "--quiet", "--out", str(tmp_path / "run")) == 0
    assert seen[0].threads == 2
