"""What `attach` and `observe` accept; everything else is a `UserError`, before anything is written."""

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
    """The optimizer that really steps: wrappers such as accelerate's contain it and run no hooks of their own."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer) and inner is not optimizer:
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise UserError(
            f"optimizer is a {type(optimizer).__name__}, a torch.optim.Optimizer is wanted: pass the one the loop steps"
        )
    return optimizer


def check_whole(model: nn.Module) -> None:
    """Refuse weights without values or split over processes: path scores and picks need whole tensors."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is a {type(model).__name__}, a torch.nn.Module is wanted: pass the one the loop trains")
    if bodiless := next((name for name, p in model.named_parameters() if p.is_meta), None):
        raise UserError(
            f"{bodiless!r} is on the meta device and holds no values, weights to train are wanted: "
            "call to_empty(device=...) and initialise or load the model before it is attached"
        )
    # Recognised by the attribute, since torch.distributed takes time to import and is rarely needed.
    if sharded := next((name for name, p in model.named_parameters() if hasattr(p, "device_mesh")), None):
        raise UserError(
            f"{sharded!r} is a DTensor, of which each process holds a part (FSDP2, tensor parallel), whole weights are "
            "wanted: train with DistributedDataParallel, and attach before anything is sharded"
        )


def checked_scope(model: nn.Module, scope: Mapping[str, Tensor]) -> Masks:
    """The scope as `Masks.select` gives it, on the device of the weights."""
    if not isinstance(scope, Mapping):
        raise UserError(
            f"scope is a {type(scope).__name__}, Masks or a mapping of name to bool tensor is wanted: "
            "make one with pathgrow.scope(model, ...) or Masks.full(model)"
        )
    device = next((p.device for name, p in model.named_parameters() if name in scope), torch.device("cpu"))
    selection = Masks.select(scope, scope).to(device)
    selection.check(model)
    if selection.num == 0:
        raise UserError(
            f"there is nothing to sparsify: the scope of {type(model).__name__} holds no weight; "
            "widen it, for example with scope=Masks.full(model)"
        )
    return selection


def checked_parameters(model: nn.Module, optimizer: Optimizer, scope: Masks) -> dict[str, Parameter]:
    """The weights that are to be sparse, by name."""
    named = dict(model.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    if tied := next((name for name in scope if first[id(named[name])] != name), None):
        raise UserError(
            f"the scope has {tied!r}, which is the same weight as {first[id(named[tied])]!r}, one mask is wanted for "
            "both: give it under the latter name only"
        )
    parameters = {name: named[name] for name in scope}
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in owned for parameter in parameters.values()):
        raise UserError(
            "the optimizer owns none of the weights that are to be sparse: "
            "make it from model.parameters() of this very model"
        )
    return parameters


def checked_method(method: Any) -> Method:
    """The method as a value."""
    if isinstance(method, str):
        return methods.create(method)
    if not isinstance(method, Method):
        raise UserError(
            f"method is a {type(method).__name__}, a name or a pathgrow.Method is wanted: "
            "give for example 'gcg', or methods.create('rigl', density=0.1)"
        )
    return method


def checked_rule(stop: Any) -> Rule:
    """The density rule as a value."""
    if stop is None or isinstance(stop, str):
        return rules.create(stop or "trajectory")
    if isinstance(stop, type) or not (hasattr(stop, "decide") and hasattr(stop, "answer")):
        raise UserError(f"stop {stop!r} was given, a density rule is wanted: give its name, for example 'trajectory'")
    return stop  # type: ignore[no-any-return]


def check_needs(method: Method, loss: Loss | None, batches: Batches | None) -> None:
    """Refuse, before anything starts, a method whose picks read gradients where none can be computed."""
    at_rounds = "gradients" in method.needs and method.clock == "round"
    if (at_rounds or "data" in method.needs) and (loss is None or batches is None):
        raise UserError(
            f"method {method.name!r} reads loss gradients: give attach both loss=f(model, batch) and batches=loader"
        )
