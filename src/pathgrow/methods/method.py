"""What a sparse-training method is, and the view of a network that it decides on.

A *pick* selects exactly `count` positions from `candidates`. Initial masks, growth and pruning differ only in what they
pick from and when, so a method is composed of picks and a schedule. A method that moves weights between or within
layers returns the next masks as a whole instead (`update`). Either way the number of active weights is checked.
A method is an immutable value: its state lives in `NetworkView.method_state`, which is saved with the attachment.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow.errors import UserError, is_real, require
from pathgrow.graph import Graph, paths
from pathgrow.graph.flops import Cost as Cost
from pathgrow.masks import Masks, sampling
from pathgrow.methods.gradients import Batches, Loss, loss_gradients

T = TypeVar("T")
Need = Literal["paths", "gradients", "data", "dense"]
"""A traceable model; dense loss gradients at mask updates; `loss` and `batches` of `attach`; a dense training phase."""
Pick = Callable[["NetworkView", Masks, int, torch.Generator], Masks]
UpdateMasks = Callable[["NetworkView", "MaskUpdate", "Progress", torch.Generator], Masks]
ScoreFunction = Callable[["NetworkView"], Mapping[str, Tensor]]
"""A number for every position, active or not; higher is better."""
Sampler = Callable[[Mapping[str, Tensor], Masks, int, torch.Generator], Masks]
MethodState = dict[str, Any]
"""Tensors, JSON values, and mappings of these."""
FIXED = "fixed"
"""Name of the method of given masks, see `fixed`."""
_MAX_FOLLOWED = 200_000
"""Steps for which the number of active weights is computed, in less than a second."""
AfterUpdate = Literal["keep", "reset_optimizer", "rewind"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where training is when a schedule is called. `num_on` of `num` prunable weights are active."""

    round: int
    step: int
    num_on: int
    num: int


@dataclass(frozen=True, kw_only=True)
class MaskUpdate:
    """Exactly how many weights to drop and to grow.

    For a method with `Method.update` these are net numbers: moving weights at a constant density is `MaskUpdate()`.
    """

    num_drop: int = 0
    num_grow: int = 0


Schedule = Callable[[Progress], MaskUpdate | None]


def never(progress: Progress) -> MaskUpdate | None:
    """Schedule of static masks."""
    return None


@dataclass(frozen=True, kw_only=True)
class GrowEachRound:
    """Schedule that grows the active weights by a fraction `gamma` per round, up to a target or to full density.

    The default undoes one step of iterative pruning by 20%: 1.25 * 0.8 = 1. The last step ends exactly on the target.

    >>> GrowEachRound(gamma=0.25)(Progress(round=0, step=0, num_on=10, num=100))
    MaskUpdate(num_drop=0, num_grow=2)
    >>> GrowEachRound(gamma=0.25, target_density=0.11)(Progress(round=0, step=0, num_on=10, num=100))
    MaskUpdate(num_drop=0, num_grow=1)
    """

    gamma: float = 0.25
    target_density: float | None = None

    def __post_init__(self) -> None:
        require(0 < self.gamma < math.inf, "gamma", self.gamma, "> 0", 0.25)
        require(0.001 <= self.gamma <= 1000, "gamma", self.gamma, "in [0.001, 1000]", 0.25)
        if self.target_density is not None:
            require_density("target_density", self.target_density)

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        ceiling = progress.num if self.target_density is None else count_at(self.target_density, progress.num)
        num_left = ceiling - progress.num_on
        if num_left <= 0:
            return None
        return MaskUpdate(num_grow=min(max(1, floor_of(self.gamma * progress.num_on)), num_left))


class LatentWeights(Protocol):
    """Weights that the optimizer trains but that the network does not compute with.

    Between steps the model holds the effective weights derived from them. Before the optimizer step, `restore_latent_`
    writes the latent weights into the model and converts the gradients; after it, `apply_effective_` stores them in
    `NetworkView.method_state` and writes the effective weights back. Both work in place and must not branch on values.
    The first latent weights are those that `Method.init_state` leaves in the model.
    """

    def restore_latent_(self, net: NetworkView) -> None: ...

    def apply_effective_(self, net: NetworkView) -> None: ...

    def masks(self, net: NetworkView) -> Masks:
        """Where the effective weights are nonzero now."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A sparse-training method as a value; `pathgrow.attach` applies it in any training loop.

    Examples
    --------
    A method that keeps a random 10% of the weights:

    >>> import torch, pathgrow
    >>> from pathgrow.masks.sampling import uniform
    >>> def at_random(net, candidates, count, generator):
    ...     return uniform(candidates, count, generator)
    >>> tenth = pathgrow.Method(name="tenth", start=at_random, start_density=0.1)
    >>> model = pathgrow.models.create("mlp", classes=10)
    >>> pathgrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tenth)
    Attached(tenth: 819 of 8192 prunable weights active, density 10%, round 0, step 0)
    """

    name: str
    start: Pick
    """Selects the initial masks from all prunable weights."""
    start_density: float | None = None
    """None: the lowest of 1, 2, 3, 5% that isolates at most 5% of the units, capped at `target_density`."""
    target_density: float | None = None
    """Where growth ends, if known; the schedule enforces it, this field caps the start density."""
    final_density: float | None = None
    """Where a schedule that changes the density during training ends; None for methods that hold their density, and
    for those whose density is not an option."""
    num_steps: int | None = None
    """The optimizer steps that such a schedule was made for."""
    grow: Pick | None = None
    drop: Pick | None = None
    schedule: Schedule = never
    clock: Literal["round", "step"] = "round"
    """When the schedule is called: at each observation, or before each optimizer step."""
    update: UpdateMasks | None = None
    """Returns the next masks as a whole, instead of `drop` and `grow`."""
    init_state: Callable[[NetworkView], MethodState] | None = None
    """Creates the method's state after the initial masks are applied."""
    on_gradients: Callable[[NetworkView], None] | None = None
    """Receives the dense gradients of every step before they are masked, and updates tensors of the method's state in
    place. It may run inside a CUDA graph, so it must neither branch on values nor rebind tensors."""
    weights: LatentWeights | None = None
    """For methods that train latent weights from which those of the network are derived."""
    skip_step_on_update: bool = False
    """Skip the optimizer step on mask-update steps."""
    after_update: AfterUpdate = "keep"
    """After an update between rounds: train on, reset the optimizer state, or rewind to the weights of `rewind_step`
    and reset the optimizer state."""
    rewind_step: int = 0
    needs: frozenset[Need] = frozenset()
    """What the method reads; `attach` raises if it is not available."""
    cost: Cost = "sparse"
    """FLOPs of a training sample, see `pathgrow.graph.flops`."""
    sample_flops: Callable[[Graph, Masks], int] | None = None
    """FLOPs of a training sample as a function of graph and scope, if they do not depend on the masks; for latent
    weights, which are dense otherwise."""
    update_flops: Callable[[Masks], int] | None = None
    """FLOPs of a mask update within a training besides gradients and path scores, as a function of the scope."""

    def __post_init__(self) -> None:
        start, target = self.start_density, self.target_density
        if start is not None:
            require_density("start_density", start)
            if target is not None and start > target:
                raise UserError(f"start_density must be <= target_density, got {start:g} > {target:g}")

    def growing(
        self, *, gamma: float | None = None, start_density: float | None = None, target_density: float | None = None
    ) -> Method:
        """This growth method with other growth settings; None keeps the method's own.

        A method with `grow` and no schedule of its own grows by `GrowEachRound`.

        >>> from pathgrow import methods
        >>> methods.create("gcg", gamma=1.0).growing(target_density=0.3).schedule
        GrowEachRound(gamma=1.0, target_density=0.3)
        """
        if self.grow is None or self.clock == "step":
            raise UserError(f"method {self.name!r} does not grow between trainings; use a growth method such as 'gcg'")
        given = {"gamma": gamma, "target_density": target_density}
        changes = {name: value for name, value in given.items() if value is not None}
        schedule = GrowEachRound(target_density=self.target_density) if self.schedule is never else self.schedule
        if isinstance(schedule, GrowEachRound):
            schedule = dataclasses.replace(schedule, **changes)
        elif changes:
            raise UserError(f"method {self.name!r} has its own schedule and does not take {', '.join(changes)}")
        return dataclasses.replace(
            self,
            schedule=schedule,
            start_density=self.start_density if start_density is None else start_density,
            target_density=self.target_density if target_density is None else target_density,
        )

    def due(self, progress: Progress) -> MaskUpdate | None:
        """The mask update that is due now, or None."""
        update = self.schedule(progress)
        if update is None or (self.update is None and not update.num_drop and not update.num_grow):
            return None
        return update

    def counts_at(self, num: int, *, round: int, step: int) -> Collection[int] | None:
        """How many of `num` weights can be active after these rounds and steps; None if that is not determined.

        The schedule is followed from the start. Within a step there are two: before and after its mask update.

        >>> from pathgrow import methods
        >>> gmp = methods.create("gmp", density=0.1, num_steps=100, update_interval=10)
        >>> gmp.counts_at(1000, round=0, step=5), gmp.counts_at(1000, round=0, step=90)
        ({1000}, {100})
        """
        on_step, density = self.clock == "step", self.start_density
        is_changed = round > 0 and (on_step or self.schedule is never or None not in (self.grow, self.drop))
        if self.weights is not None or self.name == FIXED or is_changed:  # `grow_` or `prune_` was called
            return None
        if round and self.grow is not None:
            return range(round + (1 if density is None else count_at(density, num)), num + 1)
        num_updates = step + 2 if on_step else round
        if num_updates and not (self.schedule.__module__.startswith(__package__) and num_updates <= _MAX_FOLLOWED):
            return None
        found: list[set[int]] = []
        for num_on in (1, num) if density is None else (count_at(density, num),):  # where both starts lead to, all do
            counts = set[int]()
            for at in range(num_updates):
                where = {"round": 0, "step": at} if on_step else {"round": at, "step": step}
                if at >= step and on_step:
                    counts.add(num_on)
                if (update := self.schedule(Progress(**where, num_on=num_on, num=num))) is not None:
                    num_on += update.num_grow - update.num_drop
            found.append(counts if on_step else {num_on})
        return found[0] if found[0] == found[-1] else None

    def is_unfinished(self, num_on: int, num: int) -> bool:
        """Whether the schedule ends at another density than the current one; a deviation of 2% does not count."""
        if self.final_density is None:
            return False
        target = count_at(self.final_density, num)
        return abs(num_on - target) > 0.02 * target

    def where(self, *, round: int, step: int, density: float) -> str:
        """Where a schedule that changes the density is.

        >>> from pathgrow import methods
        >>> methods.create("gmp", density=0.05).where(round=0, step=3000, density=0.606)
        'gmp is at step 3,000 of 10,000: density 60.6%, target 5%'
        """
        assert self.final_density is not None
        at = f"round {round}" if self.num_steps is None else f"step {step:,} of {self.num_steps:,}"
        return f"{self.name} is at {at}: density {100 * density:.3g}%, target {100 * self.final_density:.3g}%"

    def next_masks(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        """The masks after an update: those of `self.update`, or the old ones after `drop` and then `grow`.

        `grow` may select a weight that was just dropped; it was never pruned and keeps its value.
        """
        masks = net.masks
        if self.update is not None:
            updated = self.update(net, update, progress, draw)
            num_expected = progress.num_on - update.num_drop + update.num_grow
            if updated.num_on != num_expected:
                raise UserError(
                    f"update() of method {self.name!r} must leave {num_expected} active weights, got {updated.num_on}"
                )
            return updated
        if update.num_drop:
            masks = masks - self.pick("drop", net, masks.present(), update.num_drop, draw)
        if update.num_grow:
            masks = masks | self.pick("grow", net, masks.missing(), update.num_grow, draw)
        return masks

    def pick(
        self,
        part: Literal["start", "drop", "grow"],
        net: NetworkView,
        candidates: Masks,
        count: int,
        draw: torch.Generator,
    ) -> Masks:
        """The positions that one of the method's picks selects, checked: methods may be user code."""
        pick: Pick | None = getattr(self, part)
        if pick is None:
            raise UserError(f"method {self.name!r} has no {part!r} pick, but {count} weights must be picked")
        picked = pick(net, candidates, count, draw).present()
        num_invalid = (picked - candidates).num_on
        if picked.num_on != count or num_invalid:
            raise UserError(
                f"{part}() of method {self.name!r} must pick exactly {count} candidates, got {picked.num_on} positions "
                f"of which {num_invalid} are not candidates"
            )
        return picked


@dataclass(frozen=True)
class ByScore:
    """Pick that scores every position and passes the scores to a sampler."""

    score: ScoreFunction
    sampler: Sampler

    def __call__(self, net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
        with warnings.catch_warnings():
            # Near full density the last missing weights belong to units that no path reaches yet; that is expected.
            warnings.simplefilter("ignore", sampling.ZeroScores)
            return self.sampler(self.score(net), candidates, count, generator)


@dataclass(frozen=True, kw_only=True)
class ScoringCost:
    """What scoring a network for a mask update took; `pathgrow.graph.flops` converts it to FLOPs."""

    num_path_passes: int = 0
    """Forward and backward passes of one sample for path scores."""
    num_gradient_samples: int = 0
    """Samples for loss gradients, beside those of training steps."""
    num_hessian_samples: int = 0
    """Samples for Hessian-vector products."""


@dataclass(eq=False)
class NetworkView:
    """A network at one moment, as picks see it; everything but `method_state` is read-only."""

    model: nn.Module
    """Pruned weights hold zero."""
    masks: Masks
    scope: Masks
    """True where a weight is prunable."""
    example_input: Any = None
    """A sample input, for path scores."""
    compute_gradients: Callable[[], tuple[Mapping[str, Tensor], int]] | None = None
    """Returns the dense loss gradients by name and the number of samples they took; called at most once."""
    _: KW_ONLY
    seed: int = 0
    """Seed of the run, for random numbers drawn where no generator is passed (`Method.init_state`)."""
    method_state: MethodState = field(default_factory=dict)
    optimizer: Optimizer | None = None
    """For learning rates and momentum."""
    loss: Loss | None = None
    """`loss(model, batch)`, for picks that need more than gradients."""
    batches: Batches | None = None
    """Training batches for `loss`."""
    scoring_cost: ScoringCost = field(default=ScoringCost(), init=False)
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def charge(self, *, path_passes: int = 0, gradient_samples: int = 0, hessian_samples: int = 0) -> None:
        """Add to `scoring_cost` what a pick computed without the methods below."""
        before = self.scoring_cost
        self.scoring_cost = ScoringCost(
            num_path_passes=before.num_path_passes + path_passes,
            num_gradient_samples=before.num_gradient_samples + gradient_samples,
            num_hessian_samples=before.num_hessian_samples + hessian_samples,
        )

    def weights(self) -> dict[str, Tensor]:
        """The prunable weight tensors by name."""
        return {name: tensor.detach() for name, tensor in self.model.named_parameters() if name in self.masks}

    # Each of these is computed and charged at most once, when first called.

    def path_scores(self) -> Mapping[str, Tensor]:
        """For every position, active or not: the total weight of the paths that run, or would run, through it."""
        return self._once("path_scores", self._path_pass)

    def trace_gains(self) -> Mapping[str, Tensor]:
        """The same for squared weights: how much a new position adds to the trace of the path kernel."""
        return self._once("trace_gains", lambda: self._path_pass(squared=True))

    def gradients(self) -> Mapping[str, Tensor]:
        """Magnitude of the loss gradient at every position, active or not."""
        return self._once("gradients", lambda: {name: g.abs() for name, g in self.signed_gradients().items()})

    def signed_gradients(self) -> Mapping[str, Tensor]:
        """The loss gradient at every position, active or not."""
        return self._once("signed_gradients", self._gradient_pass)

    def probe_gradients(self, seed: int) -> Mapping[str, Tensor]:
        """Loss gradients over a batch drawn for this call, for picks that observe layers through hooks meanwhile."""
        if self.loss is None or self.batches is None:
            raise UserError(
                "this method runs batches through the model; pass attach(loss=..., batches=...), "
                "and list 'data' in `needs` of a custom method"
            )
        gradients, num_samples = loss_gradients(self.model, list(self.masks), self.loss, self.batches, seed)
        self.charge(gradient_samples=num_samples)
        return gradients

    def _once(self, name: str, compute: Callable[[], T]) -> T:
        if name not in self._cache:
            self._cache[name] = compute()
        result: T = self._cache[name]
        return result

    def _path_pass(self, *, squared: bool = False) -> Mapping[str, Tensor]:
        self.charge(path_passes=1)
        return dict(paths.signals(self.model, self.example_input, self.masks, squared=squared).scores())

    def _gradient_pass(self) -> Mapping[str, Tensor]:
        if self.compute_gradients is None:
            raise UserError(
                "this method needs loss gradients; pass attach(loss=..., batches=...), "
                "and list 'gradients' in `needs` of a custom method"
            )
        gradients, num_samples = self.compute_gradients()
        self.charge(gradient_samples=num_samples)
        return gradients


def count_at(density: float, num: int) -> int:
    """How many of `num` weights are active at a density; at least one.

    >>> count_at(0.096, 100), count_at(0.001, 100)
    (10, 1)
    """
    return max(1, round(density * num))


def floor_of(value: float) -> int:
    """Round down, with a tolerance: 0.29 * 100 is 28.999999999999996 and counts as 29."""
    return math.floor(value + 1e-6)


def require_density(name: str, density: Any) -> None:
    """Raise a `UserError` unless a value is a density."""
    require(is_real(density) and 0 < density <= 1, name, density, "in (0, 1]", 0.1)


def fixed(masks: Masks) -> Method:
    """A method that enforces given masks, for training a network that was found before.

    Attach it with `scope=masks.scope`, unless that is the default scope of the model. It takes masks instead of
    options, so it is not in the table of methods.
    """
    require(isinstance(masks, Masks), "masks", masks, "a pathgrow.Masks")
    kept = masks.clone()

    def start(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
        return kept

    return Method(name=FIXED, start=start, start_density=kept.density)
