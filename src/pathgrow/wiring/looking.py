"""Running a model once merely to look at it: nothing of it is changed, and every function that it calls is seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn
from torch.nn.parameter import UninitializedParameter

from pathgrow.errors import UserError


@contextmanager
def looked_at(model: nn.Module) -> Iterator[None]:
    """Inside the block the model evaluates, by its own Python code; after it every module has its old mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with _uncompiled():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _uncompiled() -> AbstractContextManager[object]:
    """Compiled code shows its functions to no mode, and compiling under one fails."""
    # Whoever has compiled something has this module; whoever has not shall not wait a second for its import.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    from torch.compiler import set_stance

    eager: AbstractContextManager[object] = set_stance("force_eager")
    return eager


def check_shaped(model: nn.Module) -> None:
    """Every weight has its shape; those of lazy layers have none before their first batch."""
    lazy = (name for name, parameter in model.named_parameters() if isinstance(parameter, UninitializedParameter))
    if unshaped := next(lazy, None):
        raise UserError(
            f"{unshaped!r} of {type(model).__name__} belongs to a lazy layer and has no shape yet, weights are wanted: "
            "run the model once on a batch first"
        )
