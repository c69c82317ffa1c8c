"""Running a model once just to look at it: nothing of it is changed, and every function that it calls is seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn
from torch.nn.parameter import UninitializedParameter

from pathgrow.errors import UserError


@contextmanager
def looked_at(model: nn.Module) -> Iterator[None]:
    """Inside the block the model is in evaluation mode and runs its own Python code; afterwards modes are as before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with uncompiled():
            yield
    finally:
        for module, training in modes:
            module.training = training


def uncompiled() -> AbstractContextManager[object]:
    """Keep compiled code from running: it shows its functions to no mode, compiling under a mode fails, and what is
    compiled has no second derivative."""
    # Anything compiled has imported this module; where nothing is compiled, its import would cost a second.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    from torch.compiler import set_stance

    eager: AbstractContextManager[object] = set_stance("force_eager")
    return eager


def check_shaped(model: nn.Module) -> None:
    """Refuse lazy layers, whose weights have no shape before their first batch."""
    lazy = (name for name, parameter in model.named_parameters() if isinstance(parameter, UninitializedParameter))
    if unshaped := next(lazy, None):
        raise UserError(
            f"{unshaped!r} of {type(model).__name__} belongs to a lazy layer and has no shape yet, weights are wanted: "
            "run the model once on a batch first"
        )
