"""Path signals: sums over paths of products of weights, for PathGrow, the topology measures and the trace gain.

Replace every weight by its magnitude. The sum, over all paths from input to output, of the product of the weights on
the path is then the network's output for an all-ones input (R, the total PWMP). The score of a weight is dR/d|w|: the
same sum over the paths through its position, of the product of the *other* weights, for active and pruned weights
alike (Yao & Dovrolis, "Gradual Capacity Growth", eq. 4). One forward and one backward pass over one sample compute all
scores.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.config import Option, check_value
from pathgrow.errors import UserError, check_name, require
from pathgrow.graph.graph import Floats, Graph
from pathgrow.graph.inputs import guess_example_input
from pathgrow.graph.tracer import BatchNorm, Tracer, Use
from pathgrow.masks.masks import Masks, require_module


@dataclass(frozen=True, eq=False)
class Signals:
    """One forward and backward pass of the path network. Scores are computed on request, tensor by tensor."""

    trace: Tracer
    generalities: tuple[Tensor, ...]
    """Gradients of the total by the outputs of layers: sums over paths from each element to the output."""
    model: nn.Module
    opened: frozenset[int]
    """Layers whose all-zero weights count as ones."""

    @property
    def graph(self) -> Graph:
        """The traced graph."""
        return self.trace.graph

    @property
    def log2_total(self) -> float:
        """Binary logarithm of the total over all paths; finite at any depth."""
        return math.log2(float(self.trace.total.detach())) + self.trace.exponent

    @property
    def total(self) -> float:
        """Total over all paths (R); `inf` if it does not fit a float."""
        value = float(self.trace.total.detach())
        return math.ldexp(value, self.trace.exponent) if self.log2_total < 1023 else math.inf

    @cached_property
    def centralities(self) -> dict[int, Floats]:
        """Share of the total over all paths that runs through each output unit of a layer, by layer index."""
        found = {}
        for use, generality in zip(self.trace.uses, self.generalities, strict=True):
            values = use.output.detach() * generality
            axes = [axis for axis in range(values.ndim) if axis != use.unit_axis]
            through = values.sum(axes) if axes else values
            found[use.layer.index] = (through / self.trace.total.detach()).cpu().numpy()
        return found

    def scores(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the scores of every conv and linear weight, one tensor at a time, divided by the total."""
        parameters = dict(self.model.named_parameters())
        waiting: dict[str, list[tuple[Use, Tensor]]] = {}
        for use, generality in zip(self.trace.uses, self.generalities, strict=True):
            if use.layer.name is not None:
                waiting.setdefault(use.layer.name, []).append((use, generality))
        total = self.trace.total.detach()
        for name, uses in waiting.items():
            score = torch.zeros(parameters[name].shape, dtype=torch.float64, device=total.device)
            for use, generality in uses:
                (gradient,) = torch.autograd.grad(use.output, use.weight, generality, retain_graph=True)
                use.layer.lay_(gradient / total, score)
            yield name, score


def signals(
    model: nn.Module,
    example_input: Any = None,
    masks: Mapping[str, Tensor] | None = None,
    *,
    squared: bool = False,
    batch_norm: BatchNorm = "identity",
    blocked: Mapping[int, Tensor] | None = None,
    opened: frozenset[int] | None = None,
) -> Signals:
    """Return complexity, generality and scores of a network in float64.

    Parameters
    ----------
    model, example_input
        Any module that can be traced, and one batch as it accepts it (only its shape matters).
    masks
        Active weights by parameter name; a parameter without a mask is dense. None: weights as they are.
    squared
        Square the weights: scores are then the gain in path-kernel trace from adding a zero weight at a position.
    batch_norm
        "identity", or "scale": a channel counts by |gamma| / sqrt(running variance).
    blocked
        Output units to remove from the network, by layer index.
    opened
        Indices of layers whose all-zero weights count as ones; None: chosen if every path would be zero otherwise.
    """
    if example_input is None:
        example_input = guess_example_input(model)

    def traced(opened: frozenset[int]) -> Tracer:
        return Tracer(
            model, dtype=torch.float64, masks=masks, power=2 if squared else 1, batch_norm=batch_norm,
            blocked=blocked, opened=opened, gradients=True,
        ).run(example_input)  # fmt: skip

    may_open = opened is None and not blocked
    opened = opened or frozenset()
    trace = traced(opened)
    if float(trace.total.detach()) == 0.0 and may_open:
        # A zero-initialized head (or branch) has no preference among paths: its weights count as equal.
        empty = frozenset(u.layer.index for u in trace.uses if not bool(u.weight.detach().any()))
        prunable = frozenset(u.layer.index for u in trace.uses if u.layer.name in (masks or {}))
        opened = empty - prunable
        trace = traced(opened)
        if float(trace.total.detach()) == 0.0:
            cut = sorted({u.layer.name or "(computed)" for u in trace.uses if not bool(u.weight.detach().any())})
            where = f"these layers have no nonzero weight: {', '.join(cut[:4])}" if cut else "the masks cut every path"
            raise UserError(
                f"no path of nonzero weights leads from input to output, so all path scores would be zero; {where}: "
                "start from denser masks or initialize these weights"
            )
    outputs = [use.output for use in trace.uses]
    if trace.total.requires_grad:
        generalities = torch.autograd.grad(trace.total, outputs, retain_graph=True, materialize_grads=True)
    else:  # the output does not depend on any layer
        generalities = tuple(torch.zeros_like(output) for output in outputs)
    return Signals(trace, generalities, model, opened)


def path_scores(
    model: nn.Module,
    example_input: Any = None,
    masks: Mapping[str, Tensor] | None = None,
    *,
    batch_norm: BatchNorm = "identity",
) -> dict[str, Tensor]:
    """Return the PWMP score of every position, active or pruned, of every conv and linear weight (float64).

    Scores are divided by the total over all paths. A weight that is on no path (query and key projections, the layers
    of a multiplicative gate) scores zero.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0, -2.0], [0.0, 3.0]]))
    ...     _ = net[2].weight.copy_(torch.tensor([[1.0, -1.0]]))
    >>> scores = path_scores(net, torch.ones(1, 2))
    >>> scores["2.weight"] * 6  # the total over all paths is 6
    tensor([[3., 3.]], dtype=torch.float64)
    """
    require_module(model)
    check_value(batch_norm, BatchNorm, Option(expected="'identity' or 'scale'"), "batch_norm")
    require(masks is None or isinstance(masks, Mapping), "masks", masks, "Masks or a mapping of name to bool tensor")
    known = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for name in masks or ():
        check_name("parameter in masks", name, known)
    masks = masks if masks is None or isinstance(masks, Masks) else Masks(masks)
    return dict(signals(model, example_input, masks, batch_norm=batch_norm).scores())
