"""What methods share that train latent weights from which those of the network are derived."""

from typing import Any, Protocol

import torch
from torch import Tensor

from pathgrow.methods.method import LatentWeights, Method, MethodState, NetworkView
from pathgrow.methods.picks import all_candidates


class StatefulWeights(LatentWeights, Protocol):
    """Latent weights that create their own state."""

    def __call__(self, net: NetworkView) -> MethodState:
        """The initial state."""


def latent_method(name: str, weights: StatefulWeights) -> Method:
    """A method that trains all of its latent weights with dense gradients."""
    return Method(
        name=name,
        start=all_candidates,
        start_density=1.0,
        init_state=weights,
        weights=weights,
        needs=frozenset({"dense"}),
        cost="dense",
    )


def largest_in(sizes: Tensor, inside: Tensor, num: int) -> Tensor:
    """Where the `num` largest sizes inside the scope are; CUDA-graph safe, and ties are broken by the device."""
    flat = torch.where(inside, sizes, -1).flatten()
    best = torch.topk(flat, num, sorted=False).indices
    return torch.zeros_like(flat, dtype=torch.bool).index_fill_(0, best, True).view(inside.shape)


def parameter_groups(net: NetworkView) -> dict[str, dict[str, Any]]:
    """The parameter group of each prunable tensor that the optimizer owns."""
    assert net.optimizer is not None
    owner = {id(parameter): group for group in net.optimizer.param_groups for parameter in group["params"]}
    return {name: owner[id(p)] for name, p in net.model.named_parameters() if name in net.masks and id(p) in owner}
