"""The public names of the package, imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pathgrow


def test_every_public_name_can_be_imported() -> None:
    for name in pathgrow.__all__:
        assert getattr(pathgrow, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'discovr'"):
        _ = pathgrow.discovr


@pytest.mark.parametrize(
    "line", ["--help", "--version", "methods", "train --help", "discover --help", "compare --help", "data get --help"]
)
def test_help_does_not_wait_for_torch(line: str) -> None:
    modules = {"torch", "scipy", "matplotlib", "rich", *([] if "train" in line or "discover" in line else ["numpy"])}
    program = (
        "import sys\nfrom pathgrow.cli.main import main\n"
        f"try: main({line.split()!r})\nexcept SystemExit as end: assert end.code == 0\n"
        f"assert not {modules!r} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
