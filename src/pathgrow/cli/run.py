"""`pathgrow discover`, `train`, `show`, `check` and `compare`: run directories are written, shown and compared."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathgrow.cli.flags import Parser, Subcommand, add_flags, import_named
from pathgrow.errors import UserError, printable

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
    from pathgrow.runs.search_options import GROWTH_ONLY, PROBES_ONLY, SearchOptions

    options = [field.name for field in dataclasses.fields(SearchOptions)]
    groups = {
        "search": [name for name in options if name not in (*GROWTH_ONLY, *PROBES_ONLY)],
        "growth (with --max-density below 1 or --finish other than gts)": GROWTH_ONLY,
        "probes of growth rounds (with --finish other than gts)": PROBES_ONLY,
    }
    for title, names in groups.items():
        without = [name for name in options if name not in names]
        add_flags(parser.add_argument_group(title), SearchOptions, without=without)
    add_flags(parser.add_argument_group("data, model and training"), RunConfig)
    _add_run_flags(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="Train the dense network too, and compare the returned model with it: the same as --reference dense. "
        "The search uses the dense score, so this is a new run, not a part of a finished one.",
    )
    parser.add_argument(
        "--plan", action="store_true", help="Print layers, trainings, cost, time and memory, and train nothing."
    )


def _add_train_flags(parser: Parser) -> None:
    from pathgrow.runs.config import RunConfig, TrainConfig

    add_flags(parser.add_argument_group("method and budget"), TrainConfig)
    add_flags(parser.add_argument_group("data, model and training"), RunConfig, without=["max_concurrent"])
    _add_run_flags(parser)


def _discover(*, out: Path | None, quiet: bool, plan: bool, verify: bool, **values: Any) -> None:
    """Find the smallest density that keeps the accuracy, and train a network of that density.

    Without options this is a demo on a bundled dataset that takes half a minute. Rerun the command to resume an
    interrupted run or to show a finished one. To train on several GPUs, start it with torchrun: torchrun
    --nproc-per-node 4 -m pathgrow discover ...
    """
    from pathgrow.checkpoint import RunDir
    from pathgrow.runs import discovery
    from pathgrow.runs.config import DiscoverConfig

    if verify and values.setdefault("reference", "dense") != "dense":
        raise UserError(f"--verify trains the dense network, but --reference is {values['reference']}: pass only one")
    if plan:
        from pathgrow.runs.plan import plan_command

        _import_methods(values)
        print(plan_command(DiscoverConfig.from_dict(values)))
        return
    if verify and out is not None and (RunDir(out).config or {}).get("reference", "dense") is None:
        raise UserError(
            f"{out} holds a search without a reference, and --verify is a search of its own, which uses the dense "
            "score: choose another --out; or only compare, with `pathgrow train --method dense` and `pathgrow compare`"
        )
    _run(DiscoverConfig, discovery.run_discovery, values, out, quiet)


def _train(*, out: Path | None, quiet: bool, **values: Any) -> None:
    """Train a network with one sparse-training method at a given density.

    Rerun the command to resume an interrupted run or to show a finished one. To train on several GPUs, start it with
    torchrun: torchrun --nproc-per-node 4 -m pathgrow train ... Compare runs with `pathgrow compare`.
    """
    from pathgrow.runs import training
    from pathgrow.runs.config import TrainConfig

    _run(TrainConfig, training.train, values, out, quiet)


def _import_methods(values: Mapping[str, Any]) -> None:
    """Import the method and the finishers of a command line that are named as `module:function`."""
    finish = values.get("finish", [])
    import_named(values.get("method"), *([finish] if isinstance(finish, str) else finish))


def _run(
    kind: type[RunConfig],
    run: Callable[..., object],
    values: dict[str, Any],
    out: Path | None,
    quiet: bool,
) -> None:
    from pathgrow.checkpoint import RunDir
    from pathgrow.distributed.process_group import join_process_group
    from pathgrow.report import progress, terminal

    with join_process_group(values.get("engine", {}).get("device", "auto")) as comm:
        quiet = quiet or comm.rank > 0
        # On rank 0 alone, so that an error is printed once.
        comm.on_rank0(lambda: _import_methods(values))
        _import_methods(values)
        config = comm.broadcast_from_rank0(lambda: kind.from_dict({"ranks": comm.size, **values}))
        folder = out if out is not None else Path("runs") / config.name
        was_finished = RunDir(folder).finished
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore")  # the report keeps them
            shown = progress.ProgressBar() if quiet else progress.create()
            with closing(shown):
                run(config, folder, shown, comm)
        if not quiet:
            files = ", ".join(name for name in _FILES if (folder / name).is_file())
            where = printable(folder)
            said = f"This run was already finished; {where} holds" if was_finished else f"Wrote to {where}:"
            print(f"{said} {files} and more.")
            print(f"Show this run again: pathgrow show {where}. Compare runs: pathgrow compare {where} ...")
            terminal.print_run(folder)  # last, since it ends with the answer
            _warn_of_damage(RunDir(folder))


def _show(*, folder: Path, delta: str | None) -> None:
    """Show a run, finished or not.

    With --delta, print the answer of a finished discovery for another tolerance, read off the same curve.
    """
    from pathgrow.checkpoint import RunDir
    from pathgrow.report import terminal

    if delta is None:
        terminal.print_run(folder)
    else:
        from pathgrow.registry import as_number
        from pathgrow.report.loading import load_finished
        from pathgrow.runs.tolerances import within

        report = load_finished(folder)
        terminal.print_other(report, within(report, as_number(delta, [float])))
    _warn_of_damage(RunDir(folder))


def _add_check_flags(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="Run directory.")


def _add_show_flags(parser: Parser) -> None:
    _add_check_flags(parser)
    parser.add_argument(
        "--delta",
        metavar="NUMBER",
        help="Print the answer for this tolerance instead: a number, or a percentage of the dense score.",
    )


def _check(*, folder: Path) -> None:
    """Verify that no file of a run is damaged or missing.

    The files of a finished run must match its manifest, manifest.sha256; of an unfinished run the stages are verified.
    A damaged run is exit code 1.
    """
    from pathgrow.checkpoint import RunDir
    from pathgrow.errors import RunFailed
    from pathgrow.report.loading import load_run

    run_dir = RunDir(folder)
    if not run_dir.finished and not os.path.lexists(folder / "config.json"):
        load_run(folder)  # refuses other directories
    if found := run_dir.damage():
        raise RunFailed(f"{folder} is damaged: {_listed(found)}")
    print(f"{printable(folder)}: no file is damaged or missing" + ("" if run_dir.finished else " (unfinished run)"))


def _warn_of_damage(run_dir: RunDir) -> None:
    """Name the files that a finished run has lost, and how to restore them."""
    if run_dir.finished and (found := run_dir.damage()):
        again = "repeat the call" if run_dir.is_store else "rerun the command"
        advice = f"to restore them, delete {run_dir.path / 'report.json'} and {again}"
        if "metrics.jsonl" in found:
            advice += "; metrics.jsonl is written during training only"
        warnings.warn(f"files of this run are damaged: {_listed(found)}; {advice}", stacklevel=1)


def _listed(faults: Mapping[str, str], most: int = 4) -> str:
    more = f", and {len(faults) - most} more" if len(faults) > most else ""
    return ", ".join(f"{name} {fault}" for name, fault in list(faults.items())[:most]) + more


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
        print(f"pathgrow: {printable(note)}", file=sys.stderr)


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
    "check": Subcommand(_check, _add_check_flags),
    "compare": Subcommand(_compare, _add_compare_flags),
}
