"""`pathgrow train`, `pathgrow methods`, `pathgrow compare`: one run of any method, the methods, runs side by side."""

from __future__ import annotations

import inspect
import itertools
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathgrow.cli import shared as shared
from pathgrow.cli.options import pairs, real, text, whole, without_none

if TYPE_CHECKING:
    from pathgrow.distributed.comm import Communicator
    from pathgrow.methods.method import Method

_COSTS = {
    "sparse": "3 f_S",
    "batch_at_changes": "3 f_S, 6 f_S at changes",
    "dense_gradient_at_changes": "3 f_S, 2 f_S + f_D at changes",
    "dense_gradient_at_steps": "2 f_S + f_D",
    "dense": "3 f_D",
}
"""What a training sample costs, where f_S and f_D are a forward pass of the masked and of the dense network."""
_LEGEND = (
    "f_S, f_D: a forward pass of the masked and of the dense network; the cost is that of a training sample.",
    "loss, batches: arguments of pathgrow.attach, which `pathgrow train` sees to.",
    "density, target_density: given as --density; the others as --method-option NAME=VALUE, but for num_steps, the",
    "length of the training, which `pathgrow train` fills in.",
)


def train(
    method: Annotated[str, text("NAME", "Sparse-training method, see `pathgrow methods`.")],
    density: Annotated[float | None, real("D", "Kept share of the switchable weights [the method's].")] = None,
    method_option: Annotated[list[str] | None, text("NAME=VALUE", "As every=200, allocation=erk; repeatable.")] = None,
    scope: Annotated[
        str | None,
        text(
            "auto|default|resnet|vit|all",
            "Switchable weights: the paper's, by the model or by name, or all conv and linear.",
        ),
    ] = None,
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
    from pathgrow.trainer.process_group import join_process_group

    with join_process_group(device or "auto") as comm:
        _train(comm, given, out, quiet=quiet)


def _train(comm: Communicator, given: dict[str, Any], out: Path | None, *, quiet: bool) -> None:
    from pathgrow.checkpoint import RunDir
    from pathgrow.report import progress, terminal
    from pathgrow.runs import training
    from pathgrow.runs.config import TrainConfig

    quiet = quiet or comm.rank > 0
    with shared.notes(shown=not quiet):
        config, folder = shared.config_and_folder(TrainConfig.from_dict, given, out, comm)
        shown = progress.ProgressBar() if quiet else progress.create()
        with closing(shown):
            training.train(config, folder, shown, comm)
    if not quiet:
        terminal.print_run(folder)
        typer.echo(f"Written to {folder}: network.safetensors, report.json and more.")
        typer.echo(f"See it again with: pathgrow show {folder}; beside others with: pathgrow compare {folder} ...")
        shared.say_what_is_missing(RunDir(folder))


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, of train or discover.")],
    format: Annotated[str, text("table|markdown|csv|json", "How to write it.")] = "table",
) -> None:
    """Put runs in a table, one for each data set and network; those that differ in their seed alone become one row.

    Training costs in a table are relative to its longest dense run that matched no budget. Without a dense run, FLOPs
    are relative to what such a training would take. The line below the table names this 1x. Times are as measured
    unless all runs, a dense one among them, were trained on the same hardware. Epochs are those really trained.
    """
    from pathgrow.report.compare import compare_runs
    from pathgrow.report.compare_table import TABLE_WIDTH, render_comparison

    found = compare_runs(runs)
    width = shutil.get_terminal_size((TABLE_WIDTH, 24)).columns
    typer.echo(render_comparison(found, format, width), nl=False)
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
    for line in _LEGEND:
        typer.echo(line)


def _tell_all(name: str) -> None:
    from pathgrow import methods
    from pathgrow.methods.allocation import LAWS

    entry, made, options = methods.entry(name), methods.create(name), methods.defaults(name)
    typer.echo(f"{name}\n  paper    {entry.paper}\n  needs    {_needs(made)}")
    typer.echo(f"  cost     {_cost(made)}")
    typer.echo(f"  options  {_options(options) or 'none'}")
    for clause, reason in entry.exceptions.items():
        typer.echo(f"  except   {clause}: {reason}")
    typer.echo(f"\n{inspect.getdoc(entry.make) or ''}\n")
    if "allocation" in options:
        typer.echo("Allocations, how much each layer keeps:")
        for law, words in LAWS.items():
            typer.echo(f"  {law:<10} {words}")
        typer.echo("")
    for line in _LEGEND:
        typer.echo(line)


def _cost(method: Method) -> str:
    if method.drop is not None and method.clock == "round":
        return f"{_COSTS[method.cost]} in a training at each level"
    if _grows_by_gradients(method):
        return f"{_COSTS[method.cost]}, and 2 f_S + f_D in a batch of its own at each growth"
    return _COSTS[method.cost]


def _grows_by_gradients(method: Method) -> bool:
    """Whether there is no step whose gradients it could take, so that it needs a batch for them."""
    return "gradients" in method.needs and method.clock == "round"


def _options(defaults: Mapping[str, Any]) -> str:
    """Options with their defaults; D is what --density says, which growth requires."""
    grown = {"target_density": "D"} if "target_density" in defaults else {}
    return ", ".join(f"{option}={value}" for option, value in {**defaults, **grown}.items())


def _needs(method: Method) -> str:
    """What somebody who attaches the method has to have, or to pass."""
    from pathgrow.methods.method import never

    needs = []
    if "gradients" in method.needs or method.cost.startswith("dense_gradient"):
        needs.append("dense gradients")
    if _grows_by_gradients(method):
        needs.append("loss and batches at each growth")
    elif "data" in method.needs:
        needs.append(f"loss and batches {'before training' if method.schedule is never else 'at changes'}")
    if "dense" in method.needs or method.cost == "dense":
        needs.append("dense training")
    if "paths" in method.needs:
        needs.append("paths")
    return ", ".join(needs) or "nothing"
