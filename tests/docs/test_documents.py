"""README and notes: links lead somewhere, examples run, commands are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from pathgrow.cli.main import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    local = [target.partition("#")[0] for target in targets if not re.match(r"https?:|mailto:|#", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_in_the_readme_is_python_and_the_whole_example_runs() -> None:
    for block in blocks("python"):
        compile(block, "README.md", "exec")
    (example,) = [block for block in blocks("python") if "data.load(" in block]
    assert "budget=80" in example
    names: dict[str, object] = {}
    exec(example.replace("budget=80", "budget=8"), names)
    assert 0 < names["found"].density <= 1  # type: ignore[attr-defined]


def commands() -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [words[words.index("pathgrow") + 1 :] for words in lines if "pathgrow" in words]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_in_the_readme_are_taken(words: list[str]) -> None:
    group = typer.main.get_command(app)
    with group.make_context("pathgrow", list(words)) as outer:
        name, command, rest = group.resolve_command(outer, list(words))  # type: ignore[attr-defined]
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(outer, rest)
        assert command.make_context(name, rest, parent=outer).params
