"""Options of a density search, which the command `pathgrow discover` and the function `pathgrow.discover` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pathgrow.config import MAX_EPOCHS, check, option
from pathgrow.density.types import DEFAULT_DELTA, SelectBy, relative_delta
from pathgrow.errors import is_int


def with_relative_delta(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose delta may be a percentage, with a fraction and what it means instead.

    >>> with_relative_delta({"delta": "1%"})
    {'delta': 0.01, 'delta_is_relative': True}
    """
    if not isinstance(delta := values.get("delta"), str):
        return dict(values)
    return {**values, "delta": relative_delta(delta), "delta_is_relative": True}


def rough_option() -> Any:
    """The field `rough`, which searches and trainings by growth share."""
    return option(
        1 / 160,
        "Rough-training length per growth round: epochs (integer), fraction of the budget (float, default: 1/160), or "
        "adaptive (early stopping on the validation loss, patience 3).",
        metavar="N|F|adaptive",
        valid=lambda length: length == "adaptive" or (1 <= length <= MAX_EPOCHS if is_int(length) else 0 < length <= 1),
        expected='epochs (an integer >= 1), a fraction of the budget in (0, 1] (a float) or "adaptive"',
        example="4",
    )


SEARCH_PRESETS: dict[object, dict[str, Any]] = {
    "paper": {
        "finish": "static", "rule": "exponential", "select_by": "gain", "seed_epochs": 5, "rough": 5, "gamma": 0.25,
        "final": "grown", "final_epochs": "extensive",
    }
}  # fmt: skip
"""Defaults by the name of a preset."""

GROWTH_ONLY = ("method", "gamma", "start_density")
"""Search options that matter only if the network grows."""
PROBES_ONLY = ("rule", "select_by", "final", "probe_fraction", "warm_start", "seed_epochs", "rough", "final_epochs")
"""Those that matter only if growth rounds are probed."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a density search that `pathgrow discover` and `pathgrow.discover` share."""

    preset: Literal["paper"] | None = option(
        None,
        "The procedure of the paper: growth with 5 epochs per round, the exponential fit and its 95% rule, and the "
        "whole budget from the grown weights.",
        metavar="paper",
        example="'paper'",
    )
    delta: float = option(
        DEFAULT_DELTA,
        "Tolerated drop below the reference score, or a percentage of that score such as 1%.",
        above=0,
        metavar="D",
        example="0.01",
    )
    delta_is_relative: bool = option(False, is_flag=False)
    """Whether `delta` is a fraction of the reference score, or else of the trained network's: `delta="1%"`."""
    reference: float | Literal["dense"] | None = option(
        None,
        'Score of the dense baseline, or "dense" to train one (default: estimated from half of a dense training, '
        "or trained if that is too short to predict the final score; with static masks, from a dense probe).",
        metavar="SCORE|dense",
        example="0.93",
    )
    """With None and probes of full length (`final="grown"`), the densest network grown is the reference."""
    budget: int = option(
        160,
        "Epochs of a full dense training (default: the recipe's); the length of every phase follows from it.",
        flags=("--budget", "--epochs"),
        at_least=1,
        limit=MAX_EPOCHS,
        metavar="EPOCHS",
        example="160",
    )
    rule: str = option("probe", "Density rule, see `pathgrow rules`.", metavar="NAME")
    finish: str | tuple[str, ...] = option(
        "auto",
        "How networks are made sparse: gts (or auto) trains one and prunes it in rounds, static grows masks and trains "
        "them, a method such as set:drop_fraction=0.2 trains at the densities of growth rounds. Repeatable: the "
        "sparsest network whose check is not 'missed' is returned.",
        metavar="NAME[:OPTION=VALUE,...]",
        expected="a name or a list of names",
        example="'set:drop_fraction=0.2'",
    )
    max_density: float = option(
        1.0,
        "Never hold more than this fraction of the weights (default: all); below 1 the network grows up to it.",
        above=0,
        at_most=1,
        metavar="D",
        example="0.5",
    )
    max_cost: float | None = option(
        None,
        "Cost limit of the search, in dense trainings, excluding a dense baseline that was asked for (default: 1, or 2 "
        "with a reference or if half of the training is too short to predict the final score); a low limit shortens "
        "all phases.",
        at_least=0.01,
        limit=1000,
        metavar="C",
        example="0.8",
    )
    method: str = option("gcg", "Growth method, see `pathgrow methods`.", metavar="NAME")
    gamma: float | None = option(
        None,
        "Weights added per growth round, as a fraction of the nonzero ones (default: the method's, 0.25).",
        above=0,
        metavar="G",
        example="0.25",
    )
    start_density: float | None = option(
        None,
        "Density of the seed network (default: the smallest of 1, 2, 3, 5% that isolates few units).",
        above=0,
        at_most=1,
        metavar="D",
        example="0.05",
    )
    seed_epochs: int | None = option(
        None,
        "Epochs of the seed network (default: an eighth of the budget).",
        at_least=1,
        limit=MAX_EPOCHS,
        metavar="EPOCHS",
        example="20",
    )
    """Rules without probes train the seed network to its plateau by default."""
    rough: int | float | Literal["adaptive"] = rough_option()
    final: Literal["fresh", "grown"] = option(
        "fresh", "Initial weights of probes and of the final network: a fresh initialization, or the grown weights."
    )
    final_epochs: int | Literal["extensive"] | None = option(
        None,
        "Epochs of the returned network in all, or extensive: the whole budget after growth (default: the budget).",
        at_least=1,
        limit=MAX_EPOCHS,
        metavar="EPOCHS|extensive",
        example="160",
    )
    probe_fraction: float | None = option(
        None,
        "Length of a probe as a fraction of the budget, without a reference (default: a tenth, but at least 16 epochs "
        "or 0.3 of a small budget).",
        above=0,
        at_most=1,
        metavar="F",
        example="0.1",
    )
    """With a reference every probe has the whole budget."""
    warm_start: bool = option(
        True, "Train the final network from scratch instead of from its probe checkpoint.", flags=("--from-scratch",)
    )
    """Continue the final training from the probe of the selected network; the epochs of the probe count."""
    select_by: SelectBy = option(
        "delta", "Criterion that selects the returned network: the delta answer or the gain answer."
    )
    eval_weights: Literal["current", "ema"] = option("current", "Evaluate the current weights or their EMA.")

    def __post_init__(self) -> None:
        check(self)
