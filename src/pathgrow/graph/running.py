"""Running a model on an example input: its arguments, the first sample, modes, and the tensors that it returns."""

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.rnn import PackedSequence

from pathgrow.errors import UserError
from pathgrow.masks.masks import require_module

CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
MISFITS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""What models raise for an input that does not fit them."""
OUTPUT_KEYS = ("logits", "last_hidden_state", "pooler_output")
"""Which entry of a named output is used, in this order; if there is none of them, every float tensor is."""

# -- arguments ----------------------------------------------------------------------------------------------------


def call_arguments(model: nn.Module, example_input: Any) -> CallArguments:
    """Return the positional and keyword arguments of a call with one batch.

    A mapping holds keywords and a sequence holds arguments, unless `forward` does not take these but does take the
    batch as its only argument.

    >>> x = Tensor()
    >>> call_arguments(nn.Linear(2, 2), {"input": x})[1].keys(), call_arguments(nn.Linear(2, 2), {"x": x})[1].keys()
    (dict_keys(['input']), dict_keys([]))
    """
    whole: CallArguments = (example_input,), {}
    spread = _spread(example_input)
    if spread is None:
        return whole
    return whole if _refusal(model, spread) is not None and _refusal(model, whole) is None else spread


def spread_refusal(model: nn.Module, example_input: Any) -> str | None:
    """Why the parts of a batch that is passed whole are not passed as arguments; None if there are none, or they are.

    >>> x = Tensor()
    >>> spread_refusal(nn.Linear(2, 2), {"x": x}), spread_refusal(nn.Linear(2, 2), {"input": x})
    ("missing a required argument: 'input'", None)
    """
    spread = _spread(example_input)
    refusal = None if spread is None else _refusal(model, spread)
    return None if refusal is None or _refusal(model, ((example_input,), {})) is not None else str(refusal)


def _spread(example_input: Any) -> CallArguments | None:
    """The parts of a batch as arguments."""
    if isinstance(example_input, Mapping) and example_input:
        return (), dict(example_input)
    return (tuple(example_input), {}) if isinstance(example_input, tuple | list) else None


def _refusal(model: nn.Module, arguments: CallArguments) -> Exception | None:
    """Why `forward` does not take these arguments; also if its signature is not known, as that of a scripted module."""
    try:
        signature = inspect.signature(model.forward)
        signature.bind(*arguments[0], **arguments[1])
    except (TypeError, ValueError) as fault:
        return fault
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    inner = getattr(model, "_orig_mod", getattr(model, "module", None))
    if kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} and isinstance(inner, nn.Module):
        return _refusal(inner, arguments)  # a compiled or parallel model passes on whatever it gets
    return None


def one_sample(model: nn.Module, example_input: Any) -> CallArguments:
    """Return the arguments of a call, cut to the first sample: every tensor as long as the batch.

    Vectors alone stay whole: nothing tells a batch of numbers from one sample with many. Beside other tensors they are
    cut too (class ids, time steps). One that all samples share may have that length by chance; it stays whole if the
    model does not run otherwise.
    """
    arguments, tensors = call_arguments(model, example_input), list[Tensor]()
    map_tensors(tensors.append, arguments)
    if not tensors:
        raise UserError(
            f"example_input must hold a tensor, got {type(example_input).__name__}: pass one batch as the model "
            "accepts it, a tensor, a tuple of arguments or a dict of keyword arguments"
        )
    if any(tensor.numel() == 0 for tensor in tensors):
        raise UserError("example_input is empty: pass at least one sample")
    batch, kinds = num_samples(tensors), {min(tensor.ndim, 2) for tensor in tensors}

    def cut(least_axes: int) -> CallArguments:
        args, kwargs = map_tensors(
            lambda tensor: tensor[:1] if tensor.ndim >= least_axes and tensor.shape[0] == batch else tensor, arguments
        )
        return args, kwargs

    if batch == 1 or not {1, 2} <= kinds:
        return cut(2)
    return next((sample for sample in map(cut, (1, 2)) if _runs(model, sample)), arguments)


def num_samples(batch: Any) -> int:
    """How many samples a batch has, 0 without a tensor: the length of its first tensor.

    Scalars, and vectors of real numbers that come first, do not tell: samples may share them.

    >>> num_samples((torch.zeros(()), torch.zeros(5), {"x": torch.zeros(2, 3)}))
    2
    >>> ids, links = torch.tensor([3, 1, 2]), torch.zeros(5, 5)
    >>> num_samples((ids, links)), num_samples(torch.zeros(4)), num_samples(torch.zeros(()))
    (3, 4, 1)
    """
    tensors = list(tensors_in(batch))
    lengths = [tensor.shape[0] for tensor in tensors if tensor.ndim]
    telling = (x.shape[0] for x in tensors if x.ndim > 1 or (x.ndim and not x.is_floating_point()))
    return next(telling, lengths[0] if lengths else min(len(tensors), 1))


def like_parameters(model: nn.Module, value: Any) -> Any:
    """Return a nested value with its tensors on the device of a model, and those of floats in its precision."""
    like = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), torch.zeros(()))
    return map_tensors(lambda x: x.to(like.device, like.dtype if x.is_floating_point() else x.dtype), value)


def _runs(model: nn.Module, arguments: CallArguments) -> bool:
    """Whether a model accepts these arguments."""
    args, kwargs = like_parameters(model, arguments)
    try:
        with undisturbed(model):
            model(*args, **kwargs)
    except MISFITS:
        return False
    return True


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a nested value with every tensor replaced by what a function makes of it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, PackedSequence):  # a tuple whose parts belong together
        return value
    if isinstance(value, Mapping):
        items = {name: map_tensors(function, item) for name, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        mapped = copy.copy(value)
        mapped.update(items)
        return mapped
    if isinstance(value, tuple | list):
        parts = [map_tensors(function, item) for item in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts) if isinstance(value, tuple) else parts
    return value


# -- modes --------------------------------------------------------------------------------------------------------


@contextmanager
def preserved_modes(model: nn.Module) -> Iterator[None]:
    """Restore the mode of every module afterwards: some may be in evaluation mode on purpose."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def eager_eval(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode and uncompiled; restore the mode of every module at the end."""
    with preserved_modes(model), uncompiled():
        model.eval()
        yield


def uncompiled() -> AbstractContextManager[object]:
    """Run compiled models eagerly.

    Compiled code hides its functions from function modes, cannot be compiled under one, and has no second derivative.
    """
    # Anything compiled has imported this module; if nothing is, importing it would take a second.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    from torch.compiler import set_stance

    eager: AbstractContextManager[object] = set_stance("force_eager")
    return eager


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode without gradients; restore modes, buffers and the generators of torch."""
    with eager_eval(model), preserved_state(model), torch.no_grad():
        yield


@contextmanager
def preserved_state(model: nn.Module) -> Iterator[None]:
    """Restore the buffers of a model and the generators of torch, which a forward pass may change in any mode."""
    buffers = [
        (module._buffers, name, buffer, buffer._version, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()
    ]
    devices = sorted({parameter.device for parameter in model.parameters() if parameter.is_cuda}, key=str)
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for holder, name, buffer, version, before in buffers:
                    holder[name] = buffer if buffer._version == version else buffer.copy_(before)


def check_initialized(model: nn.Module) -> None:
    """Raise an error for lazy layers, whose weights have no shape before their first batch."""
    require_module(model)
    lazy = (name for name, parameter in model.named_parameters() if isinstance(parameter, UninitializedParameter))
    if name := next(lazy, None):
        raise UserError(
            f"{name!r} of {type(model).__name__} belongs to a lazy layer and has no shape yet: run the model once on a "
            "batch first"
        )


# -- tensors in what a model takes and returns ------------------------------------------------------------------


def read_outputs(output: Any) -> list[Tensor]:
    """Return the tensors whose sum is the output of the network."""
    named = _named_parts(output)
    if named is not None:
        for key in OUTPUT_KEYS:
            if isinstance(named.get(key), Tensor):
                return [named[key]]
    elif isinstance(output, (tuple, list)) and output:
        first = read_outputs(output[0])
        return first or [tensor for item in output[1:] for tensor in read_outputs(item)]
    return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in a nested value."""
    if isinstance(value, Tensor):
        yield value
        return
    named = _named_parts(value)
    for item in named.values() if named is not None else value if isinstance(value, (tuple, list)) else ():
        yield from tensors_in(item)


def _named_parts(value: Any) -> Mapping[str, Any] | None:
    """Return the parts of a dict, a dataclass or a namespace by name; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None
