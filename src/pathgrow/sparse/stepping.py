"""What a loop may hand to an optimizer's step in place of plain gradients: a closure that makes them, or a loss scale.

A hook before the step sees neither the gradients of a closure, which is called later, nor those of a scaled loss as
they are, where a fused optimizer takes the scale out by itself and leaves the step out when they overflow. Whoever
reads or moves by gradients there has to have them first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from pathgrow.errors import UserError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def with_closure_called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """Call the closure of a step; the arguments with which the optimizer is told its loss, None where there is none.

    `args` begins with the optimizer, as step hooks get it.
    """
    closure = kwargs.get("closure") if len(args) < 2 else args[1]
    if closure is None:
        return None
    with torch.enable_grad():
        told = _once(closure())
    return ((args[0], told, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": told})


def _once(loss: Any) -> Callable[[], Any]:
    losses = [loss]

    def told() -> Any:
        if not losses:
            raise UserError(
                "this optimizer calls its closure several times in a step (L-BFGS), and the attached method changes "
                "masks or weights once in each: attach a method that changes them between trainings, or use SGD or Adam"
            )
        return losses.pop()

    return told


@torch.no_grad()
def overflowed_(optimizer: Any) -> bool:
    """Take the scale out of the gradients; True: they overflowed, and the optimizer will make no step.

    `GradScaler` does both by itself where optimizers are not fused. Waits for the device under a fused one only.
    """
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is not None and bool(found):
        return True
    if scale is not None:
        for gradient in _gradients(optimizer):
            gradient.mul_(scale.double().reciprocal().to(gradient.device, torch.float32))
        optimizer.grad_scale = None
    return False


def _gradients(optimizer: Optimizer) -> list[torch.Tensor]:
    owned = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad for parameter in owned if parameter.grad is not None]
