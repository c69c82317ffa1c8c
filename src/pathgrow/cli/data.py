"""`pathgrow data`: list, download and check datasets."""

from __future__ import annotations

from pathgrow.cli.flags import Parser, Subcommand

_ABOUT = {
    "digits": "handwritten digits, 8 x 8 gray, 10 classes; bundled",
    "cifar10": "32 x 32 RGB, 10 classes; `pathgrow data get cifar10` (170 MB)",
    "cifar100": "32 x 32 RGB, 100 classes; `pathgrow data get cifar100` (169 MB)",
    "tiny-imagenet": "64 x 64 RGB, 200 classes; `pathgrow data get tiny-imagenet` (248 MB)",
    "imagenet": "224 x 224 RGB, 1,000 classes, streamed; DIR/train/<class>, DIR/val/<class>",
    "folder": "your own images; DIR/<class>, or DIR/train/<class> and optionally DIR/val, DIR/test",
}


def _list_datasets() -> None:
    """List the datasets."""
    from pathgrow import data

    for name in data.names():
        print(f"{name:<15}{_ABOUT[name]}")


def _get_dataset(name: str, data_root: str | None) -> None:
    """Download, verify and unpack a published dataset.

    An archive that is already in the data directory is not downloaded again.
    """
    from pathgrow import data
    from pathgrow.data.download import download
    from pathgrow.data.image_folder import layout_advice
    from pathgrow.data.official import OFFICIAL, resolve_root
    from pathgrow.errors import UserError, unknown_name

    if name not in data.names():
        raise unknown_name("dataset", name, data.names())
    if name == "digits":
        print("digits is bundled, there is nothing to download")
        return
    if name not in OFFICIAL:
        raise UserError(f"{name} cannot be downloaded: {layout_advice(name)}")
    root = resolve_root(data_root)
    folder = download(name, root, print)
    print(f"{name} is in {folder}; use it with --data {name} --data-root {root}")


def _check_dataset(name: str, data_root: str | None) -> None:
    """Read a dataset and print its size, and whether its files are the official ones.

    Images of a streamed dataset are listed, not decoded.
    """
    from pathgrow.data.download import check_dataset

    print("\n".join(check_dataset(name, data_root)))


def _add_flags(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="Dataset, see `pathgrow data`.")
    parser.add_argument(
        "--data-root", metavar="DIR", help="Directory of downloaded datasets (default: $PATHGROW_DATA, or ./data)."
    )


DATA_COMMANDS = {
    "data": Subcommand(_list_datasets),
    "data list": Subcommand(_list_datasets),
    "data get": Subcommand(_get_dataset, _add_flags),
    "data check": Subcommand(_check_dataset, _add_flags),
}
