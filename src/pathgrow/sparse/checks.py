"""Arguments of `attach`, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from pathgrow import methods
from pathgrow.density import rules
from pathgrow.density.types import Rule
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.gradients import Batches, Loss
from pathgrow.methods.method import Method


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer that actually steps: wrappers such as accelerate's contain it and run no hooks."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer) and inner is not optimizer:
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return optimizer


def check_whole(model: nn.Module) -> None:
    """Raise a `UserError` for weights without values or sharded over ranks: picks need whole tensors."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if meta := next((name for name, p in model.named_parameters() if p.is_meta), None):
        raise UserError(
            f"{meta!r} is on the meta device; call to_empty(device=...) and initialize the model before attach()"
        )
    # By attribute: torch.distributed takes time to import and is rarely needed.
    if sharded := next((name for name, p in model.named_parameters() if hasattr(p, "device_mesh")), None):
        raise UserError(
            f"{sharded!r} is a DTensor, sharded over ranks (FSDP2, tensor parallel), which is not supported; "
            "use DistributedDataParallel"
        )


def checked_scope(model: nn.Module, scope: Mapping[str, Tensor]) -> Masks:
    """The scope as a selection, on the device of the weights."""
    if not isinstance(scope, Mapping):
        raise UserError(
            f"scope must be Masks or a mapping of name to bool tensor, got {type(scope).__name__} "
            "(e.g. pathgrow.scope(model, ...) or Masks.full(model))"
        )
    device = next((p.device for name, p in model.named_parameters() if name in scope), torch.device("cpu"))
    selection = Masks.select(scope, scope).to(device)
    selection.check(model)
    if selection.num == 0:
        raise UserError(
            f"nothing to sparsify: the scope of {type(model).__name__} is empty (e.g. scope=Masks.full(model))"
        )
    return selection


def checked_parameters(model: nn.Module, optimizer: Optimizer, scope: Masks) -> dict[str, Parameter]:
    """The weights in scope, by name."""
    named = dict(model.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    if tied := next((name for name in scope if first[id(named[name])] != name), None):
        raise UserError(
            f"the scope has {tied!r}, which is the same weight as {first[id(named[tied])]!r}; use the latter name only"
        )
    parameters = {name: named[name] for name in scope}
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in owned for parameter in parameters.values()):
        raise UserError("the optimizer owns none of the weights in scope; create it from model.parameters()")
    return parameters


def checked_method(method: Any) -> Method:
    """The method as a value."""
    if isinstance(method, str):
        return methods.create(method)
    if not isinstance(method, Method):
        raise UserError(f"method must be a name or a pathgrow.Method, got {type(method).__name__} (e.g. 'gcg')")
    return method


def checked_rule(stop: Any) -> Rule:
    """The density rule as a value."""
    if stop is None or isinstance(stop, str):
        return rules.create(stop or "trajectory")
    if isinstance(stop, type) or not (hasattr(stop, "decide") and hasattr(stop, "answer")):
        raise UserError(f"stop must be a density rule or its name, got {stop!r} (e.g. 'trajectory')")
    return stop  # type: ignore[no-any-return]


def check_needs(method: Method, loss: Loss | None, batches: Batches | None) -> None:
    """Raise a `UserError` for a method that uses gradients if they cannot be computed."""
    at_rounds = "gradients" in method.needs and method.clock == "round"
    if (at_rounds or "data" in method.needs) and (loss is None or batches is None):
        raise UserError(f"method {method.name!r} uses loss gradients; pass loss=f(model, batch) and batches=loader")
