"""Small trainings as strangers write them: plain PyTorch models, their own `fit` and `evaluate`, any kind of score.

    python -m benchmarks.problems [TASK ...] [--seed 0] [--device cuda] [--data-root DIR]

trains each dense network once and prints its size, scores and time. `benchmarks.tasks` runs discoveries on them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import Optimizer

PerExample = Callable[[Tensor, Tensor], Tensor]
Parts = dict[str, tuple[Tensor, ...]]
"""Inputs and targets of train, val and test."""
SIZES = (("train", 2000), ("val", 1000), ("test", 8000))
"""Of most synthetic data."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, model and training functions, as a user has them."""

    model: nn.Module
    parts: Parts
    loss: PerExample
    value: PerExample
    """What the score is the mean of."""
    is_root: bool = False
    """Whether the score is the square root of that mean."""
    lr: float = 3e-3
    batch_size: int = 64
    num_steps: int | None = None
    """Steps of an epoch, on examples drawn at random; None: once through the data."""

    @property
    def steps_per_epoch(self) -> int:
        return self.num_steps or -(-len(self.parts["train"][-1]) // self.batch_size)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0.01)

    def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        """Train with warm-up and cosine annealing."""
        model.train()
        *inputs, target = self.parts["train"]
        rates = [group["lr"] for group in optimizer.param_groups]
        num_steps = epochs * self.steps_per_epoch
        for step, batch in enumerate(self._batches(epochs, target)):
            scale = min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / num_steps))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
            optimizer.zero_grad()
            self.loss(model(*(x[batch] for x in inputs)), target[batch]).mean().backward()
            optimizer.step()

    def _batches(self, epochs: int, target: Tensor) -> Iterator[Tensor]:
        for _ in range(epochs):
            if self.num_steps is None:
                order = torch.randperm(len(target))
            else:
                order = torch.randint(len(target), (self.num_steps * self.batch_size,))
            yield from order.to(target.device).split(self.batch_size)

    def values(self, model: nn.Module, *parts: str) -> Tensor:
        """What the score is the mean of, for every example."""
        model.eval()
        found = []
        with torch.no_grad():
            for part in parts:
                *inputs, target = self.parts[part]
                for batch in torch.arange(len(target), device=target.device).split(512):
                    found.append(self.value(model(*(x[batch] for x in inputs)), target[batch]))
        return torch.cat(found).double().cpu()

    def score(self, values: Tensor) -> float:
        mean = float(values.mean())
        return math.sqrt(mean) if self.is_root else mean

    def difference(self, a: Tensor, b: Tensor) -> tuple[float, float]:
        """Score of `a` minus score of `b` on the same examples, with its standard error."""
        scale = [0.5 / self.score(values) if self.is_root else 1.0 for values in (a, b)]
        spread = float((scale[0] * a - scale[1] * b).std())
        return self.score(a) - self.score(b), spread / math.sqrt(len(a))

    def evaluate(self, model: nn.Module) -> float:
        return self.score(self.values(model, "val"))

    @property
    def example(self) -> Any:
        inputs = tuple(x[:2] for x in self.parts["val"][:-1])
        return inputs if len(inputs) > 1 else inputs[0]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Loss of every example, averaged over the positions of a sequence."""
    losses = F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    return losses.reshape(len(target), -1).mean(dim=1)


def correct(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(dim=1) == target).float()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output.flatten() - target) ** 2


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def digits(seed: int, sizes: tuple[int, int, int] = (800, 400, 597)) -> dict[str, tuple[Tensor, Tensor]]:
    """Scikit-learn's digits, split at random into images for training, validation and test."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).split(sizes)
    x, y = torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(labels)
    return {part: (x[rows], y[rows]) for part, rows in zip(("train", "val", "test"), order, strict=True)}


def make_digits(seed: int, device: str, root: Path | None) -> Problem:
    return Problem(mlp(64, 64, 64, 10), digits(seed), cross_entropy, correct)


def cnn() -> nn.Sequential:
    """Three convolutions and two linear layers for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def make_digits_cnn(seed: int, device: str, root: Path | None) -> Problem:
    parts = {part: (x.reshape(-1, 1, 8, 8), y) for part, (x, y) in digits(seed, (600, 800, 397)).items()}
    return Problem(cnn(), parts, cross_entropy, correct)


def make_regression(seed: int, device: str, root: Path | None) -> Problem:
    """Friedman's function of ten variables, five of them without effect, with noise of standard deviation 1."""
    draw = torch.Generator().manual_seed(seed)
    parts = {}
    for part, num in (("train", 2000), ("val", 1000), ("test", 10_000)):
        x = torch.rand(num, 10, generator=draw)
        y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        parts[part] = (2 * x - 1, (y - 14.4 + torch.randn(num, generator=draw)) / 5)
    return Problem(mlp(10, 128, 128, 1), parts, squared_error, squared_error, is_root=True)


class Sum(nn.Module):
    """Reads two images with the same encoder and tells the sum of their digits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(64, 96, 48)
        self.head = mlp(96, 96, 19)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.head(torch.cat([self.encoder(first).relu(), self.encoder(second).relu()], dim=1))


def make_two_inputs(seed: int, device: str, root: Path | None) -> Problem:
    draw, parts = torch.Generator().manual_seed(seed), {}
    for part, (x, y) in digits(seed).items():
        a, b = torch.randint(len(y), (2, {"train": 4000, "val": 2000, "test": 10_000}[part]), generator=draw)
        parts[part] = (x[a], x[b], y[a] + y[b])
    return Problem(Sum(), parts, cross_entropy, correct)


class Reader(nn.Module):
    """Reads symbols with an LSTM and classifies by its last state."""

    def __init__(self, num_symbols: int, num_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_symbols, 24)
        self.lstm = nn.LSTM(24, 48, batch_first=True)
        self.head = nn.Linear(48, num_classes)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(symbols))[0][:, -1])


def make_lstm(seed: int, device: str, root: Path | None) -> Problem:
    """Sequences of 16 symbols from one of six Markov chains: which one?"""
    chains = torch.softmax(1.2 * torch.randn(6, 8, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    draw, parts = torch.Generator().manual_seed(seed), {}
    for part, num in (("train", 2000), ("val", 1000), ("test", 8000)):
        y = torch.randint(6, (num,), generator=draw)
        symbols = [torch.randint(8, (num,), generator=draw)]
        for _ in range(15):
            symbols.append(torch.multinomial(chains[y, symbols[-1]], 1, generator=draw)[:, 0])
        parts[part] = (torch.stack(symbols, dim=1), y)
    return Problem(Reader(8, 6), parts, cross_entropy, correct)


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A character-level language model."""

    def __init__(self, num_symbols: int, context: int, width: int = 128, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(num_symbols, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.token(symbols) + self.position)))


def make_gpt(seed: int, device: str, root: Path | None, context: int = 64) -> Problem:
    if root is None or not (root / "tinyshakespeare.txt").is_file():
        raise SystemExit("task gpt needs --data-root, a folder with tinyshakespeare.txt")
    text = (root / "tinyshakespeare.txt").read_text()
    index = {symbol: number for number, symbol in enumerate(sorted(set(text)))}
    codes = torch.tensor([index[symbol] for symbol in text], device=device)
    cuts, parts = [0, int(0.9 * len(codes)), int(0.95 * len(codes)), len(codes)], {}
    for k, part in enumerate(("train", "val", "test")):
        windows = codes[cuts[k] : cuts[k + 1]].unfold(0, context + 1, 1 if part == "train" else context)
        parts[part] = (windows[:, :-1], windows[:, 1:])
    return Problem(GPT(len(index), context), parts, cross_entropy, cross_entropy, batch_size=32, num_steps=25)


def make_vit(seed: int, device: str, root: Path | None, tuned: bool = False) -> Problem:
    """A vision transformer trained on digits 0 to 4 that gets a new head for all ten; `tuned`: and is trained on."""
    import timm

    sizes = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 48, "depth": 3, "num_heads": 3}
    parts = {part: (x.reshape(-1, 1, 8, 8).to(device), y.to(device)) for part, (x, y) in digits(seed).items()}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **sizes).to(device)
    x, y = parts["train"]
    half = Problem(model, {"train": (x[y < 5], y[y < 5])}, cross_entropy, correct, lr=2e-3)
    half.fit(model, half.optimizer(model), 60)
    model.reset_classifier(10)
    found = Problem(model.to(device), parts, cross_entropy, correct, lr=2e-3)
    if tuned:
        found.fit(model, found.optimizer(model), 80)
    return found


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


LADDER = (1.0, 0.8, 0.6, *(0.4 * 0.63**k for k in range(8)))
"""Densities of brute force."""


@dataclass(frozen=True)
class Task:
    """A problem, and what its user asks for."""

    make: Callable[..., Problem]
    budget: int
    delta: float | str
    mode: Literal["max", "min"] = "max"
    baseline: Literal["dense", "given"] = "dense"
    """What its user compares with: the dense network after the budget, or the given one."""
    uses_device: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    made_with: dict[str, Any] = field(default_factory=dict)
    ladder: tuple[float, ...] = LADDER

    def problem(self, seed: int, device: str, root: Path | None) -> Problem:
        """The problem of one seed, with freshly initialized or pretrained weights."""
        torch.manual_seed(seed)
        place = device if self.uses_device else "cpu"
        found = self.make(seed, place, root, **self.made_with)
        found.model.to(place)
        return found

    @property
    def sign(self) -> int:
        return -1 if self.mode == "min" else 1

    @property
    def is_pretrained(self) -> bool:
        return self.options.get("start") == "pretrained"

    def tolerance(self, dense: float) -> float:
        """Delta in the unit of the score."""
        return self.delta if isinstance(self.delta, float) else float(self.delta.rstrip("%")) / 100 * dense


TASKS = {
    "gpt": Task(make_gpt, 60, 0.05, "min", uses_device=True, ladder=(0.6, 0.4, 0.25, 0.16)),
    "regression": Task(make_regression, 40, "2%", "min"),
    "two_inputs": Task(make_two_inputs, 30, 0.01, options={"num_val": 2000}),
    "lstm": Task(make_lstm, 30, 0.01, options={"num_val": 1000}),
    "vit": Task(make_vit, 30, 0.02, uses_device=True, options={"start": "pretrained", "num_val": 400}),
    "vit_tuned": Task(
        make_vit,
        30,
        0.02,
        baseline="given",
        uses_device=True,
        options={"start": "pretrained", "num_val": 400},
        made_with={"tuned": True},
    ),
    "digits_cnn": Task(make_digits_cnn, 48, 0.01, options={"num_val": 800}),
    **{f"digits_{n}": Task(make_digits, n, 0.01, options={"num_val": 400}) for n in (5, 20, 60)},
    "gru": Task(make_gru, 30, "1%", "min"),
    "tabular": Task(make_tabular, 40, 1.0, "min"),
    "autoencoder": Task(make_autoencoder, 60, 0.005),
    "ratings": Task(make_ratings, 20, "2%", "min"),
    "waves": Task(make_waves, 25, 0.01, options={"num_val": 1000}),
    "mixer": Task(make_mixer, 60, 0.01, options={"num_val": 400}),
}


def main(tasks: Mapping[str, Task] = TASKS, description: str | None = __doc__) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(tasks))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--data-root", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.tasks or tasks:
        task = tasks[name]
        problem = task.problem(chosen.seed, chosen.device, chosen.data_root)
        model, before, began = problem.model, problem.evaluate(problem.model), time.perf_counter()
        problem.fit(model, problem.optimizer(model), task.budget)
        seconds, size = time.perf_counter() - began, sum(weight.numel() for weight in model.parameters())
        val, test = problem.evaluate(model), problem.score(problem.values(model, "test"))
        print(f"{name}: {size:,} parameters, {task.budget} epochs in {seconds:.1f} s, ", end="")
        print(f"val {before:.4f} before and {val:.4f} after training, test {test:.4f}", flush=True)


if __name__ == "__main__":
    main()
