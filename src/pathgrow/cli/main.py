"""The command line: parse, call, and turn errors into sentences and exit codes.

0: done. 1: a run that could not go on. 2: something to be mended in the command. 130: interrupted.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, cast

import typer

from pathgrow.cli import shared as shared
from pathgrow.cli.data import data_app
from pathgrow.cli.options import as_number, pairs, real, text, whole, without_none
from pathgrow.cli.train import compare, list_methods, train
from pathgrow.errors import PeerFailed, RunFailed, UserError
from pathgrow.version import __version__

if TYPE_CHECKING:
    from pathgrow.checkpoint import RunDir
    from pathgrow.distributed.comm import Communicator

app = typer.Typer(
    name="pathgrow",
    help="Discover how dense a neural network needs to be.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
app.command("train")(train)
app.command("compare")(compare)
app.command("methods")(list_methods)

# A wrong option or argument. The class has no fixed name: old versions of typer use click, new ones a copy of it.
_UsageError = cast("type[Exception]", typer.BadParameter.__base__)

_INTERRUPTED = 130
"""The shell's exit code for Ctrl-C, which new versions of typer return instead of raising an exception."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and leave with its exit code; no traceback reaches the terminal."""
    warnings.showwarning = _show_warning
    if "" not in sys.path:
        sys.path.append("")  # a method of one's own, `module:function`, is found in the folder that one is in
    code = _exit_code(arguments)
    distributed = sys.modules.get("pathgrow.trainer.process_group")
    if code and distributed is not None and distributed.is_initialized():
        # Threads of an unfinished process group may abort this process as it exits, and its exit code would be lost.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _exit_code(arguments: list[str] | None) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="pathgrow", standalone_mode=False)
    except PeerFailed as error:
        return error.exit_code  # said by the process that failed
    except UserError as error:
        return _say(error, 2)
    except RunFailed as error:
        return _say(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        command_path = "pathgrow" if context is None else context.command_path
        return _say(f"{error.format_message().rstrip('.')}: see {command_path} --help", 2)  # type: ignore[attr-defined]
    if code == _INTERRUPTED:
        return _say("interrupted; finished stages are kept, give the same command again to go on", code)
    return code if isinstance(code, int) else 0


def _say(sentence: object, code: int) -> int:
    print(f"pathgrow: {sentence}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"pathgrow: note: {message}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pathgrow {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _everything(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Discover how dense a neural network needs to be."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def discover(
    data: shared.Data = None,
    data_root: shared.DataRoot = None,
    fold: shared.Fold = None,
    model: shared.Model = None,
    model_option: shared.ModelOptions = None,
    recipe: shared.RecipeName = None,
    budget: Annotated[int | None, whole("EPOCHS", "Epochs of a dense training [the recipe's].")] = None,
    delta: Annotated[float | None, real("D", "Tolerated loss of accuracy [0.01].")] = None,
    reference: Annotated[str | None, text("SCORE|dense", "Dense accuracy, or `dense` to train for it.")] = None,
    rule: Annotated[str | None, text("NAME", "Density rule, see `pathgrow rules` [probe].")] = None,
    method: Annotated[str | None, text("NAME", "Growth method, see `pathgrow methods` [gcg].")] = None,
    gamma: Annotated[float | None, real("G", "Share of weights that a round adds [0.25].")] = None,
    start_density: Annotated[float | None, real("D", "Density of the seed network.")] = None,
    seed_epochs: Annotated[int | None, whole("EPOCHS", "Training of the seed network.")] = None,
    rough: Annotated[str | None, text("N|F|adaptive", "A round: epochs, a share of the budget, adaptive.")] = None,
    final: Annotated[str | None, text("fresh|grown", "Weights that trained-out networks begin with.")] = None,
    probe_fraction: Annotated[float | None, real("F", "Length of a probe without reference.")] = None,
    no_head_start: Annotated[
        bool, typer.Option("--no-head-start", help="Train the final network anew, not on from its probe.")
    ] = False,
    answer: Annotated[str | None, text("delta|gain", "Answer that chooses the network handed back.")] = None,
    observe: Annotated[
        str | None, text("annealed|average", "Weights that are scored: as they are, or averaged.")
    ] = None,
    lr: shared.LearningRate = None,
    batch_size: shared.BatchSize = None,
    weight_decay: shared.WeightDecay = None,
    device: shared.Device = None,
    precision: shared.Precision = None,
    step: shared.Step = None,
    compile: shared.Compile = None,
    deterministic: shared.Deterministic = False,
    max_concurrent: Annotated[int | None, whole("N", "Networks that train at once on a GPU, at most [8].")] = None,
    seed: shared.Seed = None,
    threads: shared.Threads = None,
    out: shared.Out = None,
    quiet: shared.Quiet = False,
) -> None:
    """Find the smallest density that keeps the accuracy, and train that network.

    Without options: a demonstration on data that come with the installation, in about half a minute. The same command
    again resumes an unfinished run, and only shows a finished one. Several processes train together under torchrun:
    `torchrun --nproc-per-node 4 -m pathgrow discover ...`.
    """
    given = without_none(
        data=data,
        data_root=data_root,
        fold=fold,
        model=model,
        model_options=pairs(model_option or [], "--model-option", "width=8"),
        budget=budget,
        delta=delta,
        reference=_reference(reference),
        rule=rule,
        method=method,
        gamma=gamma,
        start_density=start_density,
        seed_epochs=seed_epochs,
        rough=_rough(rough),
        final=final,
        probe_fraction=probe_fraction,
        head_start=False if no_head_start else None,
        answer=answer,
        observe=observe,
        recipe_name=recipe,
        recipe=without_none(lr=lr, batch_size=batch_size, weight_decay=weight_decay),
        engine=without_none(
            device=device,
            precision=precision,
            step=step,
            compile=compile,
            deterministic=deterministic or None,
            max_concurrent=max_concurrent,
        ),
        seed=seed,
        threads=threads,
    )
    from pathgrow.trainer.process_group import join_process_group

    with join_process_group(device or "auto") as comm:
        _discover(comm, given, out, quiet=quiet)


def _discover(comm: Communicator, given: dict[str, Any], out: Path | None, *, quiet: bool) -> None:
    from pathgrow.checkpoint import RunDir
    from pathgrow.report import progress, terminal
    from pathgrow.runs.config import DiscoverConfig
    from pathgrow.runs.run_discovery import expected_epochs, run

    quiet = quiet or comm.rank > 0
    with shared.notes(shown=not quiet):
        config, folder = shared.config_and_folder(DiscoverConfig.from_dict, given, out, comm)
        shown = progress.ProgressBar() if quiet else progress.create(total_epochs=expected_epochs(config, folder))
        with closing(shown):
            run(config, folder, shown, comm)
    if not quiet:
        terminal.print_run(folder)
        _say_where(RunDir(folder))


def _say_where(folder: RunDir) -> None:
    told = ("report.html", "curve.png", "network.safetensors", "report.json")
    there = ", ".join(name for name in told if (folder.path / name).is_file())
    typer.echo(f"Written to {folder.path}: {there} and more. See it again with: pathgrow show {folder.path}")
    shared.say_what_is_missing(folder)


def _reference(text: str | None) -> float | str | None:
    if text is None or text == "dense":
        return text
    number = as_number(text)
    if number is None:
        raise UserError(f"--reference {text!r} was given, a score or `dense` is wanted: give for example 0.93")
    return float(number)


def _rough(text: str | None) -> int | float | str | None:
    if text is None or text == "adaptive":
        return text
    number = as_number(text)
    if number is None:
        raise UserError(
            f"--rough {text!r} was given, epochs, a fraction of the budget or `adaptive` is wanted: give for example 4"
        )
    return number


@app.command()
def show(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]) -> None:
    """Show a run, finished or not."""
    from pathgrow.checkpoint import RunDir
    from pathgrow.report import terminal

    terminal.print_run(folder)
    shared.say_what_is_missing(RunDir(folder))


@app.command("models")
def list_models() -> None:
    """List the networks."""
    from pathgrow import models as table

    for name in table.names():
        options = ", ".join(f"{key}={value}" for key, value in table.defaults(name).items())
        typer.echo(f"{name:<12}{options}")


@app.command("recipes")
def list_recipes() -> None:
    """List the training recipes."""
    from pathgrow.trainer import recipes as table

    for name in table.names():
        recipe = table.recipe(name)
        steps = f"{recipe.schedule}, {recipe.epochs} epochs of batches of {recipe.batch_size}"
        augment = recipe.augment
        parts = ("crop_padding", "crop_mirrored", "flip", "resized_crop", "erase", "mixup", "cutmix")
        on = [part for part in parts if getattr(augment, part)] + ([augment.policy] if augment.policy != "none" else [])
        told = f"{recipe.optimizer} lr {recipe.lr:g} wd {recipe.weight_decay:g}, {steps}"
        typer.echo(f"{name:<18}{told}; {' '.join(on) or 'not augmented'}")


@app.command("rules")
def list_rules() -> None:
    """List the density rules."""
    from pathgrow.density import rules as table

    for name in table.names():
        typer.echo(f"{name:<14}{table.description(name)}")
