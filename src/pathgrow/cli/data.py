"""`pathgrow data`: list the data sets, get those that are published, check what lies on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pathgrow.cli import shared as shared

if TYPE_CHECKING:
    from pathgrow.data.check import Finding

data_app = typer.Typer(help="List, get and check the data sets.", rich_markup_mode=None)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Data set, see `pathgrow data`.")]

_ABOUT = {
    "digits": "handwritten digits, 8 x 8 grey, 10 classes; comes with the installation",
    "cifar10": "32 x 32 colour, 10 classes; `pathgrow data get cifar10` (170 MB)",
    "cifar100": "32 x 32 colour, 100 classes; `pathgrow data get cifar100` (169 MB)",
    "tiny-imagenet": "64 x 64 colour, 200 classes; `pathgrow data get tiny-imagenet` (248 MB)",
    "imagenet": "224 x 224 colour, 1,000 classes, streamed; DIR/train/<class>, DIR/val/<class>",
    "folder": "your own images; DIR/<class>, or DIR/train/<class> and perhaps DIR/val, DIR/test",
}


@data_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    """List, get and check the data sets."""
    if context.invoked_subcommand is None:
        list_data()


@data_app.command("list")
def list_data() -> None:
    """List the data sets."""
    from pathgrow import data

    for name in data.names():
        typer.echo(f"{name:<15}{_ABOUT[name]}")


@data_app.command("get")
def get_data(name: _Name, data_root: shared.DataRoot = None) -> None:
    """Download a published data set, verify and unpack it; an archive that lies in DIR already is used."""
    from pathgrow import data
    from pathgrow.data import download, image_folder, places
    from pathgrow.data.official import OFFICIAL
    from pathgrow.errors import UserError, unknown_name

    if name not in data.names():
        raise unknown_name("data set", name, data.names())
    if name == "digits":
        typer.echo("digits come with the installation, there is nothing to get")
        return
    if name not in OFFICIAL:
        raise UserError(f"{name} cannot be downloaded: {image_folder.layout_advice(name)}")
    root = places.data_root(data_root)
    folder = download.get(name, root, typer.echo)
    typer.echo(f"{name} lies in {folder}; use it with: --data {name} --data-root {root}")


@data_app.command("check")
def check_data(name: _Name, data_root: shared.DataRoot = None) -> None:
    """Read a data set (of a streamed one the names), and say what is there and whether it is the official one."""
    from pathgrow.data.check import check

    finding = check(name, data_root)
    for line in _table(finding):
        typer.echo(line)


def _table(finding: Finding) -> list[str]:
    dataset = finding.dataset
    shape = " x ".join(map(str, dataset.shape))
    lines = [f"{dataset.name}: {finding.verdict}"]
    if finding.folder is not None:
        lines.append(f"  folder        {finding.folder}")
    lines += [f"  classes       {dataset.classes:,}", f"  one sample    {shape}"]
    lines += [f"  {part:<14}{len(getattr(dataset, part)):,} images" for part in ("train", "val", "test")]
    lines += [f"  file {name}: {state}" for name, state in finding.files]
    return lines
