"""The config of an experiment: every value spelled out, strict when read, written before the first step."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pathgrow import data as datasets
from pathgrow import methods, models, recipes
from pathgrow.density import rules
from pathgrow.discovery import Options
from pathgrow.engine import EngineOptions
from pathgrow.engine.distributed import check_shares
from pathgrow.errors import UserError, unknown_name
from pathgrow.flops import forward_macs
from pathgrow.recipes import Recipe
from pathgrow.wiring import read

_FOR_DISCOVERY = (
    "budget",
    "delta",
    "reference",
    "rule",
    "method",
    "gamma",
    "start_density",
    "target_density",
    "seed_epochs",
    "rough",
    "final",
    "probe_fraction",
    "head_start",
    "answer",
    "observe",
)
"""The options of `discover` that a config may set; their meaning is documented there."""
_FLOATS = {"delta", "reference", "gamma", "start_density", "target_density", "probe_fraction"}
"""Numbers that are the same whether written 1 or 1.0; `rough` is not among them."""
_WORTH_THREADS = 20_000_000
"""Multiply-adds of a batch from which a second thread pays; below it, handing out work takes longer than doing it."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A discovery with our own data, models and training. All values are JSON, and together they decide every bit.

    >>> config = Experiment.from_dict({"budget": 20, "model_options": {"widths": [32]}})
    >>> config.model_options["widths"], config.model_options["inputs"], config.recipe.momentum
    ([32], 64, 0.9)
    """

    data: str = "digits"
    data_root: str | None = None
    fold: int = 0
    """Which samples are val and test."""
    model: str = "mlp"
    model_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    recipe_name: str = "digits"
    recipe: Recipe = dataclasses.field(default_factory=lambda: recipes.recipe("digits"))
    """What the name stands for, with what was changed of it."""
    engine: EngineOptions = dataclasses.field(default_factory=EngineOptions)
    threads: int = 1
    """CPU threads of a process: they cut sums into parts, so they decide the last bits and belong to the config."""
    ranks: int = 1
    """Processes that share every batch; so do they."""
    seed: int = 0
    """Of weights, masks and the order of samples; the splits of the data depend on `fold` alone."""

    budget: int = 80
    """From the recipe, unless another is asked for."""
    delta: float = 0.01
    reference: float | Literal["dense"] | None = None
    rule: str = "probe"
    method: str = "gcg"
    gamma: float = 0.25
    start_density: float | None = None
    target_density: float | None = None
    seed_epochs: int | None = None
    rough: int | float | Literal["adaptive"] = Options.rough
    final: str = "fresh"
    probe_fraction: float = Options.probe_fraction
    head_start: bool = True
    answer: str = "delta"
    observe: str = "annealed"

    def __post_init__(self) -> None:
        for name in ("rule", "method", "final", "answer", "observe"):
            if not isinstance(getattr(self, name), str):
                raise UserError(
                    f"{name} {getattr(self, name)!r} was got, a name is wanted: leave it out for the default"
                )
        for name in ("fold", "seed", "threads", "ranks"):
            value, least = getattr(self, name), int(name in ("threads", "ranks"))
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} {value!r} was got, a whole number from {least} up is wanted: leave it out")
        if self.data not in datasets.names():
            raise unknown_name("data set", self.data, datasets.names())
        if self.rule not in rules.names():
            raise unknown_name("rule", self.rule, rules.names())
        if ":" not in self.method and self.method not in methods.names():
            raise unknown_name("method", self.method, methods.names())
        known = models.defaults(self.model)
        for name in self.model_options:
            if name not in known:
                raise unknown_name(f"option of {self.model}", name, known)
        if isinstance(self.reference, float) and not 0 <= self.reference <= 1:
            example = self.reference / 100 if 1 < self.reference <= 100 else 0.93
            raise UserError(
                f"reference {self.reference:g} was got, an accuracy from 0 to 1 is wanted: give for example {example:g}"
            )
        self.engine.resolved()
        check_shares(self.recipe.batch_size, self.recipe.accumulate, self.ranks)
        options = Options(**self.discovery())
        options.the_method()
        options.the_rule()

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Experiment:
        """A config resolved in full, with the defaults of data and model filled in; unknown keys are refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in given:
            if name not in known:
                raise unknown_name("config key", name, known)
        values = {name: _as_written(value) for name, value in given.items()}
        data, model = values.get("data", cls.data), values.get("model", cls.model)
        if data not in datasets.names():
            raise unknown_name("data set", str(data), datasets.names())
        values["recipe_name"] = values.get("recipe_name") or recipes.usual(data, str(model))
        values["recipe"] = _recipe(values["recipe_name"], values.get("recipe") or {})
        values["engine"] = _engine(values.get("engine") or {})
        values.setdefault("budget", values["recipe"].epochs)
        values["model_options"] = _model_options(model, data, values)
        for name in _FLOATS & values.keys():
            if isinstance(values[name], int) and not isinstance(values[name], bool):
                values[name] = float(values[name])
        asked = values.pop("threads", None)
        config = cls(**values, **({} if asked is None else {"threads": asked}))
        macs = _tried(config)
        return config if asked is not None else dataclasses.replace(config, threads=_threads(config, macs))

    def as_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` gives an equal config back."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    def discovery(self) -> dict[str, Any]:
        """The options that go to `discover` as they are."""
        return {name: getattr(self, name) for name in _FOR_DISCOVERY}

    @property
    def name(self) -> str:
        """Of the run folder: what it is, a hash of all values but the seed, the seed."""
        values = {name: value for name, value in self.as_dict().items() if name != "seed"}
        short = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.data}-{self.model}-{short}-seed{self.seed}"


def _as_written(value: Any) -> Any:
    """Values as JSON gives them back, so that a config equals itself after reading."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{value} was got in a config, finite numbers are wanted: leave the value out")
    if isinstance(value, tuple | list):
        return [_as_written(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _as_written(item) for key, item in value.items()}
    return value


def _recipe(name: Any, given: Any) -> Recipe:
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, Mapping):
        raise UserError(f"recipe {given!r} was got, a table of values is wanted: give for example {{'lr': 0.1}}")
    return recipes.recipe(str(name)).changed(given)


def _engine(given: Any) -> EngineOptions:
    if isinstance(given, EngineOptions):
        return given
    if not isinstance(given, Mapping):
        raise UserError(f"engine {given!r} was got, a table of values is wanted: give for example {{'device': 'cpu'}}")
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    for name in given:
        if name not in known:
            raise unknown_name("engine key", name, known)
    return EngineOptions(**given)


def _model_options(model: Any, data: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the model: its defaults, then what the data need, then what was asked for."""
    defaults = models.defaults(model) if isinstance(model, str) else None
    if defaults is None:
        raise unknown_name("model", str(model), models.names())
    given = values.get("model_options") or {}
    if not isinstance(given, Mapping):
        raise UserError(
            f"model_options {given!r} was got, a table of values is wanted: give for example {{'width': 8}}"
        )
    channels, height, width = datasets.load(data, values.get("data_root"), 0, values.get("fold", 0)).shape
    needed = {"inputs": channels * height * width, "in_channels": channels, "image_size": height}
    filled = {name: needed.get(name, default) for name, default in defaults.items()}
    return _as_written({**filled, **given})  # type: ignore[no-any-return]


def _tried(config: Experiment) -> int:
    """The multiply-adds of one sample, and with them the proof that the network takes one."""
    dataset = datasets.load(config.data, config.data_root, 0, config.fold)
    model = models.create(config.model, dataset.classes, seed=0, **config.model_options).eval()
    sample = dataset.example_input()
    try:
        with torch.no_grad():
            model(sample)
    except RuntimeError as fault:
        options = ", ".join(f"{name}={value}" for name, value in config.model_options.items())
        shape = "x".join(map(str, dataset.shape))
        raise UserError(
            f"{config.model} with {options} cannot take the {shape} samples of {config.data} "
            f"({str(fault).partition(chr(10))[0]}): leave those model options out that say how large a sample is"
        ) from fault
    return forward_macs(read(model, sample))


def _threads(config: Experiment, macs: int) -> int:
    """One for small networks; else as many as there are cores for this process, up to four."""
    num_cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return 1 if macs * config.recipe.batch_size < _WORTH_THREADS else max(1, min(4, num_cores))
