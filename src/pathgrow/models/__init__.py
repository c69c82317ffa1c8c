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
from pathgrow.models.options import check_option
from pathgrow.models.pit import PiT
from pathgrow.models.reference import ReferenceModel
from pathgrow.models.resnet_cifar import ResNetCifar
from pathgrow.models.resnet_imagenet import ResNet
from pathgrow.models.timm_model import TimmModel, timm_defaults
from pathgrow.models.vit import ViT
from pathgrow.models.wide_resnet import WideResNet
from pathgrow.rng import generator

_MODELS: dict[str, Callable[..., ReferenceModel]] = {
    "mlp": MLP,
    "pit": PiT,
    "resnet18": partial(ResNet, 18),
    "resnet20": partial(ResNetCifar, 20),
    "resnet32": partial(ResNetCifar, 32),
    "resnet34": partial(ResNet, 34),
    "resnet44": partial(ResNetCifar, 44),
    "resnet50": partial(ResNet, 50, stem="imagenet", image_size=224),
    "resnet56": partial(ResNetCifar, 56),
    "resnet110": partial(ResNetCifar, 110),
    "vit": ViT,
    # As RigL and Sparse Momentum train them.
    "wrn22_2": partial(WideResNet, 22, dropout=0.3),
    "wrn28_2": partial(WideResNet, 28, dropout=0.3),
}
_TIMM = "timm:"


def names() -> list[str]:
    """Every model that `create` knows, but for those of timm: `timm:NAME` is one for each of `timm.list_models()`.

    >>> names()[-3:]
    ['vit', 'wrn22_2', 'wrn28_2']
    """
    return list(_MODELS)


def defaults(name: str) -> dict[str, Any]:
    """The options of a model with their defaults.

    >>> defaults("resnet20")
    {'in_channels': 3, 'width': 16, 'image_size': 32}
    """
    if name.startswith(_TIMM):
        return timm_defaults(name.removeprefix(_TIMM))
    if name not in _MODELS:
        raise unknown_name("model", name, [*_MODELS, "timm:NAME"])
    parameters = inspect.signature(_MODELS[name]).parameters
    return {key: p.default for key, p in parameters.items() if key not in ("classes", "generator")}


def create(name: str, classes: int, *, seed: int | None = None, **options: Any) -> ReferenceModel:
    """A freshly initialised model.

    Parameters
    ----------
    name : str
        One of `names()`, or `timm:` and a name of timm's (an extra: `pip install 'pathgrow[timm]'`).
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
    check_option("classes", classes, like=1)
    for key, value in options.items():
        if key not in known:
            raise unknown_name(f"option of {name}", key, known)
        check_option(key, value, like=known[key])
    if name.startswith(_TIMM):
        # timm's own sizes, not those of our signature.
        build: Callable[..., ReferenceModel] = partial(TimmModel, name.removeprefix(_TIMM), **{**known, **options})
    else:
        build = partial(_MODELS[name], **options)
    try:
        if seed is None:
            return build(classes)
        # Constructors of torch modules draw first weights from the global generator before ours replace them.
        with torch.random.fork_rng(devices=[]):
            return build(classes, generator=generator(seed, "model", name))
    except RuntimeError as fault:  # of torch: no such memory, or no number for how much
        asked = ", ".join(f"{key}={value}" for key, value in {"classes": classes, **options}.items())
        said = str(fault).partition("\n")[0]
        raise UserError(f"{name} with {asked} cannot be made ({said}): choose smaller sizes") from fault


__all__ = ["ReferenceModel", "create", "defaults", "names"]
