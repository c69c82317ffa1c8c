"""What commands have in common: their options, and how they find the config and the folder of a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from pathgrow.cli.options import real, text, whole

if TYPE_CHECKING:
    from pathgrow.checkpoint import RunDir
    from pathgrow.distributed.comm import Communicator

Data = Annotated[str | None, text("NAME", "Data set, see `pathgrow data` [digits].")]
DataRoot = Annotated[str | None, text("DIR", "Folder of downloaded data [$PATHGROW_DATA, else data].")]
Fold = Annotated[int | None, whole("N", "Which samples are val and test [0].")]
Model = Annotated[str | None, text("NAME", "Network, see `pathgrow models` [mlp].")]
ModelOptions = Annotated[list[str] | None, text("NAME=VALUE", "As width=8, or a list as widths=8,8; repeatable.")]
RecipeName = Annotated[str | None, text("NAME", "Training recipe, see `pathgrow recipes` [by data set].")]
LearningRate = Annotated[float | None, real("RATE", "Learning rate of the recipe.")]
BatchSize = Annotated[int | None, whole("N", "Batch size of the recipe.")]
WeightDecay = Annotated[float | None, real("WD", "Weight decay of the recipe.")]
Device = Annotated[str | None, text("cpu|cuda", "Where to train [a GPU if there is one].")]
Precision = Annotated[str | None, text("fp32|bf16", "Of forward passes in training [bf16 on GPUs].")]
Step = Annotated[str | None, text("cuda_graph|eager", "How a step is run [CUDA graphs on GPUs].")]
Compile = Annotated[str | None, text("on|off", "Compile the network [where it wins its time back].")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Same bits in every run on a GPU.")]
Seed = Annotated[int | None, whole("N", "Of weights, masks and sample order [0].")]
Threads = Annotated[int | None, whole("N", "CPU threads [by the size of the network].")]
Out = Annotated[Path | None, text("DIR", "Run folder [runs/<what>-seed<N>].")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")]


class _Config(Protocol):
    @property
    def name(self) -> str: ...


_AnyConfig = TypeVar("_AnyConfig", bound=_Config)


def config_and_folder(
    config: Callable[[dict[str, Any]], _AnyConfig], given: dict[str, Any], out: Path | None, comm: Communicator
) -> tuple[_AnyConfig, Path]:
    """The config of a run, with everything that was not given filled in, and its folder; equal in every process."""
    from pathgrow.checkpoint import RunDir

    def resolved() -> _AnyConfig:
        # A run keeps the number of threads it began with, whatever machine it goes on with.
        before = (RunDir(out).config or {}) if out is not None else {}
        kept = {"threads": before["threads"]} if "threads" in before else {}
        return config({**kept, "ranks": comm.size, **given})

    found = comm.broadcast_from_rank0(resolved)
    return found, out if out is not None else Path("runs") / found.name


@contextmanager
def notes(*, shown: bool) -> Iterator[None]:
    """Lets notes about a run through, or keeps them back; those that doubt a training stand in its report as well."""
    with warnings.catch_warnings():
        if not shown:
            warnings.simplefilter("ignore")
        yield


def say_what_is_missing(folder: RunDir) -> None:
    """Name the files that a finished run no longer has, and how to get them back."""
    missing = folder.missing
    for_good = [name for name in missing if name == "metrics.jsonl"]  # its rows are only written during training
    if taken := [name for name in missing if name not in for_good]:
        told = " and ".join(taken) if len(taken) <= 2 else f"{taken[0]} and {len(taken) - 1} other files"
        same = "make the same call" if folder.is_store else "give the same command"
        again = f"to have them written anew delete {folder.path / 'report.json'} and {same} again"
        typer.echo(f"pathgrow: note: {told} of this run can no longer be found: {again}", err=True)
    if for_good:
        again = "only the same command with another --out writes it again, nothing else needs it"
        typer.echo(f"pathgrow: note: {for_good[0]} of this run can no longer be found: {again}", err=True)
