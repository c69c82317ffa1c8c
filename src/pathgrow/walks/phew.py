"""PHEW (Patil & Dovrolis 2021): initial masks that consist of whole input-output paths.

Random walks start in turn from the inputs and from the outputs, with transition probabilities in proportion to weight
magnitudes. Every weight on a walk is kept until the density is reached. If the next whole walk does not fit, single
weights between units of kept walks make up the rest: every kept weight is on a path at every density.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathgrow.errors import UserError, is_real, require
from pathgrow.graph import Graph, guess_example_input, trace
from pathgrow.graph.calls import uncalled_layers, warn_of_unreached
from pathgrow.graph.graph import Flags, Layer, Units
from pathgrow.graph.paths import path_scores
from pathgrow.graph.scope import scope_of
from pathgrow.graph.topology import count_isolated
from pathgrow.masks import Masks, sampling
from pathgrow.masks.masks import check_masks
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker, Walks

START_DENSITIES = (0.01, 0.02, 0.03, 0.05)
ISOLATED_SHARE = 0.05
"""The largest share of hidden units that may be isolated at the start density."""

_MAX_CELLS = 2**22
"""Nodes times walkers in one sweep: bounds the memory of a batch."""
_MIN_WALKERS = 64
"""Fewest walkers per direction in one sweep; a smaller sweep would take as long."""
_MIN_FINDS = 1 / 2
"""Walks are added while at least this share of their steps finds a new weight."""
_MIN_STEPS = 2**21
"""Steps before that share is checked, unless `_MIN_STEPS_PER_WEIGHT` allows fewer."""
_MIN_STEPS_PER_WEIGHT = 4
"""Steps per prunable weight before that share is checked, unless `_MIN_STEPS` allows fewer."""
_POOL = 2048
"""Marked walks that are kept for splicing."""
_BATCH = 256
"""Splices, or walks that have to fit, drawn at once."""
_MAX_DRY = 4
"""Batches in a row without a new weight before the next strategy is tried."""


def phew(
    model: nn.Module,
    example_input: Any,
    density: float,
    scope: Masks | None = None,
    seed: int = 0,
    *,
    identity_shortcuts: bool = False,
) -> Masks:
    """Return masks of exactly `round(density * num)` weights, each on a path of kept weights from input to output.

    Parameters
    ----------
    density
        Share of prunable weights to keep, in (0, 1].
    scope
        Prunable weights; None: `pathgrow.scope(model)`. Walks use other weights too, but the masks do not cover them.
    seed
        The masks depend on the model's weights, the scope, the density and this seed only.
    identity_shortcuts
        Whether identity shortcuts are a branch like any other. By default walks take them only if a unit has no other
        outgoing link.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> masks = phew(net, torch.ones(1, 16), density=0.1)
    >>> masks.num_on, masks.num  # the output layer is not in the scope
    (154, 1536)
    """
    require(is_real(density) and 0 < density <= 1, "density", density, "in (0, 1]", 0.05)
    require(isinstance(identity_shortcuts, bool), "identity_shortcuts", identity_shortcuts, "True or False")
    is_given = scope is not None
    graph, scope, example_input = _prepared(model, example_input, scope)
    unused = uncalled_layers(model, example_input, graph)
    warn_of_unreached(model, [name for name in unused if name in scope or not is_given], in_scope=is_given)
    walker = Walker(Transitions(graph, model, identity_shortcuts=identity_shortcuts))
    return _walked_masks(walker, _Marks(graph, scope), density, generator(seed, "phew"), model, example_input)


def masks_of_walks(model: nn.Module, example_input: Any, density: float, scope: Masks, seed: int) -> Masks:
    """Return `phew(...)` without a warning of layers that example_input does not reach."""
    graph, scope, example_input = _prepared(model, example_input, scope)
    marks = _Marks(graph, scope)
    return _walked_masks(
        Walker(Transitions(graph, model)), marks, density, generator(seed, "phew"), model, example_input
    )


def start_density(
    model: nn.Module, example_input: Any, scope: Masks | None = None, seed: int = 0
) -> tuple[float, Masks]:
    """Return the smallest of 1, 2, 3 and 5% whose PHEW masks isolate at most 5% of hidden units, and those masks.

    If none of them does, the density is 5%. A hidden unit is isolated if no kept weight leads into it or none leads
    out of it. Only units of layers in the scope are counted.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> density, masks = start_density(net, torch.ones(1, 64))
    >>> density in START_DENSITIES, masks.num_on == round(density * masks.num)
    (True, True)
    """
    graph, scope, example_input = _prepared(model, example_input, scope)
    walker = Walker(Transitions(graph, model))
    for density in START_DENSITIES:
        marks = _Marks(graph, scope)
        last = density == START_DENSITIES[-1]
        if not last and marks.num_at(density) < len(marks.layers):
            continue  # fewer weights than one whole path
        masks = _walked_masks(walker, marks, density, generator(seed, "phew"), model, example_input)
        num_isolated, num_hidden = count_isolated(graph, masks)
        if num_isolated <= ISOLATED_SHARE * num_hidden:
            break
    return density, masks


def _prepared(model: nn.Module, example_input: Any, scope: Masks | None) -> tuple[Graph, Masks, Any]:
    if example_input is None:
        example_input = guess_example_input(model)
    graph = trace(model, example_input)
    if scope is None:
        scope = scope_of(model, graph)
    check_masks(scope, model, "scope")
    return graph, scope, example_input


def _walked_masks(
    walker: Walker, marks: _Marks, density: float, noise: torch.Generator, model: nn.Module, example_input: Any
) -> Masks:
    target = marks.num_at(density)
    if target == marks.num:
        return Masks.full(model, marks.scope)
    seeding = _Seeding(walker, marks, target, noise, model, example_input)
    seeding.add_walks()
    if not marks.num_on and not seeding.add_walks_that_fit():
        raise UserError(
            f"density {density:g} keeps {target} of {marks.num} weights, fewer than one path from input to output: "
            "choose a higher density"
        )
    while seeding.remaining and (seeding.add_splices() or seeding.add_by_scores() or seeding.add_walks_that_fit()):
        pass
    masks = marks.masks()
    if seeding.remaining:
        warnings.warn(
            f"only {marks.num_on} of the {target} requested weights could be placed on paths from input to output: "
            f"the other {seeding.remaining} were drawn uniformly",
            stacklevel=3,
        )
        masks |= sampling.uniform(masks.missing(), seeding.remaining, noise)
    return masks


class _Marks:
    """The prunable weights as one flat array, and which of them are marked."""

    def __init__(self, graph: Graph, scope: Masks) -> None:
        self.scope = scope
        self.layers = [layer for layer in graph.layers if layer.name in scope]
        self._prunable = _flat(scope.values())
        sizes = [flags.numel() for flags in scope.values()]
        self._offset = dict(zip(scope, np.cumsum(sizes) - sizes, strict=True))
        self._on = np.zeros(len(self._prunable), dtype=bool)
        self.num, self.num_on = int(np.count_nonzero(self._prunable)), 0
        if self.num == 0:
            raise UserError("the scope has no prunable weight: pass masks with True for each weight that may be pruned")

    def num_at(self, density: float) -> int:
        """Return the number of weights nearest to a density, at least 1."""
        return max(1, round(density * self.num))

    def numbers(self, layer: Layer, weights: Units) -> Units:
        """Return the flat numbers of some weights of one layer; -1: not prunable, or not a weight."""
        assert layer.name is not None
        places = weights if layer.where is None else layer.where.reshape(-1).numpy()[weights]
        numbers = places + self._offset[layer.name]
        return np.where((weights >= 0) & self._prunable[numbers], numbers, -1)

    def of_walks(self, walks: Walks) -> Units:
        """Return the numbers of the weights on each walk, `[walks, layers]`."""
        return np.stack([self.numbers(layer, walks.weights[layer.index]) for layer in self.layers], axis=1)

    def is_new(self, numbers: Units) -> Flags:
        """Flag the numbers of prunable weights that are not marked."""
        return (numbers >= 0) & ~self._on[numbers]

    def add(self, numbers: Units) -> None:
        """Mark the weights with these numbers; -1 is skipped."""
        self._on[numbers[numbers >= 0]] = True
        self.num_on = int(np.count_nonzero(self._on))

    def keep_only(self, flags: Mapping[str, Tensor]) -> None:
        """Unmark all weights outside `flags`."""
        self._on &= _flat(flags[name] for name in self.scope)
        self.num_on = int(np.count_nonzero(self._on))

    def masks(self) -> Masks:
        """Return the marked weights as masks; everything outside the scope is kept."""
        tensors = {}
        for name, flags in self.scope.items():
            own = slice(self._offset[name], self._offset[name] + flags.numel())
            kept = torch.from_numpy(self._on[own] | ~self._prunable[own])
            tensors[name] = kept.view(flags.shape).to(flags.device)
        return Masks(tensors, self.scope)


def _flat(tensors: Iterable[Tensor]) -> Flags:
    return np.concatenate([flags.cpu().reshape(-1).numpy() for flags in tensors])


class _Seeding:
    """Marks weights until `target` are marked, in ways that leave every one of them on a path."""

    def __init__(
        self, walker: Walker, marks: _Marks, target: int, noise: torch.Generator, model: nn.Module, example_input: Any
    ) -> None:
        self.walker, self.marks, self.target, self.noise = walker, marks, target, noise
        self.model, self.example_input = model, example_input
        self.turn = 0
        self.pool: Walks | None = None
        """Some of the walks whose weights are all marked; a few thousand are enough for splicing."""

    @property
    def remaining(self) -> int:
        """Number of weights still to be marked."""
        return self.target - self.marks.num_on

    def add_walks(self) -> None:
        """Add whole walks until the next one does not fit, or until they find few new weights."""
        per_walk, steps = float(len(self.marks.layers)), 0
        while before := self.remaining:
            walks = self._walk(math.ceil(1.05 * before / per_walk / 2))
            numbers = self.marks.of_walks(walks)
            num_fit = self._num_fit(numbers)
            self._keep(walks.take(slice(num_fit)), numbers[:num_fit])
            if num_fit < walks.num:
                break
            num_steps, num_new = int(np.count_nonzero(numbers >= 0)), before - self.remaining
            steps, per_walk = steps + num_steps, max(_MIN_FINDS, num_new / walks.num)
            if num_new < _MIN_FINDS * num_steps and steps > min(_MIN_STEPS, _MIN_STEPS_PER_WEIGHT * self.marks.num):
                break
        self._drop_off_path()

    def add_splices(self) -> int:
        """Add single weights that join the head of one marked walk to the tail of another; return how many."""
        if self.pool is None or self.remaining > 4 * len(self.marks.layers):
            return 0
        before, dry, visits = self.remaining, 0, self.marks.of_walks(self.pool) >= 0
        while self.remaining and dry < _MAX_DRY:
            heads = self._integers(self.pool.num, _BATCH)
            lots = torch.rand(len(heads), visits.shape[1], generator=self.noise).numpy()
            crossed = (lots * visits[heads]).argmax(axis=1)
            found = [self._crossings(k, heads[crossed == k], visits[:, k]) for k in np.unique(crossed)]
            spliced, numbers = Walks.concatenated([walks for walks, _ in found]), np.concatenate([n for _, n in found])
            numbers = numbers[self.walker.real(spliced)]
            order = torch.randperm(len(numbers), generator=self.noise).numpy()
            self.marks.add(numbers[order][np.sort(np.unique(numbers[order], return_index=True)[1])][: self.remaining])
            dry = 0 if len(numbers) else dry + 1
        return before - self.remaining

    def _crossings(self, number: int, heads: Units, visits: Flags) -> tuple[Walks, Units]:
        """Return walks that cross one layer by a new weight, from given heads to random tails, and these weights."""
        assert self.pool is not None
        layer, pool, transitions = self.marks.layers[number], self.pool, self.walker.transitions
        those = np.flatnonzero(visits)
        tails = those[self._integers(len(those), len(heads))]
        into, out = pool.units[layer.source, heads].astype(np.int64), pool.units[layer.target, tails].astype(np.int64)
        uniform = torch.rand(len(heads), dtype=torch.float64, generator=self.noise).numpy()
        weights = transitions.weight_number(layer, out, into, transitions.taps(layer, out, into, uniform))
        numbers = self.marks.numbers(layer, weights)
        joined = into // layer.shape[1] == out // (layer.shape[0] // layer.groups)
        new = self.marks.is_new(numbers) & joined
        return pool.splice(heads[new], tails[new], layer, weights[new]), numbers[new]

    def add_by_scores(self) -> int:
        """Add single weights with a positive path score, drawn in proportion to their expected visits."""
        masks, on_a_path = self.marks.masks(), self._on_a_path()
        candidates = Masks.select(
            {name: flags & on_a_path[name].to(flags.device) for name, flags in masks.missing().items()},
            self.marks.scope,
        )
        count = min(self.remaining, candidates.num_on)
        if count < candidates.num_on:
            candidates = sampling.sample_proportional(self._visit_rates(), candidates, count, self.noise)
        self.marks.add(np.flatnonzero(_flat(candidates.values())))
        return count

    def _visit_rates(self) -> dict[str, Tensor]:
        rates = {name: torch.zeros(flags.shape, dtype=torch.float64) for name, flags in self.marks.scope.items()}
        by_layer = self.walker.transitions.visit_rates()
        for layer in self.marks.layers:
            assert layer.name is not None
            layer.lay_(by_layer[layer.index], rates[layer.name])
        # A weight of zero is never visited, but may be needed once all others are kept: it comes last.
        return {name: rate.clamp_min_(torch.finfo(torch.float64).tiny) for name, rate in rates.items()}

    def add_walks_that_fit(self) -> int:
        """Add walks that share enough weights with marked ones to fit into what remains."""
        before = self.remaining
        for _ in range(_MAX_DRY):
            walks = self._walk(_BATCH)
            for column, numbers in enumerate(self.marks.of_walks(walks)):
                new = np.unique(numbers[self.marks.is_new(numbers)])
                if 0 < len(new) <= self.remaining:
                    self._keep(walks.take(slice(column, column + 1)), new)
        self._drop_off_path()
        return before - self.remaining

    def _on_a_path(self) -> dict[str, Tensor]:
        """Flag, by parameter, positions, marked or not, on a path of kept weights."""
        masks = self.marks.masks()
        try:
            return {name: score > 0 for name, score in path_scores(self.model, self.example_input, masks).items()}
        except UserError:  # no path at all
            if self.walker.transitions.weighs_zeros:  # there cannot be one: use the graph alone
                return self.walker.transitions.joinable(masks)
            return {name: torch.zeros_like(kept) for name, kept in masks.items()}

    def _drop_off_path(self) -> None:
        """Unmark weights off every path: if positions were not tracked, walks may have left the map."""
        if not self.walker.positions.exact:
            self.marks.keep_only(self._on_a_path())
            self.pool = None

    def _walk(self, num: int) -> Walks:
        """Draw about `num` walks per direction, at least a few and at most what memory allows."""
        num = min(max(num, _MIN_WALKERS), max(_MAX_CELLS // len(self.walker.transitions.graph.channels), _MIN_WALKERS))
        for _ in range(_MAX_DRY):
            walks = self.walker.walk(self.turn, num, self.noise)
            self.turn += num
            if walks.num:
                return walks
        raise UserError(
            "no walk found a path from input to output that stays on the map: example_input is probably too small for "
            "this model; pass one of the size it is trained on"
        )

    def _num_fit(self, numbers: Units) -> int:
        """Return how many walks can be marked, one after the other, before one needs more weights than remain."""
        flat = numbers.reshape(-1)
        new = np.flatnonzero(self.marks.is_new(flat))
        if len(new) <= self.remaining:  # even if they do not share weights
            return len(numbers)
        # Number and index in one integer: sorting these is several times as fast as a stable argsort of the numbers.
        shift = len(flat).bit_length()
        ordered = np.sort((flat[new] << shift) | new)
        first = ordered[np.diff(ordered >> shift, prepend=-1) > 0] & ((1 << shift) - 1)
        new_per_walk = np.bincount(first // numbers.shape[1], minlength=len(numbers))
        return int(np.count_nonzero(np.cumsum(new_per_walk) <= self.remaining))

    def _keep(self, walks: Walks, numbers: Units) -> None:
        self.marks.add(numbers)
        pool = walks if self.pool is None else Walks.concatenated([self.pool, walks])
        self.pool = pool.take(slice(-_POOL, None)) if pool.num else None

    def _integers(self, below: int, num: int) -> Units:
        numbers: Units = torch.randint(below, (num,), generator=self.noise).numpy()
        return numbers
