"""The real command under torchrun: two ranks, one run directory, which resumes after half of it is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pathgrow.cli import main
from tests.support.command import everything

COMMAND = (
    "train --method gcg --density 0.3 --method-option start_density=0.2 --epochs 4 --model-option widths=16,16 --out"
)


def torchrun(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pathgrow"]
    command = [*launch, *COMMAND.split(), str(out), "--device", "cpu", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="torchrun's signals")
def test_two_ranks_make_one_run_that_resumes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = torchrun(out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pathgrow  mlp on digits") == 1  # printed by rank 0 only
    assert done.stderr.count("round 0: density") == 1
    assert "Resuming" not in done.stderr
    whole = everything(out)
    assert whole["report.config"]["ranks"] == 2  # type: ignore[index]
    assert whole["report.network"]["val"]["score"] > 0.5  # type: ignore[index]
    # As a kill leaves it: the first round is stored, and nothing after it.
    (out / "report.json").unlink()
    lost = [path for path in (out / "stages").iterdir() if path.stem.partition(".")[0] in ("final", "round-002")]
    assert lost
    for path in lost:
        path.unlink()
    again = torchrun(out)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("Resuming: ") == 1
    resumed = everything(out)
    # Weights of earlier rounds are deleted, so the metrics say that these are trained again.
    del whole["metrics"], resumed["metrics"]
    assert resumed == whole
