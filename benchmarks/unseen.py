"""Tasks that were written after the density rule was fixed and on which nothing was ever chosen.

    python -m benchmarks.unseen [TASK ...] [--seed 0]

trains each dense network once and prints its size, scores and time. `benchmarks.tasks` runs discoveries on them. A
change of the rule that is made after their results were seen ends that: such tasks move to `benchmarks.seen`, and new
ones take their place.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import problems
from benchmarks.problems import Parts, Problem, Task, correct, cross_entropy, digits, mlp


class Forecaster(nn.Module):
    """Dilated causal convolutions that predict the next value of a series at every time."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Conv1d(1, width, 1)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**k) for k in range(3))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, series: Tensor) -> Tensor:
        x = self.embed(series[:, None])
        for conv in self.convs:
            (dilation,) = conv.dilation
            x = x + F.relu(conv(F.pad(x, (2 * dilation, 0))))
        return self.head(x)[:, 0]


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().mean(dim=1)


def make_forecast(seed: int, device: str, root: Path | None) -> Problem:
    """A noisy logistic map with a slow season; the score is the mean absolute error of the next value."""
    draw, parts = torch.Generator().manual_seed(seed), Parts()
    for part, num in (("train", 600), ("val", 400), ("test", 2000)):
        x, series = torch.rand(num, generator=draw), []
        phase = torch.rand(num, generator=draw)
        for step in range(40):
            rate = 3.7 + 0.2 * torch.sin(2 * math.pi * (step / 20 + phase))
            x = (rate * x * (1 - x) + 0.02 * torch.randn(num, generator=draw)).clamp(0.01, 0.99)
            series.append(x)
        values = torch.stack(series, dim=1)
        parts[part] = (values[:, :-1], values[:, 1:])
    return Problem(Forecaster(), parts, absolute_error, absolute_error, batch_size=32)


class Sets(nn.Module):
    """Encodes the elements of a set one by one and reads their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.element, self.head = mlp(16, 64, 64), mlp(64, 64, 8)

    def forward(self, elements: Tensor) -> Tensor:
        return self.head(self.element(F.one_hot(elements, 16).float()).sum(dim=1))


def make_sets(seed: int, device: str, root: Path | None) -> Problem:
    """How many different symbols are among eight? From 2000 examples, some with wrong labels."""
    draw, parts = torch.Generator().manual_seed(seed), Parts()
    for part, num in (("train", 2000), ("val", 2000), ("test", 8000)):
        width = torch.randint(3, 17, (num, 1), generator=draw)
        x = (torch.rand(num, 8, generator=draw) * width).long()
        y = F.one_hot(x, 16).amax(dim=1).sum(dim=1) - 1
        wrong = (torch.rand(num, generator=draw) < 0.05) & torch.tensor(part == "train")
        parts[part] = (x, torch.where(wrong, torch.randint(8, (num,), generator=draw), y))
    return Problem(Sets(), parts, cross_entropy, correct)


class Encoder(nn.Module):
    """One transformer block that reads symbols and classifies by their mean."""

    def __init__(self, num_symbols: int, length: int, num_classes: int, width: int = 32) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(num_symbols, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.token(symbols) + self.position(torch.arange(symbols.shape[1]))
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(x.mean(dim=1))


def make_encoder(seed: int, device: str, root: Path | None) -> Problem:
    """Which symbol follows the marker most often? Sequences of 16 symbols with three markers."""
    draw, parts = torch.Generator().manual_seed(seed), Parts()
    for part, num in (("train", 3000), ("val", 1500), ("test", 8000)):
        x = torch.randint(6, (num, 16), generator=draw)
        favoured = torch.randint(6, (num,), generator=draw)
        for place in (1, 6, 11):
            at = place + torch.randint(4, (num,), generator=draw)
            x.scatter_(1, at[:, None], 6)
            keeps = torch.rand(num, generator=draw) < 0.85
            after = torch.where(keeps, favoured, torch.randint(6, (num,), generator=draw))
            x.scatter_(1, at[:, None] + 1, after[:, None])
        parts[part] = (x, favoured)
    return Problem(Encoder(7, 16, 6), parts, cross_entropy, correct)


def poisson_loss(output: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood of a count, given the log of its rate."""
    rate = output.flatten()
    return rate.exp() - target * rate + torch.lgamma(target + 1)


def make_counts(seed: int, device: str, root: Path | None) -> Problem:
    """Counts whose rate depends on twelve variables by a random network; scored by their negative log-likelihood."""
    fixed = torch.Generator().manual_seed(3)
    first, second = torch.randn(12, 16, generator=fixed), torch.randn(16, generator=fixed)
    draw, parts = torch.Generator().manual_seed(seed), Parts()
    for part, num in (("train", 4000), ("val", 3000), ("test", 8000)):
        x = torch.randn(num, 12, generator=draw)
        rate = (1.0 + 0.35 * torch.tanh(0.6 * x @ first) @ second).clamp(-3, 3).exp()
        parts[part] = (x, torch.poisson(rate, generator=draw))
    return Problem(mlp(12, 64, 64, 1), parts, poisson_loss, poisson_loss)


def make_wrong_labels(seed: int, device: str, root: Path | None) -> Problem:
    """Digits of which a fifth of the training images has a random label; convolutions with batch norm."""
    parts: Parts = {part: (x.reshape(-1, 1, 8, 8), y) for part, (x, y) in digits(seed).items()}
    draw = torch.Generator().manual_seed(seed)
    x, y = parts["train"]
    wrong = torch.rand(len(y), generator=draw) < 0.2
    parts["train"] = (x, torch.where(wrong, torch.randint(10, (len(y),), generator=draw), y))
    layers: list[nn.Module] = []
    for fan_in, fan_out, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1)):
        layers += [nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1), nn.BatchNorm2d(fan_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    return Problem(model, parts, cross_entropy, correct)


UNSEEN = {
    "forecast": Task(make_forecast, 30, "2%", "min"),
    "sets": Task(make_sets, 40, 0.01, options={"num_val": 2000}),
    "encoder": Task(make_encoder, 20, 0.01, options={"num_val": 1500}),
    "counts": Task(make_counts, 24, 0.01, "min"),
    "wrong_labels": Task(make_wrong_labels, 32, 0.02, options={"num_val": 400}),
}


def main() -> None:
    problems.main(UNSEEN, __doc__)


if __name__ == "__main__":
    main()
