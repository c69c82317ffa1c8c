"""ST-3: a soft threshold on all weights together, with straight-through gradients and a cubic schedule."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathgrow.masks import Masks
from pathgrow.methods.latent import latent_method
from pathgrow.methods.method import Method, MethodState, NetworkView
from pathgrow.methods.schedules import PruneCubically


def st3(
    *, density: float = 0.1, num_steps: int = 10_000, start_fraction: float = 0.03125, stop_fraction: float = 0.5
) -> Method:
    """ST-3 (Vanderschueren & De Vleeschouwer 2023, Are Straight-Through gradients and Soft-Thresholding all you need?).

    Rule: the network computes with sign(W) relu(|W| - t), where t prunes the smallest |W| of all layers together to a
    density that falls along the cubic curve of gradual pruning, between `start_fraction` and `stop_fraction` of
    `num_steps`. The gradient is straight-through: that of the effective weight trains W, pruned or not, so that weights
    can return. The weights of each output unit are rescaled by 1.01 / (s + 0.01), where s is the fraction of their sum
    of |W| that is not pruned.

    Differences: t is the largest pruned |W|, so that counts are exact; the reference code interpolates between it and
    the next. There, ten epochs with fixed masks follow the training; here none. The fractions are those of the
    authors' CIFAR-10 settings (epochs 5 to 80 of 160). Clipping in a loop of your own sees the gradients of all W.
    """
    prune = PruneCubically(
        density=density,
        update_interval=1,
        num_steps=num_steps,
        start_fraction=start_fraction,
        stop_fraction=stop_fraction,
    )
    return replace(latent_method("st3", StraightThrough(prune)), final_density=density, num_steps=num_steps)


@dataclass(frozen=True)
class StraightThrough:
    """Latent weights W, and the number of steps made, as a tensor: a CUDA graph counts them."""

    prune: PruneCubically

    def __call__(self, net: NetworkView) -> MethodState:
        """The initial state."""
        latent = {name: weight.clone() for name, weight in net.weights().items()}
        device = next(iter(latent.values())).device
        return {"latent": latent, "step": torch.zeros((), dtype=torch.int64, device=device)}

    @torch.no_grad()
    def restore_latent_(self, net: NetworkView) -> None:
        net.method_state["step"].add_(1)
        for name, weight in net.weights().items():
            weight.copy_(net.method_state["latent"][name])

    @torch.no_grad()
    def apply_effective_(self, net: NetworkView) -> None:
        weights, latents = net.weights(), net.method_state["latent"]
        for name, weight in weights.items():
            latents[name].copy_(weight)
        kept, threshold = self._kept(net)
        for name, weight in weights.items():
            latent, on = latents[name], kept[name]
            soft = latent.sign() * (latent.abs() - threshold.to(latent)).relu() * on * _scale(latent.abs(), on)
            weight.copy_(torch.where(net.scope[name], soft, latent))

    def masks(self, net: NetworkView) -> Masks:
        return Masks(self._kept(net)[0], net.scope)

    def _kept(self, net: NetworkView) -> tuple[dict[str, Tensor], Tensor]:
        """What is not pruned, and the largest |W| that is; ties are broken by position."""
        scope, latents = net.scope, net.method_state["latent"]
        parts = [torch.where(scope[name], latent.abs(), -1).flatten() for name, latent in latents.items()]
        sizes = torch.cat([*parts, parts[0].new_full((1,), -1)])  # the last is a threshold where nothing is pruned
        values, order = sizes.sort(descending=True, stable=True)
        count = self._count(net.method_state["step"], scope.num)
        chosen = torch.zeros_like(sizes, dtype=torch.bool)
        chosen.index_copy_(0, order, torch.arange(len(sizes), device=sizes.device) < count)
        flags = zip(latents.items(), chosen[:-1].split([len(part) for part in parts]), strict=True)
        kept = {name: on.view(latent.shape) | ~scope[name] for (name, latent), on in flags}
        return kept, values.index_select(0, count.view(1)).clamp_(min=0)

    def _count(self, step: Tensor, num: int) -> Tensor:
        first, last = self.prune.steps
        left = ((last - step.double()) / max(1, last - first)).clamp(0, 1)
        density = self.prune.density + (1 - self.prune.density) * left * left * left
        return (num * density).round().clamp_(min=1).long()


def _scale(sizes: Tensor, on: Tensor) -> Tensor:
    """The factor of each output unit; the small constants are those of the reference code."""
    axes = tuple(range(1, sizes.dim()))
    left = ((sizes * on).mean(axes, keepdim=True) + 1e-6) / (sizes.mean(axes, keepdim=True) + 1e-6)
    return 1.01 / (left + 0.01)
