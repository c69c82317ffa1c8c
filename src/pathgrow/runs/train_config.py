"""The config of one training: every value spelled out, strict when read, written before the first step."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pathgrow import methods
from pathgrow.errors import UserError, is_int, is_number, require, unknown_name
from pathgrow.graph.scope import PRESETS
from pathgrow.methods.method import Method
from pathgrow.runs.run_config import Setup
from pathgrow.runs.spent import like, spent

Match = Literal["none", "parameters", "switchable", "flops"]
"""A budget of epochs times trainable parameters, of epochs times switchable weights that are on, of training FLOPs."""
EVERYTHING = "all"
"""The scope of every conv and linear weight."""
SCOPES = (*PRESETS, EVERYTHING)
_DENSITY_OPTIONS = ("density", "target_density")
"""What methods call the density they end with."""
_NUM_STEPS = "num_steps"


@dataclass(frozen=True, kw_only=True)
class TrainRun(Setup):
    """One training by one method. All values are JSON, and together they decide every bit.

    >>> config = TrainRun.from_dict({"method": "gcg", "density": 0.2, "epochs": 8})
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
