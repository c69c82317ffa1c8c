"""The shape of the package: subpackages, names, small modules, and tests that mirror them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pathgrow"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
TABLES = ("methods", "models", "data", "augment")
"""Subpackages whose files are entries of a table: one per method, model, dataset or operation."""
COMMON = {"create", "names", "defaults", "main", "T", "register"}
"""Names that mean the same thing in every module that defines them."""
OTHER_TESTS = {"benchmarks", "contract", "oracle", "e2e", "docs", "support", "recorded", "root"}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def test_the_root_fits_on_one_screen() -> None:
    modules = [path for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    subpackages = [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    assert len(modules) <= 6
    assert len(subpackages) <= 16


def test_no_public_name_is_defined_twice() -> None:
    modules_of = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names: list[str] = []
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names = [node.target.id]
            for name in names:
                if not name.startswith("_") and name not in COMMON:
                    modules_of[name].append(dotted(path))
    assert {name: places for name, places in modules_of.items() if len(places) > 1} == {}


def test_a_small_module_with_one_importer_lives_in_it() -> None:
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    mergeable = []
    for path in MODULES:
        if len(sources[path].splitlines()) >= 80 or path.parent.name in TABLES:
            continue
        name, package = path.stem, dotted(path.parent / "x").removesuffix(".x")
        used = re.compile(
            rf"from {re.escape(dotted(path))} import|import {re.escape(dotted(path))}\b"
            rf"|from {re.escape(package)} import [^\n]*\b{name}\b|from {re.escape(package)} import \([^)]*\b{name}\b"
        )
        importers = [other for other, text in sources.items() if other != path and used.search(text)]
        if len(importers) == 1:
            mergeable.append(f"{dotted(path)} (only {dotted(importers[0])} imports it)")
    assert mergeable == []


def test_no_module_is_long() -> None:
    assert [dotted(path) for path in MODULES if len(path.read_text().splitlines()) > 500] == []


def test_tests_mirror_the_subpackages() -> None:
    subpackages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    directories = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert directories - subpackages - OTHER_TESTS == set()
    unmatched = [
        str(path.relative_to(ROOT))
        for name in sorted(subpackages & directories)
        for path in (ROOT / "tests" / name).glob("test_*.py")
        if not any(
            path.stem.removeprefix("test_").removesuffix("_gpu") == module.stem
            for module in (PACKAGE / name).rglob("*.py")
        )
        and path.stem.removeprefix("test_").removesuffix("_gpu") != name
    ]
    assert unmatched == []


def test_the_architecture_page_lists_every_subpackage_and_root_module() -> None:
    page = (ROOT / "docs" / "design" / "architecture.md").read_text()
    listed = set(re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"^\|.*$", page, re.MULTILINE))))
    subpackages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert subpackages | modules <= listed
