"""Run the fast tests with the lowest or the newest versions of all dependencies: `make test-floors`.

    python scripts/test_versions.py lowest                       # every dependency at the lower bound of pyproject.toml
    python scripts/test_versions.py newest                       # every dependency at its latest release
    python scripts/test_versions.py lowest --python python3.13   # with another interpreter
    python scripts/test_versions.py lowest --torch 2.13.0        # with this torch instead of the lower bound

Lower bounds that nobody tests are wrong sooner or later. Each call builds a virtual environment of its own under
`.venv-versions`, which is kept for the next call.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""CPU wheels of torch; where it cannot be reached, pip falls back to its configured index."""
TEST_TOOLS = {"pytest", "pytest-xdist", "hypothesis"}
FAST = ["cli", "root", "masks", "graph", "walks", "methods", "density", "report", "models", "augment", "checkpoint"]
"""Rooms whose tests take seconds and touch every dependency."""


def requirements() -> dict[str, str]:
    """Lower bound of each runtime dependency and test tool in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    found = {}
    for line in listed:
        match = re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)", line)
        if match is None:
            raise SystemExit(f"pyproject.toml: {line!r} has no lower bound")
        found[match.group(1)] = match.group(2)
    runtime = {re.split(r"[>=<!~\s]", line)[0] for line in project["dependencies"]}
    return {name: version for name, version in found.items() if name in runtime | TEST_TOOLS}


def install(python: Path, versions: str, torch: str | None) -> None:
    """Install torch first and alone, as the Makefile does, then everything else."""
    bounds = requirements()
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = torch or (bounds["torch"] if versions == "lowest" else None)
    index = ["--extra-index-url", TORCH_INDEX, "--retries", "0"]
    subprocess.run([*pip, *index, f"torch=={wanted}" if wanted else "torch"], check=True)
    others = {name: version for name, version in bounds.items() if name != "torch"}
    if versions == "lowest":
        packages = [f"{name}=={version}" for name, version in others.items()]
    else:
        packages = ["--upgrade", "--upgrade-strategy", "eager", *others]
    subprocess.run([*pip, *packages], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", choices=["lowest", "newest"])
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment")
    parser.add_argument("--torch", help="version of torch, instead of the lower bound or the newest")
    parser.add_argument("--workers", default="2", help="test processes")
    chosen = parser.parse_args()
    asked = subprocess.run(
        [chosen.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    folder = ROOT / ".venv-versions" / f"{chosen.versions}-{asked.stdout.strip()}-{chosen.torch or 'torch'}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([chosen.python, "-m", "venv", str(folder)], check=True)
    install(python, chosen.versions, chosen.torch)
    subprocess.run([str(python), "-m", "pip", "list", "--format", "freeze"], check=True)
    tests = [f"tests/{room}" for room in FAST]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pytest = ["pytest", "-q", "-n", chosen.workers, "-m", "not slow", "-p", "no:cacheprovider", *tests]
    ran = subprocess.run([str(python), "-m", *pytest], cwd=ROOT, env=environment, check=False)
    raise SystemExit(ran.returncode)


if __name__ == "__main__":
    main()
