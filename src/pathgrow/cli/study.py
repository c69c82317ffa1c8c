"""`pathgrow study`: run a grid of runs, list what there is, show what is finished."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pathgrow.cli.flags import Parser, Subcommand
from pathgrow.errors import RunFailed, printable, require
from pathgrow.registry import parse_pair

_OUT = Path("runs") / "studies"


def _run_study(
    *, name: str, scale: str | None, on: str, jobs: int | None, gpus: float | None, slurm: list[str], out: Path
) -> None:
    """Run a study: a grid of runs that answers one question.

    NAME is a built-in study, see `pathgrow study list`, or a TOML file. Finished cells are never run again, a failed
    cell stops no other, and rerunning the command resumes. Studies that share a directory share equal cells.
    """
    from pathgrow.studies.pools import create_pool

    require(jobs is None or jobs >= 1, "jobs", jobs, ">= 1", 4)
    require(gpus is None or gpus >= 0, "gpus", gpus, ">= 0", 0.5)
    options = dict(parse_pair(pair, "--slurm") for pair in slurm)
    pool = create_pool(on, jobs, gpus, folder=out / ".slurm", options=options)
    # Imported while the workers' server imports the same.
    from pathgrow.studies.definition import load_study
    from pathgrow.studies.price import total_price
    from pathgrow.studies.runner import StudyProgress, run_study

    study = load_study(name)
    cells = study.cells(scale)
    print(f"{printable(study.question)}\n{total_price(cells)}")
    outcome = run_study(cells, out, pool, StudyProgress())
    again = f"{name}{f' --scale {scale}' if scale else ''}{f' --out {out}' if out != _OUT else ''}"
    print(f"{outcome.num_finished} of {len(cells)} cells finished in {printable(out)}.")
    print(f"Show them: pathgrow study table {printable(again)}")
    if outcome.failed:
        listed = "; ".join(f"{cell}: {reason}" for cell, reason in list(outcome.failed.items())[:4])
        more = f"; and {len(outcome.failed) - 4} more" if len(outcome.failed) > 4 else ""
        raise RunFailed(f"{len(outcome.failed)} of {len(cells)} cells failed ({listed}{more}); rerun to try them again")


def _list_studies() -> None:
    """List the built-in studies: the question of each, its cells and its price at each scale."""
    from pathgrow.studies.definition import load_study, study_names
    from pathgrow.studies.price import MEASURED_SPEEDS, total_price

    for name in study_names():
        study = load_study(name)
        print(f"{name}\n{textwrap.indent(textwrap.fill(study.question, 110), '  ')}")
        for scale, own in study.scale.items():
            note = f" {own.note}" if own.note else ""
            print(f"  {scale:<7}{total_price(study.cells(scale))}{note}")
    print("\nPrices are estimates from measured training speeds: " + "; ".join(
        f"{device} {', '.join(f'{speed.model} {speed.samples_per_second:,.0f} images/s' for speed in speeds)}"
        for device, speeds in MEASURED_SPEEDS.items()
    ) + " (GPU: one H200, one run at a time).")  # fmt: skip


def _print_table(*, name: str, scale: str | None, out: Path, format: str) -> None:
    """Print the results of a study so far: means over seeds with 90% intervals."""
    from pathgrow.studies.definition import load_study
    from pathgrow.studies.results import load_results, render_results

    print(render_results(load_results(load_study(name), scale, out), format), end="")


def _draw_figure(*, name: str, scale: str | None, out: Path, file: Path | None) -> None:
    """Draw the results of a study so far as a PNG file."""
    from pathgrow import atomic
    from pathgrow.studies.definition import load_study
    from pathgrow.studies.results import load_results, results_png

    study = load_study(name)
    path = file if file is not None else out / f"{study.name}{f'-{scale}' if scale else ''}.png"
    atomic.write_bytes(path, results_png(load_results(study, scale, out)))
    print(f"Wrote {printable(path)}")


def _add_study_flags(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME|FILE.toml", help="Study, see `pathgrow study list`, or a TOML file.")
    parser.add_argument("--scale", metavar="smoke|digits|short|full", help="Size of the study (default: its first).")
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help=f"Directory of the cells (default: {_OUT})."
    )


def _add_run_flags(parser: Parser) -> None:
    _add_study_flags(parser)
    parser.add_argument("--on", default="local", metavar="local|ray|slurm", help="Where cells run (default: local).")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="Cells at once (default: one per GPU, or per CPU if there is none)."
    )
    parser.add_argument(
        "--gpus",
        type=float,
        metavar="F",
        help="GPUs per cell; 0.25: four share one (default: 1 if there are any).",
    )
    parser.add_argument(
        "--slurm", action="append", default=[], metavar="NAME=VALUE",
        help="Parameter of submitit such as slurm_partition=gpu or timeout_min=240; repeatable.",
    )  # fmt: skip


def _add_table_flags(parser: Parser) -> None:
    _add_study_flags(parser)
    parser.add_argument(
        "--format",
        default="table",
        metavar="table|markdown|json|jsonl",
        help="Output format; jsonl: a line for each finished cell, not averaged (default: table).",
    )


def _add_figure_flags(parser: Parser) -> None:
    _add_study_flags(parser)
    parser.add_argument("--file", type=Path, metavar="PNG", help="File to write (default: DIR/NAME-SCALE.png).")


STUDY_COMMANDS = {
    "study": Subcommand(_run_study, _add_run_flags, takes_name=True),
    "study list": Subcommand(_list_studies),
    "study table": Subcommand(_print_table, _add_table_flags),
    "study figure": Subcommand(_draw_figure, _add_figure_flags),
}
