"""The one reader of models: run a module once as a linear path network, and record how its weights are wired.

`Reader` is a `TorchFunctionMode`: every torch function that the model calls on a followed activation is replaced by
what it means for paths (`meaning.py`, `products.py`). Weights enter by their absolute value, nonlinearities and norms
are the identity, attention mixes uniformly, additive constants vanish, gates are open. The same pass yields the wiring
graph and, with gradients, the path signals; the model itself is never changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathgrow.errors import UserError
from pathgrow.graph.graph import Channels, Graph, Layer, Link, Window
from pathgrow.graph.inputs import one_sample, read_outputs
from pathgrow.graph.labels import ATTENTION, Label, aligned, along, compact, known_label, label_of, put, relation
from pathgrow.graph.looking import check_shaped, looked_at

BatchNorm = Literal["identity", "scale"]
TOKENS = "_pathgrow_tokens"
ALIAS = "_pathgrow_now"
FROM_PARAMETER = "_pathgrow_parameter"
_LARGE = 60
"""Activations are kept within 2**±60 by exact powers of two, so no depth overflows."""


@dataclass(frozen=True, eq=False)
class Use:
    """One layer as it was run: `output` is what the layer returned for `weight`, scaled by `2**-wire.exponent`."""

    layer: Layer
    weight: Tensor
    output: Tensor
    label: Label
    unit_axis: int


@dataclass(frozen=True, eq=False)
class Trace:
    """One finished pass: the graph, and the tensors to take gradients of."""

    graph: Graph
    uses: list[Use]
    total: Tensor
    exponent: int


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight as a layer uses it: its values, and where they lie in which parameter."""

    values: Tensor
    name: str | None
    where: Tensor | None

    @property
    def positions(self) -> Tensor | None:
        """For each value its flat position in the parameter, spelled out; None for a computed weight."""
        if self.name is None or self.where is not None:
            return self.where
        return torch.arange(self.values.numel()).view(self.values.shape)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Weight:
        """The same weight in another layout: values and positions are moved alike."""
        positions = self.positions
        return Weight(move(self.values), self.name, None if positions is None else move(positions).contiguous())


class Tracer(TorchFunctionMode):
    """Follows activations through a forward pass. Use `run`; the mode is entered there."""

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
        check_shaped(model)
        self.model = model
        self.dtype = dtype
        self.masks = masks or {}
        self.power = power
        self.batch_norm = batch_norm
        self.blocked = blocked or {}
        self.opened = opened
        """Layers whose all-zero weights count as ones (a zero-initialised head has no preference yet)."""
        self.gradients = gradients
        """False: only the structure is wanted. Layers are not computed, and activations are zeros without memory."""
        example = next(model.parameters(), torch.zeros(()))
        self.device, self.model_dtype = example.device, example.dtype
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        self.channels: list[Channels] = []
        self.links: list[Link] = []
        self.uses: list[Use] = []
        self.ancestors: list[int] = []
        self.product_macs = 0
        self.tokens_in = False
        self.attention = False

    def run(self, example_input: Any) -> Trace:
        """One pass over one sample of ones."""
        args, kwargs = one_sample(example_input)
        try:
            args = tuple(self._enter(value) for value in args)
            kwargs = {name: self._enter(value) for name, value in kwargs.items()}
            with looked_at(self.model), torch.set_grad_enabled(self.gradients), self:
                output = self.model(*args, **kwargs)
        except UserError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as fault:
            said = str(fault).partition("\n")[0] or type(fault).__name__
            raise UserError(
                f"the model could not be run on example_input: {said}; give what {type(self.model).__name__} takes"
            ) from fault
        outputs = [current(tensor) for tensor in read_outputs(output)]
        followed = [tensor for tensor in outputs if label_of(tensor) is not None]
        if not followed:
            raise UserError(
                f"the output of {type(self.model).__name__} does not depend on its input along any path that can be "
                "followed: check that example_input is what the model takes"
            )
        with torch.set_grad_enabled(self.gradients):
            return self._finish(followed)

    def _finish(self, outputs: list[Tensor]) -> Trace:
        labels = [label for tensor in outputs if (label := label_of(tensor)) is not None]
        exponent = max(label.exponent for label in labels)
        sums = [t.sum() * 2.0 ** (w.exponent - exponent) for t, w in zip(outputs, labels, strict=True)]
        read: dict[int, list[Tensor]] = {}
        for label in labels:
            read.setdefault(label.node, []).append(label.units[label.units >= 0].reshape(-1))
        graph = Graph(
            channels=tuple(self.channels),
            links=tuple(self.links),
            layers=tuple(use.layer for use in self.uses),
            outputs=tuple((node, torch.unique(torch.cat(units)).numpy()) for node, units in read.items()),
            product_macs=self.product_macs,
            tokens_in=self.tokens_in,
            attention=self.attention,
        )
        return Trace(graph, self.uses, torch.stack(sums).sum(), exponent)

    def _enter(self, value: Any) -> Any:
        """An input as the path network sees it: real values become ones, token ids are marked as such."""
        if not isinstance(value, Tensor):
            return value
        if not value.is_floating_point():
            fresh = value.clone()
            setattr(fresh, TOKENS, True)
            return fresh
        ones = torch.ones(value.shape, dtype=self.dtype, device=value.device)
        sequence = value.ndim == 3 and any(isinstance(module, nn.Conv1d) for module in self.model.modules())
        axis = 1 if value.ndim > 3 or sequence else value.ndim - 1
        return self.source(ones, axis)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        from pathgrow.graph.ops import constant, follow  # the tables need this class

        now: tuple[Any, ...] = current(tuple(args))
        named: dict[str, Any] = current(kwargs or {})
        if any(label_of(value) is not None for value in _leaves((now, named))):
            return follow(self, func, now, named)
        return constant(self, func, now, named)

    # -- building the graph --------------------------------------------------------------------------------------

    def new_channels(self, size: int, *parents: int, is_input: bool = False) -> int:
        """A new space; `parents` are the spaces it is computed from."""
        number = len(self.channels)
        self.channels.append(Channels(number, size, is_input))
        bits = 1 << number
        for parent in parents:
            bits |= self.ancestors[parent]
        self.ancestors.append(bits)
        return number

    def descends(self, node: int, ancestor: int) -> bool:
        """Whether a space is computed from another."""
        return bool(self.ancestors[node] >> ancestor & 1)

    def link(self, label: Label, target: int, units: Tensor, *, shortcut: bool = False) -> None:
        """Connect a wire to a space, whose units at the same positions are `units`."""
        size = self.channels[label.node].size
        here, there = relation(label.units, units)
        count = torch.arange(size)
        same = size == self.channels[target].size and torch.equal(here, count) and torch.equal(there, count)
        pairs = None if same else (here.numpy(), there.numpy())
        self.links.append(Link(label.node, target, pairs, shortcut, label.trail))

    def source(self, values: Tensor, axis: int) -> Tensor:
        """An activation at which paths begin; its units lie along `axis`."""
        node = self.new_channels(values.shape[axis], is_input=True)
        return put(values, Label(node, along(values.shape[axis], axis, values.ndim)))

    def same(self, tensor: Tensor, label: Label) -> Tensor:
        """The same values on another wire: a new tensor object, so that the old one keeps its own wire."""
        return put(tensor.view(tensor.shape), label)

    def aligned_pair(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, int]:
        """Two followed activations in one common scale."""
        wa, wb = known_label(a), known_label(b)
        top = max(wa.exponent, wb.exponent)
        a = a if wa.exponent == top else a * 2.0 ** (wa.exponent - top)
        b = b if wb.exponent == top else b * 2.0 ** (wb.exponent - top)
        return a, b, top

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        """The sum of two followed activations; units that meet become units of a new space."""
        wa, wb = known_label(a), known_label(b)
        left, right, exponent = self.aligned_pair(a, b)
        out = left + right
        ua, ub = aligned(wa.units, out.ndim), aligned(wb.units, out.ndim)
        ba, bb = torch.broadcast_tensors(ua, ub)
        equal = torch.equal(ba, bb)
        if wa.node == wb.node and equal:
            trail = wa.trail if wa.trail == wb.trail else (*wa.trail, Window())
            return put(out, Label(wa.node, compact(ba), trail, exponent))
        sizes = self.channels[wa.node].size, self.channels[wb.node].size
        if equal and sizes[0] == sizes[1] and bool((ba >= 0).all()):
            size, units = sizes[0], ba
        else:
            keys = (ba + 1) * (sizes[1] + 1) + (bb + 1)
            distinct, units = torch.unique(keys, return_inverse=True)
            if distinct[0] == 0:  # positions that neither side reaches
                units, size = units - 1, len(distinct) - 1
            else:
                size = len(distinct)
        target = self.new_channels(size, wa.node, wb.node)
        self.link(replace(wa, units=ua), target, units, shortcut=self.descends(wb.node, wa.node))
        self.link(replace(wb, units=ub), target, units, shortcut=self.descends(wa.node, wb.node))
        return put(out, Label(target, compact(units), (), exponent))

    def reduced(self, label: Label, axes: Sequence[int]) -> Label:
        """The wire after positions along `axes` were summed or mixed; the axes stay, with size 1."""
        units, trail = label.units, (*label.trail, Window())
        if all(units.shape[axis] == 1 for axis in axes):
            return replace(label, units=units, trail=trail)
        shape = [1 if axis in axes else size for axis, size in enumerate(units.shape)]
        kept = torch.arange(math.prod(shape)).view(shape)
        target = self.new_channels(kept.numel(), label.node)
        self.link(label, target, kept)
        return replace(label, node=target, units=kept, trail=())

    # -- weights -------------------------------------------------------------------------------------------------

    def weight(self, tensor: Tensor) -> Weight:
        """A tensor used as a weight: a parameter, a reshaped piece of one, or something computed."""
        if (name := self.names.get(id(tensor))) is not None:
            return Weight(tensor.detach(), name, None)
        if (origin := tensor.__dict__.get(FROM_PARAMETER)) is not None:
            return Weight(tensor.detach(), *origin)
        return Weight(tensor.detach(), None, None)

    def coefficient(self, value: Tensor) -> Tensor:
        """A fixed factor as paths see it: its magnitude, to the `power` of this reading."""
        magnitude = value.detach().to(self.dtype)
        magnitude = magnitude.abs() if self.gradients else magnitude  # a reading for structure alone skips the work
        return magnitude if self.power == 1 else magnitude**self.power

    def layer(
        self,
        x: Tensor,
        weight: Weight,
        compute: Callable[[Tensor, Tensor], Tensor],
        *,
        kind: Literal["linear", "conv"],
        unit_axis: int,
        groups: int = 1,
        window: Window | None = None,
        positions: int | None = None,
    ) -> Tensor:
        """Run and record one use of a weight laid out `[out, in / groups, *kernel]`."""
        label = known_label(x)
        index = len(self.uses)
        used = self._used_values(weight, index)
        num_in, num_out = used.shape[1] * groups, used.shape[0]
        window = window or Window()
        if self.gradients:
            out = compute(x, used)
        else:
            out = self.nothing((*x.shape[:unit_axis], num_out, *(axis.size_out for axis in window.axes)), x)
        port = self.new_channels(num_in, label.node)
        self.link(label, port, along(num_in, unit_axis, x.ndim))
        target = self.new_channels(num_out, port)
        if index in self.blocked:
            keep = (~self.blocked[index]).to(out)
            out = out * keep.view(along(num_out, unit_axis, out.ndim).shape)
        out, exponent = self._rescaled(out, label.exponent)
        layer = Layer(
            index=index,
            name=weight.name,
            kind=kind,
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
        self.uses.append(Use(layer, used, out, result, unit_axis % out.ndim))
        return self.same(out, result)

    def nothing(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """An activation of which only the shape is wanted."""
        return torch.zeros((), dtype=self.dtype, device=like.device).expand(tuple(shape))

    def _used_values(self, weight: Weight, index: int) -> Tensor:
        values = self.coefficient(weight.values)
        if index in self.opened and not bool(values.any()):
            values = torch.ones_like(values)
        mask = self.masks.get(weight.name) if weight.name is not None else None
        if mask is not None and mask.numel() != self.sizes[str(weight.name)]:
            raise UserError(
                f"the mask of {weight.name!r} has shape {tuple(mask.shape)}, but the weight has "
                f"{self.sizes[str(weight.name)]} values: give masks made for this model"
            )
        if mask is not None:
            mask = mask if weight.where is None else mask.reshape(-1)[weight.where.to(mask.device)]
            values = values * mask.to(values.device)
        return values.requires_grad_(self.gradients)

    def _rescaled(self, values: Tensor, exponent: int) -> tuple[Tensor, int]:
        if not self.gradients:
            return values, exponent
        largest = float(values.detach().max())
        if not math.isfinite(largest):
            raise UserError("a weight is NaN or infinite: path scores need finite weights (did the training diverge?)")
        shift = math.frexp(largest)[1] if largest > 0 else 0
        if abs(shift) <= _LARGE:
            return values, exponent
        return values * 2.0**-shift, exponent + shift


def current(value: Any) -> Any:
    """The value with every tensor replaced by what in-place operations have made of it."""
    if isinstance(value, Tensor):
        while (newer := value.__dict__.get(ALIAS)) is not None:
            value = newer
        return value
    if type(value) in (tuple, list):
        return type(value)(current(item) for item in value)
    if type(value) is dict:
        return {name: current(item) for name, item in value.items()}
    return value


def _leaves(value: Any) -> list[Any]:
    if type(value) in (tuple, list):
        return [leaf for item in value for leaf in _leaves(item)]
    if type(value) is dict:
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]
