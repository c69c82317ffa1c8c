"""Publish the network of a run under `results/networks`: weights, masks, report and hashes, without its stages.

    python -m benchmarks.networks digits-mlp-rigl-10 train --data digits --method rigl --density 0.1
    python -m benchmarks.networks digits-mlp-rigl-10 --run runs/rigl train --data digits --method rigl --density 0.1

The first form runs the command; the second takes the directory of a run that is finished already. `make results` lists
all published networks in results/networks/README.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pathgrow.checkpoint.manifest import check_hash, write_manifest
from pathgrow.errors import UserError

FOLDER = Path(__file__).parents[1] / "results" / "networks"
PAGE = FOLDER / "README.md"
_FILES = ("config.json", "env.json", "report.json", "network.safetensors", "network_masks.safetensors")


def published() -> list[Path]:
    """The directories of all published networks."""
    return sorted(path.parent for path in FOLDER.glob("*/report.json"))


def publish(run: Path, name: str, command: list[str]) -> Path:
    """Copy what is needed to load and judge the network of a finished run, and the command that made it."""
    if not (run / "report.json").is_file():
        raise UserError(f"{run} is not a finished run: it has no report.json")
    check_hash(run, *_FILES)
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in _FILES:
        shutil.copyfile(run / file, folder / file)
    write_manifest(folder)
    (folder / "command.txt").write_text(f"pathgrow {shlex.join(command)}\n", encoding="utf-8")
    return folder


def overview() -> str:
    """A table of all published networks."""
    headings = ("network", "command", "density", "val", "test", "FLOPs / dense training", "size")
    lines = [headings, ["---"] * len(headings)]
    for folder in published():
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        network, relative = report["network"], report["ledger"]["relative"]
        scores = [f"{100 * network[part]['score']:.2f}" if network[part] else "-" for part in ("val", "test")]
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1000
        command = (folder / "command.txt").read_text(encoding="utf-8").strip()
        density = f"{100 * network['density']:.3g}%"
        lines.append([f"`{folder.name}`", f"`{command}`", density, *scores, f"{relative:.2f}", f"{size:.0f} kB"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the network, such as digits-mlp-rigl-10")
    parser.add_argument("--run", type=Path, help="a finished run of the command (default: run it)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="`train` or `discover` with its options")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = chosen.run or Path(temporary) / "run"
        if chosen.run is None:
            subprocess.run([sys.executable, "-m", "pathgrow", *chosen.command, "--out", str(run)], check=True)
        print("published", publish(run, chosen.name, chosen.command))


if __name__ == "__main__":
    main()
