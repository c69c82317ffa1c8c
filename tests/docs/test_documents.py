"""README and docs: links resolve, Python blocks run, shell commands are accepted by the command line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pathgrow
from pathgrow.checkpoint import RunDir
from tests.support import catalogue

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
PAGES = [path for path in DOCUMENTS if "```python" in path.read_text() and path.name != "add_a_method.md"]
"""`add_a_method.md` builds one method step by step and has a test of its own."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_resolve(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    local = [target.partition("#")[0] for target in targets if not re.match(r"https?:|mailto:|#", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


def readers_own_names() -> dict[str, Any]:
    """What a reader brings along: a model, an optimizer, `fit`, `evaluate`, an example input."""
    torch.manual_seed(0)
    inputs = torch.randn(160, 8)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        for _ in range(epochs):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[:128]), labels[:128]).backward()
            optimizer.step()

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(inputs[128:]).argmax(1) == labels[128:]).float().mean())

    return {
        "pathgrow": pathgrow,
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
        "fit": fit,
        "evaluate": evaluate,
        "example_input": inputs[:1],
        "validation_score": 0.5,
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs with a reader's own model; budgets are shortened, and run directories that it reads exist."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        names = readers_own_names()
        if "runs/first" in block:
            _write_network(names["model"], names["example_input"], tmp_path / "runs" / "first")
        exec(compile(re.sub(r"budget=\d+", "budget=6", block), named(page), "exec"), names)
        if "found" in names:
            assert 0 < names["found"].density <= 1


@pytest.mark.parametrize(
    ("name", "options"), [("str", {"s_init": -2.0}), ("edge_popup", {}), ("st3", {"num_steps": 3}), ("topkast", {})]
)
def test_the_clipping_of_the_guide_sees_active_weights_only(name: str, options: dict[str, Any]) -> None:
    [block] = [block for block in blocks(ROOT / "docs" / "guide.md", "python") if "def clip_by_active_" in block]
    names: dict[str, Any] = {"torch": torch}
    exec(block, names)
    own = readers_own_names()
    model, optimizer = own["model"], torch.optim.SGD(own["model"].parameters(), lr=0.1)
    sparse = pathgrow.attach(model, optimizer, pathgrow.methods.create(name, **options), own["example_input"])
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(64, 8)).square().mean().backward()
        before = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
        masks = {key: mask.clone() for key, mask in sparse.masks.items()}
        squares = sum(float(grad[masks.get(key, ...)].double().square().sum()) for key, grad in before.items())
        dense = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        norm = names["clip_by_active_"](model, sparse.masks, max_norm=0.5 * squares**0.5)
        clipped = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
        optimizer.step()
    assert 0 < sparse.density < 1
    assert norm == pytest.approx(squares**0.5, rel=1e-5)
    assert dense > 1.01 * norm, "otherwise there would be nothing to do"
    assert all(torch.allclose(clipped[key], 0.5 * grad, rtol=1e-3) for key, grad in before.items())


def _write_network(model: nn.Module, example_input: torch.Tensor, folder: Path) -> None:
    with RunDir.open(folder, {}) as run_dir:
        run_dir.save_network(model, pathgrow.scope(model, example_input=example_input))
        run_dir.write_report({})


def commands() -> list[list[str]]:
    lines = [
        shlex.split(line, comments=True)
        for path in DOCUMENTS
        for block in blocks(path, "sh")
        for line in block.splitlines()
    ]
    found = [words[words.index("pathgrow") + 1 :] for words in lines if "pathgrow" in words]
    return [list(words) for words in dict.fromkeys(tuple(words) for words in found)]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_are_accepted(words: list[str]) -> None:
    from pathgrow.cli.main import parse

    parse(words)


def test_the_reliability_page_shows_the_results() -> None:
    rows = catalogue.read_results()
    page = catalogue.PAGE.read_text()
    assert page == catalogue.with_table(page, rows)
    assert set(rows) <= set(catalogue.ITEMS)
    assert all(0 <= row["survived"] <= row["tried"] for row in rows.values())


def test_rows_of_another_machine_replace_those_of_the_same_items(tmp_path: Path) -> None:
    rows = catalogue.read_results()
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    catalogue.merge(here, rows)
    catalogue.merge(there, {6: {**rows[6], "tried": 29, "survived": 28}})
    catalogue.merge(here, catalogue.read_results(there))
    assert catalogue.read_results(here) == {**rows, 6: {**rows[6], "tried": 29, "survived": 28}}


def test_the_readme_fits_on_a_screen_and_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 75
    assert "make demo" in text
    assert "make test" in text
