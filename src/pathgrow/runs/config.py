"""Configs of runs and options of a discovery: typed, checked by name and value before anything is trained."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import torch
from torch import nn

from pathgrow import data as datasets
from pathgrow import methods, models
from pathgrow.checkpoint import MemoryStore, RankZeroStore, RunDir, Store, strict_json
from pathgrow.data.dataset import Dataset
from pathgrow.density import rules
from pathgrow.density.types import Criterion, Rule
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator, held_by_rank0
from pathgrow.errors import UserError, is_int, is_number, require, unknown_name
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.scope import PRESETS
from pathgrow.methods.gradients import Batches, Loss
from pathgrow.methods.method import GrowEachRound, Method
from pathgrow.runs.callback import Callback
from pathgrow.runs.records import Record
from pathgrow.runs.spent import like, spent
from pathgrow.sparse.checks import checked_method
from pathgrow.trainer import EngineOptions, recipes
from pathgrow.trainer.process_group import check_batch_split
from pathgrow.trainer.recipes import Recipe

Final = Literal["fresh", "grown"]
Observe = Literal["annealed", "average"]

_LEAST_PROBE = 16
"""A probe has at least this many epochs, however small the budget,"""
_LEAST_SHARE = 0.3
"""but not more than this share of the budget because of it."""


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions:
    """What may be chosen about a discovery; `discover` takes each of these by keyword.

    How much training there is follows from `budget`: an eighth of it for the seed network, a 160th per round of growth,
    all of it for the network handed back, and for each probe a tenth, but at least 16 epochs or 0.3 of a small budget
    (with a `reference`, all of it).
    """

    delta: float = 0.01
    """How far below the reference a network may stay; in units of the score."""
    reference: float | Literal["dense"] | None = None
    """The dense score if it is known, or "dense" to train for it. None: the reference is a dense copy trained as long
    as the probes, or, where probes have the whole budget (`final="grown"`), the densest network grown."""
    budget: int = 160
    """Epochs of the usual dense training."""
    start_density: float | None = None
    """Density of the seed network; None: the smallest of 1, 2, 3, 5% that isolates few units, or a lower target."""
    method: str | Method = "gcg"
    """The growth method, by name or as a value."""
    gamma: float | None = None
    """Weights added per growth round, as a fraction of the active ones; None: the method's own, 0.25 by default."""
    rule: str | Rule = "probe"
    """The density rule, by name or as a value."""
    seed_epochs: int | None = None
    """Epochs of the seed network; None: an eighth of the budget, and for rules that do not probe on to its plateau."""
    rough: int | float | Literal["adaptive"] = 1 / 160
    """Training of a round: epochs (int), a share of the budget (float), or until the validation loss has not improved
    for 3 epochs ("adaptive")."""
    final: Final = "fresh"
    """Probes and the final network start from a fresh initialisation of the found mask, or from the grown weights."""
    final_epochs: int | Callable[[Sequence[Record]], int] | None = None
    """Epochs of the network handed back; None: the budget. A function is called with the records of all that was
    trained before. A probe that has had as many epochs is handed back as it is."""
    probe_fraction: float | None = None
    """Without a reference: length of a probe as a share of the budget; None: a tenth, but at least 16 epochs, or 0.3 of
    the budget if that is less. With a reference a probe has the whole budget."""
    head_start: bool = True
    """Whether the network handed back goes on from its short probe, whose epochs then count; False: it starts anew."""
    answer: Criterion = "delta"
    """Which answer chooses the network that is handed back."""
    observe: Observe = "annealed"
    """Score the weights as they are after an annealed phase, or their running average."""
    num_val: int | None = None
    """How many validation examples there are, where the score is the share of them that are right; few of them widen
    the interval."""
    store: Store | str | os.PathLike[str] | None = None
    """Where finished stages are kept, a folder or a `Store`; stages that are found there are not repeated. In a folder
    `pathgrow.discover` leaves its report as well."""
    callback: Callback = dataclasses.field(default_factory=Callback)
    """Is told when stages begin and end, and what the density rule says."""
    loss: Loss | None = None
    """`loss(model, batch)`, and"""
    batches: Batches | None = None
    """training batches, for growth rules that read gradients."""
    comm: Communicator | None = None
    """The processes that train together, see `pathgrow.trainer.process_group`; None: those of `fit`, else this one."""

    def __post_init__(self) -> None:
        require(is_number(self.delta) and self.delta > 0, "delta", self.delta, "a number above 0", "0.01 for one point")
        require(
            is_int(self.budget) and self.budget >= 1,
            "budget", self.budget, "a whole number of epochs from 1 up", "160",
        )  # fmt: skip
        require(
            self.reference is None or self.reference == "dense" or is_number(self.reference),
            "reference", self.reference, 'a score, "dense" or None', "0.93",
        )  # fmt: skip
        start = self.start_density
        require(start is None or (is_number(start) and 0 < start <= 1), "start_density", start, "in (0, 1]", "0.05")
        require(self.gamma is None or (is_number(self.gamma) and self.gamma > 0), "gamma", self.gamma, "> 0", "0.25")
        require(
            self.seed_epochs is None or (is_int(self.seed_epochs) and self.seed_epochs >= 1),
            "seed_epochs", self.seed_epochs, "a whole number of epochs from 1 up", "20",
        )  # fmt: skip
        require(
            self.rough == "adaptive"
            or (is_int(self.rough) and self.rough >= 1)
            or (isinstance(self.rough, float) and 0 < self.rough <= 1),
            "rough", self.rough, 'epochs (an int), a share of the budget in (0, 1] (a float) or "adaptive"', "4",
        )  # fmt: skip
        require(
            self.final_epochs is None or callable(self.final_epochs)
            or (is_int(self.final_epochs) and self.final_epochs >= 1),
            "final_epochs", self.final_epochs, "a whole number of epochs from 1 up, or a function that gives it", "160",
        )  # fmt: skip
        require(
            self.probe_fraction is None or (is_number(self.probe_fraction) and 0 < self.probe_fraction <= 1),
            "probe_fraction", self.probe_fraction, "a share of the budget in (0, 1]", "0.1",
        )  # fmt: skip
        require(
            self.num_val is None or (is_int(self.num_val) and self.num_val >= 1),
            "num_val", self.num_val, "a whole number of examples from 1 up", "5000",
        )  # fmt: skip
        require(
            self.store is None
            or isinstance(self.store, str | os.PathLike)
            or _has(self.store, "load", "save", "delete_tensors"),
            "store", self.store, "a folder or a Store", "'runs/first'",
        )  # fmt: skip
        require(
            _has(self.callback, "on_stage_start", "on_stage_end", "on_decision"),
            "callback", self.callback, "a pathgrow.Callback", "an instance of a subclass of it",
        )  # fmt: skip
        require(isinstance(self.head_start, bool), "head_start", self.head_start, "true or false", "true")
        for name, allowed in (("final", Final), ("answer", Criterion), ("observe", Observe)):
            if getattr(self, name) not in get_args(allowed):
                raise unknown_name(f"value of {name}", str(getattr(self, name)), get_args(allowed))

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> DiscoverOptions:
        """Options from keywords; an unknown name is refused with the nearest known ones."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in given:
            if name == "target_density":
                raise UserError(
                    "discover searches for the density and takes no target_density; "
                    "use `pathgrow train --method gcg --density`"
                )
            if name not in known:
                raise unknown_name("option", name, known)
        return cls(**given)

    def as_dict(self) -> dict[str, Any]:
        """What was chosen, as JSON values; methods and rules by name, functions not at all."""
        objects = ["store", "callback", "loss", "batches", "method", "rule", "comm"]
        if callable(self.final_epochs):
            objects.append("final_epochs")
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in objects}
        return {**values, "method": self.growth_method().name, "rule": self.density_rule().name}

    def growth_method(self) -> Method:
        """The growth method as a value, starting where it was asked to."""
        method = checked_method(self.method)
        if method.target_density is not None:
            raise UserError(
                f"method {method.name!r} has target_density {method.target_density:g}, but discover searches for the "
                f"density; use `pathgrow train --method {method.name} --density {method.target_density:g}`"
            )
        own = method.schedule.gamma if isinstance(method.schedule, GrowEachRound) else None
        if isinstance(self.method, Method) and self.gamma is not None and own not in (None, self.gamma):
            raise UserError(f"gamma is {self.gamma:g}, but the method has gamma={own:g}; set it on the method only")
        return method.growing(gamma=self.gamma, start_density=self.start_density)

    def density_rule(self) -> Rule:
        """The density rule as a value."""
        return rules.create(self.rule, delta=self.delta) if isinstance(self.rule, str) else self.rule

    def with_comm_of(self, fit: object) -> DiscoverOptions:
        """These options for one of the processes that train with `fit`: only the first of them tells the observer."""
        comm = self.comm if self.comm is not None else getattr(fit, "comm", SINGLE_PROCESS)
        return dataclasses.replace(self, comm=comm, callback=Callback() if comm.rank else self.callback)

    @contextmanager
    def opened_store(self, seed: int) -> Iterator[Store]:
        """The store, for the duration of the discovery: a folder is locked, and refused if it has other options."""
        comm = self.comm or SINGLE_PROCESS
        if isinstance(self.store, str | os.PathLike):
            with self.opened_folder(self.store, seed) as folder:
                yield _shared(comm, MemoryStore() if folder is None else folder.stages)
        else:
            yield _shared(comm, self.store if self.store is not None else MemoryStore())

    def opened_folder(self, place: str | os.PathLike[str], seed: int) -> AbstractContextManager[RunDir | None]:
        """The folder of a discovery with these options, for the first of a team to work in; the others get None."""
        # By way of JSON, since numbers may be NumPy's.
        config = strict_json.loads(strict_json.dumps({"seed": seed, **self.as_dict()}))
        return held_by_rank0(self.comm or SINGLE_PROCESS, lambda: RunDir.open(place, config))

    @property
    def num_seed_epochs(self) -> int:
        return self.seed_epochs if self.seed_epochs is not None else max(1, self.budget // 8)

    @property
    def num_rough_epochs(self) -> int | None:
        """Length of a round; None where it is adaptive."""
        if isinstance(self.rough, str):
            return None
        return self.rough if isinstance(self.rough, int) else max(1, round(self.rough * self.budget))

    def num_final_epochs(self, before: Sequence[Record]) -> int:
        """Epochs of the network handed back, given the records of all that was trained before."""
        if self.final_epochs is None:
            return self.budget
        if not callable(self.final_epochs):
            return self.final_epochs
        found = self.final_epochs(before)
        if not is_int(found) or found < 1:
            raise UserError(
                f"final_epochs gave {found!r} for the records of {len(before)} stages, a whole number of epochs from 1 "
                "up is wanted: mend the function and go on, what was trained is kept where there is a store"
            )
        return found

    @property
    def num_probe_epochs(self) -> int:
        """One common total for every probe: that of the reference, where there is one.

        Grown weights bring along more epochs than a fraction of the budget, so they need the whole budget too.
        """
        if self.reference is not None or self.final == "grown":
            return self.budget
        if self.probe_fraction is not None:
            return max(1, round(self.probe_fraction * self.budget))
        # After a handful of epochs sparse networks are still far behind dense ones: every answer would be too dense.
        return max(1, min(_LEAST_PROBE, round(_LEAST_SHARE * self.budget)), round(self.budget / 10))


def _shared(comm: Communicator, store: Store) -> Store:
    return store if comm.size == 1 else RankZeroStore(comm, store)


def _has(value: object, *methods: str) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


_WORTH_THREADS = 20_000_000
"""Multiply-adds of a batch above which a second thread pays; below, sharing the work takes longer than doing it."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
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
        self.engine.resolve()
        check_batch_split(self.recipe.batch_size, self.recipe.accumulate, self.ranks)

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
        values["recipe_name"] = values.get("recipe_name") or recipes.default_name(data, str(model))
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
        del values["engine"]["max_concurrent"]
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
    return recipes.recipe(str(name)).override(given)


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


def _tried(config: RunConfig) -> int:
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


def _threads(config: RunConfig, macs: int) -> int:
    """One thread for small networks, else as many as this process has cores, up to four."""
    num_cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return 1 if macs * config.recipe.batch_size < _WORTH_THREADS else max(1, min(4, num_cores))


Match = Literal["none", "parameters", "switchable", "flops"]
"""A budget of epochs times trainable parameters, of epochs times switchable weights that are on, of training FLOPs."""
EVERYTHING = "all"
"""The scope of every conv and linear weight."""
SCOPES = (*PRESETS, EVERYTHING)
_DENSITY_OPTIONS = ("density", "target_density")
"""What methods call the density they end with."""
_NUM_STEPS = "num_steps"


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """One training by one method. All values are JSON, and together they decide every bit.

    >>> config = TrainConfig.from_dict({"method": "gcg", "density": 0.2, "epochs": 8})
    >>> config.method_options, config.recipe.momentum
    ({'gamma': 0.25, 'start_density': None}, 0.9)
    """

    method: str
    """The method by name, or as "package.module:function"."""
    density: float | None = None
    """Share of the switchable weights at the end; None for methods that have no such option."""
    method_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """All options of the method but its density and the length of the training."""
    scope: str = "auto"
    """Which weights may be switched: a preset of `pathgrow.scope`, or "all" conv and linear weights."""
    epochs: int = 80
    """Epochs of the dense training that costs are compared with; iterative pruning trains as many at each level."""
    match: Match = "none"
    """What is made to match a budget, by training shorter or longer."""
    match_budget: float | None = None
    """The budget, in the unit of `match`; None: that of training dense."""
    match_run: str | None = None
    """The folder of a finished run that the budget is taken from,"""
    match_like: str | None = None
    """and a hash of the config of that run without its seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_int(self.epochs) and self.epochs >= 1, "epochs", self.epochs, "a whole number from 1 up", "80")
        if self.scope not in SCOPES:
            raise unknown_name("scope", str(self.scope), SCOPES)
        if self.match not in get_args(Match):
            raise unknown_name("value of match", str(self.match), get_args(Match))
        if self.match == "none" and (self.match_budget is not None or self.match_run is not None):
            raise UserError("a budget was given and nothing is to match it: give --match flops or --match parameters")
        budget = self.match_budget
        require(
            budget is None or (is_number(budget) and budget > 0), "match_budget", budget, "a number above 0", "1e15"
        )
        self._check_density()
        self.make_method(num_steps=1)

    @classmethod
    def _filled(cls, values: dict[str, Any]) -> dict[str, Any]:
        method = values.get("method")
        if not isinstance(method, str):
            raise UserError(f"method {method!r} was given, a name is wanted: choose one of `pathgrow methods`")
        known = methods.defaults(method)
        given = values.get("method_options") or {}
        if not isinstance(given, Mapping):
            raise UserError(
                f"method_options {given!r} was given, a table of values is wanted: give for example {{'gamma': 0.5}}"
            )
        if own := next((name for name in _DENSITY_OPTIONS if name in given), None):
            raise UserError(f"{own} was given as an option of the method: give --density {given[own]} instead")
        left = {name: default for name, default in known.items() if name not in (*_DENSITY_OPTIONS, _NUM_STEPS)}
        wanting = {name for name, default in left.items() if default is inspect.Parameter.empty}
        options = {name: default for name, default in left.items() if name not in wanting}
        filled = {"epochs": values["recipe"].epochs, **values, "method_options": {**options, **given}}
        if isinstance(known.get("density"), int | float):
            filled["density"] = filled.get("density", known["density"])
        for name in ("density", "match_budget"):
            if is_int(filled.get(name)):
                filled[name] = float(filled[name])
        if (run := filled.get("match_run")) is not None and filled.get("match", "none") != "none":
            budget, given_budget = spent(run, filled["match"], filled), filled.get("match_budget")
            if given_budget not in (None, budget):  # a config that was written holds both, and they agree
                raise UserError(
                    f"match_budget {given_budget!r} was given beside {run}, a run that has spent {budget:.6g}: "
                    "leave out one of --match-budget and --match-run"
                )
            filled["match_budget"] = budget
            filled["match_like"] = like(run)
        return filled

    @property
    def title(self) -> str:
        density = "" if self.density is None else f"-{self.density:g}"
        return f"{self.data}-{self.model}-{self.method.rpartition(':')[2]}{density}"

    @property
    def density_option(self) -> str | None:
        """What this method calls the density it ends with."""
        known = methods.defaults(self.method)
        return next((name for name in _DENSITY_OPTIONS if name in known), None)

    def make_method(self, num_steps: int) -> Method:
        """The method, for a training of `num_steps` optimizer steps."""
        options = dict(self.method_options)
        if (name := self.density_option) is not None and self.density is not None:
            options[name] = self.density
        if _NUM_STEPS in methods.defaults(self.method):
            options.setdefault(_NUM_STEPS, num_steps)
        return methods.create(self.method, **options)

    def _check_density(self) -> None:
        name, density = self.density_option, self.density
        if density is not None:
            require(is_number(density) and 0 < density <= 1, "density", density, "a density in (0, 1]", "0.1")
        if name is None and density is not None:
            raise UserError(
                f"density {density:g} was given and method {self.method!r} takes none: leave it out, "
                "or see `pathgrow methods` for methods that do"
            )
        if name == "target_density" and density is None:
            raise UserError(
                f"method {self.method!r} grows and was told no density to grow to: give --density, "
                "or have the density found with `pathgrow discover`"
            )


_FOR_DISCOVERY = (
    "budget",
    "delta",
    "reference",
    "rule",
    "method",
    "gamma",
    "start_density",
    "seed_epochs",
    "rough",
    "final",
    "probe_fraction",
    "head_start",
    "answer",
    "observe",
)
"""The options of `discover` that a config may set; their meaning is documented there."""
_FLOATS = {"delta", "reference", "gamma", "start_density", "probe_fraction"}
"""Numbers that mean the same whether written 1 or 1.0; `rough` is not among them."""


@dataclass(frozen=True, kw_only=True)
class DiscoverConfig(RunConfig):
    """A discovery with our own data, models and training. All values are JSON, and together they decide every bit.

    >>> config = DiscoverConfig.from_dict({"budget": 20, "model_options": {"widths": [32]}})
    >>> config.model_options["widths"], config.model_options["inputs"], config.recipe.momentum
    ([32], 64, 0.9)
    """

    budget: int = 80
    """Epochs of the usual dense training; from the recipe, unless another number is asked for."""
    delta: float = 0.01
    reference: float | Literal["dense"] | None = None
    rule: str = "probe"
    method: str = "gcg"
    gamma: float | None = None
    start_density: float | None = None
    seed_epochs: int | None = None
    rough: int | float | Literal["adaptive"] = DiscoverOptions.rough
    final: str = "fresh"
    probe_fraction: float | None = None
    head_start: bool = True
    answer: str = "delta"
    observe: str = "annealed"

    def __post_init__(self) -> None:
        for name in ("rule", "method", "final", "answer", "observe"):
            if not isinstance(getattr(self, name), str):
                raise UserError(
                    f"{name} {getattr(self, name)!r} was given, a name is wanted: leave it out for the default"
                )
        super().__post_init__()
        if self.rule not in rules.names():
            raise unknown_name("rule", self.rule, rules.names())
        if ":" not in self.method and self.method not in methods.names():
            raise unknown_name("method", self.method, methods.names())
        if isinstance(self.reference, float) and not 0 <= self.reference <= 1:
            example = self.reference / 100 if _looks_like_percent(self.reference) else 0.93
            raise UserError(
                f"reference {self.reference:g} was given, an accuracy from 0 to 1 is wanted: "
                f"give for example {example:g}"
            )
        options = DiscoverOptions(**self.discovery())
        if self.delta >= 1:
            raise UserError(
                f"delta {self.delta:g} was given, a loss of accuracy below 1 is wanted: give for example 0.01"
            )
        options.growth_method()
        options.density_rule()

    @classmethod
    def _filled(cls, values: dict[str, Any]) -> dict[str, Any]:
        floats = {
            name: float(values[name])
            for name in _FLOATS & values.keys()
            if isinstance(values[name], int) and not isinstance(values[name], bool)
        }
        return {"budget": values["recipe"].epochs, **values, **floats}

    def discovery(self) -> dict[str, Any]:
        """The options that go to `discover` as they are."""
        return {name: getattr(self, name) for name in _FOR_DISCOVERY}


def _looks_like_percent(accuracy: float) -> bool:
    """Whether a hundredth of it was probably meant; of a number just above 1 nobody knows what was meant."""
    return 10 <= accuracy <= 100
