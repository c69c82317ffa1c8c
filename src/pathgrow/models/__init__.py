"""Reference models by name: the networks of the paper and a GPT, one short file per family.

A model is a line in the table below.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pathgrow.config import Option, check_value
from pathgrow.errors import UserError, check_name
from pathgrow.models.blocks import ReferenceModel
from pathgrow.models.gpt import GPT
from pathgrow.models.mlp import MLP
from pathgrow.models.pit import PiT
from pathgrow.models.resnet import ResNet, ResNetCifar
from pathgrow.models.timm_model import TimmModel, timm_defaults
from pathgrow.models.vit import ViT
from pathgrow.models.wide_resnet import WideResNet
from pathgrow.registry import check_option_names, option_defaults
from pathgrow.rng import generator

_MODELS: dict[str, Callable[..., ReferenceModel]] = {
    "gpt": GPT,
    "mlp": MLP,
    "pit": PiT,
    "resnet18": partial(ResNet, 18),
    "resnet20": partial(ResNetCifar, 20),
    "resnet32": partial(ResNetCifar, 32),
    # Twice the width of He et al.: the "ResNet-32" in the tables of GraSP and MEST.
    "resnet32x2": partial(ResNetCifar, 32, width=32),
    "resnet34": partial(ResNet, 34),
    "resnet44": partial(ResNetCifar, 44),
    "resnet50": partial(ResNet, 50, stem="imagenet", image_size=224),
    "resnet56": partial(ResNetCifar, 56),
    "resnet110": partial(ResNetCifar, 110),
    "vit": ViT,
    # With the dropout that RigL and Sparse Momentum use.
    "wrn22_2": partial(WideResNet, 22, dropout=0.3),
    "wrn28_2": partial(WideResNet, 28, dropout=0.3),
}
_TIMM = "timm:"
_MAX_DEPTH, _MAX_SIZE, _MAX_RATIO = 1000, 2**20, 100
_MAX_PARAMETERS = 10**10
"""More would take minutes to initialize, if they fit at all."""


def names() -> list[str]:
    """Return the names that `create` accepts, except `timm:NAME` for every name in `timm.list_models()`.

    >>> names()[-3:]
    ['vit', 'wrn22_2', 'wrn28_2']
    """
    return list(_MODELS)


def defaults(name: str) -> dict[str, Any]:
    """Return the options of a model and their defaults.

    >>> defaults("resnet20")
    {'in_channels': 3, 'width': 16, 'image_size': 32}
    """
    if _is_timm(name):
        return timm_defaults(name.removeprefix(_TIMM))
    check_name("model", name, [*_MODELS, "timm:NAME"])
    known = option_defaults(_MODELS[name])
    return {key: default for key, default in known.items() if key not in ("classes", "generator")}


def create(name: str, classes: int, *, seed: int | None = None, **options: Any) -> ReferenceModel:
    """Create a model with freshly initialized weights.

    Parameters
    ----------
    name : str
        One of `names()`, or `timm:` followed by the name of a timm model (requires `pip install 'pathgrow[timm]'`).
    classes : int
        Number of outputs.
    seed : int, optional
        Seed of the weights; the global random state is left unchanged. By default the weights are drawn from torch's
        global generator, like those of any module.
    **options
        See `defaults(name)`.

    >>> model = create("mlp", 10, seed=0, widths=(32,))
    >>> [tuple(weight.shape) for weight in model.parameters()]
    [(32, 64), (32,), (10, 32), (10,)]
    >>> model(model.example_input()).shape
    torch.Size([1, 10])
    """
    known = defaults(name)
    _check_option("classes", classes, default=1)
    check_option_names(f"model {name!r}", options, known)
    for key, value in options.items():
        _check_option(key, value, default=known[key])
    if _is_timm(name):
        # Pass all of them: the defaults come from timm's config, not from the signature of TimmModel.
        build: Callable[..., ReferenceModel] = partial(TimmModel, name.removeprefix(_TIMM), **{**known, **options})
    else:
        build = partial(_MODELS[name], **options)
    try:
        if not _is_timm(name):  # some models of timm cannot be built without memory
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                num = sum(parameter.numel() for parameter in build(classes).parameters())
            if num > _MAX_PARAMETERS:
                raise RuntimeError(f"{num:.3g} parameters")
        if seed is None:
            return build(classes)
        # The constructors of torch modules draw from the global generator before the weights are replaced.
        with torch.random.fork_rng(devices=[]):
            return build(classes, generator=generator(seed, "model", name))
    except RuntimeError as error:  # out of memory, or sizes that overflow
        values = ", ".join(f"{key}={value}" for key, value in {"classes": classes, **options}.items())
        reason = str(error).partition("\n")[0]
        raise UserError(f"cannot create {name} with {values} ({reason}): choose smaller sizes") from error


def _is_timm(name: object) -> bool:
    return isinstance(name, str) and name.startswith(_TIMM)


def _check_option(key: str, value: object, default: object) -> None:
    """Refuse a value that is not of the type of the default; integers are sizes or depths, floats are ratios."""
    kind: Any = tuple[int, ...] if isinstance(default, tuple) else type(default)
    example = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    is_size = kind in (int, tuple[int, ...])
    limit = _MAX_DEPTH if key.startswith("depth") else _MAX_SIZE if is_size else _MAX_RATIO
    check_value(value, kind, Option(at_least=1 if is_size else None, limit=limit, example=example), key)


__all__ = ["ReferenceModel", "create", "defaults", "names"]
