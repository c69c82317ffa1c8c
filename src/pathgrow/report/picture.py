"""Where everything lies in the page's own picture, in pixels; the template only writes it out.

Drawn as SVG in the page itself, so that it follows the reader's light or dark colours and stays sharp at any size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pathgrow.report.frame import Frame, ends, threshold
from pathgrow.report.wording import Scores, below_reference, counted, in_round, percent, reference_score

Mark = tuple[float, float, str]
"""x, y, and the text of its tooltip."""


@dataclass(frozen=True)
class Picture:
    """The curve in a box of `width` x `height` pixels; the plot lies between `left`, `right`, `top` and `bottom`."""

    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    rough: list[Mark]
    rough_line: str
    below: list[float]
    """x of the rough points that lie below the picture."""
    probes: list[Mark]
    fit: str
    cautious: str
    band: str
    reference: tuple[float, str] | None
    goal: tuple[float, str] | None
    answer: tuple[float, float, str] | None
    """x, the y it reaches up to, and its label."""
    interval: tuple[float, float] | None
    gain: tuple[float, str] | None
    width: int = 760
    height: int = 430
    left: int = 62
    right: int = 744
    top: int = 14
    bottom: int = 380

    @classmethod
    def of(cls, report: dict[str, Any]) -> Picture:
        """Lay out the curve of a report."""
        frame, scores = Frame.of(report), Scores.of(report)
        curve, answer, fit, goal = report["curve"], report["answer"], report["curve"].get("fit"), threshold(report)

        def x(density: float) -> float:
            return round(cls.left + frame.x(density) * (cls.right - cls.left), 1)

        def y(score: float) -> float:
            return round(cls.bottom - frame.y(score) * (cls.bottom - cls.top), 1)

        def marks(rows: Iterable[dict[str, Any]]) -> list[Mark]:
            return [
                (
                    x(row["density"]),
                    y(row["score"]),
                    f"{in_round(row['round'])}: density {percent(row['density'])}, "
                    f"{scores.name} {scores(row['score'])}, {counted(row['epochs'], 'epoch')}",
                )
                for row in rows
            ]

        rough = marks(curve["rough"])
        line = list(zip(map(x, fit["density"]), map(y, fit["score"]), strict=True)) if fit else []
        edges = [*zip(fit["density"], fit["high"], strict=True)] if fit else []
        edges += [*zip(fit["density"], fit["low"], strict=True)][::-1] if fit else []
        density, gain, interval = answer["operating_density"], answer["gain_density"], ends(answer["interval"])
        reference = report.get("reference")
        return cls(
            x_ticks=[(x(tick), percent(tick)) for tick in frame.density_ticks()],
            y_ticks=[(y(tick), scores(tick)) for tick in frame.score_ticks(8)],
            rough=[mark for mark in rough if mark[1] <= cls.bottom],
            rough_line=_points((mark[0], mark[1]) for mark in rough),
            below=[mark[0] for mark in rough if mark[1] > cls.bottom],
            probes=marks(curve["probes"]),
            fit=_points(line),
            cautious=_points((x(d), y(s)) for d, s in zip(fit["density"], fit["cautious"], strict=True))
            if fit and "cautious" in fit
            else "",
            band=_points((x(d), y(s)) for d, s in edges),
            reference=(y(reference["score"]), f"reference {reference_score(report)}") if reference else None,
            goal=(y(goal), below_reference(report)) if goal is not None else None,
            answer=None
            if density is None
            else (x(density), y(goal) if goal is not None else float(cls.top), percent(density)),
            interval=(x(interval[0]), x(interval[1])) if interval else None,
            gain=None if gain is None else (x(gain), percent(gain)),
        )


@dataclass(frozen=True)
class Spark:
    """A series over the rounds as a small line."""

    name: str
    first: str
    last: str
    points: str
    end: tuple[float, float]
    width: int = 200
    height: int = 48

    @classmethod
    def of(cls, name: str, values: list[float]) -> Spark:
        """Lay out a series of at least two values."""
        low, high = min(values), max(values)
        spread = (high - low) or 1.0
        points = [
            (
                round(4 + index * (cls.width - 8) / (len(values) - 1), 1),
                round(cls.height - 5 - (value - low) / spread * (cls.height - 10), 1),
            )
            for index, value in enumerate(values)
        ]
        return cls(name, f"{values[0]:,.4g}", f"{values[-1]:,.4g}", _points(points), points[-1])


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
