"""Study definitions: what a TOML file expands to, and what it refuses."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from pathgrow.errors import UserError
from pathgrow.runs.config import DiscoverConfig, TrainConfig
from pathgrow.studies.definition import load_study, parse_study, study_names

CURVES = """
question = "Which method?"
set.epochs = 2
[grid]
density = [0.1, 0.2]
seed = [0, 1]
[[part]]
grid.method = ["set", "random"]
[[part]]
set.method = "dense"
grid.density = []
"""


def test_the_cells_are_the_product_of_the_axes_with_the_first_seed_of_everything_first() -> None:
    cells = parse_study("mine", CURVES).cells()
    found = [tuple(cell.values.get(key) for key in ("seed", "method", "density")) for cell in cells]
    product = [
        (seed, method, density) for seed, density, method in itertools.product((0, 1), (0.1, 0.2), ("set", "random"))
    ]
    assert sorted(found, key=str) == sorted([*product, (0, "dense", None), (1, "dense", None)], key=str)
    assert [seed for seed, *_ in found] == [0] * 5 + [1] * 5


def test_a_cell_is_named_like_the_run_directory_of_its_command() -> None:
    cell = parse_study("mine", CURVES).cells()[0]
    config = TrainConfig.from_dict({"method": "set", "density": 0.1, "epochs": 2, "seed": 0})
    assert (cell.name, cell.config()) == (config.name, config)


def test_an_axis_value_may_set_several_fields_and_names_are_as_on_the_command_line() -> None:
    text = 'question = "?"\n[[part]]\ncommand = "discover"\nset.epochs = 8\ngrid.lr = [0.1]\n'
    text += 'grid.task = [{label = "wide", model = "mlp", model_options = {widths = [32]}}]\n'
    text += 'grid."recipe.batch_size" = [16]'
    [cell] = parse_study("mine", text).cells()
    config = cell.config()
    assert isinstance(config, DiscoverConfig)
    assert (config.budget, config.recipe.lr, config.recipe.batch_size, config.model_options) == (
        8,
        0.1,
        16,
        {"widths": [32]},
    )
    assert cell.axes == {"lr": 0.1, "task": "wide", "recipe.batch_size": 16}


def test_later_layers_win_and_a_scale_changes_values_and_axes() -> None:
    text = 'question = "?"\nset = {epochs = 9, method = "set", fold = 1}\ngrid.density = [0.1, 0.2]\n'
    text += "[[part]]\nset.fold = 2\n"
    study = parse_study("mine", text + "[scale.smoke]\nset = {epochs = 3, fold = 3}\ngrid.density = [0.5]")
    [cell] = study.cells("smoke")
    assert cell.values == {"epochs": 3, "method": "set", "fold": 2, "density": 0.5}
    assert study.cells() == study.cells("smoke")


def test_a_part_may_belong_to_some_scales_only() -> None:
    text = 'question = "?"\n[[part]]\nscales = ["large"]\nset.method = "dense"\n[[part]]\nset.method = "random"\n'
    study = parse_study("mine", text + "[scale.small]\n[scale.large]")
    for scale, methods in ((None, ["random"]), ("small", ["random"]), ("large", ["dense", "random"])):
        assert [cell.values["method"] for cell in study.cells(scale)] == methods
    with pytest.raises(UserError, match="unknown scale of a part of study 'mine' 'larger'"):
        parse_study("mine", text.replace('"large"', '"larger"') + "[scale.large]").cells()


def test_a_matched_cell_refers_to_the_cell_with_otherwise_equal_axes(tmp_path: Path) -> None:
    text = CURVES + '[[part]]\nset = {method = "phew", match = "flops", match_run = {method = "set"}}\n'
    cells = {cell.name: cell for cell in parse_study("mine", text).cells()}
    matched = [cell for cell in cells.values() if cell.values["method"] == "phew"]
    assert len(matched) == 4
    for cell in matched:
        assert cell.needs is not None
        other = cells[cell.needs].values
        assert (other["method"], other["density"], other["seed"]) == (
            "set",
            cell.values["density"],
            cell.values["seed"],
        )
        config = cell.config(tmp_path)
        assert isinstance(config, TrainConfig)
        assert config.match_run == str(tmp_path / cell.needs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question = ", "study 'mine': "),
        ("", "question is missing"),
        ('asks = "?"', "study 'mine': unknown key 'asks' (known: grid, name, part, question,"),
        ('question = "?"\ngird = {}', "unknown key 'gird': did you mean grid"),
        ('question = "?"\nset.method = "set"\ngrid.density = [2]', "cell density 2: density must be in (0, 1], got 2"),
        ('question = "?"\nset = {method = "set", densty = 0.1}', "unknown key 'densty': did you mean density"),
        ('question = "?"\nset.method = "set"\ngrid.density = [0.1, 0.1]', "twice"),
        ('question = "?"\nset = {method = "set", match = "flops", match_run = {method = "gcg"}}', "one cell, got 0"),
        ('question = "?"\nset.method = "os:system"', "is a function outside pathgrow"),
        ("a = " + "[" * 100_000, "study 'mine' is nested too deeply"),
        ("question = " + "9" * 5000, "study 'mine': Exceeds the limit"),
        (f'question = "?"\nset.method = "set"\ngrid.seed = {list(range(10_001))}', "10,001 cells, more than 10,000"),
    ],
)  # fmt: skip
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_study("mine", text).cells()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("growth-rule", None, "did you mean growth-rules"),
        ("none.toml", None, "cannot read none.toml"),
        ("growth-rules", "smok", "did you mean smoke"),
    ],
)
def test_unknown_studies_and_scales_are_named(name: str, scale: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_study(name).cells(scale)


def test_a_file_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    for name, reason in (("binary", "codec can't decode"), ("folder", "regular file"), ("pipe", "regular file")):
        with pytest.raises(UserError, match=rf"^cannot read .*{name}.toml \(.*{reason}"):
            load_study(str(tmp_path / f"{name}.toml"))


@pytest.mark.parametrize("name", study_names())
def test_built_in_studies_have_valid_cells_at_all_scales(name: str) -> None:
    study = load_study(name)
    assert [scale for scale in study.scale if scale != "digits"] == ["smoke", "short", "full"]
    sizes = {scale: len(study.cells(scale)) for scale in study.scale}
    assert 0 < sizes["smoke"] <= sizes["full"]


def test_a_scale_replaces_the_axes_of_a_part_but_not_those_that_it_drops() -> None:
    text = """
        question = "?"
        grid = { density = [0.1, 0.2], seed = [0, 1] }
        [[part]]
        set.method = "dense"
        grid = { density = [], seed = [0] }
        [scale.small]
        [scale.large]
        grid = { density = [0.3], seed = [0, 1, 2] }
    """
    study = parse_study("mine", text)
    assert [cell.axes for cell in study.cells("small")] == [{"seed": 0}]
    assert [cell.axes for cell in study.cells("large")] == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
