"""What is written around an optimizer step: zeros at pruned positions, in weights, gradients and optimizer state.

The masking functions write in place and do nothing else: no branch depends on a value in a tensor, nothing waits for
the device, no memory is rebound. A CUDA-graph training step, which runs no Python hooks, can therefore contain these
very calls, while the schedule (`hooks`) stays outside and edits `keep` between replays.

`keep` is the mask as ones and zeros, in integers as wide as the weights, and what is masked is multiplied by it bitwise
as integers. This gives a true zero even where a gradient overflowed (0 * inf is NaN, and would stay NaN), and does not
touch active weights. Filling under a mask takes four times as long on a CPU, and on a GPU it cannot be done for all
tensors in one launch. The price is the memory of one more copy of the weights.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from pathgrow import methods
from pathgrow.distributed.comm import Communicator
from pathgrow.errors import UserError, frames_to_the_caller, is_int
from pathgrow.graph.calls import uncalled_layers, warn_of_unreached
from pathgrow.methods.method import Method
from pathgrow.sparse.tree import copy_method_state

Parameters = Mapping[str, Parameter]
Tensors = Mapping[str, Tensor]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Links = Sequence[tuple[Mapping[str, Any], str, Any, str]]
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def keep_tensors(parameters: Parameters, masks: Tensors) -> dict[str, Tensor]:
    """Masks as integers: one where a weight is active, zero where it is pruned, in the memory layout of the weights."""
    keep = {
        name: torch.empty_like(parameters[name], dtype=_INTEGERS[parameters[name].itemsize], requires_grad=False)
        for name in masks
    }
    set_keep_(keep, masks)
    return keep


def set_keep_(keep: Tensors, masks: Tensors) -> None:
    """Write other masks into the same memory."""
    torch._foreach_copy_(list(keep.values()), [masks[name] for name in keep])


@torch.no_grad()
def mask_(tensor: Tensor, keep: Tensor) -> None:
    """Zero the pruned entries, whatever they hold."""
    bits = tensor.view(_INTEGERS[tensor.itemsize])
    bits.mul_(keep.to(bits.dtype))  # optimizer state may have a wider dtype than the weights


@torch.no_grad()
def num_not_zero(model: nn.Module, masks: Tensors) -> int:
    """How many pruned weights of a model are not zero, because others were loaded after the last step."""
    return sum(int(weight[pruned].count_nonzero()) for weight, pruned in _pruned(model, masks))


@torch.no_grad()
def zero_pruned_(model: nn.Module, masks: Tensors) -> None:
    """Zero the pruned weights that a model holds now: it may have been moved since, or its parameters replaced."""
    for weight, pruned in _pruned(model, masks):
        weight.masked_fill_(pruned, 0)


def _pruned(model: nn.Module, masks: Tensors) -> Iterator[tuple[Tensor, Tensor]]:
    weights = dict(model.named_parameters())
    for name, mask in masks.items():
        weight = weights.get(name)
        if weight is None or weight.shape != mask.shape or weight.is_meta or hasattr(weight, "device_mesh"):
            continue  # no longer the one that was attached, nor one that could be masked
        yield weight, ~mask.to(weight.device)


def mask_gradients_(parameters: Parameters, keep: Tensors) -> None:
    """Zero the gradients of pruned weights; parameters without a gradient are skipped."""
    _mask_all_((gradient, ones) for name, ones in keep.items() if (gradient := parameters[name].grad) is not None)


def mask_weights_(parameters: Parameters, keep: Tensors) -> None:
    """Zero the pruned weights."""
    _mask_all_((parameters[name], ones) for name, ones in keep.items())


def mask_optimizer_state_(optimizer: Optimizer, parameters: Parameters, keep: Tensors) -> None:
    """Zero the optimizer state of pruned weights.

    For SGD, Adam and most others masked gradients keep it at zero, but not for all (Adamax adds an epsilon, Rprop keeps
    a step size), and not after a dense checkpoint was loaded. Counters such as Adam's `step` belong to the whole tensor
    and stay.
    """
    _mask_all_((state, ones) for name, ones in keep.items() for state in _state_tensors(optimizer, parameters[name]))


@torch.no_grad()
def _mask_all_(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Mask many tensors; on a GPU in one launch, since one for each would cost several percent of a small step."""
    together: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for tensor, keep in pairs:
        if tensor.is_cuda and tensor.itemsize == keep.itemsize:
            bits, ones = together.setdefault(keep.dtype, ([], []))
            bits.append(tensor.view(keep.dtype))
            ones.append(keep)
        else:
            mask_(tensor, keep)
    for bits, ones in together.values():
        torch._foreach_mul_(bits, ones)


def _state_tensors(optimizer: Optimizer, parameter: Parameter) -> Iterator[Tensor]:
    """State with one entry per weight: momentum, first and second moments, their running maximum."""
    # `state` is a defaultdict: looking a parameter up must not give it an empty state.
    if parameter not in optimizer.state:
        return
    for value in optimizer.state[parameter].values():
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape:
            yield value


class HiddenGradients:
    """Keeps the dense gradients of a step while `.grad` holds the masked ones, whose norm clipping has to see.

    They are put aside at the end of a backward pass, after DistributedDataParallel has averaged them, and written back
    before more is accumulated and before the step.
    """

    def __init__(self, parameters: Parameters, keep: Tensors) -> None:
        self._parameters = parameters
        self._keep = keep
        self._arrived: list[str] = []
        self._hidden: dict[str, tuple[Tensor, Tensor, int]] = {}
        """By name: the dense gradient, the masked one that is visible in its place, and the version of the latter."""

    @torch.no_grad()
    def arrive_(self, name: str) -> None:
        """Hide a gradient once this backward pass has ended; called when it has accumulated."""
        gradient = self._parameters[name].grad
        assert gradient is not None
        dense, masked, version = self._hidden.pop(name, (gradient, None, 0))
        if gradient is masked and gradient._version == version + 1:  # otherwise it was zeroed or changed meanwhile
            gradient.add_(dense.masked_fill(self._keep[name].bool(), 0))
        if not self._arrived:
            queue_callback = torch.autograd.Variable._execution_engine.queue_callback
            # A callback of a callback comes after all others, such as those of DistributedDataParallel.
            queue_callback(lambda: queue_callback(self._hide_))
        self._arrived.append(name)

    def _hide_(self) -> None:
        for name in self._arrived:
            gradient = self._parameters[name].grad
            if gradient is not None:
                dense = gradient.clone()
                mask_(gradient, self._keep[name])
                self._hidden[name] = dense, gradient, gradient._version
        self._arrived.clear()

    @torch.no_grad()
    def reveal_(self, comm: Communicator) -> None:
        """Write the dense gradients back, if any are hidden; then collective.

        Where weights are pruned, gradients are scaled by what clipping and unscaling did to the others, and an
        overflow, which no check could see, becomes zero.
        """
        hidden, self._hidden, self._arrived = self._hidden, {}, []
        if hidden and comm.size > 1:  # the tensors of all ranks must match, also where one of them has no gradient
            each = [hidden[name][0] if name in hidden else torch.zeros_like(p) for name, p in self._parameters.items()]
            comm.all_reduce_(each)
            torch._foreach_div_(each, comm.size)
        visible, active, pruned = [], [], []
        for name, (dense, _, _) in hidden.items():
            if (gradient := self._parameters[name].grad) is not None:
                on = self._keep[name].bool()
                mask_(gradient, self._keep[name])  # it may have been written by hand
                visible.append(gradient)
                active.append(dense.where(on, 0))
                pruned.append(torch.nan_to_num_(dense.masked_fill_(on, 0), nan=0.0, posinf=0.0, neginf=0.0))
        if visible:
            now, before = _norm(visible), _norm(active)
            scale = (now / before).where(now != before, 1.0)  # exactly 1 if nothing was changed
            for gradient, rest in zip(visible, pruned, strict=True):
                gradient.add_(rest.mul_(scale.to(rest.device)))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return total


def links(model: nn.Module, names: Iterable[str]) -> Links:
    """Where a model holds its parameters: dict, key and value of each, and of each module on the way to it."""
    found: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any, str]] = {}
    for name in names:
        *path, last = name.split(".")
        module: Any = model
        for part in path:
            found[id(module), part] = module._modules, part, module._modules[part], name
            module = module._modules[part]
        found[id(module), last] = module._parameters, last, module._parameters[last], name
    return list(found.values())


def check_links(links: Links) -> None:
    """Raise a `UserError` if a model no longer holds the parameters that were attached."""
    for holder, key, value, name in links:
        if (now := holder.get(key)) is not value:
            if hasattr(now, "device_mesh"):
                raise UserError(
                    f"{name!r} was sharded after attach() (fully_shard, tensor parallel), so its mask is no longer "
                    "enforced; sparse training of sharded weights is not supported, use DistributedDataParallel"
                )
            raise UserError(
                f"{name!r} was replaced after attach() (e.g. by assignment or load_state_dict(assign=True)), so its "
                "mask is no longer enforced; copy values into the parameter instead, or call detach() and attach "
                "again, with an optimizer of the new parameters"
            )


def checksum(model: nn.Module) -> str:
    """A number for each parameter, equal on ranks with equal weights; computed on the device, at each mask update."""
    parts = [p.detach().view(_INTEGERS[p.itemsize]).sum() for p in model.parameters() if p.itemsize in _INTEGERS]
    return str([int(part) for part in parts])


def warn_of_other_weights(model: nn.Module, comm: Communicator) -> None:
    """Warn, on rank 0, if the weights of other ranks differ, which they are about to lose."""
    if comm.size > 1 and len(set(comm.gather(checksum(model)))) > 1 and comm.rank == 0:
        warnings.warn(
            "attach: ranks have different weights, and all continue with those of rank 0; to train another network on "
            "every rank pass comm=pathgrow.distributed.comm.SINGLE_PROCESS",
            stacklevel=3,
        )


def warn_of_half_precision(parameters: Mapping[str, Parameter]) -> None:
    """Warn if trained weights are in half precision: they lose small updates, and their gradients have many ties."""
    half = (torch.bfloat16, torch.float16)
    if name := next((name for name, p in parameters.items() if p.requires_grad and p.dtype in half), None):
        warnings.warn(
            f"{name!r} is {str(parameters[name].dtype).removeprefix('torch.')}: updates smaller than its precision are "
            "lost, most of all those of weights that were just grown; keep the weights in float32 and use "
            "torch.autocast",
            stacklevel=3,
        )


def warn_of_default_length(method: Method | str, comm: Communicator) -> None:
    """Warn, on rank 0, that a method given by name is scheduled for the default length of a training."""
    num_steps = methods.defaults(method).get("num_steps") if isinstance(method, str) else None
    if is_int(num_steps) and comm.rank == 0:
        warnings.warn(
            f"attach: {method!r} is scheduled for {num_steps:,} optimizer steps, its default; pass "
            f"pathgrow.methods.create({method!r}, num_steps=...) with the number of steps of your training",
            stacklevel=frames_to_the_caller(),
        )


def warn_of_uncalled(
    model: nn.Module, scope: Tensors, example_input: Any, comm: Communicator, *, is_given: bool
) -> None:
    """Warn, on rank 0, of layers that example_input does not reach; if the scope was passed, of those in it.

    They stay in it: on another batch, or with other weights, the model may use them, and a state dict is of one scope.
    """
    unused = uncalled_layers(model, example_input)
    if comm.rank == 0:
        warn_of_unreached(model, [name for name in unused if name in scope or not is_given], in_scope=is_given)


def warn_of_loaded(num: int, comm: Communicator) -> None:
    """Warn, on rank 0, that so many pruned weights were not zero when a method was detached."""
    if comm.rank == 0:
        warnings.warn(
            f"detach: {num} pruned weights were not zero, because others were loaded after the last optimizer step, "
            "and have been set to zero; save and restore sparse.state_dict() together with the state dict of the "
            "model, so that weights come with their masks",
            stacklevel=frames_to_the_caller(),
        )


def warn_of_unfinished(where: str, is_by_rounds: bool, comm: Communicator) -> None:
    """Warn, on rank 0, that a method was detached before its schedule had reached its density."""
    if comm.rank == 0:
        advice = (
            "call observe() after each training, until its verdict is to stop"
            if is_by_rounds
            else "set num_steps in pathgrow.methods.create to the number of optimizer steps of your training"
        )
        warnings.warn(f"detach: {where}; {advice}", stacklevel=frames_to_the_caller())


# A hook runs before the closure of a step has computed the gradients, and before a fused optimizer has unscaled them
# and skipped the step if they overflowed. A method that uses gradients there has to do both first.


def call_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """Call the closure of a step; returns arguments that pass its loss on to the optimizer, or None without a closure.

    `args` starts with the optimizer, as in step hooks.
    """
    closure = kwargs.get("closure") if len(args) < 2 else args[1]
    if closure is None:
        return None
    with torch.enable_grad():
        losses = [closure()]

    def called_once() -> Any:
        if not losses:
            raise UserError(
                "this optimizer calls its closure several times per step (L-BFGS), but the attached method updates "
                "masks or weights once per step; use SGD or Adam, or a method that updates masks between rounds"
            )
        return losses.pop()

    return ((args[0], called_once, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": called_once})


@torch.no_grad()
def unscale_(optimizer: Any) -> bool:
    """Unscale the gradients for a fused optimizer; returns whether they overflowed, so that it skips the step.

    `GradScaler` does both itself for other optimizers. Waits for the device with fused ones only.
    """
    found_inf, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found_inf is not None and bool(found_inf):
        return True
    if scale is not None:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if parameter.grad is not None:
                parameter.grad.mul_(scale.double().reciprocal().to(parameter.grad.device, torch.float32))
        optimizer.grad_scale = None
    return False


def undo_of(optimizer: Optimizer) -> Callable[[], None]:
    """Copy everything that an optimizer step writes; the returned function restores it.

    State that the step creates is removed, so that a first step leaves no trace.
    """
    weights = [(weight, weight.detach().clone()) for group in optimizer.param_groups for weight in group["params"]]
    state = {
        parameter: {key: (value, copy_method_state(value)) for key, value in slots.items()}
        for parameter, slots in optimizer.state.items()
    }

    @torch.no_grad()
    def undo() -> None:
        for weight, before in weights:
            weight.copy_(before)
        for parameter in [parameter for parameter in optimizer.state if parameter not in state]:
            del optimizer.state[parameter]
        for parameter, slots in state.items():
            optimizer.state[parameter].clear()
            for key, (value, before) in slots.items():
                optimizer.state[parameter][key] = value.copy_(before) if isinstance(value, Tensor) else before

    return undo


# Which optimizers and weights are attached

# Two sets of masks on one optimizer, or on one weight, would each undo the growth of the other.
IN_USE: WeakSet[Optimizer] = WeakSet()
MASKED: MutableMapping[Parameter, None] = WeakIdKeyDictionary()
_ATTACHED: WeakSet[Any] = WeakSet()
_WATCHED: list[RemovableHandle] = []


def register(attached: Any, parameters: Parameters) -> None:
    """Note that an attachment masks these parameters, and refuse steps of other optimizers on them from now on."""
    if not _WATCHED:
        _WATCHED.append(register_optimizer_step_pre_hook(_refuse_other_optimizer))
    _ATTACHED.add(attached)
    IN_USE.update(attached.optimizers)
    MASKED.update(dict.fromkeys(parameters.values()))


def unregister(attached: Any, parameters: Parameters) -> None:
    """Undo `register`."""
    _ATTACHED.difference_update([each for each in _ATTACHED if each.__dict__ is attached.__dict__])
    IN_USE.difference_update(attached.optimizers)
    for parameter in parameters.values():
        MASKED.pop(parameter, None)


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer that actually steps: wrappers such as accelerate's contain it and run no hooks."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer) and inner is not optimizer:
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        several = "; only attach takes several" if isinstance(optimizer, list | tuple) and optimizer else ""
        raise UserError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}{several}")
    return optimizer


def _refuse_other_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step of any optimizer of the process: one that is not attached must not update weights that are."""
    if unwrapped(optimizer) in IN_USE:
        return
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for attached in list(_ATTACHED):
        # Wrappers such as SAM and Lookahead run a second optimizer within their own step.
        if not attached._in_step and not owned.isdisjoint(map(id, attached.model.parameters())):
            attached.check_parameters()
            if name := next((name for name, p in attached._parameters.items() if id(p) in owned), None):
                raise UserError(
                    f"{type(optimizer).__name__} would update {name!r}, which is attached with another optimizer: in a "
                    "fit function, step the optimizer that it receives; in your own loop, pass both to attach() as a "
                    "list (optimizer=[a, b]), or call detach() first"
                )
