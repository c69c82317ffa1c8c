"""The public names of the package, imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pathgrow


def test_every_public_name_can_be_imported() -> None:
    assert set(pathgrow._HOMES) | {"RunFailed", "UserError", "__version__"} == set(pathgrow.__all__)
    for name in pathgrow.__all__:
        assert getattr(pathgrow, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'discovr'"):
        _ = pathgrow.discovr


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_does_not_wait_for_torch(flag: str) -> None:
    program = (
        "import sys\nfrom pathgrow.cli.main import main\n"
        f"try: main([{flag!r}])\nexcept SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'numpy', 'rich'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
