"""What a density rule sees and says. Plain values: no tensors, no files, no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

DENSE = -1
"""The round of a network that was not grown: all of its weights are there."""


AnswerKind = Literal["delta", "gain"]
"""Which of a rule's two answers chooses the network that is handed back."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One observed network. `score`: higher is better; `epochs`: all the training this network has had."""

    round: int
    density: float
    epochs: int
    score: float
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The score the answer is read against, and where it comes from."""

    score: float
    kind: Literal["given", "dense", "densest"]
    epochs: int | None = None

    def __float__(self) -> float:
        return self.score


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Everything observed so far. A rule never sees test data."""

    rough: tuple[Point, ...] = ()
    """The trunk after the seed training and after each round; it was trained longer at every point."""
    probes: tuple[Point, ...] = ()
    """Copies trained out to one common total of epochs."""
    reference: Reference | None = None
    """Given by the user, or measured by a dense training; None: read against the densest probe."""
    ceiling: float = 1.0
    """Growth cannot go beyond this density."""
    can_probe: bool = True
    """False in a foreign loop: copies cannot be trained."""
    can_probe_dense: bool = False
    """The round `DENSE` may be probed as well: probes are short, and so a dense copy is cheap."""
    num_val: int | None = None
    """Validation examples, where the score is the share of them that are right: a few hundred blur the answer."""
    epochs_in_full: int | None = None
    """What the network handed back will have been trained; None: no longer than the probes."""
    wanted: AnswerKind = "delta"
    """Which of the two answers chooses that network."""
    at_ceiling: bool = False
    """The trunk stands at the ceiling: `Grow` is no longer possible."""


@dataclass(frozen=True, kw_only=True)
class Grow:
    """Go on growing the trunk."""

    stop: ClassVar[bool] = False
    reason: str
    up_to: float | None = None
    """No further than this density; None: a whole step."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Train out copies of the networks visited in `rounds`, side by side where the machine can."""

    stop: ClassVar[bool] = False
    rounds: tuple[int, ...]
    """At least one; each was visited (or is `DENSE`), none was probed before, none stands here twice."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The question is answered, or cannot be."""

    stop: ClassVar[bool] = True
    reason: str


Verdict = Grow | Probe | Stop

Status = Literal["found", "flat", "unreached", "open"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a rule makes of a curve. Densities are None where there is none to give, and `words` says why."""

    rule: str
    delta: float
    status: Status
    """found; flat: every observed density is within delta; unreached: none is; open: too little was observed."""
    density: float | None
    """The delta answer: the smallest density whose network stays within delta of the reference."""
    interval: tuple[float, float] | None
    """90% interval of the delta answer; from 0 on where its lower end lies below everything trained out, None when
    there is no answer to bound."""
    gain_density: float | None
    """The paper's answer: where the exponential fit reaches 95% of its gain."""
    gain_interval: tuple[float, float] | None
    reference: Reference | None
    words: str
    """Why it stopped or went on, and where the two answers disagree."""
    allowed: float | None = None
    """What delta was taken for where networks were compared after short trainings, when gaps are larger; else None."""


class Rule(Protocol):
    """A density rule: a small frozen value with a name."""

    @property
    def name(self) -> str: ...
    def decide(self, curve: Curve) -> Verdict: ...
    def answer(self, curve: Curve) -> Answer: ...
