"""Models of the timm library by name (requires the `timm` extra), without pretrained weights."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError, nearest_names, require, timm_missing, torchvision_mismatch
from pathgrow.models.blocks import ReferenceModel


class TimmModel(ReferenceModel):
    """A timm model (attribute `net`), initialized by timm.

    Parameters
    ----------
    name : str
        A name of `timm.list_models()`; a pretrained tag such as in `resnet18.a1_in1k` only selects its config.
    image_size : int
        Size of `example_input`; models with learned positions or windows accept no other size.
    dropout, drop_path : float
        Dropout before the classifier, and stochastic depth.
    """

    def __init__(
        self,
        name: str,
        classes: int,
        *,
        image_size: int,
        in_channels: int,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((in_channels, image_size, image_size))
        arguments: dict[str, Any] = {"num_classes": classes, "in_chans": in_channels}
        # Passed only if needed: many architectures do not accept these arguments.
        if _settings(name).fixed_input_size:
            arguments["img_size"] = image_size
        for key, ours, value in (("drop_rate", "dropout", dropout), ("drop_path_rate", "drop_path", drop_path)):
            require(0 <= value < 1, ours, value, "in [0, 1)")
            if value > 0:
                arguments[key] = value
        with torch.random.fork_rng(devices=[], enabled=generator is not None):
            if generator is not None:
                # timm draws from the global CPU generator; torch.manual_seed would also reseed CUDA.
                torch.default_generator.manual_seed(generator.initial_seed())
            self.net = _build(name, arguments)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


def timm_defaults(name: str) -> dict[str, Any]:
    """Return the options of a timm model and their defaults, which include its native image size and channels."""
    channels, height, width = _settings(name).input_size
    return {"image_size": max(height, width), "in_channels": channels, "dropout": 0.0, "drop_path": 0.0}


def _settings(name: str) -> Any:
    """Return timm's config of a model: `input_size` (C, H, W), `fixed_input_size`, and more."""
    timm = _timm()
    if not timm.is_model(name):
        known = timm.list_models()
        near = nearest_names(name, known, most=3)
        hint = f": did you mean {', '.join(f'timm:{other}' for other in near)}?" if near else ""
        raise UserError(f"unknown timm model {name!r}{hint} (see timm.list_models() for all {len(known)})")
    return timm.get_pretrained_cfg(name)


def _build(name: str, arguments: dict[str, Any]) -> nn.Module:
    try:
        net: nn.Module = _timm().create_model(name, pretrained=False, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        options = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise UserError(f"timm cannot build {name!r} with {options} ({reason})") from error
    return net


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise timm_missing(torch.__version__) from error
    except (ImportError, RuntimeError, OSError) as error:  # timm imports torchvision, which loads its own library
        raise torchvision_mismatch(torch.__version__, error) from error
