"""Speed of the engine relative to a plain loop in the same process.

    python -m benchmarks.engine [--only NAME] [--profile]

The plain loop is eager PyTorch with data on the device and masks multiplied onto gradients and weights. Images are
random bytes; the augmentation is the real one.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from pathgrow import models
from pathgrow.data.dataset import Dataset, Split
from pathgrow.graph.scope import scope
from pathgrow.masks import Masks
from pathgrow.masks.sampling import uniform
from pathgrow.methods import create, fixed
from pathgrow.methods.method import Method
from pathgrow.rng import generator
from pathgrow.sparse.attach import Attached, attach
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe, recipe

DENSITY = 0.3


def random_data(num: int, size: int, classes: int = 10) -> Dataset:
    """Return a dataset of random images."""
    draw = generator(0, "benchmark")
    images = torch.randint(0, 256, (num, 3, size, size), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, classes, (num,), generator=draw)
    split = Split(images, labels, (125.0, 123.0, 114.0), (63.0, 62.0, 66.0))
    few = Split(images[:100], labels[:100], split.mean, split.std)
    return Dataset("random", classes, split, few, few)


def random_masks(model: nn.Module) -> Masks:
    """Return random masks with 30% of the weights."""
    candidates = scope(model)
    return uniform(candidates, round(DENSITY * candidates.num), generator(0, "masks"))


def attached_network(trainer: Trainer, name: str, seed: int, method: Method | None = None) -> Attached:
    """Return a network with a method, by default one that keeps random masks."""
    model, optimizer = trainer.place(models.create(name, trainer.data.classes, seed=seed))
    inside = scope(model)
    if method is None:
        method = fixed(Masks(dict(random_masks(model)), inside))
    return attach(model, optimizer, method, scope=inside, seed=seed)


def plain_loop(
    data: Dataset, name: str, plan: Recipe, device: torch.device, *, bf16: bool, **options: object
) -> Callable[[int], None]:
    """Return the plain loop, a function of the number of steps."""
    model = models.create(name, data.classes, seed=0, **options).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=plan.lr, momentum=plan.momentum, nesterov=True, weight_decay=plan.weight_decay
    )
    assert isinstance(data.train, Split)
    images, labels = data.train.images.to(device), data.train.labels.to(device)
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (data.train.mean, data.train.std))
    masks = {name: mask.to(device, torch.float32) for name, mask in random_masks(model).items()}
    weights = {name: parameter for name, parameter in model.named_parameters() if name in masks}
    size, pad = images.shape[-1], plan.augment.crop_padding

    def batch(rows: Tensor) -> Tensor:
        chosen = functional.pad(images[rows], (pad, pad, pad, pad))
        dy, dx = torch.randint(0, 2 * pad + 1, (2, len(rows)), device=device)
        ys = (torch.arange(size, device=device) + dy[:, None])[:, None, :, None]
        xs = (torch.arange(size, device=device) + dx[:, None])[:, None, None, :]
        at, channel = torch.arange(len(rows), device=device)[:, None, None, None], torch.arange(3, device=device)
        cropped = chosen[at, channel[None, :, None, None], ys, xs]
        turned = torch.rand(len(rows), device=device) < 0.5
        cropped = torch.where(turned[:, None, None, None], cropped.flip(3), cropped)
        return (cropped.float() - mean) / std

    def steps(num: int) -> None:
        model.train()
        for _ in range(num):
            rows = torch.randint(0, len(labels), (plan.batch_size,), device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss = functional.cross_entropy(model(batch(rows)), labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for key, weight in weights.items():
                assert weight.grad is not None
                weight.grad.mul_(masks[key])
            optimizer.step()
            with torch.no_grad():
                for key, weight in weights.items():
                    weight.mul_(masks[key])

    return steps


def images_per_second(work: Callable[[], int], device: torch.device, repeats: int = 3) -> float:
    """Return the median throughput over repetitions; `work` returns the number of images it trained on."""
    rates = []
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        num = work()
        _wait(device)
        rates.append(num / (time.perf_counter() - began))
    return statistics.median(rates)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def engine_rate(trainer: Trainer, networks: list[Attached], epochs: int = 1) -> float:
    """Return the total throughput of all networks, in images/s."""

    def work() -> int:
        return sum(trainer.train([Job(attached=network, epochs=epochs, seed=1) for network in networks]))

    work()  # captures the CUDA graphs, and compiles if requested
    return images_per_second(work, trainer.plan.device)


def loop_rate(steps: Callable[[int], None], num: int, batch_size: int, device: torch.device) -> float:
    steps(max(3, num // 10))

    def work() -> int:
        steps(num)
        return num * batch_size

    return images_per_second(work, device)


class Book:
    """Results, printed and written to a file as they come in."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"
        self.values: dict[str, object] = {
            "machine": device,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        }

    def write(self, name: str, value: object) -> None:
        self.values[name] = value
        shown = f"{value:,.4g}" if isinstance(value, float) and value < 1000 else value
        shown = f"{value:,.0f}" if isinstance(value, float) and value >= 1000 else shown
        print(f"{name:<58}{shown}", flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.values, indent=1) + "\n")


def small_images(book: Book, *, profile: bool, num: int = 45_000) -> None:
    """ResNet-32 at batch 128, masked, with crops and flips."""
    device, plan = torch.device("cuda"), recipe("cifar")
    data = random_data(num, 32)
    eager = loop_rate(plain_loop(data, "resnet32", plan, device, bf16=False), 100, plan.batch_size, device)
    book.write("ResNet-32 plain eager loop fp32, images/s", eager)
    lower = loop_rate(plain_loop(data, "resnet32", plan, device, bf16=True), 100, plan.batch_size, device)
    book.write("ResNet-32 plain eager loop bf16, images/s", lower)
    for compiled in ("off", "on"):
        trainer = Trainer(data, plan, EngineOptions(device="cuda", compile=compiled))
        began = time.perf_counter()
        network = attached_network(trainer, "resnet32", 0)
        trainer.train([Job(attached=network, epochs=1, seed=0)])
        _wait(device)
        book.write(f"ResNet-32 engine, compile {compiled}, first epoch, s", time.perf_counter() - began)
        alone = engine_rate(trainer, [network])
        book.write(f"ResNet-32 engine, compile {compiled}, images/s", alone)
        book.write(f"ResNet-32 engine, compile {compiled} / eager fp32 loop", alone / eager)
        unmasked = attached_network(trainer, "resnet32", 0)
        unmasked.mask_gradients_ = unmasked.mask_weights_ = lambda: None  # type: ignore[method-assign]
        bare = engine_rate(trainer, [unmasked])
        again = engine_rate(trainer, [network])
        book.write(f"masks on / masks off, compile {compiled}", (alone + again) / 2 / bare)
        for size in (2, 3, 4, 8):
            networks = [network, *(attached_network(trainer, "resnet32", seed) for seed in range(1, size))]
            total = engine_rate(trainer, networks)
            book.write(f"{size} concurrent networks, compile {compiled}, images/s", total)
            book.write(f"{size} concurrent networks, compile {compiled} / eager fp32 loop", total / eager)
        if profile:
            profiled(trainer, network, compiled, book)


_KERNELS = ("wgrad", "dgrad", "fprop", "convolve", "triton", "multi_tensor")


def profiled(trainer: Trainer, network: Attached, label: str, book: Book) -> None:
    """Write which kernels the time of a step is spent in."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    plan = replace(trainer.recipe, epochs=1)
    few = Trainer(random_data(20 * plan.batch_size, 32), plan, EngineOptions(device="cuda", compile="off"))
    few.train([Job(attached=network, epochs=1, seed=0)])
    network.engine_cache.clear()
    trainer.train([Job(attached=network, epochs=1, seed=0)])
    with recording(activities=[ProfilerActivity.CUDA]) as seen:
        trainer.train([Job(attached=network, epochs=1, seed=0)])
    shares: dict[str, float] = {}
    for event in seen.key_averages():
        name = event.key
        kind = next((kind for kind in _KERNELS if kind in name), "other")
        shares[kind] = shares.get(kind, 0.0) + event.self_device_time_total
    whole = sum(shares.values())
    for kind, spent in sorted(shares.items(), key=lambda item: -item[1]):
        book.write(f"profile, compile {label}: {kind}, fraction of kernel time", spent / whole)


def rewiring(
    book: Book, *, device: str = "cuda", name: str = "resnet32", num: int = 30_000, size: int = 8, interval: int = 100
) -> None:
    """Concurrent networks that rewire every 100 steps, relative to the same networks with fixed masks.

    Not compiled. All train in turn, twice, so that a machine that becomes slower affects all alike.
    """
    trainer = Trainer(random_data(num, 32), recipe("cifar"), EngineOptions(device=device, compile="off"))
    methods: dict[str, Method | None] = {"fixed masks": None}
    for rewires in ("rigl", "set"):
        methods[rewires] = create(rewires, density=DENSITY, update_interval=interval, num_steps=10**6)
    networks = {
        label: [attached_network(trainer, name, seed, method) for seed in range(size)]
        for label, method in methods.items()
    }
    for label, several in networks.items():
        began = time.perf_counter()
        trainer.train([Job(attached=network, epochs=1, seed=1) for network in several])
        _wait(trainer.plan.device)
        book.write(f"{size} concurrent networks, {label}, first epoch, s", time.perf_counter() - began)
    for num_together in (size, 1):
        rates: dict[str, list[float]] = {label: [] for label in networks}
        for _ in range(2):
            for label, several in networks.items():
                jobs = [Job(attached=network, epochs=2, seed=1) for network in several[:num_together]]
                work = functools.partial(_num_trained, trainer, jobs)
                rates[label].append(images_per_second(work, trainer.plan.device, repeats=1))
        for label, found in rates.items():
            book.write(f"{num_together} concurrent, {label}, images/s", statistics.mean(found))
            if label != "fixed masks":
                ratio = statistics.mean(found) / statistics.mean(rates["fixed masks"])
                book.write(f"{num_together} concurrent, {label} every {interval} steps / fixed masks", ratio)


def _num_trained(trainer: Trainer, jobs: list[Job]) -> int:
    return sum(trainer.train(jobs))


def middle_images(book: Book, num: int = 20_000) -> None:
    """ResNet-18 on 64-pixel images at batch 128."""
    device, plan = torch.device("cuda"), replace(recipe("tiny-resnet"), batch_size=128)
    data = random_data(num, 64, classes=200)
    eager = loop_rate(plain_loop(data, "resnet18", plan, device, bf16=True), 60, plan.batch_size, device)
    book.write("ResNet-18 at 64 px, plain eager loop bf16, images/s", eager)
    for compiled in ("off", "on"):
        trainer = Trainer(data, plan, EngineOptions(device="cuda", compile=compiled))
        rate = engine_rate(trainer, [attached_network(trainer, "resnet18", 0)])
        book.write(f"ResNet-18 at 64 px, engine, compile {compiled}, images/s", rate)
        book.write(f"ResNet-18 at 64 px, engine, compile {compiled} / eager bf16 loop", rate / eager)


def growth(book: Book) -> None:
    """Compare a growth step of ResNet-50 by 25% with one epoch of ImageNet at the engine's speed."""
    device = torch.device("cuda")
    plan = replace(recipe("imagenet"), batch_size=256)
    data = random_data(256 * 12, 224, classes=1000)
    trainer = Trainer(data, plan, EngineOptions(device="cuda", compile="off"))
    model, optimizer = trainer.place(models.create("resnet50", 1000, seed=0))
    method = create("gcg", start_density=0.1)
    grown = attach(model, optimizer, method, torch.zeros(1, 3, 224, 224, device=device))
    rate = engine_rate(trainer, [grown])
    epoch = 1_281_167 / rate
    book.write("ResNet-50 at 224 px, batch 256, engine, images/s", rate)
    seconds = []
    for _ in range(3):
        _wait(device)
        began = time.perf_counter()
        grown.grow_(round(0.25 * grown.masks.num_on))
        _wait(device)
        seconds.append(time.perf_counter() - began)
    book.write("PathGrow growth step of ResNet-50, s (three in a row)", [round(value, 3) for value in seconds])
    book.write("growth step / epoch of 1,281,167 images", statistics.median(seconds) / epoch)


def on_cpu(book: Book, num: int = 128 * 6) -> None:
    """ResNet-20 at batch 128, alternating with the plain loop, because timings on shared machines are noisy."""
    device, plan = torch.device("cpu"), recipe("cifar")
    data = random_data(num, 32)
    steps = plain_loop(data, "resnet20", plan, device, bf16=False)
    trainer = Trainer(data, plan, EngineOptions(device="cpu"))
    network = attached_network(trainer, "resnet20", 0)
    ratios, rates = [], []
    for _ in range(4):
        eager = loop_rate(steps, 6, plan.batch_size, device)
        rates.append(engine_rate(trainer, [network]))
        ratios.append(rates[-1] / eager)
    book.write("ResNet-20 on the CPU, engine, images/s", statistics.median(rates))
    book.write("ResNet-20 on the CPU, engine / plain eager fp32 loop", statistics.median(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["small", "middle", "growth", "rewiring", "cpu"], default=None)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the results")
    chosen = parser.parse_args()
    book = Book(chosen.out)
    for name, value in list(book.values.items()):
        book.write(name, value)
    gpu = torch.cuda.is_available()
    if chosen.only == "cpu" or (chosen.only is None and not gpu):
        on_cpu(book)
    if gpu and chosen.only in (None, "small"):
        small_images(book, profile=chosen.profile)
    if gpu and chosen.only in (None, "middle"):
        middle_images(book)
    if gpu and chosen.only in (None, "growth"):
        growth(book)
    if gpu and chosen.only in (None, "rewiring"):
        rewiring(book)


if __name__ == "__main__":
    main()
