"""`pathgrow train`, `pathgrow methods`, `pathgrow compare`: one run of any method, the methods, runs side by side."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathgrow import cli_shared as shared
from pathgrow.cli_options import pairs, real, text, whole, without_none

if TYPE_CHECKING:
    from pathgrow.method import Method
    from pathgrow.team import Team

_COSTS = {
    "sparse": "3 f_S",
    "batch_at_changes": "3 f_S, 6 f_S at changes",
    "dense_gradient_at_changes": "3 f_S, 2 f_S + f_D at changes",
    "dense_gradient_at_steps": "2 f_S + f_D",
    "dense": "3 f_D",
}
"""What a training sample costs, where f_S and f_D are a forward pass of the masked and of the dense network."""
_NEEDS = {
    "paths": "paths",
    "gradients": "dense gradients",
    "data": "data",
    "dense": "dense training",
}


def train(
    method: Annotated[str, text("NAME", "Sparse-training method, see `pathgrow methods`.")],
    density: Annotated[float | None, real("D", "Kept share of the switchable weights [the method's].")] = None,
    method_option: Annotated[list[str] | None, text("NAME=VALUE", "As every=200, allocation=erk; repeatable.")] = None,
    scope: Annotated[str | None, text("auto|all", "Switchable weights: the paper's, or all conv and linear.")] = None,
    data: shared.Data = None,
    data_root: shared.DataRoot = None,
    fold: shared.Fold = None,
    model: shared.Model = None,
    model_option: shared.ModelOptions = None,
    recipe: shared.RecipeName = None,
    epochs: Annotated[int | None, whole("EPOCHS", "Of a dense training [the recipe's].")] = None,
    match: Annotated[
        str | None,
        text(
            "none|parameters|switchable|flops",
            "Train as long as a budget allows: of epochs x parameters, of epochs x switchable weights, of FLOPs.",
        ),
    ] = None,
    match_budget: Annotated[float | None, real("B", "That budget [training dense].")] = None,
    match_run: Annotated[str | None, text("DIR", "A finished run whose budget it is.")] = None,
    lr: shared.LearningRate = None,
    batch_size: shared.BatchSize = None,
    weight_decay: shared.WeightDecay = None,
    device: shared.Device = None,
    precision: shared.Precision = None,
    step: shared.Step = None,
    compile: shared.Compile = None,
    deterministic: shared.Deterministic = False,
    seed: shared.Seed = None,
    threads: shared.Threads = None,
    out: shared.Out = None,
    quiet: shared.Quiet = False,
) -> None:
    """Train a network by one sparse-training method, at a density that you choose.

    The same command again resumes an unfinished run, and only shows a finished one. Several processes train together
    under torchrun: `torchrun --nproc-per-node 4 -m pathgrow train ...`. See runs side by side with `pathgrow compare`.
    """
    given = without_none(
        method=method,
        density=density,
        method_options=pairs(method_option or [], "--method-option", "every=200"),
        scope=scope,
        data=data,
        data_root=data_root,
        fold=fold,
        model=model,
        model_options=pairs(model_option or [], "--model-option", "width=8"),
        recipe_name=recipe,
        recipe=without_none(lr=lr, batch_size=batch_size, weight_decay=weight_decay),
        epochs=epochs,
        match=match,
        match_budget=match_budget,
        match_run=match_run,
        engine=without_none(
            device=device, precision=precision, step=step, compile=compile, deterministic=deterministic or None
        ),
        seed=seed,
        threads=threads,
    )
    from pathgrow.engine.distributed import joined

    with joined(device or "auto") as team:
        _train(team, given, out, quiet=quiet)


def _train(team: Team, given: dict[str, Any], out: Path | None, *, quiet: bool) -> None:
    from pathgrow import training
    from pathgrow.report import progress, terminal
    from pathgrow.runs import RunFolder

    config, folder = shared.config_and_folder(training.TrainRun.from_dict, given, out, team)
    quiet = quiet or team.rank > 0
    shown = progress.Silent() if quiet else progress.create()
    with closing(shown):
        training.train(config, folder, shown, team)
    if not quiet:
        terminal.show(folder)
        typer.echo(f"Written to {folder}: network.safetensors, report.json and more.")
        typer.echo(f"See it again with: pathgrow show {folder}; beside others with: pathgrow compare {folder} ...")
        shared.say_what_is_missing(RunFolder(folder))


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, of train or discover.")],
    format: Annotated[str, text("table|markdown|csv|json", "How to write it.")] = "table",
) -> None:
    """Put runs in one table; those that differ in their seed alone become one row.

    Costs are relative to the dense runs of the same task among them; without one, FLOPs are relative to what training
    dense would take, and times are as measured.
    """
    from pathgrow.report import comparison, comparison_text

    found = comparison.compare(runs)
    typer.echo(comparison_text.write(found, format), nl=False)
    for note in found.notes:
        print(f"pathgrow: {note}", file=sys.stderr)


def list_methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Tell all about this method.")] = None,
) -> None:
    """List the methods: paper, training cost of a sample, what each needs, options."""
    from pathgrow import methods

    if name is not None:
        _tell_all(name)
        return
    indent = " " * 17
    for family, group in itertools.groupby(methods.names(), lambda each: methods.entry(each).family):
        typer.echo(f"{family}:")
        for each in group:
            made, options = methods.create(each), _options(methods.defaults(each))
            about = inspect.getdoc(methods.entry(each).make) or ""
            typer.echo(f"{each:<17}{about.splitlines()[0]}")  # which names the paper
            typer.echo(f"{indent}{_cost(made)}; needs {_needs(made)}; {options or 'no options'}")
        typer.echo("")
    typer.echo(
        "f_S, f_D: a forward pass of the masked and of the dense network; the cost is that of a training sample."
    )


def _tell_all(name: str) -> None:
    from pathgrow import methods

    entry, made = methods.entry(name), methods.create(name)
    typer.echo(f"{name}\n  paper    {entry.paper}\n  needs    {_needs(made)}")
    typer.echo(f"  cost     {_cost(made)} for a training sample")
    typer.echo(f"  options  {_options(methods.defaults(name)) or 'none'}")
    for clause, reason in entry.exceptions.items():
        typer.echo(f"  except   {clause}: {reason}")
    typer.echo(f"\n{inspect.getdoc(entry.make) or ''}")


def _cost(method: Method) -> str:
    prunes_between_trainings = method.drop is not None and method.clock == "round"
    return _COSTS[method.cost] + (" in a training at each level" if prunes_between_trainings else "")


def _options(defaults: Mapping[str, Any]) -> str:
    """Options as the command line names them: every method gets its density from --density, which growth requires."""
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
