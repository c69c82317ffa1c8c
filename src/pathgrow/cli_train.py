"""`pathgrow train`, `pathgrow methods`, `pathgrow compare`: one run of any method, the methods, runs side by side."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathgrow.cli_options import pairs, parse_real, real, text, whole, without_none

if TYPE_CHECKING:
    from pathgrow.method import Method
    from pathgrow.runs import RunFolder
    from pathgrow.team import Team

_COSTS = {
    "sparse": "3 f_S",
    "dense_gradient_at_changes": "3 f_S, 2 f_S + f_D at changes",
    "dense_gradient_at_steps": "2 f_S + f_D",
    "dense": "3 f_D",
}
"""Of a training sample, where f_S and f_D are a forward pass of the masked and of the dense network."""
_NEEDS = {
    "paths": "paths",
    "gradients": "dense gradients",
    "data": "data before training",
    "dense": "dense training",
}


def train(
    method: Annotated[str, text("NAME", "Sparse-training method, see `pathgrow methods`.")],
    density: Annotated[float | None, real("D", "Kept share of the switchable weights [the method's].")] = None,
    method_option: Annotated[list[str] | None, text("NAME=VALUE", "As every=200, allocation=erk; repeatable.")] = None,
    scope: Annotated[str | None, text("auto|all", "Switchable weights: the paper's, or all conv and linear.")] = None,
    data: Annotated[str | None, text("NAME", "Data set, see `pathgrow data` [digits].")] = None,
    data_root: Annotated[str | None, text("DIR", "Folder of downloaded data.")] = None,
    fold: Annotated[int | None, whole("N", "Which samples are val and test [0].")] = None,
    model: Annotated[str | None, text("NAME", "Network, see `pathgrow models` [mlp].")] = None,
    model_option: Annotated[
        list[str] | None, text("NAME=VALUE", "As width=8, or a list as widths=8,8; repeatable.")
    ] = None,
    recipe: Annotated[str | None, text("NAME", "Training recipe, see `pathgrow recipes` [by data set].")] = None,
    epochs: Annotated[int | None, whole("EPOCHS", "Of a dense training [the recipe's].")] = None,
    match: Annotated[
        str | None, text("none|parameters|flops", "Train as long as a budget of epochs x parameters or FLOPs allows.")
    ] = None,
    match_budget: Annotated[float | None, real("B", "That budget [training dense].")] = None,
    match_run: Annotated[str | None, text("DIR", "A finished run whose budget it is.")] = None,
    lr: Annotated[
        float | None,
        typer.Option("--lr", metavar="RATE", help="Learning rate of the recipe.", parser=parse_real),
    ] = None,
    batch_size: Annotated[int | None, whole("N", "Batch size of the recipe.")] = None,
    weight_decay: Annotated[float | None, real("WD", "Weight decay of the recipe.")] = None,
    device: Annotated[str | None, text("cpu|cuda", "Where to train [a GPU if there is one].")] = None,
    precision: Annotated[str | None, text("fp32|bf16", "Of forward passes in training [bf16 on GPUs].")] = None,
    step: Annotated[str | None, text("captured|eager", "How a step is run [captured on GPUs].")] = None,
    compile: Annotated[str | None, text("on|off", "Compile the network [where it wins its time back].")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Same bits in every run on a GPU.")] = False,
    seed: Annotated[int | None, whole("N", "Of weights, masks and sample order [0].")] = None,
    threads: Annotated[int | None, whole("N", "CPU threads [by the size of the network].")] = None,
    out: Annotated[Path | None, text("DIR", "Run folder [runs/<what>-seed<N>].")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
) -> None:
    """Train a network by one sparse-training method, at a density that you choose.

    The same command again resumes an unfinished run, and only shows a finished one. Several processes train together
    under torchrun: `torchrun --nproc-per-node 4 -m pathgrow train ...`. See runs side by side with `pathgrow compare`.
    """
    given = {
        "method": method,
        "density": density,
        "method_options": pairs(method_option or [], "--method-option", "every=200"),
        "scope": scope,
        "data": data,
        "data_root": data_root,
        "fold": fold,
        "model": model,
        "model_options": pairs(model_option or [], "--model-option", "width=8"),
        "recipe_name": recipe,
        "recipe": without_none({"lr": lr, "batch_size": batch_size, "weight_decay": weight_decay}),
        "epochs": epochs,
        "match": match,
        "match_budget": match_budget,
        "match_run": match_run,
        "engine": without_none(
            {
                "device": device,
                "precision": precision,
                "step": step,
                "compile": compile,
                "deterministic": deterministic or None,
            }
        ),
        "seed": seed,
        "threads": threads,
    }
    from pathgrow.engine.distributed import joined

    with joined(device or "auto") as team:
        _train(team, without_none(given), out, quiet=quiet)


def _train(team: Team, given: dict[str, Any], out: Path | None, *, quiet: bool) -> None:
    from pathgrow import training
    from pathgrow.report import progress, terminal
    from pathgrow.runs import RunFolder

    def resolved() -> training.TrainRun:
        # The count that a run began with is part of its config, whatever machine it goes on with.
        before = (RunFolder(out).config or {}) if out is not None else {}
        kept = {"threads": before["threads"]} if "threads" in before else {}
        return training.TrainRun.from_dict({**kept, "ranks": team.size, **given})

    config = team.from_first(resolved)
    folder = out if out is not None else Path("runs") / config.name
    quiet = quiet or team.rank > 0
    watching = progress.Silent() if quiet else progress.create()
    try:
        training.train(config, folder, watching, team)
    finally:
        watching.close()
    if not quiet:
        terminal.show(folder)
        typer.echo(f"Written to {folder}: network.safetensors, report.json and more.")
        typer.echo(f"See it again with: pathgrow show {folder}; beside others with: pathgrow compare {folder} ...")
        say_what_is_missing(RunFolder(folder))


def say_what_is_missing(folder: RunFolder) -> None:
    """Name files that were taken from a finished run, and what brings them back."""
    missing = folder.missing
    for_good = [name for name in missing if name == "metrics.jsonl"]  # rows are written while a stage is trained
    if taken := [name for name in missing if name not in for_good]:
        told = " and ".join(taken) if len(taken) <= 2 else f"{taken[0]} and {len(taken) - 1} other files"
        again = f"to have them written anew delete {folder.path / 'report.json'} and give the same command again"
        typer.echo(f"pathgrow: note: {told} of this run can no longer be found: {again}", err=True)
    if for_good:
        again = "only the same command with another --out writes it again, nothing else needs it"
        typer.echo(f"pathgrow: note: {for_good[0]} of this run can no longer be found: {again}", err=True)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, of train or discover.")],
    format: Annotated[str, text("table|markdown|csv|json", "How to write it.")] = "table",
) -> None:
    """Put runs in one table; those that differ in their seed alone become one row.

    Costs are relative to the dense runs of the same task among them; without one, FLOPs are relative to what training
    dense would take, and times are as measured.
    """
    from pathgrow.report import compare as writing
    from pathgrow.report import comparison

    found = comparison.compare(runs)
    typer.echo(writing.write(found, format), nl=False)
    for note in found.notes:
        print(f"pathgrow: {note}", file=sys.stderr)


def list_methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Tell all about this method.")] = None,
) -> None:
    """List the methods: training cost of a sample, what each needs, options, paper.

    f_S and f_D are a forward pass of the masked and of the dense network.
    """
    from pathgrow import methods

    for each in methods.names() if name is None else [name]:
        entry, made = methods.entry(each), methods.create(each)
        about = inspect.getdoc(entry.make) or ""
        options = _options(methods.defaults(each))
        if name is None:
            # The first line of what is written about a method names its paper.
            line = f"{each:<17}{_COSTS[made.cost]}; needs {_needs(made)}; {options or 'no options'}; "
            typer.echo(line + about.partition("\n")[0])
            continue
        typer.echo(f"{each}\n  paper    {entry.paper}\n  needs    {_needs(made)}")
        typer.echo(f"  cost     {_COSTS[made.cost]} for a training sample\n  options  {options or 'none'}")
        for clause, reason in entry.exceptions.items():
            typer.echo(f"  except   {clause}: {reason}")
        typer.echo(f"\n{about}")


def _options(defaults: Mapping[str, Any]) -> str:
    """By the names of the command line, where every method has its density from --density; that of growth is a must."""
    grown = {"density": "D"} if "target_density" in defaults else {}
    rest = {option: value for option, value in defaults.items() if option != "target_density"}
    return ", ".join(f"{option}={value}" for option, value in {**grown, **rest}.items())


def _needs(method: Method) -> str:
    needs = {_NEEDS[need] for need in method.needs}
    if method.cost.startswith("dense_gradient"):
        needs.add(_NEEDS["gradients"])
    if method.cost == "dense":
        needs.add(_NEEDS["dense"])
    return ", ".join(sorted(needs)) or "nothing"
