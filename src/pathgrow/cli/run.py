"""`pathgrow discover`, `train`, `show` and `compare`: run directories are written, shown and compared."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathgrow.cli.flags import Parser, Subcommand, add_flags

if TYPE_CHECKING:
    from pathgrow.checkpoint import RunDir
    from pathgrow.runs.config import RunConfig

_FILES = ("report.html", "curve.png", "network.safetensors", "report.json")


def _add_run_flags(parser: Parser) -> None:
    parser.usage = "%(prog)s [OPTIONS]"  # there are too many to list twice
    parser.add_argument("--out", type=Path, metavar="DIR", help="Run directory (default: runs/<config>-seed<N>).")
    parser.add_argument("-q", "--quiet", action="store_true", help="Print nothing but errors.")


def _add_discover_flags(parser: Parser) -> None:
    from pathgrow.runs.config import RunConfig
    from pathgrow.runs.options import SearchOptions

    add_flags(parser.add_argument_group("search"), SearchOptions)
    add_flags(parser.add_argument_group("data, model and training"), RunConfig)
    _add_run_flags(parser)


def _add_train_flags(parser: Parser) -> None:
    from pathgrow.runs.config import RunConfig, TrainConfig

    add_flags(parser.add_argument_group("method and budget"), TrainConfig)
    add_flags(parser.add_argument_group("data, model and training"), RunConfig, without=["max_concurrent"])
    _add_run_flags(parser)


def _discover(*, out: Path | None, quiet: bool, **values: Any) -> None:
    """Find the smallest density that keeps the accuracy, and train a network of that density.

    Without options this is a demo on a bundled dataset that takes half a minute. Rerun the command to resume an
    interrupted run or to show a finished one. To train on several GPUs, start it with torchrun: torchrun
    --nproc-per-node 4 -m pathgrow discover ...
    """
    from pathgrow.runs import discovery
    from pathgrow.runs.config import DiscoverConfig

    _run(DiscoverConfig, discovery.run_discovery, discovery.expected_epochs, values, out, quiet)


def _train(*, out: Path | None, quiet: bool, **values: Any) -> None:
    """Train a network with one sparse-training method at a given density.

    Rerun the command to resume an interrupted run or to show a finished one. To train on several GPUs, start it with
    torchrun: torchrun --nproc-per-node 4 -m pathgrow train ... Compare runs with `pathgrow compare`.
    """
    from pathgrow.runs import training
    from pathgrow.runs.config import TrainConfig

    _run(TrainConfig, training.train, None, values, out, quiet)


def _run(
    kind: type[RunConfig],
    run: Callable[..., object],
    expected_epochs: Callable[..., int] | None,
    values: dict[str, Any],
    out: Path | None,
    quiet: bool,
) -> None:
    from pathgrow.checkpoint import RunDir
    from pathgrow.report import progress, terminal
    from pathgrow.trainer.process_group import join_process_group

    with join_process_group(values.get("engine", {}).get("device", "auto")) as comm:
        quiet = quiet or comm.rank > 0
        # On rank 0 alone, so that an error is printed once.
        config = comm.broadcast_from_rank0(lambda: kind.from_dict({"ranks": comm.size, **values}))
        folder = out if out is not None else Path("runs") / config.name
        was_finished = RunDir(folder).finished
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore")  # the report keeps them
            total = expected_epochs(config, folder) if expected_epochs is not None and not quiet else None
            shown = progress.ProgressBar() if quiet else progress.create(total_epochs=total)
            with closing(shown):
                run(config, folder, shown, comm)
        if not quiet:
            terminal.print_run(folder)
            files = ", ".join(name for name in _FILES if (folder / name).is_file())
            said = f"This run was already finished; {folder} holds" if was_finished else f"Wrote to {folder}:"
            print(f"{said} {files} and more.")
            print(f"Show this run again: pathgrow show {folder}. Compare runs: pathgrow compare {folder} ...")
            _report_missing_files(RunDir(folder))


def _show(*, folder: Path) -> None:
    """Show a run, finished or not."""
    from pathgrow.checkpoint import RunDir
    from pathgrow.report import terminal

    terminal.print_run(folder)
    _report_missing_files(RunDir(folder))


def _add_show_flags(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="Run directory.")


def _report_missing_files(folder: RunDir) -> None:
    """Name the files that a finished run has lost, and how to restore them."""
    for_good = [name for name in folder.missing if name == "metrics.jsonl"]  # written during training only
    if others := [name for name in folder.missing if name not in for_good]:
        listed = " and ".join(others) if len(others) <= 2 else f"{others[0]} and {len(others) - 1} other files"
        again = "repeat the call" if folder.is_store else "rerun the command"
        advice = f"to restore them, delete {folder.path / 'report.json'} and {again}"
        print(f"pathgrow: warning: missing from this run: {listed}; {advice}", file=sys.stderr)
    if for_good:
        advice = "only a rerun with another --out writes it again; nothing else depends on it"
        print(f"pathgrow: warning: missing from this run: {for_good[0]}; {advice}", file=sys.stderr)


def _compare(*, runs: list[Path], format: str) -> None:
    """Compare runs: one table per dataset and model, one row per configuration, averaged over seeds.

    Costs are relative to one dense training, which is named below each table: the longest dense run that was not
    matched to a budget or, if no run is dense, the FLOPs of a dense training as long as the longest run. Times are
    absolute unless all runs, including a dense one, used the same hardware. "epochs" counts epochs actually trained.
    """
    from pathgrow.report.compare import compare_runs
    from pathgrow.report.compare_table import TABLE_WIDTH, render_comparison

    found = compare_runs(runs)
    width = shutil.get_terminal_size((TABLE_WIDTH, 24)).columns
    print(render_comparison(found, format, width), end="")
    for note in found.notes:
        print(f"pathgrow: {note}", file=sys.stderr)


def _add_compare_flags(parser: Parser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="Run directories of train or discover.")
    parser.add_argument(
        "--format", default="table", metavar="table|markdown|csv|json", help="Output format (default: table)."
    )


RUN_COMMANDS = {
    "discover": Subcommand(
        _discover,
        _add_discover_flags,
        removed={"--target-density": "to grow to a given density, use `pathgrow train --method gcg --density D`"},
    ),
    "train": Subcommand(_train, _add_train_flags),
    "show": Subcommand(_show, _add_show_flags),
    "compare": Subcommand(_compare, _add_compare_flags),
}
