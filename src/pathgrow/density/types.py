"""Inputs and outputs of a density rule as plain values: no tensors, no files, no training, no prose."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pathgrow.errors import require

FloatArray = NDArray[np.float64]

DEFAULT_DELTA = 0.01
"""Default of the allowed gap to the reference score: one percentage point of accuracy."""

DENSE = -1
"""Round number of the dense network, which was not grown."""

SelectBy = Literal["delta", "gain"]
"""The two criteria that can select the returned network."""

Details = Mapping[str, float | int | str | None]
"""Named numbers behind a reason or an answer; JSON values."""


class Reason(StrEnum):
    """Why a rule grows, probes or stops. `pathgrow.report.text.explain` turns a reason and its details into text."""

    # Grow
    NOTHING_OBSERVED = auto()
    FEW_ROUNDS = auto()
    """Details: `rounds`, `needed`."""
    NOT_RISING = auto()
    """Details: `at_density`."""
    TRAJECTORY_RISING = auto()
    """Details: `at_density`, `estimate`, `factor`: the trunk has to reach `factor * estimate`."""
    ANSWER_BEYOND_TRUNK = auto()
    """Details: `criterion`, `needed_density`, `at_density`: the densest network grown."""
    DELTA_NOT_BRACKETED = auto()
    """Details: `at_density`: the densest probe."""
    GAIN_NOT_BRACKETED = auto()
    """Details: `at_density`: the densest probe."""
    BELOW_ESTIMATE = auto()
    """Details: `at_density`, `estimate`, `factor`."""
    NO_SATURATION_YET = auto()

    # Probe
    FIRST_PROBES = auto()
    """Details: `at_density`: the densest grown network of the batch; `dense`: 1 if the dense network is probed too."""
    PROBE_TRUNK = auto()
    """Details: `at_density`."""
    MOST_INFORMATIVE = auto()
    """Details: `at_density`, `second_density` (None: a single probe)."""

    # Stop
    FEW_DENSITIES = auto()
    """Details: `rounds`."""
    INTERVALS_NARROW = auto()
    FLAT = auto()
    """Details: `gap`."""
    UNREACHED = auto()
    """Details: `gap`, `at_density`: the densest network compared."""
    ANSWER_PROBED = auto()
    """Details: `at_density`: the network that would be returned."""
    ALL_PROBED = auto()
    PROBES_SPENT = auto()
    """Details: `probes`."""
    NOTHING_INFORMATIVE = auto()
    GROWTH_ENDED = auto()
    """Details: `at_density`."""
    NO_RISE = auto()
    """Details: `from_density`, `at_density`."""
    PAST_ESTIMATE = auto()
    """Details: `at_density`, `estimate`, `factor`."""
    ESTIMATE_OUT_OF_REACH = auto()
    """Details: `estimate`."""
    NO_SATURATION = auto()
    SHRUNK = auto()
    """Details: `rounds`."""

    # Said by `attach`, about methods that no rule decides for. Details: `method`.
    UPDATES_DURING_TRAINING = auto()
    SCHEDULE_CONTINUES = auto()
    MASKS_FINAL = auto()

    # Said by the discovery, not by a rule.
    NOTHING_LEARNED = auto()
    """Details: `before_low`, `before_high`, `after_low`, `after_high`: scores before and after training."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """An evaluated network; a higher score is better. `epochs` counts all training it has had."""

    round: int
    density: float
    epochs: int
    score: float
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The score that the answer is relative to, and its origin."""

    score: float
    kind: Literal["given", "pretrained", "dense", "densest", "estimated"]
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Everything observed so far. A rule never sees test data."""

    rough: tuple[Point, ...] = ()
    """The trunk after the seed training and after each round; each point has had more training than the last."""
    probes: tuple[Point, ...] = ()
    """Networks trained from a visited mask to one common number of epochs."""
    finished: tuple[Point, ...] = ()
    """Fully trained networks, if they are not the probes themselves."""
    reference: Reference | None = None
    """Given by the user, or measured by a dense training; None: the densest probe is the reference."""
    ceiling: float = 1.0
    """The density that growth cannot exceed."""
    can_probe: bool = True
    """False if networks cannot be probed, because the training loop is the user's."""
    can_probe_dense: bool = False
    """Whether the round `DENSE` may be probed as well: a dense probe is cheap if probes are short."""
    num_val: int | None = None
    """Number of validation examples if the score is a fraction of them; a few hundred widen the interval."""
    full_epochs: int | None = None
    """Epochs that the returned network will have been trained; None: no longer than the probes."""
    select_by: SelectBy = "delta"
    """The criterion that selects the returned network."""
    at_ceiling: bool = False
    """Whether the trunk has reached the ceiling, which rules out `Grow`."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    stop: ClassVar[bool] = False
    reason: str
    """A `Reason`, or the sentence of a user-defined rule."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Grow(_Verdict):
    """Grow the trunk by another round."""

    up_to: float | None = None
    """Grow no further than this density; None: a whole step."""


@dataclass(frozen=True, kw_only=True)
class Probe(_Verdict):
    """Train copies of the networks visited in `rounds`, concurrently if the device allows."""

    rounds: tuple[int, ...]
    """At least one. Each was visited (or is `DENSE`), was not probed before, and is listed once."""


@dataclass(frozen=True, kw_only=True)
class Stop(_Verdict):
    """End the search."""

    stop: ClassVar[bool] = True


Verdict = Grow | Probe | Stop

Status = Literal["found", "flat", "unreached", "open", "unlearned"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The density that a rule reads from a curve."""

    rule: str
    delta: float
    status: Status
    """found; flat: every observed density is within delta; unreached: none is; open: too little was observed;
    unlearned (set by the discovery, not by a rule): no network was better after training than before."""
    density: float | None = None
    """The delta answer: the smallest density whose network stays within delta of the reference."""
    interval: tuple[float, float] | None = None
    """90% credible interval of `density`. Its lower end is 0 if that is below every probe."""
    gain_density: float | None = None
    """The paper's answer: where the exponential fit reaches `gain_level` of its gain."""
    gain_interval: tuple[float, float] | None = None
    reference: Reference | None = None
    allowed: float | None = None
    """The gap that stands for delta if the networks compared were trained more briefly than the returned one: gaps
    shrink with training. None: delta itself."""
    gain_level: float = 0.95
    """The fraction of the fitted gain that `gain_density` stands for."""
    reason: str = ""
    """Why the rule stopped, or what it would do next: that of its verdict on the same curve."""
    details: Details = field(default_factory=dict)
    """The numbers behind `reason` and behind the answer; every key is optional.

    `quantile`: posterior quantile that `density` is; `median_density`: posterior median (None: not below density 1);
    `returned_for`: the smallest density whose expected loss is at most delta;
    `lowest`, `densest`: densities of the sparsest and the densest network compared; `densest_round`; `end_score`:
    fitted score of the densest one; `share_below`, `share_above`: posterior probability of an answer below or above all
    of them; `allowed_low`, `allowed_high`: 90% interval of `allowed`; `probe_epochs`, `full_epochs`; `gain_missing`:
    why `gain_density` is None ("no_rise" or "no_saturation"); `widened`: factor by which intervals were widened;
    `unmatched_reference`: score of a reference that was not used, since no network came near it; `fit_within_delta`:
    where the fit comes within delta of its own asymptote; `probes`, `probes_needed`: too few probes for an answer.
    """


def open_answer(rule: str, delta: float, curve: Curve, verdict: Verdict) -> Answer:
    """Return the answer of a rule that has observed too little."""
    reason, details = verdict.reason, verdict.details
    return Answer(rule=rule, delta=delta, status="open", reference=curve.reference, reason=reason, details=details)


class Rule(Protocol):
    """A density rule: a small frozen value with a name."""

    @property
    def name(self) -> str: ...
    def decide(self, curve: Curve) -> Verdict: ...
    def answer(self, curve: Curve) -> Answer: ...


def check_delta(delta: float) -> None:
    """Refuse a delta that is not a positive difference of scores."""
    require(delta > 0 and math.isfinite(delta), "delta", delta, "> 0 and finite, in units of the score", 0.01)


def relative_delta(text: str) -> float:
    """The fraction that a percentage stands for.

    >>> relative_delta("2%")
    0.02
    """
    try:
        fraction = float(text.removesuffix("%")) / 100
    except ValueError:
        fraction = math.nan
    is_percentage = text.endswith("%") and 0 < fraction < math.inf
    require(is_percentage, "delta", text, "a positive number or percentage of the score", "0.01, '1%'")
    return fraction
