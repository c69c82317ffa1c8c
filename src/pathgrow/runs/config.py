"""Configs of runs.

Every default, range, help text and command-line flag is declared once, on its field. Building a config loads no data
and runs no model: `RunConfig.resolved` does, at the start of a run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import pathgrow  # for its data, methods and models, which import torch on first use
from pathgrow.config import MAX_EPOCHS, check, from_json, option, override, to_json
from pathgrow.distributed.cpus import available_cpus
from pathgrow.errors import UserError, require, short, unknown_name
from pathgrow.registry import check_option_names, require_imported
from pathgrow.runs.named_method import DENSITY_OPTIONS, NUM_STEPS, NamedMethod
from pathgrow.runs.search_options import SEARCH_PRESETS, SearchOptions, rough_option, with_relative_delta
from pathgrow.trainer import EngineOptions, recipes
from pathgrow.trainer.recipes import Recipe, check_batch_split

if TYPE_CHECKING:  # flags are generated from these configs, and `--help` should not wait for torch
    from torch import nn

    from pathgrow.data.dataset import Dataset
    from pathgrow.methods.method import Method

Match = Literal["none", "parameters", "prunable", "flops"]
EVERYTHING = "all"
"""The scope of every convolutional and linear weight."""

_THREADING_MACS = 20_000_000
"""Multiply-adds per batch above which a second CPU thread pays off."""
_MACS: dict[tuple[Any, ...], int] = {}  # of models that this process has run on a sample


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What is trained, on what, and how. All values are JSON, and together they determine every bit of the result.

    Build one with `from_dict`, which fills in the recipe. `recipe`, `engine`, `threads` and `ranks` influence rounding
    at least, so all of them belong to the config.
    """

    data: str = option("digits", "Dataset, see `pathgrow data`.", metavar="NAME")
    data_root: str | None = option(
        None, "Directory of downloaded datasets (default: $PATHGROW_DATA, or ./data).", metavar="DIR"
    )
    fold: int = option(0, "Cross-validation fold for the val/test split.", at_least=0, limit=100, metavar="N")
    model: str = option("mlp", "Model, see `pathgrow models`.", metavar="NAME")
    model_options: Mapping[str, Any] = option(
        factory=dict,
        help="Model option such as width=8 or widths=8,8; repeatable.",
        flags=("--model-option",),
        metavar="NAME=VALUE",
    )
    recipe_name: str = option(
        help="Training recipe, see `pathgrow recipes` (default: by dataset and model).",
        flags=("--recipe",),
        metavar="NAME",
    )
    recipe: Recipe = option(flag_fields=("lr", "batch_size", "weight_decay", "density_scaling"))
    """The recipe of that name with the requested changes."""
    engine: EngineOptions = option(factory=EngineOptions)
    threads: int | None = option(
        None, "CPU threads per process (default: by model size).", at_least=1, limit=256, metavar="N"
    )
    ranks: int = option(1, at_least=1, limit=2**16, is_flag=False)
    """World size: processes that split every batch."""
    seed: int = option(
        0, "Random seed for initialization, masks and data order.", at_least=0, limit=2**63 - 1, metavar="N"
    )
    mode: Literal["max", "min"] = option("max", is_flag=False)
    """Whether a higher score is better; the dataset decides it: accuracies, or losses of a text."""

    def __post_init__(self) -> None:
        check(self)
        if self.data not in pathgrow.data.names():
            raise unknown_name("dataset", self.data, pathgrow.data.names())
        require(self.mode == (mode := pathgrow.data.mode(self.data)), "mode", self.mode, f"{mode!r} for {self.data}")
        check_option_names(f"model {self.model!r}", self.model_options, pathgrow.models.defaults(self.model))
        check_batch_split(self.recipe.batch_size, self.recipe.accumulate, self.ranks)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from JSON values; what is missing gets its default, unknown keys are refused."""
        require_imported("method", values.get("method"))
        data, model = values.get("data", cls.data), values.get("model", cls.model)
        try:
            name = values.get("recipe_name") or recipes.default_name(_name(data), _name(model))
            recipe = recipes.recipe(_name(name)).override(values.get("recipe") or {})
            filled = {"mode": pathgrow.data.mode(_name(data)), **values, "recipe_name": name, "recipe": recipe}
            return from_json(cls, cls._with_defaults(filled, recipe))
        except UserError:
            raise
        except (RecursionError, ValueError) as error:
            if isinstance(error, ValueError) and "integer string conversion" not in str(error):
                raise
            raise UserError("a config must not be nested deeply or hold integers of thousands of digits") from error

    @classmethod
    def _with_defaults(cls, values: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
        """Fill in defaults that depend on other values."""
        return values

    def resolved(self, stored: Mapping[str, Any] | None = None) -> Self:
        """Fill in what depends on the data: the input sizes of the model, and the number of threads.

        Loads the dataset and runs the model on one sample; a model that cannot take the samples is a `UserError`.
        `stored` is the config of the run to be resumed, which keeps the number of threads it started with.
        """
        dataset = self.load_data()
        names = ("context",) if len(dataset.shape) == 1 else ("in_channels", "image_size")
        needed = {"inputs": math.prod(dataset.shape), **dict(zip(names, dataset.shape, strict=False))}
        defaults = {name: needed.get(name, default) for name, default in pathgrow.models.defaults(self.model).items()}
        config = override(self, {"model_options": {**defaults, **self.model_options}})
        macs = config._macs(dataset)
        num_needed = 1 if macs * self.recipe.batch_size < _THREADING_MACS else min(4, available_cpus())
        threads = self.threads or (stored or {}).get("threads") or num_needed
        return dataclasses.replace(config, threads=threads)

    def _macs(self, dataset: Dataset) -> int:
        """Multiply-adds of a forward pass of one sample; a worker of a study asks for the same ones in every cell."""
        key = (self.data, dataset.shape, dataset.classes, self.model, json.dumps(self.model_options, sort_keys=True))
        if key in _MACS:
            return _MACS[key]
        import torch

        from pathgrow.graph import trace
        from pathgrow.graph.flops import forward_macs

        model, sample = self.new_model(dataset.classes).eval(), dataset.example_input()
        try:
            with torch.no_grad():
                model(sample)
        except (RuntimeError, AssertionError) as error:  # timm models assert the size of their input
            options = ", ".join(f"{name}={value}" for name, value in self.model_options.items())
            advice = "omit the model options that set the input size"
            if ("context" in self.model_options) != (len(dataset.shape) == 1):
                advice = "only model gpt reads text, and only text is read by it"
            elif len(set(dataset.shape[1:])) > 1 and self.model_options.get("image_size") == dataset.shape[1]:
                advice = "it takes square images; crop them or choose another model"
            shape, reason = "x".join(map(str, dataset.shape)), str(error).partition("\n")[0]
            raise UserError(
                f"{self.model} with {options} cannot process the {shape} samples of {self.data} ({reason}): {advice}"
            ) from error
        return _MACS.setdefault(key, forward_macs(trace(model, sample)))

    def as_dict(self) -> dict[str, Any]:
        """The config as JSON values, from which `from_dict` builds an equal one."""
        values: dict[str, Any] = to_json(self)
        # Does not affect results: a run that ran out of memory may resume with fewer concurrent networks.
        del values["engine"]["max_concurrent"]
        if self.mode == "max":
            del values["mode"]  # keeps the hashes of runs from before there were losses
        return values

    def load_data(self) -> Dataset:
        """Load the dataset; its splits depend on `fold` only, and windows of a text on the `context` of the model."""
        return pathgrow.data.load(self.data, self.data_root, 0, self.fold, self.model_options.get("context"))

    def new_model(self, num_classes: int) -> nn.Module:
        """Create the model, initialized from `seed`."""
        return pathgrow.models.create(self.model, num_classes, seed=self.seed, **self.model_options)

    @property
    def title(self) -> str:
        """First part of the name of the run directory."""
        return f"{self.data}-{self.model}"

    @property
    def name(self) -> str:
        """Default name of the run directory: title, hash of all values but the seed, seed."""
        values = {name: value for name, value in self.as_dict().items() if name != "seed"}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.title}-{digest}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """Config of `pathgrow train`: one method, one density.

    >>> config = TrainConfig.from_dict({"method": "gcg", "density": 0.2, "epochs": 8})
    >>> config.method_options, config.recipe.momentum
    ({'gamma': 0.25, 'start_density': None}, 0.9)
    """

    method: str = option(
        help="Sparse-training method, see `pathgrow methods`, or package.module:function.", metavar="NAME"
    )
    density: float | None = option(
        None,
        "Fraction of the prunable weights that stay nonzero (default: the method's).",
        above=0,
        at_most=1,
        metavar="D",
        example="0.1",
    )
    """Density at the end of training; None for methods that have no such option."""
    method_options: Mapping[str, Any] = option(
        factory=dict,
        help="Method option such as update_interval=200 or allocation=erk; repeatable.",
        flags=("--method-option",),
        metavar="NAME=VALUE",
    )
    """All options of the method except its density and the length of the training."""
    scope: Literal["auto", "default", "resnet", "vit", "all"] = option(
        "auto", "Prunable weights: a preset, by default the one for the model's family, or all conv and linear weights."
    )
    epochs: int = option(
        help="Epochs of a full dense training (default: the recipe's). Iterative pruning trains as many per level.",
        flags=("--epochs", "--budget"),
        at_least=1,
        limit=MAX_EPOCHS,
        metavar="EPOCHS",
        example="80",
    )
    final: Literal["fresh", "grown"] = option(
        "fresh",
        "Growth methods: train the final mask from a fresh initialization for all epochs, or from the grown weights "
        "for those that are left.",
    )
    rough: int | float | Literal["adaptive"] = rough_option()
    match: Match = option(
        "none",
        "Choose the number of epochs to match a budget: epochs x parameters, epochs x prunable weights, or FLOPs.",
    )
    match_budget: float | None = option(
        None, "Compute budget in the unit of --match (default: that of the dense baseline).", above=0, metavar="B"
    )
    match_run: str | None = option(None, "Match the budget of this run directory.", metavar="DIR")
    match_like: str | None = option(None, is_flag=False)
    """Hash of the config of that run without its seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_imported("method", self.method)
        if self.match == "none" and (self.match_budget is not None or self.match_run is not None):
            raise UserError("a budget to match requires --match flops or --match parameters")
        if self.density is not None and self.named_method.density_option is None:
            raise UserError(f"method {self.method!r} takes no density; see `pathgrow methods` for those that do")
        if self.density is None and self.named_method.density_option == "target_density":
            raise UserError(f"method {self.method!r} requires --density; use `pathgrow discover` to search for one")
        if self.rough != TrainConfig.rough and self.named_method.density_option != "target_density":
            raise UserError(f"rough has no effect on method {self.method!r}, which does not grow between trainings")
        if self.rough == "adaptive" and self.match != "none":
            raise UserError("rough must be a number if a budget is matched, since its epochs are counted in advance")
        if self.final == "grown" and self.named_method.density_option != "target_density":
            raise UserError(f"final must be 'fresh' for method {self.method!r}, which does not grow, got 'grown'")
        self.make_method(num_steps=1)

    @classmethod
    def _with_defaults(cls, values: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
        method, given = values.get("method"), values.get("method_options") or {}
        if not isinstance(method, str):
            raise UserError("a method is required: pass --method NAME, see `pathgrow methods`")
        known = pathgrow.methods.defaults(method)
        if isinstance(given, Mapping):
            if own := next((name for name in DENSITY_OPTIONS if name in given), None):
                raise UserError(f"{own} is not a method option here; use --density {short(given[own])}")
            options = {
                name: default
                for name, default in known.items()
                if name not in (*DENSITY_OPTIONS, NUM_STEPS) and default is not inspect.Parameter.empty
            }
            values["method_options"] = {**options, **given}
        if isinstance(known.get("density"), int | float):
            values.setdefault("density", known["density"])
        return {"epochs": recipe.epochs, **values}

    def resolved(self, stored: Mapping[str, Any] | None = None) -> Self:
        """Fill in what depends on the data, and the budget of the run to match."""
        config = super().resolved(stored)
        if self.match_run is None:
            return config
        from pathgrow.report.loading import load_finished
        from pathgrow.runs.iso_flop import matched_budget

        run = load_finished(self.match_run)
        budget = matched_budget(run, self.match, config)
        if self.match_budget not in (None, budget):  # a resolved config holds both, and they agree
            raise UserError(
                f"match_budget is {self.match_budget:g}, but {self.match_run} spent {budget:.6g}: "
                "use --match-budget or --match-run, not both"
            )
        return dataclasses.replace(config, match_budget=budget, match_like=_seedless_hash(run.config))

    @property
    def title(self) -> str:
        density = "" if self.density is None else f"-{self.density:g}"
        return f"{self.data}-{self.model}-{self.method.rpartition(':')[2]}{density}"

    @property
    def named_method(self) -> NamedMethod:
        """The method with its options, without its density."""
        return NamedMethod(self.method, self.method_options)

    def make_method(self, num_steps: int) -> Method:
        """Create the method for a training of `num_steps` optimizer steps."""
        return self.named_method.create(self.density, num_steps)


@dataclass(frozen=True, kw_only=True)
class DiscoverConfig(SearchOptions, RunConfig):
    """Config of `pathgrow discover`.

    >>> config = DiscoverConfig.from_dict({"budget": 20, "model_options": {"widths": [32]}})
    >>> config.budget, config.recipe.momentum, config.resolved().model_options["inputs"]
    (20, 0.9, 64)
    """

    def __post_init__(self) -> None:
        require_imported("method", self.method)
        RunConfig.__post_init__(self)
        SearchOptions.__post_init__(self)
        if self.mode == "max":
            require(self.delta < 1, "delta", self.delta, "a drop in accuracy < 1", "0.01")
        if self.mode == "max" and isinstance(self.reference, float):
            in_percent = 10 <= self.reference <= 100
            example = f"{self.reference / 100 if in_percent else 0.93:g}"
            require(0 <= self.reference <= 1, "reference", self.reference, "an accuracy in [0, 1]", example)
        from pathgrow.runs.options import DiscoverOptions

        options = DiscoverOptions(**self.search())
        if options.probes or options.method != SearchOptions.method or options.gamma is not None:
            options.growth_method()
        if options.probes or options.rule != SearchOptions.rule:
            options.density_rule()
        options.refuse_unused()

    @classmethod
    def _with_defaults(cls, values: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
        preset = SEARCH_PRESETS.get(_name(values.get("preset")), {})
        return {"budget": recipe.epochs, **preset, **with_relative_delta(values)}

    def as_dict(self) -> dict[str, Any]:
        values = super().as_dict()
        if not self.delta_is_relative:
            del values["delta_is_relative"]  # keeps the hashes of runs from before there were relative tolerances
        return values

    def search(self) -> dict[str, Any]:
        """The options to pass to `discover`."""
        return {name: getattr(self, name) for name in (*(f.name for f in dataclasses.fields(SearchOptions)), "mode")}


def _name(value: object) -> str:
    """A name from JSON; a value of another type becomes one that is unknown."""
    return value if isinstance(value, str) else short(value)


def _seedless_hash(config: Mapping[str, Any]) -> str:
    """A hash that is equal for runs that differ only in their seed."""
    values = {name: value for name, value in config.items() if name not in ("seed", "data_root")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
