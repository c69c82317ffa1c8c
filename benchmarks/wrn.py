"""Comparison with published results: WRN-22-2 on CIFAR-10 with RigL's recipe, all conv and linear weights in scope.

    python -m benchmarks.wrn --data-root DIR --seeds 0 1 [--as reproduction] [--epochs 250]

Trained like RigL's authors, on all 50,000 training images, or like the reproduction in PyTorch, see `PROTOCOLS`; with a
dropout of 0.3, as in both. All trainings run concurrently; each appends one line of JSON when it is finished and is not
run again. With `--kept DIR` interrupted trainings resume. `--table` prints the results next to the published ones.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.cifar import Lines, named, stage_files
from pathgrow import data as datasets
from pathgrow import models
from pathgrow.augment import Augment
from pathgrow.checkpoint import MemoryStore
from pathgrow.data.dataset import Dataset, Split
from pathgrow.masks import Masks
from pathgrow.methods import create
from pathgrow.rng import derive
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.training_state import TrainingCheckpoint
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe, recipe


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a source trained its networks, and its results."""

    published: dict[tuple[str, float], tuple[float, float]]
    """Lowest and highest test accuracy, by method and density."""
    all_images: bool
    """Whether to train on all 50,000 images or on 45,000 of them."""
    recipe: Recipe
    last_change: float
    """Fraction of the training after which masks are fixed."""
    results: Path


PROTOCOLS = {
    # google-research/rigl, results from its issue 8; those of the reproduction for SET, which has no others.
    "authors": Protocol(
        published={
            ("rigl", 0.2): (93.1, 93.6),
            ("rigl", 0.1): (92.9, 92.9),
            ("erk", 0.2): (92.9, 92.9),
            ("erk", 0.1): (91.5, 91.5),
            ("set", 0.2): (92.9, 92.9),
        },
        all_images=True,
        recipe=recipe("wrn-rigl"),
        last_change=75_000 / 97_656,
        results=Path("results/cifar10_wrn22_2.jsonl"),
    ),
    # varun19299/rigl-reproducibility: a tenth of the images is held out for validation, which leaves 87,890 steps and
    # two learning-rate drops instead of three; no weight decay on norms and biases; reflected borders.
    "reproduction": Protocol(
        published={("set", 0.2): (92.9, 92.9), ("rigl", 0.2): (93.1, 93.1), ("random", 0.2): (91.2, 91.2)},
        all_images=False,
        recipe=recipe("wrn-rigl").override(
            {
                "milestones": (30_000 / 87_890, 60_000 / 87_890),
                "decay_all": False,
                "augment": Augment(crop_padding=4, crop_mirrored=True, flip=True),
            }
        ),
        last_change=65_918 / 87_890,
        results=Path("results/cifar10_wrn22_2_as_reproduced.jsonl"),
    ),
}


def all_training_images(data: Dataset) -> Dataset:
    """Return the dataset with val added to train: nothing is decided during training."""
    train, val = data.train, data.val
    assert isinstance(train, Split)
    assert isinstance(val, Split)
    joined = Split(torch.cat([train.images, val.images]), torch.cat([train.labels, val.labels]), train.mean, train.std)
    return Dataset(data.name, data.classes, joined, val, data.test)


def network(trainer: Trainer, protocol: Protocol, method: str, density: float, seed: int, num_steps: int) -> Attached:
    """Return a network with a method attached; RigL and SET update masks every 100 steps, "random" has equal layers."""
    model, optimizer = trainer.place(models.create("wrn22_2", 10, seed=seed))
    rewiring = {"num_steps": num_steps, "stop_fraction": protocol.last_change}
    options = {"rigl": rewiring, "set": rewiring, "random": {"allocation": "equal"}}
    made = create(method, density=density, **options.get(method, {}))
    example = torch.zeros(1, 3, 32, 32, device=trainer.plan.device)
    return attach(model, optimizer, made, example, scope=Masks.full(model), seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--as", dest="protocol", choices=PROTOCOLS, default="authors")
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--compile", default="on")
    parser.add_argument("--kept", type=Path, default=None, help="directory for interrupted trainings")
    parser.add_argument("--commit", default=None, help="commit of the code, if this is not a git checkout")
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    protocol = PROTOCOLS[chosen.protocol]
    lines = Lines(chosen.results or protocol.results, chosen.commit)
    if not chosen.table:
        lines.path.parent.mkdir(parents=True, exist_ok=True)
        train(chosen, protocol, lines)
    for (method, density), (low, high) in protocol.published.items():
        ours = [100 * row["test"][0] for row in lines.rows if (row["kind"], row["density"]) == (method, density)]
        shown = f"{np.mean(ours):.2f} ({', '.join(f'{value:.2f}' for value in ours)})" if ours else "not run"
        print(f"{method:<6}{density:4.1f}  published {low} - {high}  ours {shown}")


def train(chosen: argparse.Namespace, protocol: Protocol, lines: Lines) -> None:
    """Train every method, density and seed without a result, concurrently."""
    # Before the first use of the GPU: by default only eight streams run independently.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    options = EngineOptions(compile=chosen.compile, max_concurrent=min(len(protocol.published) * len(chosen.seeds), 32))
    data = datasets.load("cifar10", chosen.data_root)
    trainer = Trainer(all_training_images(data) if protocol.all_images else data, protocol.recipe, options)
    test = trainer.evaluate(data.test)
    num_steps = chosen.epochs * (len(trainer.data.train) // protocol.recipe.batch_size)
    keys = [
        {"kind": method, "density": density, "epochs": chosen.epochs, "seed": seed}
        for seed in chosen.seeds
        for method, density in protocol.published
        if not lines.has(kind=method, density=density, epochs=chosen.epochs, seed=seed)
    ]
    store = stage_files(chosen.kept) if chosen.kept is not None else MemoryStore()
    partials = [TrainingCheckpoint(store, named("partial", **key)) for key in keys]
    networks = [network(trainer, protocol, key["kind"], key["density"], key["seed"], num_steps) for key in keys]
    jobs = [
        Job(attached=attached, epochs=chosen.epochs, seed=derive(key["seed"], "wrn", key["kind"]), progress=partial)
        for key, attached, partial in zip(keys, networks, partials, strict=True)
    ]

    def over(number: int) -> None:
        attached = networks[number]
        lines.add(**keys[number], test=list(test(attached.model)), num_on=attached.masks.num_on)
        attached.detach()
        partials[number].delete()

    trainer.train(jobs, on_done=over)


if __name__ == "__main__":
    main()
