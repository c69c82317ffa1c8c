"""What is said about the package outside of its code: distributions and make targets."""

from __future__ import annotations

import importlib
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def test_the_source_distribution_has_all_that_the_tests_and_the_reader_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"src", "tests", "docs", "examples", "benchmarks", "scripts", "Makefile", "constraints.txt"} <= set(included)
    assert [name for name in included if not (ROOT / name).exists()] == []
    assert (ROOT / project["project"]["readme"]).is_file()


def test_every_dependency_has_a_lower_bound_that_the_pinned_version_meets() -> None:
    bounds = runpy.run_path(str(ROOT / "scripts" / "test_versions.py"))["lower_bounds"]()
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert {"torch", "numpy", "timm", "transformers", "pytest"} <= {name for name, bound in bounds.items() if bound}
    assert [name for name, bound in bounds.items() if Version(pinned[name]) < Version(bound or "0")] == []


def test_the_lock_has_the_pinned_versions_and_a_hash_of_each() -> None:
    pins = set(re.findall(r"^([\w.-]+==[\w.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    locked = re.findall(
        r"^([\w.-]+==[\w.]+)[^\n]*\\\n +--hash=sha256:[0-9a-f]{64}",
        (ROOT / "requirements.lock").read_text(),
        re.MULTILINE,
    )
    without_torch = {pin for pin in pins if not pin.startswith("torch")}
    assert {pin.lower().replace("_", "-") for pin in locked} == {pin.lower().replace("_", "-") for pin in without_torch}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_demo_is_one_command_which_shows_its_result_itself() -> None:
    output = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = [line.partition("bin/pathgrow ")[2] for line in output.splitlines() if "bin/pathgrow " in line]
    assert commands == ["discover --delta 0.02 --out demo"]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_what_is_there_and_say_how_they_are_run(path: Path) -> None:
    """They are not run by the tests: a name that is gone would be noticed by the next person who wants a figure."""
    module = importlib.import_module(f"benchmarks.{path.stem}")
    if path.stem != "__init__":
        assert f"python -m benchmarks.{path.stem}" in (module.__doc__ or "")
        assert callable(module.main)


def test_an_audit_that_skips_packages_fails() -> None:
    """Through a mirror without the database, pip-audit skips every package and reports that nothing was found."""
    recipe = (ROOT / "Makefile").read_text().partition("\naudit:")[2].partition("\n\n")[0]
    assert "pip-audit --strict" in recipe
    assert "nothing was audited" in recipe
