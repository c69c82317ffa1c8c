"""Strings that users see use the terms of the field, not private ones (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pathgrow"
BANNED = {
    r"\btold\b": "reported, logged",
    r"\bwanted\b": "must be, expected",
    r"\bwas given\b": "got",
    r"\bmend(s|ed)?\b": "fix",
    r"\bhand(s|ed)? back\b": "returned",
    r"\btrain(ed|s)? out\b": "fully trained",
    r"\bdearer\b": "more expensive",
    r"\bsurer\b": "more certain",
    r"\banew\b": "again, from scratch",
    r"\b(is|are|was) no (?!longer)": "is not a",
    r"\bswitchable\b": "prunable",
    r"\bgive for example\b": "e.g.",
    r"\bof one's own\b": "user-defined",
    r"\bside by side\b": "concurrently",
    r"\b(the|a|this) team\b": "process group",
    r"\bslots?\b": "optimizer state",
    r"\bforetold\b": "predicted",
    r"\bwin(s)? (its|the) time back\b": "pays off",
}
TEXTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *PACKAGE.glob("**/*.j2"),
    *ROOT.glob("examples/*.py"),
]


def found(text: str) -> list[str]:
    return [
        f"{match.group(0)!r} (use: {instead})"
        for pattern, instead in BANNED.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_strings_and_docstrings_use_the_terms_of_the_field(path: Path) -> None:
    strings = [
        (node.lineno, word)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in found(node.value)
    ]
    assert strings == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_the_terms_of_the_field(path: Path) -> None:
    assert [
        (number, word) for number, line in enumerate(path.read_text().splitlines(), 1) for word in found(line)
    ] == []


def test_the_check_notices_a_private_term() -> None:
    assert found("gamma -1 was given, a number above 0 is wanted")
    assert found("this is no folder")
    assert not found("it is no longer finite")


_HALF = re.compile(r"^(and|or|but|of which|which|then|after which|because|where)\b", re.IGNORECASE)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_docstring_is_half_a_sentence(path: Path) -> None:
    """In an IDE every docstring is shown on its own, so each has to end, and none may continue the one before."""
    tree = ast.parse(path.read_text())
    half = []
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for statement in body if isinstance(body, list) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                text = statement.value.value.strip()
                if text.endswith((",", ";", " and")) or (text[:1].islower() and _HALF.match(text)):
                    half.append((statement.lineno, text[:60]))
    assert half == []
