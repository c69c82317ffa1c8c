"""The config of an experiment: every value spelled out, strict when read, written before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pathgrow import methods
from pathgrow.density import rules
from pathgrow.errors import UserError, unknown_name
from pathgrow.runs.options import Options
from pathgrow.runs.run_config import Setup

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
"""Numbers that mean the same whether written 1 or 1.0; `rough` is not among them."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Setup):
    """A discovery with our own data, models and training. All values are JSON, and together they decide every bit.

    >>> config = Experiment.from_dict({"budget": 20, "model_options": {"widths": [32]}})
    >>> config.model_options["widths"], config.model_options["inputs"], config.recipe.momentum
    ([32], 64, 0.9)
    """

    budget: int = 80
    """Epochs of the usual dense training; from the recipe, unless another number is asked for."""
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
        options = Options(**self.discovery())
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
