"""Publish the network of a run under `results/networks`: weights, masks, report and hashes, without its stages.

    python -m benchmarks.networks digits-mlp-rigl-10 train --data digits --method rigl --density 0.1
    python -m benchmarks.networks digits-mlp-rigl-10 --run runs/rigl train --data digits --method rigl --density 0.1

The first form runs the command; the second takes the directory of a run that is finished already. `make results` lists
all published networks in results/networks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathgrow.checkpoint.manifest import check_hash, write_manifest
from pathgrow.cli.main import parse
from pathgrow.errors import UserError
from pathgrow.report.schema import flat_config
from pathgrow.runs.config import DiscoverConfig, TrainConfig

FOLDER = Path(__file__).parents[1] / "results" / "networks"
PAGE = FOLDER / "README.md"
_RESOLVED = ("threads", "model_options", "match_", "data_root")
"""Fields that a run fills in by itself, and where it found its data."""
_FILES = ("config.json", "env.json", "report.json", "network.safetensors", "network_masks.safetensors")


def published() -> list[Path]:
    """The directories of all published networks."""
    return sorted(path.parent for path in FOLDER.glob("*/report.json"))


def publish(run: Path, name: str, command: list[str]) -> Path:
    """Copy what is needed to load and judge the network of a finished run, and the command that made it."""
    if not (run / "report.json").is_file():
        raise UserError(f"{run} is not a finished run: it has no report.json")
    check_hash(run, *_FILES)
    if wrong := _differences(command, json.loads((run / "config.json").read_text(encoding="utf-8"))):
        raise UserError(f"{run} is not a run of `pathgrow {shlex.join(command)}`: {'; '.join(wrong)}")
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in _FILES:
        shutil.copyfile(run / file, folder / file)
    write_manifest(folder)
    (folder / "command.txt").write_text(f"pathgrow {shlex.join(command)}\n", encoding="utf-8")
    return folder


def _differences(command: list[str], config: Mapping[str, Any]) -> list[str]:
    """What a run was configured with, where the command says otherwise."""
    if command[:1] not in (["train"], ["discover"]):
        return ["it starts with neither train nor discover"]
    kind = TrainConfig if command[0] == "train" else DiscoverConfig
    known = {field.name for field in dataclasses.fields(kind)}
    given = {name: value for name, value in parse(command)[1].items() if name in known}
    stored, expected = flat_config(config), flat_config(kind.from_dict(given).as_dict())
    filled_in = {name for name in stored if name.startswith(_RESOLVED)} - flat_config(given).keys()
    return [
        f"{name} was {stored[name]}, not {expected.get(name)}"
        for name in stored
        if name not in filled_in and stored[name] != expected.get(name)
    ]


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
