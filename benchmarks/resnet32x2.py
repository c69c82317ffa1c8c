"""The wide ResNet-32 of published tables (widths 32-64-128) on CIFAR-10 at 10% density, with the recipe of GraSP.

    python -m benchmarks.resnet32x2 --data-root DIR --methods gts gmp --seeds 0 1

160 epochs on all 50,000 training images, batch size 128, learning rate 0.1 divided by ten at half and three quarters,
weight decay 1e-4, every convolution and the classifier in scope; unlike GraSP's code with Nesterov momentum. Gradual
pruning ends at 70% of the training, before the last step of the learning rate; this was fixed before the first run. The
test accuracy is that of the last epoch, where GraSP's tables have the best one. All trainings run concurrently; each
appends one line of JSON when it is finished and is not run again. With `--kept DIR` interrupted trainings resume.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.cifar import Lines, named, stage_files
from benchmarks.wrn import all_training_images
from pathgrow import data as datasets
from pathgrow import models
from pathgrow.checkpoint import MemoryStore
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs, sample_flops
from pathgrow.masks import Masks
from pathgrow.methods import create
from pathgrow.rng import derive
from pathgrow.runs.iso_flop import CostMeter, cost_logger
from pathgrow.sparse.attach import attach
from pathgrow.sparse.training_state import TrainingCheckpoint
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import recipe

OPTIONS = {
    "dense": {},
    "gts": {"start_fraction": 0.3, "stop_fraction": 0.7},
    "gmp": {"start_fraction": 0.2, "stop_fraction": 0.7},
    "rigl": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--results", type=Path, default=Path("results/cifar10_resnet32x2.jsonl"))
    parser.add_argument("--methods", nargs="+", choices=list(OPTIONS), default=["gts"])
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=160)
    parser.add_argument("--compile", default="auto")
    parser.add_argument("--kept", type=Path, default=None, help="directory for interrupted trainings")
    parser.add_argument("--commit", default=None, help="commit of the code, if this is not a git checkout")
    chosen = parser.parse_args()

    lines = Lines(chosen.results, chosen.commit)
    lines.path.parent.mkdir(parents=True, exist_ok=True)
    data = datasets.load("cifar10", chosen.data_root)
    trainer = Trainer(all_training_images(data), recipe("cifar-step"), EngineOptions(compile=chosen.compile))
    test = trainer.evaluate(data.test)
    num_steps = chosen.epochs * (len(trainer.data.train) // trainer.recipe.batch_size)
    example = torch.zeros(1, 3, 32, 32, device=trainer.plan.device)
    store = stage_files(chosen.kept) if chosen.kept is not None else MemoryStore()
    keys, jobs, costs, partials = [], [], [], []
    for seed in chosen.seeds:
        for name in chosen.methods:
            density = 1.0 if name == "dense" else chosen.density
            key = {"kind": name, "density": density, "epochs": chosen.epochs, "seed": seed}
            if lines.has(**key) or key in keys:
                continue
            model, optimizer = trainer.place(models.create("resnet32x2", data.classes, seed=seed))
            given = {} if name == "dense" else {"density": density, "num_steps": num_steps, **OPTIONS[name]}
            graph, method, scope = trace(model, example), create(name, **given), Masks.full(model)
            attached = attach(
                model, optimizer, method, example, scope=scope, seed=seed,
                on_mask_update=cost_logger(graph),
            )  # fmt: skip
            keys.append(key)
            costs.append(CostMeter(cost=method.cost, dense_macs=forward_macs(graph), batch_size=1, num=scope.num))
            partials.append(partial := TrainingCheckpoint(store, named("partial", **key)))
            jobs.append(Job(attached=attached, epochs=chosen.epochs, seed=derive(seed, "x2", name), progress=partial))

    def over(number: int) -> None:
        attached, cost = jobs[number].attached, costs[number]
        dense = num_steps * sample_flops("sparse", cost.dense_macs, cost.dense_macs)
        flops = cost.training_flops(attached.method_state, 0, num_steps) / dense
        lines.add(**keys[number], test=list(test(attached.model)), num_on=attached.masks.num_on, flops=flops)
        attached.detach()
        partials[number].delete()

    trainer.train(jobs, on_done=over)


if __name__ == "__main__":
    main()
