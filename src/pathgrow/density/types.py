"""What a density rule sees and says, as plain values: no tensors, no files, no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

DENSE = -1
"""Stands for the round of a network that was not grown but has all its weights."""


AnswerKind = Literal["delta", "gain"]
"""Which of a rule's two answers chooses the network that is handed back."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One observed network. In `score` higher is better; `epochs` is all the training this network has had."""

    round: int
    density: float
    epochs: int
    score: float
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The score that the answer is read against, and where it comes from."""

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
    """Given by the user, or measured by a dense training; None: the densest probe is the reference."""
    ceiling: float = 1.0
    """The density that growth cannot exceed."""
    can_probe: bool = True
    """False where copies cannot be trained, because the loop is the user's own."""
    can_probe_dense: bool = False
    """Whether the round `DENSE` may be probed as well: where probes are short, a dense copy is cheap."""
    num_val: int | None = None
    """How many validation examples there are, where the score is the share of them that are right. A few hundred make
    the answer less certain."""
    epochs_in_full: int | None = None
    """How long the network handed back will have been trained; None: no longer than the probes."""
    wanted: AnswerKind = "delta"
    """Which of the two answers chooses that network."""
    at_ceiling: bool = False
    """Whether the trunk has reached the ceiling, so that `Grow` is no longer possible."""


@dataclass(frozen=True, kw_only=True)
class Grow:
    """Go on growing the trunk."""

    stop: ClassVar[bool] = False
    reason: str
    up_to: float | None = None
    """Grow no further than this density; None: a whole step."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Train out copies of the networks visited in `rounds`, side by side where the machine can."""

    stop: ClassVar[bool] = False
    rounds: tuple[int, ...]
    """At least one. Each was visited (or is `DENSE`), was not probed before, and is listed once."""
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
    status: Status | Literal["unlearned"]
    """found; flat: every observed density is within delta; unreached: none is; open: too little was observed;
    unlearned, which no rule says but the loop that trained: no network was better after its training than before."""
    density: float | None
    """The delta answer: the smallest density whose network stays within delta of the reference."""
    interval: tuple[float, float] | None
    """90% interval of the delta answer. Its lower end is 0 where that lies below everything trained out; None where
    there is no answer to bound."""
    gain_density: float | None
    """The paper's answer: where the exponential fit reaches `gain_level` of its gain."""
    gain_interval: tuple[float, float] | None
    reference: Reference | None
    words: str
    """Lines: the answer in one sentence, then how sure it is, what it was read against, how the other answer differs
    and why it stopped or went on."""
    notes: tuple[str, ...] | None = None
    """Those of these lines that say more than the first one and the other fields do, for reports, which have a headline
    and a table of their own for the rest; None: all lines but the first."""
    allowed: float | None = None
    """The gap that stood for delta where networks were compared after short trainings, when gaps are larger; else
    None."""
    gain_level: float = 0.95
    """The share of the fitted gain that `gain_density` stands for."""

    @classmethod
    def without_density(
        cls, *, rule: str, delta: float, status: Status, reference: Reference | None, words: str
    ) -> Answer:
        """An answer that gives no density, only words for why there is none."""
        return cls(
            rule=rule,
            delta=delta,
            status=status,
            density=None,
            interval=None,
            gain_density=None,
            gain_interval=None,
            reference=reference,
            words=words,
        )


class Rule(Protocol):
    """A density rule: a small frozen value with a name."""

    @property
    def name(self) -> str: ...
    def decide(self, curve: Curve) -> Verdict: ...
    def answer(self, curve: Curve) -> Answer: ...
