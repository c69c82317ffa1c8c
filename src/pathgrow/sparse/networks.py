"""Networks together with their optimizers: copied, restarted, packed for storage and unpacked again.

Nothing is left out: a copy trains on as the original would, and a restored pair as the stored one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from pathgrow.errors import UserError
from pathgrow.graph import Graph
from pathgrow.graph.sample_counter import SampleCounter
from pathgrow.masks import Masks
from pathgrow.rng import generator
from pathgrow.sparse.optimizer_state import clear_optimizer_state_, weights_and_buffers
from pathgrow.sparse.tree import Flat, put_together, take_apart

_Model = TypeVar("_Model", bound=nn.Module)
_OF_THE_DEVICE = ("foreach", "fused", "capturable")
"""Options of an optimizer that depend on the device: what a GPU needs a CPU may refuse, and a run may move."""


def copy_pair(model: _Model, optimizer: Optimizer) -> tuple[_Model, Optimizer]:
    """Independent copies of both; the copied optimizer owns the copied parameters.

    Hooks of an attachment and of sample counting are not copied: a copy is attached and counted on its own. Nor are any
    other hooks on the optimizer, as in every copy that torch makes of one.
    """
    memo: dict[int, Any] = {}
    try:
        model_copy = copy.deepcopy(model, memo)
        optimizer_copy = _copy_optimizer(optimizer, memo)
    except (RuntimeError, TypeError) as fault:
        raise UserError(
            f"{type(model).__name__} and its optimizer cannot be copied ({fault}): "
            "give a model that copy.deepcopy accepts, without tensors that were computed from others"
        ) from fault
    for hook_id, hook in list(model_copy._forward_pre_hooks.items()):
        if isinstance(hook, SampleCounter):
            del model_copy._forward_pre_hooks[hook_id]
            model_copy._forward_pre_hooks_with_kwargs.pop(hook_id, None)
    return model_copy, optimizer_copy


def initial_state(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers as they are now, to be taken before `attach` zeroes anything."""
    return {name: tensor.detach().clone() for name, tensor in weights_and_buffers(model)}


@torch.no_grad()
def fresh_(
    model: nn.Module, optimizer: Optimizer, initial: Mapping[str, Tensor], masks: Masks, seed: int, *, graph: Graph
) -> None:
    """Start over with a found mask, from a new draw of the user's own initialisation.

    Everything gets its initial value again, and the optimizer forgets its state but keeps its options. In each masked
    weight the switchable entries of the initial value are shuffled. Where entries were independent and identically
    distributed (Kaiming, Xavier, normal, uniform), this is an exact new draw, and their law need not be known.
    Structured initialisations (orthogonal, Dirac) keep their values and lose their structure. Then the mask is applied,
    and the weights kept by each output unit are scaled by sqrt(dense fan-in / kept fan-in), so that the sum of a unit
    keeps the variance it had when dense.

    Parameters
    ----------
    initial : mapping of name to tensor
        What `initial_state` gave.
    masks : Masks
        Which weights are on.
    seed : int
        Decides, together with the name of a tensor, how that tensor is shuffled.
    wiring : Wiring
        What `wiring.read` gave for the model; it tells the inputs of each unit, whatever the layout of a weight. If a
        weight is used in several ways the first one counts, and a weight that is not used is not scaled.
    """
    _require_same_model(model, initial)
    for name, tensor in weights_and_buffers(model):
        tensor.copy_(initial[name])
    scales = _fan_in_scales(masks, graph)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in masks:
        weight = parameters[name]
        switchable = masks.scope[name].to(weight.device)
        values = weight[switchable]
        order = torch.randperm(len(values), generator=generator(seed, "fresh", name))
        weight[switchable] = values[order.to(values.device)]
        weight.mul_(scales[name].to(weight))
    masks.apply_(model)
    clear_optimizer_state_(optimizer)


def pack_pair(model: nn.Module, optimizer: Optimizer, masks: Masks | None = None) -> Flat:
    """Everything that training changes, as (tensors, facts): flat tensors by name, and JSON values."""
    stored: dict[str, Any] = {
        "model": {name: tensor.detach() for name, tensor in weights_and_buffers(model)},
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
        "slots": {
            index: dict(optimizer.state[parameter])
            for index, (parameter, _) in enumerate(_owned(optimizer))
            if parameter in optimizer.state
        },
        "masks": None,
    }
    if masks is not None:
        partial = {name: inside for name, inside in masks.scope.items() if not bool(inside.all())}
        stored["masks"] = {"on": dict(masks), "scope": partial}
    return take_apart(stored)


@torch.no_grad()
def unpack_pair_(
    model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> Masks | None:
    """Load a stored pair into a model and an optimizer that were built alike, bit for bit; returns its masks."""
    stored = put_together(tensors, metadata)
    _require_same_model(model, stored["model"])
    if len(stored["groups"]) != len(optimizer.param_groups):
        raise UserError(
            f"the stored optimizer has {len(stored['groups'])} parameter groups and this one "
            f"{len(optimizer.param_groups)}: build it as it was built when the run began"
        )
    for name, tensor in weights_and_buffers(model):
        tensor.copy_(stored["model"][name])
    # Not Optimizer.load_state_dict: it casts state to the weight's dtype, which is not exact for half precision.
    optimizer.state.clear()
    for group, options in zip(optimizer.param_groups, stored["groups"], strict=True):
        kept = {key: group[key] for key in ("params", *_OF_THE_DEVICE) if key in group}
        group.clear()
        group.update(copy.deepcopy(options) | kept)
    for index, (parameter, group) in enumerate(_owned(optimizer)):
        if index in stored["slots"]:
            optimizer.state[parameter] = {
                key: _placed(value, parameter, group) for key, value in stored["slots"][index].items()
            }
    if stored["masks"] is None:
        return None
    on, partial = stored["masks"]["on"], stored["masks"]["scope"]
    return Masks(
        {name: mask.clone() for name, mask in on.items()}, {n: partial.get(n, torch.ones_like(on[n])) for n in on}
    )


def _copy_optimizer(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """Like copy.deepcopy, but with all attributes: torch's own copy of L-BFGS, for example, cannot step."""
    # `step` is an attribute of the instance only if a learning-rate scheduler has wrapped it, for this optimizer alone.
    left = {key for key in vars(optimizer) if key.endswith("_hooks")} | {"step"}
    twin = type(optimizer).__new__(type(optimizer))
    twin.__setstate__({key: copy.deepcopy(value, memo) for key, value in vars(optimizer).items() if key not in left})
    return twin


def _fan_in_scales(masks: Masks, graph: Graph) -> dict[str, Tensor]:
    """For each weight sqrt(dense fan-in / kept fan-in) of the unit it leads to; 1 for a unit that kept nothing."""
    scales = {name: torch.ones(mask.shape, dtype=torch.float64, device=mask.device) for name, mask in masks.items()}
    for layer in reversed(graph.layers):  # the first use of a weight has the last word
        if layer.name is None or layer.name not in masks:
            continue
        inputs = layer.pick(masks[layer.name]).flatten(1)
        kept = inputs.sum(dim=1, keepdim=True)
        scale = (inputs.shape[1] / kept.clamp(min=1).double()).sqrt().where(kept > 0, 1.0).expand_as(inputs)
        onto = scales[layer.name]
        if layer.where is None:
            onto.copy_(scale.reshape(onto.shape))
        else:
            onto.view(-1)[layer.where.to(onto.device).reshape(-1)] = scale.reshape(-1)
    return scales


def _placed(value: Any, parameter: Parameter, group: Mapping[str, Any]) -> Any:
    """A stored state value where the optimizer expects it: counters on the CPU unless they have to be elsewhere."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    on_device = value.dim() > 0 or group.get("capturable") or group.get("fused")
    return value.to(parameter.device if on_device else "cpu", copy=True)


def _require_same_model(model: nn.Module, stored: Mapping[str, Tensor]) -> None:
    here = {name: tuple(tensor.shape) for name, tensor in weights_and_buffers(model)}
    there = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    if here != there:
        name = min(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        raise UserError(
            f"this is the state of another model: {name!r} is {there.get(name, 'absent')} there and "
            f"{here.get(name, 'absent')} in {type(model).__name__}: build the model as it was built when it was saved"
        )


def _owned(optimizer: Optimizer) -> Iterator[tuple[Parameter, dict[str, Any]]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter, group
