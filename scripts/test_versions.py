"""Run the tests, except slow ones, with the lowest or the newest versions of all dependencies: `make test-floors`.

    python scripts/test_versions.py lowest                       # every dependency at the lower bound of pyproject.toml
    python scripts/test_versions.py newest                       # every dependency at its latest release
    python scripts/test_versions.py lowest --python python3.13   # with another interpreter
    python scripts/test_versions.py lowest --torch 2.13.0        # with this torch instead of the lower bound

Where a lower bound has no wheel for the interpreter, because it is newer than the release, the next release that has
one takes its place. Each call builds a virtual environment of its own under `.venv-versions`, which is kept for the
next call; with the CUDA build of torch it takes about 6 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TEST_TOOLS = {"pytest", "pytest-xdist", "hypothesis"}
EXTRAS = ["timm", "transformers"]


def lower_bounds() -> dict[str, str | None]:
    """Return the lower bound of every runtime dependency, extra and test tool; torchvision has none, torch decides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [line for line in extras["dev"] if re.split(r"[^\w.-]", line)[0] in TEST_TOOLS]
    bounds = {}
    for line in [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra]), *tools]:
        match = re.match(r"([\w.-]+)(?:\s*>=\s*([0-9.]+))?", line)
        assert match is not None, line
        bounds[match[1]] = match[2]
        if match[2] is None and match[1] != "torchvision":
            raise SystemExit(f"pyproject.toml: {line!r} has no lower bound")
    return bounds


def lowest_wheel(python: Path, name: str, bound: str) -> str:
    """Return the lowest version, at least `bound`, that has a wheel for this interpreter."""
    command = [str(python), "-m", "pip", "index", "versions", name, "--json", "--only-binary", ":all:"]
    listed = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["versions"]
    releases = {tuple(map(int, version.split("."))): version for version in listed if re.fullmatch("[0-9.]+", version)}
    found = releases[min(release for release in releases if release >= tuple(map(int, bound.split("."))))]
    if found not in (bound, f"{bound}.0"):
        print(f"{name} {found} instead of {bound}, which has no wheel for this Python", flush=True)
    return found


def torch_index() -> list[str]:
    """Return the option for CPU wheels of torch, or nothing where their index cannot be reached."""
    try:
        urllib.request.urlopen(f"{TORCH_INDEX}/torch/", timeout=10).close()
    except OSError:
        return []
    return ["--extra-index-url", TORCH_INDEX]


def install(python: Path, versions: str, torch: str | None) -> None:
    """Install everything in one call, so that pip picks the torchvision for that torch and reports conflicts."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--upgrade", "pip"], check=True)  # older ones ignore `--only-binary` when they list versions
    bounds = lower_bounds()
    if versions == "lowest":
        pinned = {name: lowest_wheel(python, name, bound) for name, bound in bounds.items() if bound}
    else:
        pinned = {}
        pip += ["--upgrade", "--upgrade-strategy", "eager"]
    if torch:
        pinned["torch"] = torch
    packages = [f"{name}=={pinned[name]}" if name in pinned else name for name in bounds]
    editable = ["--editable", f"{ROOT}[{','.join(EXTRAS)}]"]
    subprocess.run([*pip, *torch_index(), *packages, *editable], check=True)


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
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pytest = ["pytest", "-q", "-n", chosen.workers, "--dist", "worksteal", "-m", "not slow", "-p", "no:cacheprovider"]
    ran = subprocess.run([str(python), "-m", *pytest], cwd=ROOT, env=environment, check=False)
    raise SystemExit(ran.returncode)


if __name__ == "__main__":
    main()
