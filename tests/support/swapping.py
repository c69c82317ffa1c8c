"""A method that updates its masks during training, by dense gradients."""

from __future__ import annotations

from torch import Tensor

from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, MaskUpdate, Method, NetworkView, Progress
from pathgrow.methods.picks import at_random


def swapping(*, density: float, every: int = 2, num: int = 3) -> Method:
    """A small RigL: every `every` steps, drop the `num` smallest magnitudes, grow the `num` largest dense gradients."""

    def lowest(net: NetworkView) -> dict[str, Tensor]:
        return {name: -weight.abs() for name, weight in net.weights().items()}

    def schedule(progress: Progress) -> MaskUpdate | None:
        return MaskUpdate(num_drop=num, num_grow=num) if progress.step % every == every - 1 else None

    return Method(
        name="swapping", start=at_random, start_density=density, clock="step", schedule=schedule,
        drop=ByScore(lowest, top_k), grow=ByScore(NetworkView.gradients, top_k), needs=frozenset({"gradients"}),
    )  # fmt: skip
