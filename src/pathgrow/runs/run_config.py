"""What every run of ours is made of: data, model, recipe, engine, seed. Strict when read, resolved in full."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from pathgrow import data as datasets
from pathgrow import models
from pathgrow.data.dataset import Dataset
from pathgrow.errors import UserError, unknown_name
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.trainer import EngineOptions, recipes
from pathgrow.trainer.process_group import check_shares
from pathgrow.trainer.recipes import Recipe

_WORTH_THREADS = 20_000_000
"""Multiply-adds of a batch above which a second thread pays; below, sharing the work takes longer than doing it."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The part of a config that says what is trained, on what and how; all values are JSON."""

    data: str = "digits"
    data_root: str | None = None
    fold: int = 0
    """Which samples are val and test."""
    model: str = "mlp"
    model_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    recipe_name: str = "digits"
    recipe: Recipe = dataclasses.field(default_factory=lambda: recipes.recipe("digits"))
    """The recipe of that name, with the changes that were asked for."""
    engine: EngineOptions = dataclasses.field(default_factory=EngineOptions)
    threads: int = 1
    """CPU threads of a process. They decide how sums are split and so the last bits: they belong to the config."""
    ranks: int = 1
    """Processes that share every batch; they belong to the config for the same reason."""
    seed: int = 0
    """Decides weights, masks and the order of samples; the splits of the data depend on `fold` alone."""

    def __post_init__(self) -> None:
        for name in ("fold", "seed", "threads", "ranks"):
            _want_whole(name, getattr(self, name), least=int(name in ("threads", "ranks")))
        if self.data not in datasets.names():
            raise unknown_name("data set", self.data, datasets.names())
        known = models.defaults(self.model)
        for name in self.model_options:
            if name not in known:
                raise unknown_name(f"option of {self.model}", name, known)
        self.engine.resolved()
        check_shares(self.recipe.batch_size, self.recipe.accumulate, self.ranks)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """A config resolved in full, with the defaults of data and model filled in; unknown keys are refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in given:
            if name not in known:
                raise unknown_name("config key", name, known)
        values = {name: _as_written(value, name) for name, value in given.items()}
        data, model = values.get("data", cls.data), values.get("model", cls.model)
        if data not in datasets.names():
            raise unknown_name("data set", str(data), datasets.names())
        values["recipe_name"] = values.get("recipe_name") or recipes.usual(data, str(model))
        values["recipe"] = _recipe(values["recipe_name"], values.get("recipe") or {})
        values["engine"] = _engine(values.get("engine") or {})
        values["model_options"] = _model_options(model, data, values)
        asked = values.pop("threads", None)
        config = cls(**cls._filled(values), **({} if asked is None else {"threads": asked}))
        macs = _tried(config)
        return config if asked is not None else dataclasses.replace(config, threads=_threads(config, macs))

    @classmethod
    def _filled(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The values, with those added that one kind of run needs."""
        return values

    def as_dict(self) -> dict[str, Any]:
        """The config as JSON values, from which `from_dict` makes one that computes the same."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        # Changes no result: a run that ran out of memory may go on with fewer networks at once.
        del values["engine"]["side_by_side"]
        return values

    def load_data(self) -> Dataset:
        """The data set; its splits depend on `fold` alone."""
        return datasets.load(self.data, self.data_root, 0, self.fold)

    def new_model(self, num_classes: int) -> nn.Module:
        """The network, with weights drawn from `seed`."""
        return models.create(self.model, num_classes, seed=self.seed, **self.model_options)

    @property
    def title(self) -> str:
        """What the run is about, as part of the name of its folder."""
        return f"{self.data}-{self.model}"

    @property
    def name(self) -> str:
        """The name of the run folder: a title, a hash of all values but the seed, and the seed."""
        values = {name: value for name, value in self.as_dict().items() if name != "seed"}
        short = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.title}-{short}-seed{self.seed}"


def _want_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} {value!r} was given, a whole number from {least} up is wanted: leave it out")


def _as_written(value: Any, name: str) -> Any:
    """The value as JSON would return it, so that a config that was written and read equals itself."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} {value} was given, finite numbers are wanted: leave it out, or give a finite one")
    if isinstance(value, tuple | list):
        return [_as_written(item, name) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _as_written(item, f"{name}.{key}") for key, item in value.items()}
    return value


def _recipe(name: Any, given: Any) -> Recipe:
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, Mapping):
        raise UserError(f"recipe {given!r} was given, a table of values is wanted: give for example {{'lr': 0.1}}")
    return recipes.recipe(str(name)).changed(given)


def _engine(given: Any) -> EngineOptions:
    if isinstance(given, EngineOptions):
        return given
    if not isinstance(given, Mapping):
        raise UserError(
            f"engine {given!r} was given, a table of values is wanted: give for example {{'device': 'cpu'}}"
        )
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
            f"model_options {given!r} was given, a table of values is wanted: give for example {{'width': 8}}"
        )
    root, fold = values.get("data_root"), values.get("fold", 0)
    if root is not None and not isinstance(root, str):
        raise UserError(f"data_root {root!r} was given, the name of a folder is wanted: give for example 'data'")
    _want_whole("fold", fold, least=0)
    channels, height, width = datasets.load(data, root, 0, fold).shape
    needed = {"inputs": channels * height * width, "in_channels": channels, "image_size": height}
    filled = {name: needed.get(name, default) for name, default in defaults.items()}
    return _as_written({**filled, **given}, "model_options")  # type: ignore[no-any-return]


def _tried(config: Setup) -> int:
    """Try the network on one sample; returns its multiply-adds."""
    dataset = config.load_data()
    model = config.new_model(dataset.classes).eval()
    sample = dataset.example_input()
    try:
        with torch.no_grad():
            model(sample)
    except (RuntimeError, AssertionError) as fault:  # models of timm assert the size of what they take
        options = ", ".join(f"{name}={value}" for name, value in config.model_options.items())
        _, height, width = dataset.shape
        wants_squares = height != width and config.model_options.get("image_size") == height
        raise UserError(
            f"{config.model} with {options} cannot take the {'x'.join(map(str, dataset.shape))} samples of "
            f"{config.data} ({str(fault).partition(chr(10))[0]}): "
            + (
                "it takes square images, so choose another model or cut them"
                if wants_squares
                else "leave those model options out that say how large a sample is"
            )
        ) from fault
    return forward_macs(trace(model, sample))


def _threads(config: Setup, macs: int) -> int:
    """One thread for small networks, else as many as this process has cores, up to four."""
    num_cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return 1 if macs * config.recipe.batch_size < _WORTH_THREADS else max(1, min(4, num_cores))
