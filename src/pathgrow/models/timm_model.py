"""Any model of the timm library by its name there (the `timm` extra); never pretrained."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.options import check_probability
from pathgrow.models.reference import ReferenceModel


class TimmModel(ReferenceModel):
    """A model of timm, as `net`, with the weights that timm starts it from.

    Parameters
    ----------
    name : str
        As in `timm.list_models()`; a tag of pretrained weights, as in `resnet18.a1_in1k`, only selects their settings.
    image_size : int
        Built into models with learned positions or windows; the others take any, it is the size of `example_input`.
    dropout, drop_path : float
        Before the classifier, and of whole branches.
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
        given: dict[str, Any] = {"num_classes": classes, "in_chans": in_channels}
        # The rest only where it says something: many architectures do not know these arguments.
        if _settings(name).fixed_input_size:
            given["img_size"] = image_size
        for key, ours, value in (("drop_rate", "dropout", dropout), ("drop_path_rate", "drop_path", drop_path)):
            check_probability(ours, value)
            if value > 0:
                given[key] = value
        if generator is None:
            self.net = _built(name, given)
        else:
            # timm draws from the global generator. Seeded itself, not by torch.manual_seed: that reaches CUDA's too.
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(generator.initial_seed())
                self.net = _built(name, given)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


def timm_defaults(name: str) -> dict[str, Any]:
    """The options of a model of timm with their defaults, its own image size and channels among them."""
    channels, height, width = _settings(name).input_size
    return {"image_size": max(height, width), "in_channels": channels, "dropout": 0.0, "drop_path": 0.0}


def _settings(name: str) -> Any:
    """What timm notes about a model: `input_size` (C, H, W), whether it is `fixed_input_size`, and more."""
    timm = _timm()
    if not timm.is_model(name):
        known = timm.list_models()
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f": did you mean {', '.join(f'timm:{other}' for other in near)}?" if near else ""
        raise UserError(f"unknown timm model {name!r}{hint} (timm.list_models() names all {len(known)})")
    return timm.get_pretrained_cfg(name)


def _built(name: str, given: dict[str, Any]) -> nn.Module:
    try:
        net: nn.Module = _timm().create_model(name, pretrained=False, **given)
    except (TypeError, ValueError, RuntimeError, AssertionError) as fault:
        said = str(fault).partition("\n")[0] or type(fault).__name__
        options = ", ".join(f"{key}={value}" for key, value in given.items())
        raise UserError(
            f"timm cannot build {name!r} with {options} ({said}): leave options out or choose others"
        ) from fault
    return net


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError as fault:
        raise UserError(
            "models named timm:NAME need the timm library, which is not installed: pip install 'pathgrow[timm]'"
        ) from fault
    except RuntimeError as fault:  # torchvision, which timm imports, beside another build of torch
        raise UserError(
            f"timm is installed but cannot be imported ({fault}): install the torchvision that belongs to torch "
            f"{torch.__version__}"
        ) from fault
