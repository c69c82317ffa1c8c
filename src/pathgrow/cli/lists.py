"""`pathgrow methods`, `models`, `recipes`, `rules` and `data`: what `discover` and `train` accept by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pathgrow.cli.flags import Parser, Subcommand, import_named

if TYPE_CHECKING:
    from pathgrow.methods.method import Method

_COSTS = {
    "sparse": "3x sparse forward",
    "batch_at_updates": "3x sparse forward; at mask updates 6x sparse",
    "dense_gradient_at_updates": "3x sparse forward; at mask updates 2x sparse + 1x dense",
    "dense_gradient_at_steps": "2x sparse + 1x dense forward",
    "more_gradients": "2x sparse forward + 1x forward of all weights that are trained",
    "dense": "3x dense forward",
}
_DATASETS = {
    "digits": "handwritten digits, 8 x 8 gray, 10 classes; bundled",
    "cifar10": "32 x 32 RGB, 10 classes; `pathgrow data get cifar10` (170 MB)",
    "cifar100": "32 x 32 RGB, 100 classes; `pathgrow data get cifar100` (169 MB)",
    "tiny-imagenet": "64 x 64 RGB, 200 classes; `pathgrow data get tiny-imagenet` (248 MB)",
    "imagenet": "224 x 224 RGB, 1,000 classes, streamed; DIR/train/<class>, DIR/val/<class>",
    "folder": "your own images; DIR/<class>, or DIR/train/<class> and optionally DIR/val, DIR/test",
    "text": "Tiny Shakespeare, 65 characters, scored by its loss; `pathgrow data get text` (1 MB)",
}
_LEGEND = """
cost/step: per training sample, in forward passes of the sparse or the dense network.
loss, batches: arguments of pathgrow.attach; `pathgrow train` supplies them.
density, target_density: set by --density. Other options: --method-option NAME=VALUE, except num_steps, the length of
the training, which `pathgrow train` fills in."""


def _list_methods(name: str | None) -> None:
    """List the sparse-training methods: paper, training cost, requirements and options."""
    if name is not None:
        _describe_method(name)
        return
    # Recorded, because creating the methods would import torch; tests/cli/test_lists.py compares and writes it.
    print(files("pathgrow.cli").joinpath("methods.txt").read_text(encoding="utf-8") + _LEGEND.strip())


def _describe_method(name: str) -> None:
    from pathgrow import methods
    from pathgrow.methods.allocation import DISTRIBUTIONS

    import_named(name)
    entry, method, options = methods.entry(name), methods.create(name), methods.defaults(name)
    print(f"{name}\n  paper      {entry.paper}")
    print(f"  cost/step  {_cost(method)}.{_requirements(method)}")
    print(f"  options    {_options(options)}")
    for clause, reason in entry.exceptions.items():
        print(f"  except     {clause}: {reason}")
    print(f"\n{inspect.getdoc(entry.make) or ''}")
    if "allocation" in options:
        print("\nallocation, the distribution of the density over layers:")
        for distribution, words in DISTRIBUTIONS.items():
            print(f"  {distribution:<10} {words}")
    print(_LEGEND)


def _cost(method: Method) -> str:
    cost = _COSTS[method.cost]
    if method.drop is not None and method.clock == "round":
        return f"{cost}, in a full training per level"
    if _grows_by_gradients(method):
        return f"{cost}; at each growth step 2x sparse + 1x dense for one batch"
    return cost


def _grows_by_gradients(method: Method) -> bool:
    """Whether it needs a batch of its own, because growth happens between steps."""
    return "gradients" in method.needs and method.clock == "round"


def _requirements(method: Method) -> str:
    """What `attach` or the training must provide, as a sentence."""
    from pathgrow.methods.method import never

    needs = []
    if "gradients" in method.needs or method.cost.startswith("dense_gradient"):
        needs.append("dense gradients")
    if _grows_by_gradients(method):
        needs.append("loss and batches at growth steps")
    elif "data" in method.needs:
        needs.append(f"loss and batches {'before training' if method.schedule is never else 'at mask updates'}")
    if "dense" in method.needs or method.cost == "dense":
        needs.append("dense training")
    if "paths" in method.needs:
        needs.append("a traceable model")
    return f" Requires {', '.join(needs)}." if needs else ""


def _options(defaults: Mapping[str, Any]) -> str:
    """Options with their defaults; D is the value of --density, which growth methods require."""
    grown = {"target_density": "D"} if "target_density" in defaults else {}
    return ", ".join(f"{option}={value}" for option, value in {**defaults, **grown}.items()) or "none"


def _list_models() -> None:
    """List the models and their options."""
    from pathgrow import models

    for name in models.names():
        print(f"{name:<12}{', '.join(f'{key}={value}' for key, value in models.defaults(name).items())}")


def _list_recipes() -> None:
    """List the training recipes."""
    from pathgrow.trainer import recipes

    for name in recipes.names():
        recipe = recipes.recipe(name)
        augment = recipe.augment
        parts = ("crop_padding", "crop_mirrored", "flip", "resized_crop", "erase", "mixup", "cutmix")
        used = [part for part in parts if getattr(augment, part)]
        used += [augment.policy] if augment.policy != "none" else []
        print(
            f"{name:<18}{recipe.optimizer} lr {recipe.lr:g} wd {recipe.weight_decay:g}, {recipe.schedule}, "
            f"{recipe.epochs} epochs, batch size {recipe.batch_size}; {' '.join(used) or 'no augmentation'}"
        )


def _list_rules() -> None:
    """List the density rules."""
    from pathgrow.density import rules

    for name in rules.names():
        print(f"{name:<14}{rules.description(name)}")


def _add_method_name(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="Describe this method in full.")


def _list_datasets() -> None:
    """List the datasets.

    `pathgrow data get NAME` downloads one, `pathgrow data check NAME` reads it and verifies its files.
    """
    from pathgrow import data

    for name in data.names():
        print(f"{name:<15}{_DATASETS[name]}")


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


def _add_dataset_flags(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="Dataset, see `pathgrow data`.")
    parser.add_argument(
        "--data-root", metavar="DIR", help="Directory of downloaded datasets (default: $PATHGROW_DATA, or ./data)."
    )


LIST_COMMANDS = {
    "data": Subcommand(_list_datasets),
    "data list": Subcommand(_list_datasets),
    "data get": Subcommand(_get_dataset, _add_dataset_flags),
    "data check": Subcommand(_check_dataset, _add_dataset_flags),
    "methods": Subcommand(_list_methods, _add_method_name),
    "models": Subcommand(_list_models),
    "recipes": Subcommand(_list_recipes),
    "rules": Subcommand(_list_rules),
}
