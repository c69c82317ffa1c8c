"""Reference models by name: the networks of the paper, in short files.

Nothing registers itself: a model is a line in the table below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pathgrow.errors import UserError, unknown_name
from pathgrow.models.mlp import MLP
from pathgrow.models.reference import ReferenceModel
from pathgrow.models.resnet_cifar import ResNetCifar
from pathgrow.models.resnet_imagenet import ResNet
from pathgrow.models.vit import ViT
from pathgrow.rng import generator

_MODELS: dict[str, Callable[..., ReferenceModel]] = {
    "mlp": MLP,
    "resnet18": partial(ResNet, 18),
    "resnet20": partial(ResNetCifar, 20),
    "resnet32": partial(ResNetCifar, 32),
    "resnet34": partial(ResNet, 34),
    "resnet44": partial(ResNetCifar, 44),
    "resnet50": partial(ResNet, 50, stem="imagenet", image_size=224),
    "resnet56": partial(ResNetCifar, 56),
    "resnet110": partial(ResNetCifar, 110),
    "vit": ViT,
}


def names() -> list[str]:
    """Every model that `create` knows.

    >>> names()[:3]
    ['mlp', 'resnet18', 'resnet20']
    """
    return list(_MODELS)


def defaults(name: str) -> dict[str, Any]:
    """The options of a model with their defaults.

    >>> defaults("resnet20")
    {'in_channels': 3, 'width': 16, 'image_size': 32}
    """
    if name not in _MODELS:
        raise unknown_name("model", name, _MODELS)
    parameters = inspect.signature(_MODELS[name]).parameters
    return {key: p.default for key, p in parameters.items() if key not in ("classes", "generator")}


def create(name: str, classes: int, *, seed: int | None = None, **options: Any) -> ReferenceModel:
    """A freshly initialised model.

    Parameters
    ----------
    name : str
        One of `names()`.
    classes : int
        Number of outputs.
    seed : int, optional
        The weights depend on it alone and the global generator is left as it was. Without it the weights come from
        torch's global generator, as those of any module.
    **options
        See `defaults(name)`.

    >>> model = create("mlp", 10, seed=0, widths=(32,))
    >>> [tuple(weight.shape) for weight in model.parameters()]
    [(32, 64), (32,), (10, 32), (10,)]
    >>> model(model.example_input()).shape
    torch.Size([1, 10])
    """
    known = defaults(name)
    _check("classes", classes, like=1)
    for key, value in options.items():
        if key not in known:
            raise unknown_name(f"option of {name}", key, known)
        _check(key, value, like=known[key])
    if seed is None:
        return _MODELS[name](classes, **options)
    # Constructors of torch modules draw first weights from the global generator before ours replace them.
    with torch.random.fork_rng(devices=[]):
        return _MODELS[name](classes, generator=generator(seed, "model", name), **options)


def _check(key: str, value: object, like: object) -> None:
    """Sizes must be whole and positive, and the other options of the kind of their default."""
    wanted, fits = {
        int: ("a whole number of at least 1", _is_size(value)),
        float: ("a number", isinstance(value, int | float) and not isinstance(value, bool)),
        str: ("a text", isinstance(value, str)),
        tuple: ("a list of whole numbers of at least 1", _is_sizes(value)),
    }[type(like)]
    if not fits:
        raise UserError(f"{key} is {value!r}: give {wanted}")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_sizes(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_size(item) for item in value)


__all__ = ["ReferenceModel", "create", "defaults", "names"]
