"""The state of a training: models with their optimizers, copied, reset, packed for storage and restored.

Nothing is left out: a copy trains on as the original would, and a restored training as the stored one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, Optimizer

from pathgrow.checkpoint import RunDir, Store
from pathgrow.distributed import interrupts
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import RunFailed, UserError, is_int
from pathgrow.graph import Graph
from pathgrow.graph.sample_counter import SampleCounter
from pathgrow.masks import Masks
from pathgrow.rng import generator
from pathgrow.sparse.tree import FlatState, flatten_state, unflatten_state

if TYPE_CHECKING:
    from pathgrow.sparse.attach import Attached

CHECKPOINT_PREFIX = "partial-"
"""Prefix of the stages that hold checkpoints of unfinished trainings."""
DIVERGED = "{} is not finite after {}, training has diverged; lower the learning rate (earlier stages are stored)"
_Model = TypeVar("_Model", bound=nn.Module)
_DEVICE_OPTIONS = ("foreach", "fused", "capturable")
"""Optimizer options that depend on the device: a GPU may need what a CPU refuses, and a run may move."""
_IMPLEMENTATION_OPTIONS = frozenset({*_DEVICE_OPTIONS, "differentiable"})
"""Optimizer options that say how a step is computed, not what."""
_PAIR, _CLOCK, _RNG = "pair/", "clock/", "noise/"
_STEPS_BETWEEN_CHECKS = 64
"""Ranks have to agree on when to save, which would slow training down if done at every step."""


def weights_and_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers of a model, by name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def initial_state(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, to be taken before `attach` zeroes anything."""
    return {name: tensor.detach().clone() for name, tensor in weights_and_buffers(model)}


# Optimizers


@torch.no_grad()
def reset_optimizer_state_(optimizer: Optimizer) -> None:
    """Reset the optimizer state; in place where a fresh state is all zeros, since CUDA graphs hold the tensors."""
    # The first step of SGD is not dampened, and is recognized by the lack of a momentum buffer.
    dampened = any(group.get("dampening") for group in optimizer.param_groups)
    if dampened or not isinstance(optimizer, SGD | Adam):
        clear_optimizer_state_(optimizer)
        return
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()


def clear_optimizer_state_(optimizer: Optimizer) -> None:
    """Clear the optimizer state, as it is before the first step."""
    optimizer.state.clear()
    if isinstance(optimizer, Adagrad):
        # The one optimizer of torch that creates its state when it is built, and in older versions misses it later.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                total = torch.full_like(parameter, group["initial_accumulator_value"])
                optimizer.state[parameter] = {"step": torch.tensor(0.0), "sum": total}


class OptimizerSettings:
    """A copy of the settings (learning rate, momentum, ...) of an optimizer's parameter groups.

    >>> optimizer = SGD([torch.zeros(1)], lr=0.1)
    >>> settings = OptimizerSettings(optimizer)
    >>> optimizer.param_groups[0]["lr"] = 0.5
    >>> settings.difference(OptimizerSettings(optimizer).as_json())
    'lr was 0.5, now 0.1'
    >>> settings.restore_(optimizer)
    >>> optimizer.param_groups[0]["lr"]
    0.1
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer_type = type(optimizer).__name__
        self._groups = copy.deepcopy(_group_settings(optimizer))

    def restore_(self, optimizer: Optimizer) -> None:
        """Set them in this optimizer or in a copy of it."""
        for group, settings in zip(optimizer.param_groups, self._groups, strict=True):
            for name in [name for name in group if name not in settings and name != "params"]:
                del group[name]
            for name, value in settings.items():
                if isinstance(value, Tensor) and isinstance(group.get(name), Tensor):
                    group[name].copy_(value)  # CUDA graphs read this very tensor
                else:
                    group[name] = copy.deepcopy(value)

    def as_json(self) -> list[dict[str, str]]:
        """Type and settings of every group as strings, without those that only say how a step is computed."""
        return [
            {"optimizer": self._optimizer_type}
            | {name: _as_text(value) for name, value in group.items() if name not in _IMPLEMENTATION_OPTIONS}
            for group in self._groups
        ]

    def difference(self, before: list[dict[str, str]]) -> str:
        """The first difference to the stored settings of another optimizer, or an empty string."""
        now = self.as_json()
        if len(before) != len(now):
            return f"{len(before)} parameter groups before, now {len(now)}"
        for old, new in zip(before, now, strict=True):
            for name in {**old, **new}:
                if old.get(name) != new.get(name):
                    return f"{name} was {old.get(name, 'not set')}, now {new.get(name, 'not set')}"
        return ""


def _group_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _as_text(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.tolist())
    # The string of other objects may contain their address, which differs between processes.
    return str(value) if isinstance(value, bool | int | float | str | list | tuple | None) else type(value).__name__


# Models with their optimizers


def copy_model_and_optimizer(model: _Model, optimizer: Optimizer) -> tuple[_Model, Optimizer]:
    """Independent copies of both; the copied optimizer owns the copied parameters.

    Hooks of an attachment and of sample counting are not copied: a copy is attached and counted separately. Nor are
    other hooks on the optimizer, as in every copy that torch makes of one.
    """
    memo: dict[int, Any] = {}
    try:
        model_copy = copy.deepcopy(model, memo)
        optimizer_copy = _copy_optimizer(optimizer, memo)
    except (RuntimeError, TypeError) as fault:
        raise UserError(
            f"{type(model).__name__} and its optimizer cannot be copied ({fault}); copy.deepcopy must accept the model"
        ) from fault
    for hook_id, hook in list(model_copy._forward_pre_hooks.items()):
        if isinstance(hook, SampleCounter):
            del model_copy._forward_pre_hooks[hook_id]
            model_copy._forward_pre_hooks_with_kwargs.pop(hook_id, None)
    return model_copy, optimizer_copy


@torch.no_grad()
def reinitialize_(
    model: nn.Module, optimizer: Optimizer, initial: Mapping[str, Tensor], masks: Masks, seed: int, *, graph: Graph
) -> None:
    """Start over with given masks, from a new draw of the model's own initialization.

    All parameters and buffers get their initial values, and the optimizer keeps its settings but not its state. In each
    masked weight the prunable entries of the initial value are shuffled. For independent, identically distributed
    entries (Kaiming, Xavier, normal, uniform) this is an exact new draw, without knowing their distribution. Structured
    initializations (orthogonal, Dirac) keep their values and lose their structure. Then the masks are applied, and the
    active weights of each output unit are scaled by sqrt(dense fan-in / active fan-in), which preserves the variance of
    the unit's pre-activation.

    Parameters
    ----------
    initial : mapping of name to tensor
        Result of `initial_state`.
    masks : Masks
        Which weights are active.
    seed : int
        Determines, together with the name of a tensor, how that tensor is shuffled.
    graph : Graph
        The traced model, which gives the inputs of each unit for any weight layout. For a weight with several uses the
        first one counts; an unused weight is not scaled.
    """
    _require_same_model(model, initial)
    for name, tensor in weights_and_buffers(model):
        tensor.copy_(initial[name])
    scales = _fan_in_scales(masks, graph)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in masks:
        weight = parameters[name]
        prunable = masks.scope[name].to(weight.device)
        values = weight[prunable]
        order = torch.randperm(len(values), generator=generator(seed, "fresh", name))
        weight[prunable] = values[order.to(values.device)]
        weight.mul_(scales[name].to(weight))
    masks.apply_(model)
    clear_optimizer_state_(optimizer)


@torch.no_grad()
def scale_to_fan_in_(model: nn.Module, masks: Masks, graph: Graph) -> None:
    """Scale the active weights of each output unit by sqrt(dense fan-in / active fan-in), as `reinitialize_` does."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, scale in _fan_in_scales(masks, graph).items():
        parameters[name].mul_(scale.to(parameters[name]))


def pack_model_and_optimizer(model: nn.Module, optimizer: Optimizer, masks: Masks | None = None) -> FlatState:
    """Everything that training changes, as flat tensors and JSON metadata."""
    stored: dict[str, Any] = {
        "model": {name: tensor.detach() for name, tensor in weights_and_buffers(model)},
        "groups": _group_settings(optimizer),
        "optimizer_state": {
            index: dict(optimizer.state[parameter])
            for index, (parameter, _) in enumerate(_owned(optimizer))
            if parameter in optimizer.state
        },
        "masks": None,
    }
    if masks is not None:
        partial = {name: inside for name, inside in masks.scope.items() if not bool(inside.all())}
        stored["masks"] = {"on": dict(masks), "scope": partial}
    return flatten_state(stored)


@torch.no_grad()
def unpack_model_and_optimizer_(
    model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> Masks | None:
    """Load a packed state into a model and an optimizer that were built alike, bit for bit; returns its masks."""
    stored = _unflatten_pair(tensors, metadata)
    _require_same_model(model, stored["model"])
    if len(stored["groups"]) != len(optimizer.param_groups):
        raise UserError(
            f"the stored optimizer has {len(stored['groups'])} parameter groups, this one "
            f"{len(optimizer.param_groups)}; build it as for the stored run"
        )
    for name, tensor in weights_and_buffers(model):
        tensor.copy_(stored["model"][name])
    # Not Optimizer.load_state_dict: it casts state to the weight's dtype, which is not exact for half precision.
    optimizer.state.clear()
    for group, settings in zip(optimizer.param_groups, stored["groups"], strict=True):
        kept = {key: group[key] for key in ("params", *_DEVICE_OPTIONS) if key in group}
        group.clear()
        group.update(copy.deepcopy(settings) | kept)
    for index, (parameter, group) in enumerate(_owned(optimizer)):
        if index in stored["optimizer_state"]:
            optimizer.state[parameter] = {
                key: _placed(value, parameter, group) for key, value in stored["optimizer_state"][index].items()
            }
    if stored["masks"] is None:
        return None
    on, partial = stored["masks"]["on"], stored["masks"]["scope"]
    return Masks(
        {name: mask.clone() for name, mask in on.items()}, {n: partial.get(n, torch.ones_like(on[n])) for n in on}
    )


def _unflatten_pair(tensors: Mapping[str, Tensor], metadata: Any) -> dict[str, Any]:
    stored = unflatten_state(tensors, metadata)
    kinds: dict[str, Any] = {"model": dict, "groups": list, "optimizer_state": dict, "masks": dict | None}
    if not isinstance(stored, dict) or any(not isinstance(stored.get(name), kind) for name, kind in kinds.items()):
        raise UserError("the stored state is not that of a model and its optimizer")
    return stored


def _copy_optimizer(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """Like copy.deepcopy, but with all attributes: torch's own copy of L-BFGS, for example, cannot step."""
    # `step` is an instance attribute only if a learning-rate scheduler has wrapped it, for this optimizer alone.
    left = {key for key in vars(optimizer) if key.endswith("_hooks")} | {"step"}
    twin = type(optimizer).__new__(type(optimizer))
    twin.__setstate__({key: copy.deepcopy(value, memo) for key, value in vars(optimizer).items() if key not in left})
    return twin


def _fan_in_scales(masks: Masks, graph: Graph) -> dict[str, Tensor]:
    """For each weight sqrt(dense fan-in / active fan-in) of its output unit; 1 for a unit without active weights."""
    scales = {name: torch.ones(mask.shape, dtype=torch.float64, device=mask.device) for name, mask in masks.items()}
    for layer in reversed(graph.layers):  # the first use of a weight is written last
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
    """A stored state value on the device that the optimizer expects: counters on the CPU, unless an option says GPU."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    on_device = value.dim() > 0 or group.get("capturable") or group.get("fused")
    return value.to(parameter.device if on_device else "cpu", copy=True)


def _require_same_model(model: nn.Module, stored: Mapping[str, Any]) -> None:
    here = {name: tuple(tensor.shape) for name, tensor in weights_and_buffers(model)}
    there = {name: tuple(tensor.shape) for name, tensor in stored.items() if isinstance(tensor, Tensor)}
    if here != there:
        name = min(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        raise UserError(
            f"the stored state is of another model: {name!r} is {there.get(name, 'missing')} in the state and "
            f"{here.get(name, 'missing')} in {type(model).__name__}"
        )


def _owned(optimizer: Optimizer) -> Iterator[tuple[Parameter, dict[str, Any]]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter, group


# Attached trainings


def pack_training(attached: Attached) -> FlatState:
    """Weights, optimizer state, masks and clock. The tensors are live: store them before training continues."""
    pair, pair_metadata = pack_model_and_optimizer(attached.model, attached.optimizer)
    clock, clock_metadata = flatten_state(attached.state_dict())
    tensors = {_PAIR + name: tensor for name, tensor in pair.items()}
    tensors |= {_CLOCK + name: tensor for name, tensor in clock.items()}
    return tensors, {"pair": pair_metadata, "clock": clock_metadata}


def unpack_training_(attached: Attached, tensors: Mapping[str, Tensor], metadata: Any) -> None:
    """Restore a packed training, bit for bit; what cannot be one is a `UserError`."""
    check_training(tensors, metadata)
    unpack_model_and_optimizer_(attached.model, attached.optimizer, _part(tensors, _PAIR), metadata["pair"])
    attached.load_state_dict(unflatten_state(_part(tensors, _CLOCK), metadata["clock"]))


def check_training(tensors: Mapping[str, Tensor], metadata: Any) -> None:
    """Raise a `UserError` for what cannot be a packed training."""
    if not isinstance(metadata, Mapping) or not metadata.keys() >= {"pair", "clock"}:
        raise UserError("the stored state is not that of a training")
    _unflatten_pair(_part(tensors, _PAIR), metadata["pair"])
    unflatten_state(_part(tensors, _CLOCK), metadata["clock"])


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class SavedTraining(NamedTuple):
    """What a checkpoint says beside the state of the network."""

    step: int
    rng_state: Tensor
    num_calls: int
    """How often `fit` was called for this training, if it is a user's."""


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Where an unfinished training saves its state, at most every `seconds`; trainers call it between steps.

    Restoring is exact: weights, optimizer state, masks, clock, EMA, the number of steps and the state of the generator
    for dropout, which each rank has its own of.
    """

    store: Store
    name: str
    seconds: float = 60.0
    comm: Communicator = SINGLE_PROCESS

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether to save after this step, `seconds` after the last save."""
        if self.comm.size > 1 and step % _STEPS_BETWEEN_CHECKS:
            return False
        return self.is_worth_saving(seconds)

    def is_worth_saving(self, seconds: float) -> bool:
        """Whether this much work is worth saving: the clock of rank 0 decides, or a signal to any rank."""
        due = seconds > self.seconds
        if self.comm.size == 1:
            return due
        dues, signals = zip(*self.comm.gather((due, interrupts.received())), strict=True)
        return interrupts.agree(signals) or dues[0]

    def save(self, attached: Attached, step: int, rng_state: Tensor, *, num_calls: int = 1) -> None:
        """Save the state after `step` steps, with that of this rank's generator for dropout; refuses one with NaN."""
        states, names = zip(*self.comm.gather((rng_state, attached.not_finite())), strict=True)
        if name := next(filter(None, names), ""):
            raise RunFailed(DIVERGED.format(name, f"{step} steps of {self.name.removeprefix(CHECKPOINT_PREFIX)}"))
        tensors, metadata = pack_training(attached)
        rng_states = {f"{_RNG}{rank}": state for rank, state in enumerate(states)}
        metadata = {"step": step, "num_calls": num_calls, "state": metadata}
        self.store.save(self.name, metadata, {**tensors, **rng_states})

    def load(self, attached: Attached) -> SavedTraining | None:
        """Restore the last saved state, if there is one."""
        found = self.store.load(self.name)
        if found is None or not found.tensors:
            return None
        tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith(_RNG)}
        step, num_calls = found.metadata.get("step"), found.metadata.get("num_calls", 1)
        state, rng = found.metadata.get("state"), f"{_RNG}{self.comm.rank}"
        try:
            if not is_int(step) or step < 0 or num_calls not in (1, 2) or rng not in found.tensors:
                raise UserError("its number of steps or the state of its generator is missing")
            unpack_training_(attached, tensors, state)
        except UserError as error:
            raise UserError(
                f"the checkpoint {self.name!r} is not one of this training ({error}): delete it from the directory "
                "`stages` of the run and rerun the command, which trains the stage from its beginning"
            ) from error
        return SavedTraining(step, found.tensors[rng], num_calls)

    def delete(self) -> None:
        """Delete the saved state once its stage is stored."""
        interrupts.forget(self.name)
        self.store.delete_tensors(self.name)


def delete_training_checkpoints(run_dir: RunDir) -> None:
    """Delete the checkpoints of a finished run: it may have been killed after its last stage was stored."""
    for stage in run_dir.stages.names():
        if stage.startswith(CHECKPOINT_PREFIX):
            run_dir.stages.delete_tensors(stage)


def unfinished_steps(run_dir: RunDir) -> dict[str, int]:
    """The unfinished stages of a run, and how many of their steps a checkpoint saves."""
    stored = run_dir.stages.names()
    steps: dict[str, int] = {}
    for name in stored:
        if name.startswith(CHECKPOINT_PREFIX):
            stage = name.removeprefix(CHECKPOINT_PREFIX).rpartition("-")[0]  # without the part of its training
            if stage not in stored and run_dir.stages.has_tensors(name):
                steps[stage] = steps.get(stage, 0) + run_dir.stages.number(name, "step")
    return steps
