"""Cells of several studies on CIFAR as one queue for one GPU, those that decide most per minute first.

    python -m benchmarks.study_queue list
    python -m benchmarks.study_queue run growth imp cost --out DIR --jobs 8
    python -m benchmarks.study_queue export --out DIR --to FOLDER

`run` continues an earlier queue in DIR, and two of them may share it; it leaves out cells with a finished line in
results/studies. `export` may be called at any time; it writes the
lines of finished cells, and of the finished levels of an unfinished IMP-C: `cells.jsonl` for `make results ADD=...`,
`other.jsonl` for cells that belong to no study of the paper; and `runs.tar`, the finished runs without their stages,
from which another machine continues the queue; and `networks.tar.gz`, the weights of the sparse networks of seed 0:
unpacked beside the runs, `benchmarks.networks` publishes them. With `--started N` the first N unfinished runs are
written as well, which continue there from their last stage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pathgrow import atomic
from pathgrow.checkpoint import RunDir, strict_json
from pathgrow.distributed.interrupts import Interrupted, signal_handlers
from pathgrow.studies.definition import Cell, Study, load_study, parse_study
from pathgrow.studies.lines import load_lines
from pathgrow.studies.pools import LocalPool
from pathgrow.studies.price import MEASURED_SPEEDS, num_epochs, price_of
from pathgrow.studies.runner import StudyProgress, run_study

SCALE = "short"
RESULTS = Path(__file__).parents[1] / "results" / "studies"
STUDIES = ("growth-rules", "density-curves", "topology", "cost", "growth-timing")
RULES = ("pathgrow_d", "random_growth", "gradient_growth")
SPEED = 90_000
"""Images of ResNet-32 per second, of all processes together on an H200."""
OTHER = {
    "gts": """
question = "Is gts at least as accurate as gradual pruning at 10%?"
set = { data = "cifar10", model = "resnet32", epochs = 80, density = 0.1, compile = "off" }
grid.method = ["gts", "gmp"]
grid.seed = [0, 1, 2]
""",
    "cifar100-dense": """
question = "How accurate is dense ResNet-56 on CIFAR-100?"
set = { data = "cifar100", model = "resnet56", method = "dense", epochs = 160, compile = "off" }
grid.seed = [0, 1]
""",
}
"""Studies beside those of the paper."""
_WEIGHTS = "network.safetensors"
_LEFT_OUT = ("stages", ".lock", _WEIGHTS)


@dataclass(frozen=True)
class Group:
    """Cells that are run for one purpose."""

    decides: str
    study: Study
    chosen: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of axes or config fields to which the cells of the study are limited."""

    def cells(self, scale: str) -> list[Cell]:
        """The cells in the order of their seeds."""
        return [cell for cell in self.study.cells(scale if self.study.scale else None) if self._has(cell)]

    def _has(self, cell: Cell) -> bool:
        return all(cell.axes.get(key, cell.values.get(key)) in values for key, values in self.chosen.items())


def groups() -> dict[str, Group]:
    """All groups by name, the most telling first."""
    rules, curves, topology, cost, timing = (load_study(name) for name in STUDIES)
    own = {name: parse_study(name, text) for name, text in OTHER.items()}
    return {
        "imp": Group("claims 1, 2 and the scale of 4 (one long run: start it first)", curves, {"method": ("imp_c",)}),
        "growth": Group("claims 1 and 5 to 7 need it", rules, {"method": ("gcg",)}),
        "rules": Group("claim 5 at 10%, and 9 as soon as they have grown", topology, {"method": RULES}),
        "curves": Group("claims 6, 7", curves, {"method": ("rigl", "phew")}),
        "dense": Group("baseline", curves, {"method": ("dense",)}),
        "cost": Group("claim 4", cost, {"search": ("GCG (paper)", "discover")}),
        "gts": Group("gts beside gmp, 80 epochs", own["gts"]),
        "rules-40": Group("claim 5 at 40%", rules, {"method": RULES, "density": (0.4,)}),
        "timing": Group("claim 8", timing),
        "cifar100-dense": Group("dense CIFAR-100 / ResNet-56, 160 epochs", own["cifar100-dense"]),
    }  # fmt: skip


CORE = ("growth", "rules", "curves", "dense")
"""Groups whose first seeds run before their second ones."""


def queue(names: Sequence[str], scale: str = SCALE) -> list[Cell]:
    """The cells of some groups in the order in which they are run, with the cells that others of them need."""
    known = groups()
    core = [cell for name in names if name in CORE for cell in known[name].cells(scale)]
    core.sort(key=lambda cell: int(cell.values.get("seed", 0)))
    first = [cell for name in names if name == "imp" for cell in known[name].cells(scale)]
    rest = [cell for name in names if name not in (*CORE, "imp") for cell in known[name].cells(scale)]
    ordered = {cell.name: cell for cell in (*first, *core, *rest)}
    needed = {cell.needs for cell in ordered.values()} - set(ordered)
    before = {cell.name: cell for cell in known["growth"].cells(scale) if cell.name in needed}
    return list({**before, **ordered}.values())


def published(folder: Path = RESULTS) -> set[str]:
    """Names of the cells that have a finished line in the committed results."""
    lines = (json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines())
    return {line["cell"] for line in lines if not line.get("unfinished")}


def listed(speed: float) -> str:
    """What each group decides and costs."""
    faster = speed / MEASURED_SPEEDS["GPU"][0].samples_per_second
    lines = [f"{'group':<15}{'cells':>6}{'epochs':>8}{'minutes':>9}{'in all':>8}  decides"]
    total = 0.0
    for name, group in groups().items():
        cells = group.cells(SCALE)
        epochs = sum(num_epochs(cell.config()) for cell in cells)
        minutes = sum(price_of(cell).seconds for cell in cells) / faster / 60
        total += minutes
        lines.append(f"{name:<15}{len(cells):>6}{epochs:>8.0f}{minutes:>9.1f}{total:>8.1f}  {group.decides}")
    return "\n".join(lines)


def export(out: Path, to: Path, scale: str = SCALE, num_started: int = 0) -> None:
    """Write what is finished, and the whole directories of the first runs that are not."""
    to.mkdir(parents=True, exist_ok=True)
    of_paper = [line for name in STUDIES for line in load_lines(load_study(name), scale, out)]
    others = [line for name, text in OTHER.items() for line in load_lines(parse_study(name, text), None, out)]
    for name, lines in (("cells", of_paper), ("other", others)):
        atomic.write_text(to / f"{name}.jsonl", "".join(f"{strict_json.dumps(line)}\n" for line in lines))
    started_cells = [cell for cell in queue(list(groups()), scale) if (out / cell.name).is_dir()]
    runs = [RunDir(out / cell.name) for cell in started_cells]
    finished = [run.path for run in runs if run.finished]
    _pack(to / "runs.tar", [path for run in finished for path in run.iterdir() if path.name not in _LEFT_OUT])
    first = {
        cell.name for cell in started_cells if not cell.values.get("seed") and cell.values.get("method") != "dense"
    }
    _pack(to / "networks.tar.gz", [path / _WEIGHTS for path in finished if path.name in first])  # many zeros
    started = [run.path for run in runs if not run.finished]
    for run in started[:num_started]:
        _pack(to / f"started-{run.name}.tar", [path for path in run.rglob("*") if path.name != ".lock"])
    in_part = {line["cell"]: len(line["points"]) for line in of_paper if line.get("unfinished")}
    print(f"{len(finished)} finished cells: {len(of_paper)} lines of studies of the paper, {len(others)} others.")
    for name, num in in_part.items():
        print(f"{name} is unfinished; its first {num} levels are among the lines.")


def _pack(file: Path, paths: Iterable[Path]) -> None:
    """Write files of run directories as a tar file; those that their run has just deleted are left out."""
    part = file.with_suffix(".part")
    with tarfile.open(part, "w:gz" if file.suffix == ".gz" else "w") as tar:
        for path in sorted(path for path in paths if path.is_file()):
            with suppress(FileNotFoundError):
                run = path.parents[1] if path.parent.name == "stages" else path.parent
                tar.add(path, path.relative_to(run.parent))
    part.replace(file)


def _known(names: Iterable[str]) -> list[str]:
    return [name for name in groups() if name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("list")
    table.add_argument("--speed", type=float, default=SPEED, help=f"images/s in all (default: {SPEED:,})")
    run = commands.add_parser("run")
    run.add_argument("groups", nargs="+", choices=list(groups()))
    run.add_argument("--again", action="store_true", help="also run cells with a line in results/studies")
    run.add_argument("--only", nargs="*", metavar="TEXT", help="only cells with one of these in their name")
    run.add_argument("--jobs", type=int, default=8, help="processes that share the GPU (default: 8)")
    written = commands.add_parser("export")
    written.add_argument("--to", type=Path, required=True)
    written.add_argument("--started", type=int, default=0, help="unfinished runs to be written too (default: 0)")
    for each in (run, written):
        each.add_argument("--out", type=Path, required=True, help="directory of the cells")
        each.add_argument("--scale", default=SCALE, help=f"scale of the studies (default: {SCALE})")
    chosen = parser.parse_args()
    if chosen.command == "list":
        print(listed(chosen.speed))
    elif chosen.command == "export":
        export(chosen.out, chosen.to, chosen.scale, chosen.started)
    else:
        done = set() if chosen.again else published()
        cells = [
            cell
            for cell in queue(_known(chosen.groups), chosen.scale)
            if cell.name not in done and any(text in cell.name for text in chosen.only or [""])
        ]
        try:
            with signal_handlers():  # otherwise SIGTERM leaves the workers running
                outcome = run_study(cells, chosen.out, LocalPool(chosen.jobs, 1 / chosen.jobs), StudyProgress())
        except Interrupted as error:
            sys.exit(error.exit_code)
        print(f"{outcome.num_finished} of {len(cells)} cells finished, {len(outcome.failed)} failed.")


if __name__ == "__main__":
    main()
