"""What a sparse-training method is: a frozen value made of picks, a schedule, and where needed a memory.

A *pick* takes exactly `count` positions from `candidates`. Starting masks, growth, pruning and rewiring differ only in
what they pick from and when, so a new method is composed of picks and a schedule. A method that moves weights between
layers, or ranks them within layers, returns the next masks as a whole (`revise`) instead; either way, the number of
weights it leaves on is checked. What a method remembers lies in `Net.memory`, which is saved with the attachment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pathgrow.errors import UserError
from pathgrow.graph.flops import Cost as Cost

if TYPE_CHECKING:
    import torch

    from pathgrow.masks import Masks
    from pathgrow.methods.view import NetworkView

Need = Literal["paths", "gradients", "data", "dense"]
"""Paths of the network; its dense loss gradients at a change; batches of its own, for the first masks or at changes; a
dense training."""
Pick = Callable[["NetworkView", "Masks", int, "torch.Generator"], "Masks"]
UpdateMasks = Callable[["NetworkView", "MaskUpdate", "Progress", "torch.Generator"], "Masks"]
"""Returns the next masks, in which as many weights are on as the change says."""
MethodState = dict[str, Any]
"""Tensors, JSON values, and mappings of these."""
AfterUpdate = Literal["keep", "forget_slots", "rewind"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands when its schedule is asked. `num` counts switchable weights."""

    round: int
    step: int
    num_on: int
    num: int


@dataclass(frozen=True, kw_only=True)
class MaskUpdate:
    """Exactly how many weights to switch off and on.

    For a method with `revise` these count only the net loss and gain, not the weights it moves: rewiring at a constant
    density is `Change()`.
    """

    num_drop: int = 0
    num_grow: int = 0


Schedule = Callable[[Progress], MaskUpdate | None]


def never(progress: Progress) -> MaskUpdate | None:
    """The schedule of a mask that stays."""
    return None


class LatentWeights(Protocol):
    """Weights that training moves but that the network does not compute with; it uses effective weights made from them.

    Between steps the model holds the effective weights. Before the optimizer steps, `reveal_` puts the hidden ones in
    their place and turns the gradients into theirs; afterwards `cover_` stores them in `Net.memory` and puts the
    effective ones back. Both work in place and without a branch on values. The first hidden weights are those that
    `Method.remember` leaves in the model, and they are covered at once.
    """

    def restore_latent_(self, net: NetworkView) -> None: ...

    def apply_effective_(self, net: NetworkView) -> None: ...

    def masks(self, net: NetworkView) -> Masks:
        """Where the effective weights are on now."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A sparse-training method as a value; `pathgrow.attach` runs it in anybody's loop.

    Examples
    --------
    A method that keeps a tenth of the weights, drawn at random:

    >>> import torch, pathgrow
    >>> from pathgrow.masks.sampling import uniform
    >>> def at_random(net, candidates, count, generator):
    ...     return uniform(candidates, count, generator)
    >>> tenth = pathgrow.Method(name="tenth", start=at_random, start_density=0.1)
    >>> model = pathgrow.models.create("mlp", classes=10)
    >>> pathgrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tenth)
    Attached(tenth: 819 of 8192 switchable weights on, density 10%, round 0, step 0)
    """

    name: str
    start: Pick
    """Chooses the first masks among all switchable weights."""
    start_density: float | None = None
    """None: the smallest of 1, 2, 3, 5% that leaves at most 5% of the units isolated, or a lower `target_density`."""
    target_density: float | None = None
    """Where growth ends, if that is known. The schedule sees to that; the field keeps the start from lying above."""
    grow: Pick | None = None
    drop: Pick | None = None
    schedule: Schedule = never
    clock: Literal["round", "step"] = "round"
    """When the schedule is asked: at each observation, or before each optimizer step."""
    update: UpdateMasks | None = None
    """Gives the next masks as a whole, instead of `drop` and `grow`."""
    init_state: Callable[[NetworkView], MethodState] | None = None
    """Returns what the method remembers at first; called once the start masks are on."""
    on_gradients: Callable[[NetworkView], None] | None = None
    """Sees the dense gradients of every step before they are masked, and writes to tensors of `Net.memory` in place. So
    that it can be captured, it may neither branch on values nor rebind anything."""
    weights: LatentWeights | None = None
    """For methods that train hidden weights, from which those of the network are made."""
    skip_step_on_update: bool = False
    """A change takes the place of the optimizer's step."""
    after_update: AfterUpdate = "keep"
    """After a change at an observation: train on, train on with empty optimizer state, or go back to the weights of
    `rewind_step`."""
    rewind_step: int = 0
    needs: frozenset[Need] = frozenset()
    """What its picks read; `attach` refuses to start without it."""
    cost: Cost = "sparse"
    """What a training sample costs, see `flops.Cost`."""

    def due(self, progress: Progress) -> MaskUpdate | None:
        """The change that the schedule asks for; None if it asks for none, or for one that would change nothing."""
        change = self.schedule(progress)
        if change is None or (self.update is None and not change.num_drop and not change.num_grow):
            return None
        return change

    def __post_init__(self) -> None:
        if self.start_density is not None and not 0 < self.start_density <= 1:
            raise UserError(
                f"start_density {self.start_density!r} was given, a density in (0, 1] is wanted: "
                "give for example 0.05, or None to have one chosen"
            )
        start, target = self.start_density, self.target_density
        if start is not None and target is not None and start > target:
            raise UserError(
                f"start_density {start:g} is above the density to grow to, {target:g}, "
                "but growth only adds weights: start lower"
            )
