"""New masks from a method and a network: pure functions, and the one place where the contract of picks is checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.distributed.comm import Communicator
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import MaskUpdate, Method, Pick, Progress
from pathgrow.methods.schedules import count_at
from pathgrow.methods.view import Batches, Loss, NetworkView, ScoringCost, loss_gradients
from pathgrow.rng import derive, generator
from pathgrow.walks.phew import start_density


def start_masks(
    model: nn.Module,
    method: Method,
    scope: Masks,
    example_input: Any,
    seed: int,
    loss: Loss | None = None,
    batches: Batches | None = None,
) -> tuple[Masks, ScoringCost]:
    """The first masks, chosen by `method.start` at its start density, and what choosing them cost."""
    draw = generator(seed, "start")
    density = method.start_density
    if density is None:
        density, _ = start_density(model, example_input, scope=scope, seed=draw.initial_seed())
        if method.target_density is not None:
            density = min(density, method.target_density)
    empty = Masks.empty(scope)
    gradients = None
    if loss is not None and batches is not None:
        gradients = partial(loss_gradients, model, list(scope), loss, batches, derive(seed, "batch", "start"))
    net = NetworkView(model, empty, scope, example_input, gradients, loss=loss, batches=batches)
    masks = empty | _picked(method, "start", method.start, net, scope, count_at(density, scope.num), draw)
    return masks, net.scoring_cost


def updated_masks(
    method: Method, net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator
) -> Masks:
    """The masks after a change: by the method's `revise`, or first dropped, then grown, by exactly the asked numbers.

    Growth may take back what was dropped a moment ago; such a weight was never off and keeps its value.
    """
    masks = net.masks
    if method.update is not None:
        revised = method.update(net, change, progress, draw)
        wanted = masks.num_on - change.num_drop + change.num_grow
        if revised.num_on != wanted:
            raise UserError(
                f"`revise` of method {method.name!r} left {revised.num_on} weights on, exactly {wanted} are wanted: "
                "mend that function"
            )
        return revised
    if change.num_drop:
        masks = masks - _picked(method, "drop", method.drop, net, masks.present(), change.num_drop, draw)
    if change.num_grow:
        masks = masks | _picked(method, "grow", method.grow, net, masks.missing(), change.num_grow, draw)
    return masks


def decide_on_rank0(
    comm: Communicator, scope: Masks, decide: Callable[[], tuple[Masks, ScoringCost]]
) -> tuple[Masks, ScoringCost]:
    """Masks that the first of a team decides on and all take over, with what the decision cost it."""
    if comm.size == 1:
        return decide()

    def sent() -> tuple[dict[str, Tensor], ScoringCost]:
        masks, cost = decide()
        return {name: mask.cpu() for name, mask in masks.items()}, cost

    tensors, cost = comm.broadcast_from_rank0(sent)
    return Masks.restored(tensors, scope), cost


def _picked(
    method: Method, part: str, pick: Pick | None, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator
) -> Masks:
    """The picked positions as a selection. Methods may be anybody's, so what comes back is counted."""
    if pick is None:
        raise UserError(
            f"method {method.name!r} has no `{part}`, but {count} weights are to be picked by it: give it one"
        )
    picked = pick(net, candidates, count, draw).present()
    num_strange = (picked - candidates).num_on
    if picked.num_on != count or num_strange:
        raise UserError(
            f"`{part}` of method {method.name!r} picked {picked.num_on} weights, {num_strange} of them no candidates, "
            f"but exactly {count} candidates are wanted: mend that pick"
        )
    return picked
