"""A small network in sparse training, for tests of whatever happens to it."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pathgrow import methods
from pathgrow.density.types import Answer, Curve, Grow, Stop, Verdict
from pathgrow.methods.method import Method
from pathgrow.methods.picks import at_random
from pathgrow.sparse.attach import Attached, attach


@dataclasses.dataclass(frozen=True)
class Script:
    """A density rule with a fixed list of verdicts, one per observation."""

    verdicts: tuple[Verdict, ...]
    name: str = "script"

    def decide(self, curve: Curve) -> Verdict:
        return self.verdicts[len(curve.rough) - 1]

    def answer(self, curve: Curve) -> Answer:
        return Answer(rule=self.name, delta=0.01, status="open", details={"points": len(curve.rough)})


GROW, STOP = Grow(reason="more"), Stop(reason="enough")
ALWAYS = Script((GROW,) * 100)


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def growing(density: float = 0.2, **options: object) -> Method:
    """Random start and growth: nothing here depends on paths."""
    method = methods.create("random_growth", start_density=density, **options)
    return dataclasses.replace(method, start=at_random)


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3, seed: int = 0) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 6, generator=draw)).square().mean().backward()
        optimizer.step()


def sparse_mlp(**options: object) -> tuple[nn.Sequential, SGD, Attached]:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    options = {"stop": ALWAYS, **options}
    method = options.pop("method", growing())
    return model, optimizer, attach(model, optimizer, method, torch.zeros(1, 6), **options)


def off(sparse: Attached, name: str) -> Tensor:
    """Where weights are pruned."""
    return ~sparse.masks[name]
