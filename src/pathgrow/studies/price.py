"""What a cell costs before it runs: its epochs, and their time by measured training speeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pathgrow import models
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.methods.method import GrowEachRound
from pathgrow.methods.schedules import PruneEachRound
from pathgrow.report.formats import plural
from pathgrow.runs.config import DiscoverConfig, RunConfig, TrainConfig
from pathgrow.runs.discovery import expected_epochs
from pathgrow.runs.options import DiscoverOptions
from pathgrow.studies.definition import Cell

_SAMPLES = {
    "digits": 897, "cifar10": 45_000, "cifar100": 45_000, "tiny-imagenet": 90_000, "imagenet": 1_229_920,
}  # fmt: skip
_UNKNOWN_SAMPLES = 45_000
_CHARACTERS = 1_003_854
"""Of the training text; samples are windows, as long as the context of the model."""
_SIZES = {"digits": 8, "cifar10": 32, "cifar100": 32, "tiny-imagenet": 64, "imagenet": 224, "text": 256}
_MACS = {
    ("resnet20", 32): 40.8e6, ("resnet32", 32): 69.1e6, ("resnet56", 32): 126e6, ("resnet18", 64): 2222e6,
    ("vit", 64): 189e6, ("pit", 64): 271e6, ("resnet50", 224): 4087e6, ("gpt", 256): 3026e6, ("mlp", 8): 8832,
}  # fmt: skip
"""Multiply-adds of one sample, since tracing a transformer takes seconds, and the first trace of all a second; other
models are traced."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A measured training speed."""

    model: str
    macs: float
    samples_per_second: float
    source: str


MEASURED_SPEEDS = {
    "GPU": (
        Speed(
            model="ResNet-32", macs=69.1e6, samples_per_second=50_126,
            source="ResNet-32 engine, compile on, images/s",
        ),
        Speed(
            model="ResNet-18 at 64 px", macs=2222e6, samples_per_second=15_487,
            source="ResNet-18 at 64 px, engine, compile off, images/s",
        ),
        Speed(
            model="ResNet-50 at 224 px", macs=4087e6, samples_per_second=4_724,
            source="ResNet-50 at 224 px, batch 256, engine, images/s",
        ),
    ),
    "CPU": (
        Speed(model="MLP on digits", macs=8.8e3, samples_per_second=41_653, source="MLP on digits, CPU, images/s"),
        Speed(
            model="ResNet-20", macs=40.8e6, samples_per_second=630, source="ResNet-20 on the CPU, engine, images/s"
        ),
    ),
}  # fmt: skip
"""Of the files benchmarks/results/engine*.json and study_runner.json: one H200, and one or two CPU cores."""
_ADAPTIVE_EPOCHS = 10
"""Mean length of an adaptive growth round: 10.8 and 9.7 at two densities of growth-timing on digits."""
_START_SECONDS = {"GPU": 5.0, "CPU": 0.0}
"""Loading data, tracing, compiling and writing the report of one run; the speed of the MLP includes it."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Estimated time on one device."""

    device: str
    """ "GPU", or "CPU" for cells on digits."""
    seconds: float
    based_on: str
    """The model whose measured speed it is derived from."""


def price_of(cell: Cell) -> Price:
    """Estimate the time of a cell; sparse training is as fast as dense training."""
    config = cell.config()
    device = "CPU" if config.data == "digits" else "GPU"
    macs = _macs(config.model, config.data, json.dumps(dict(config.model_options), sort_keys=True))
    near = min(MEASURED_SPEEDS[device], key=lambda speed: abs(math.log(speed.macs / macs)))
    # Below the size of the measured model the time of a step is overhead, above it is arithmetic.
    rate = near.samples_per_second * min(1.0, near.macs / macs)
    samples = num_epochs(config) * _samples(config)
    return Price(device=device, seconds=_START_SECONDS[device] + samples / rate, based_on=near.model)


def total_price(cells: Sequence[Cell]) -> str:
    """What all cells together cost, in words; cells on digits are for CPUs, all others for GPUs."""
    prices = [price_of(cell) for cell in cells]
    parts = []
    for device in MEASURED_SPEEDS:
        own = [price for price in prices if price.device == device]
        minutes = sum(price.seconds for price in own) / 60
        models = ", ".join(dict.fromkeys(price.based_on for price in own))
        parts += [f"{minutes:,.{0 if minutes >= 2 else 1}f} {device} minutes, by the speed of {models}"] if own else []
    return f"{plural(len(cells), 'cell')}, about {'; '.join(parts)}."


def num_epochs(config: RunConfig) -> float:
    """Estimate the epochs of a run in all its phases; a matched run is taken to be as long as an unmatched one."""
    if isinstance(config, DiscoverConfig):
        return expected_epochs(config, Path())
    assert isinstance(config, TrainConfig)
    schedule = config.make_method(num_steps=1).schedule
    if isinstance(schedule, PruneEachRound):
        return config.epochs * (1 + math.ceil(math.log(schedule.density) / math.log1p(-schedule.prune_fraction)))
    if not isinstance(schedule, GrowEachRound) or schedule.target_density is None:
        return config.epochs
    options, start = (
        DiscoverOptions(budget=config.epochs, rough=config.rough),
        config.method_options.get("start_density") or 0.02,
    )
    num_rounds = math.ceil(max(0.0, math.log(schedule.target_density / start)) / math.log1p(schedule.gamma))
    return config.epochs + options.num_seed_epochs + num_rounds * (options.num_rough_epochs or _ADAPTIVE_EPOCHS)


def _samples(config: RunConfig) -> float:
    if config.data == "text":
        return _CHARACTERS / float(config.model_options.get("context", _SIZES["text"]))
    return _SAMPLES.get(config.data, _UNKNOWN_SAMPLES)


@lru_cache
def _macs(name: str, data: str, options: str) -> float:
    """Multiply-adds of one sample; `options` are in JSON."""
    size, channels, given = _SIZES.get(data, 224), 1 if data == "digits" else 3, json.loads(options)
    if not given and (name, size) in _MACS:
        return _MACS[name, size]
    sizes = {"inputs": channels * size**2, "in_channels": channels, "image_size": size}
    own = {key: value for key, value in sizes.items() if key in models.defaults(name)}
    model = models.create(name, 10, seed=0, **{**own, **given}).eval()
    return float(forward_macs(trace(model, model.example_input())))
