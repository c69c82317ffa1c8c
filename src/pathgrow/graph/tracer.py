"""The tracer: run a module once as a linear path network and record its weight graph.

`Tracer` is a `TorchFunctionMode`: an op handler (`ops.py`) replaces every torch function that the model calls on a
traced activation by what the function does to paths. Weights enter by their absolute value, nonlinearities and norms
are the identity, attention mixes uniformly, additive constants vanish, gates are open. The same pass yields the graph
and, with gradients, the path signals. The model itself is never changed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathgrow.errors import UserError
from pathgrow.graph import faults
from pathgrow.graph.graph import (
    ATTENTION,
    Graph,
    GraphBuilder,
    Label,
    Layer,
    Weight,
    Window,
    along,
    compact,
    known_label,
    label_of,
    labeled,
)
from pathgrow.graph.inputs import guess_example_input
from pathgrow.graph.running import (
    MISFITS,
    check_initialized,
    eager_eval,
    map_tensors,
    one_sample,
    preserved_state,
    read_outputs,
    tensors_in,
)

BatchNorm = Literal["identity", "scale"]
TOKENS = "_pathgrow_tokens"
ALIAS = "_pathgrow_now"
FROM_PARAMETER = "_pathgrow_parameter"
_LARGE = 60
"""Activations are kept within 2**±60 by exact powers of two, so they do not overflow at any depth."""


@dataclass(frozen=True, eq=False)
class Use:
    """One layer as it was run: `output` is its result for `weight`, up to a power of two."""

    layer: Layer
    weight: Tensor
    output: Tensor
    unit_axis: int


class Tracer(TorchFunctionMode):
    """Traces activations through one forward pass of a module. Call `run` once, which enters the mode.

    Weights count by their magnitude to the given `power`; for `masks`, `batch_norm`, `blocked` and `opened` see
    `paths.signals`. Without `gradients` only the graph is found: layers are not computed, and activations are zeros
    without memory.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        dtype: torch.dtype,
        masks: Mapping[str, Tensor] | None = None,
        power: int = 1,
        batch_norm: BatchNorm = "identity",
        blocked: Mapping[int, Tensor] | None = None,
        opened: frozenset[int] = frozenset(),
        gradients: bool = False,
    ) -> None:
        super().__init__()
        check_initialized(model)
        self.model, self.dtype = model, dtype
        self.masks, self.power, self.batch_norm = masks or {}, power, batch_norm
        self.blocked, self.opened, self.gradients = blocked or {}, opened, gradients
        example = next(model.parameters(), torch.zeros(()))
        self.device, self.model_dtype = example.device, example.dtype
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.builder = GraphBuilder()
        self.uses: list[Use] = []
        self.product_macs, self.tokens_in, self.attention = 0, False, False
        self.lost_at: str | None = None
        """The last function whose result is not traced, and where it was called."""
        self._targets = 0
        """A bit for every node that a layer leads into."""
        self._in_doubt = False
        """Whether a layer got something that it may refuse, since layers are not computed without gradients."""

    def run(self, example_input: Any) -> Self:
        """Run the model on one sample of ones and return this tracer, with `uses`, `total` and `exponent` filled in."""
        self._example_input = example_input
        arguments = one_sample(self.model, example_input)
        with self._explained():
            args, kwargs = map_tensors(self._enter, arguments)
            grad = torch.set_grad_enabled(self.gradients)
            with eager_eval(self.model), _without_aliases(self.model), preserved_state(self.model), grad, self:
                output = self.model(*args, **kwargs)
        if self._in_doubt:
            faults.check_accepted(self.model, example_input)
        traced = [tensor for tensor in map(current, read_outputs(output)) if label_of(tensor) is not None]
        if not traced:
            hidden = "check that example_input is what the model expects, and that it is not a scripted module"
            advice = hidden if self.lost_at is None else f"paths cannot be traced through {self.lost_at}"
            raise faults.Untraceable(
                f"the output of {type(self.model).__name__} does not depend on its input along any path that can be "
                f"traced: {advice}",
                self.lost_at,
            )
        self._outputs = [known_label(tensor) for tensor in traced]
        self.exponent = max(label.exponent for label in self._outputs)
        with torch.set_grad_enabled(self.gradients):
            self.total = torch.stack([self.rescaled(tensor, self.exponent).sum() for tensor in traced]).sum()
        return self

    @cached_property
    def graph(self) -> Graph:
        """The weight graph, built on request: path scores do without it."""
        returned: dict[int, list[Tensor]] = {}
        for label in self._outputs:
            returned.setdefault(label.node, []).append(label.units[label.units >= 0])
        with self._explained():  # a linear layer of another width is noticed only here, since layers are not computed
            links = self.builder.links()
        return Graph(
            channels=tuple(self.builder.channels),
            links=links,
            layers=tuple(use.layer for use in self.uses),
            outputs=tuple((node, torch.unique(torch.cat(units)).numpy()) for node, units in returned.items()),
            product_macs=self.product_macs,
            tokens_in=self.tokens_in,
            attention=self.attention,
            ancestors=tuple(self.builder.ancestors),
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of torch into one that blames `example_input`, or the tracer if the model accepts it."""
        try:
            yield
        except UserError:
            raise
        except MISFITS as fault:
            faults.check_accepted(self.model, self._example_input)
            raise faults.own_fault(self.model, fault) from fault

    def _enter(self, value: Tensor) -> Tensor:
        """Return an input of the path network: real values become ones, token ids are marked."""
        if not value.is_floating_point():
            tokens = value.clone()
            setattr(tokens, TOKENS, True)
            return tokens
        ones = torch.ones(value.shape, dtype=self.dtype, device=value.device)
        sequence = value.ndim == 3 and any(isinstance(module, nn.Conv1d) for module in self.model.modules())
        axis = 1 if value.ndim > 3 or sequence else value.ndim - 1
        return self.source(ones, axis)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        from pathgrow.graph.ops import handle, handle_constant  # op handlers need this class

        now: tuple[Any, ...] = current(tuple(args))
        named: dict[str, Any] = current(kwargs or {})
        if any(label_of(value) is not None for value in tensors_in((now, named))):
            return handle(self, func, now, named)
        return handle_constant(self, func, now, named)

    def call(self, func: Callable[..., Any], *args: Any) -> Any:
        """Call a torch function as the model would."""
        return self.__torch_function__(func, (), args)

    # -- activations --------------------------------------------------------------------------------------

    def source(self, values: Tensor, axis: int) -> Tensor:
        """Return an activation at which paths begin; its units run along `axis`."""
        node = self.builder.add(values.shape[axis], is_input=True)
        return labeled(values, Label(node, along(values.shape[axis], axis, values.ndim)))

    def same(self, tensor: Tensor, label: Label) -> Tensor:
        """Return the same values with another label, as a new tensor object: the old one keeps its own label."""
        return labeled(tensor.view(tensor.shape), label)

    def rescaled(self, tensor: Tensor, exponent: int) -> Tensor:
        """Return a traced activation in the scale of another exponent."""
        own = known_label(tensor).exponent
        return tensor if own == exponent else tensor * 2.0 ** (own - exponent)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        """Add two traced activations; units that meet become units of a new node."""
        la, lb = known_label(a), known_label(b)
        exponent = max(la.exponent, lb.exponent)
        out = self.rescaled(a, exponent) + self.rescaled(b, exponent)
        ba, bb = torch.broadcast_tensors(la.units, lb.units)
        equal = torch.equal(ba, bb)
        if la.node == lb.node and equal:
            trail = la.trail if la.trail == lb.trail else (*la.trail, Window())
            return labeled(out, Label(la.node, compact(ba), trail, exponent))
        sizes = self.builder.channels[la.node].size, self.builder.channels[lb.node].size
        if equal and sizes[0] == sizes[1] and bool((ba >= 0).all()):
            size, units = sizes[0], ba
        else:
            keys = (ba + 1) * (sizes[1] + 1) + (bb + 1)
            distinct, units = torch.unique(keys, return_inverse=True)
            unreached = int(distinct[0] == 0)  # by either operand
            units, size = units - unreached, len(distinct) - unreached
        target = self.builder.add(size, la.node, lb.node)
        for label, other in ((la, lb), (lb, la)):
            shortcut = bool(self.builder.ancestors[other.node] >> label.node & 1)
            self.builder.link(label, target, units, shortcut=shortcut)
        return labeled(out, Label(target, compact(units), (), exponent))

    def is_made_by_layers(self, label: Label) -> bool:
        """Whether a layer lies between the inputs and an activation."""
        return bool(self.builder.ancestors[label.node] & self._targets)

    def reduced(self, tensor: Tensor, axes: Sequence[int]) -> Label:
        """Return the label of an activation summed or mixed along `axes`, which stay with size 1."""
        label = known_label(tensor).plain()
        if all(label.units.shape[axis] == 1 for axis in axes):
            return replace(label, trail=(*label.trail, Window()))
        shape = [1 if axis in axes else size for axis, size in enumerate(label.units.shape)]
        kept = torch.arange(math.prod(shape)).view(shape)
        target = self.builder.add(kept.numel(), label.node)
        self.builder.link(label, target, kept)
        return replace(label, node=target, units=kept, trail=())

    # -- weights -------------------------------------------------------------------------------------------------

    def weight(self, tensor: Tensor) -> Weight:
        """Return a tensor as a weight: a parameter, a reshaped piece of one, or something computed."""
        name = self.names.get(id(tensor))
        origin = (name, None) if name is not None else tensor.__dict__.get(FROM_PARAMETER, (None, None))
        return Weight(tensor.detach(), *origin)

    def coefficient(self, value: Tensor) -> Tensor:
        """Return a fixed factor as paths see it: its magnitude to the tracer's `power`."""
        magnitude = value.detach().to(self.dtype)
        magnitude = magnitude.abs() if self.gradients else magnitude  # the graph does not depend on values
        return magnitude if self.power == 1 else magnitude**self.power

    def layer(
        self,
        x: Tensor,
        weight: Weight,
        compute: Callable[[Tensor, Tensor], Tensor],
        *,
        unit_axis: int,
        groups: int = 1,
        window: Window | None = None,
        positions: int | None = None,
    ) -> Tensor:
        """Run and record one use of a weight laid out `[out, in / groups, *kernel]`."""
        label, index, window = known_label(x), len(self.uses), window or Window()
        used = self._used_values(weight, index)
        num_in, num_out = used.shape[1] * groups, used.shape[0]
        # A batch of another shape may look like one sample without its leading axis once it is cut to the first one.
        is_odd = unit_axis < bool(window.axes) or x.shape[unit_axis] != num_in
        self._in_doubt |= is_odd or any(axis.size_out < 1 for axis in window.axes)
        if self.gradients:
            out = compute(x, used)
        else:
            out = self.placeholder((*x.shape[:unit_axis], num_out, *(axis.size_out for axis in window.axes)), x)
        port = self.builder.add(num_in, label.node)
        self.builder.link(label, port, along(num_in, unit_axis, x.ndim))
        target = self.builder.add(num_out, port)
        self._targets |= 1 << target
        if index in self.blocked:
            keep = (~self.blocked[index]).to(out)
            out = out * keep.view(along(num_out, unit_axis, out.ndim).shape)
        out, exponent = self._bounded(out, label.exponent)
        layer = Layer(
            index=index,
            name=weight.name,
            source=port,
            target=target,
            shape=tuple(used.shape),
            groups=groups,
            window=window,
            positions=positions if positions is not None else out.numel() // num_out,
            where=weight.where,
        )
        result = Label(target, along(num_out, unit_axis, out.ndim), (), exponent)
        if label.strength == ATTENTION:
            result = replace(result, strength=ATTENTION, gate=label.gate)
        self.uses.append(Use(layer, used, out, unit_axis % out.ndim))
        return self.same(out, result)

    def placeholder(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return an activation of which only the shape matters."""
        return torch.zeros((), dtype=self.dtype, device=like.device).expand(tuple(shape))

    def _used_values(self, weight: Weight, index: int) -> Tensor:
        values = self.coefficient(weight.values)
        if index in self.opened and not bool(values.any()):
            values = torch.ones_like(values)
        if weight.name is not None and (mask := self.masks.get(weight.name)) is not None:
            if mask.numel() != (size := self.model.get_parameter(weight.name).numel()):
                raise UserError(
                    f"the mask of {weight.name!r} has shape {tuple(mask.shape)}, but the weight has {size} values: "
                    "pass masks made for this model"
                )
            mask = mask if weight.where is None else mask.reshape(-1)[weight.where.to(mask.device)]
            values = values * mask.to(values.device)
        return values.requires_grad_(self.gradients)

    def _bounded(self, values: Tensor, exponent: int) -> tuple[Tensor, int]:
        if not self.gradients:
            return values, exponent
        largest = float(values.detach().max())
        if not math.isfinite(largest):
            raise UserError("a weight is NaN or infinite: path scores need finite weights (did the training diverge?)")
        shift = math.frexp(largest)[1] if largest > 0 else 0
        if abs(shift) <= _LARGE:
            return values, exponent
        return values * 2.0**-shift, exponent + shift


@contextmanager
def _without_aliases(model: nn.Module) -> Iterator[None]:
    """Forget what has become of buffers that the model writes activations to: it is gone after the pass."""
    try:
        yield
    finally:
        for buffer in model.buffers():
            vars(buffer).pop(ALIAS, None)


def current(value: Any) -> Any:
    """Replace every tensor in a value by what in-place operations have made of it."""
    if isinstance(value, Tensor):
        while (newer := value.__dict__.get(ALIAS)) is not None:
            value = newer
        return value
    if type(value) in (tuple, list):
        return type(value)(current(item) for item in value)
    if type(value) is dict:
        return {name: current(item) for name, item in value.items()}
    return value


@dataclass(frozen=True)
class Call:
    """One call of a torch function on traced activations, as op handlers receive it."""

    tracer: Tracer
    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    @property
    def traced(self) -> list[Tensor]:
        """The traced activations among the arguments, in order."""
        return [value for value in tensors_in((self.args, self.kwargs)) if label_of(value) is not None]


def trace(model: nn.Module, example_input: Any = None) -> Graph:
    """Return the weight graph of a module, from one forward pass over one sample.

    Parameters
    ----------
    model
        Any module whose forward uses known torch functions; it is not changed.
    example_input
        One batch as the model accepts it: a tensor, a tuple of arguments or a dict of keyword arguments. None: guessed
        for models that declare an input, or from the first layer.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [layer.name for layer in trace(net, torch.ones(1, 4)).layers]
    ['0.weight', '2.weight']
    """
    if example_input is None:
        example_input = guess_example_input(model)
    return Tracer(model, dtype=torch.float32).run(example_input).graph
