"""Tasks that were written after the density rule was fixed and on which nothing was ever chosen.

    python -m benchmarks.unseen [TASK ...] [--seed 0]

trains each dense network once and prints its size, scores and time. `benchmarks.tasks` runs discoveries on them. A
change of the rule that is made after their results were seen ends that: such tasks move to `benchmarks.problems`, and
new ones take their place.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import problems
from benchmarks.problems import Problem, Task, correct, cross_entropy, digits, mlp, squared_error

SIZES = (("train", 2000), ("val", 1000), ("test", 8000))
Parts = dict[str, tuple[Tensor, ...]]


class Recurrent(nn.Module):
    """A GRU that predicts the next symbol."""

    def __init__(self, num_symbols: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_symbols, 16)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, num_symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(symbols))[0])


def make_gru(seed: int, device: str, root: Path | None) -> Problem:
    """Sequences in which two earlier symbols decide the next one; the score is the loss in nats."""
    table = 1.8 * torch.randn(10, 10, 10, generator=torch.Generator().manual_seed(0))
    chances, draw, parts = torch.softmax(table, dim=-1), torch.Generator().manual_seed(seed), Parts()
    for part, num in SIZES:
        symbols = [torch.randint(10, (num // 4,), generator=draw) for _ in range(2)]
        for _ in range(19):
            symbols.append(torch.multinomial(chances[symbols[-2], symbols[-1]], 1, generator=draw)[:, 0])
        text = torch.stack(symbols, dim=1)
        parts[part] = (text[:, :-1], text[:, 1:])
    return Problem(Recurrent(10, 64), parts, cross_entropy, cross_entropy, lr=5e-3, batch_size=32)


def wrong_percent(output: Tensor, target: Tensor) -> Tensor:
    return 100 * (1 - correct(output, target))


def make_tabular(seed: int, device: str, root: Path | None) -> Problem:
    """Twenty columns, of which eight decide the class by a random network; scored by the error rate in percent."""
    fixed = torch.Generator().manual_seed(1)
    first, second = torch.randn(8, 24, generator=fixed), torch.randn(24, 4, generator=fixed)
    draw, parts = torch.Generator().manual_seed(seed), Parts()
    for part, num in (("train", 3000), ("val", 3000), ("test", 8000)):
        x = torch.randn(num, 20, generator=draw)
        logits = torch.tanh(0.7 * x[:, :8] @ first) @ second + 0.5 * torch.randn(num, 4, generator=draw)
        parts[part] = (x, logits.argmax(dim=1))
    return Problem(mlp(20, 96, 96, 4), parts, cross_entropy, wrong_percent)


def minus_squared_error(output: Tensor, target: Tensor) -> Tensor:
    return -((output - target) ** 2).mean(dim=1)


def make_autoencoder(seed: int, device: str, root: Path | None) -> Problem:
    """Digits through a bottleneck of eight numbers; the score is minus the squared error of a pixel."""
    parts: Parts = {part: (x, x) for part, (x, _) in digits(seed).items()}

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return -minus_squared_error(output, target)

    return Problem(mlp(64, 96, 8, 96, 64), parts, loss, minus_squared_error, batch_size=32)


class Ratings(nn.Module):
    """Predicts a rating from the embeddings of a user and an item."""

    def __init__(self, num_users: int, num_items: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(num_users, 12), nn.Embedding(num_items, 12)
        self.net = mlp(24, 64, 32, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.net(torch.cat([self.users(users), self.items(items)], dim=1))


def make_ratings(seed: int, device: str, root: Path | None) -> Problem:
    """Ratings of 200 users for 80 items, of rank three with noise; the score is the root mean squared error."""
    fixed = torch.Generator().manual_seed(2)
    users, items = torch.randn(200, 3, generator=fixed), torch.randn(80, 3, generator=fixed)
    draw, parts = torch.Generator().manual_seed(seed), Parts()
    for part, num in (("train", 6000), ("val", 2000), ("test", 8000)):
        a, b = torch.randint(200, (num,), generator=draw), torch.randint(80, (num,), generator=draw)
        parts[part] = (a, b, (users[a] * items[b]).sum(dim=1) + 0.3 * torch.randn(num, generator=draw))
    return Problem(Ratings(200, 80), parts, squared_error, squared_error, is_root=True, lr=1e-2, batch_size=128)


def make_waves(seed: int, device: str, root: Path | None) -> Problem:
    """Noisy sums of two sines: which of eight pairs of frequencies? A convolutional network with batch norm."""
    draw, parts = torch.Generator().manual_seed(seed), Parts()
    pairs, time = torch.tensor([[k, k + 2 + k % 3] for k in range(1, 9)]), torch.arange(48) / 48
    for part, num in SIZES:
        y = torch.randint(8, (num,), generator=draw)
        phase = 2 * math.pi * torch.rand(num, 2, 1, generator=draw)
        x = torch.sin(2 * math.pi * pairs[y][:, :, None] * time + phase).sum(dim=1)
        parts[part] = ((x + 1.3 * torch.randn(num, 48, generator=draw))[:, None], y)
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv1d(fan_in, fan_out, 5, stride=2, padding=2), nn.BatchNorm1d(fan_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(96, 8))
    return Problem(model, parts, cross_entropy, correct)


class Mixer(nn.Module):
    """An MLP-Mixer on the rows of a digit."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.rows = nn.ModuleList(mlp(8, 16, 8) for _ in range(depth))
        self.channels = nn.ModuleList(mlp(width, 64, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.unflatten(1, (8, 8)))
        for k, (rows, channels) in enumerate(zip(self.rows, self.channels, strict=True)):
            x = x + rows(self.norms[2 * k](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * k + 1](x))
        return self.head(x.mean(dim=1))


def make_mixer(seed: int, device: str, root: Path | None) -> Problem:
    return Problem(Mixer(), digits(seed), cross_entropy, correct)


UNSEEN = {
    "gru": Task(make_gru, 30, "1%", "min"),
    "tabular": Task(make_tabular, 40, 1.0, "min"),
    "autoencoder": Task(make_autoencoder, 60, 0.005),
    "ratings": Task(make_ratings, 20, "2%", "min"),
    "waves": Task(make_waves, 25, 0.01, options={"num_val": 1000}),
    "mixer": Task(make_mixer, 60, 0.01, options={"num_val": 400}),
}


def main() -> None:
    problems.main(UNSEEN, __doc__)


if __name__ == "__main__":
    main()
