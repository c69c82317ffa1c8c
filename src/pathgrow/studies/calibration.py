"""Answers of `discover` compared with brute force: true densities, errors of the answers, coverage of their intervals.

The truth is computed from a density sweep: networks of several densities trained as long as the dense one. The mean
gap to the dense network of the same seed is smoothed to fall with density; where it crosses delta, interpolated in log
density, is the true density.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from pathgrow import data
from pathgrow.studies.definition import View

_NUM_DRAWS = 1000
_Array = npt.NDArray[np.float64]
_Point = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrueDensity:
    """The smallest density whose networks stay within delta of the dense ones."""

    density: float
    interval: tuple[float, float] | None
    """90%, over seeds; None for a single one."""
    num_seeds: int
    is_bound: bool
    """Whether even the sparsest network of the sweep is within delta: the truth is at most `density`, its density."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The answers of one kind of search on one pair, and the truth."""

    panel: str
    series: str
    truth: TrueDensity
    answers: tuple[float | None, ...]
    """By seed; None: no density was reported."""
    intervals: tuple[tuple[float, float] | None, ...]
    level: float
    """The score that is delta worse than dense, for figures."""

    @property
    def errors(self) -> list[float]:
        """Relative errors of the answers that there are; one below a truth that is only a bound may be right."""
        errors = [answer / self.truth.density - 1 for answer in self.answers if answer is not None]
        return [max(0.0, error) if self.truth.is_bound else abs(error) for error in errors]

    @property
    def median_error(self) -> float | None:
        """The median of these."""
        return median(self.errors) if self.errors else None

    @property
    def num_covering(self) -> int:
        """Intervals that contain the true density, or begin below one that is only a bound."""
        true, is_bound = self.truth.density, self.truth.is_bound
        return sum(ends is not None and ends[0] <= true and (is_bound or true <= ends[1]) for ends in self.intervals)

    @property
    def num_intervals(self) -> int:
        """Intervals that were reported."""
        return sum(ends is not None for ends in self.intervals)


def calibrations(view: View, points: Sequence[_Point]) -> Iterator[Calibration]:
    """Compare answers with the sweeps that `view.truth` names, where dense networks and sweeps are finished."""
    panels = dict.fromkeys(str(point.get(view.panel, "")) if view.panel else "" for point in points)
    for panel in panels:
        own = [point for point in points if not view.panel or str(point.get(view.panel, "")) == panel]
        dense = {seed: scores[1.0] for seed, scores in _scores(view, own, "dense").items() if 1.0 in scores}
        for search, sweep in view.truth.items():
            found = [point for point in own if _series(view, point) == search and "delta" in point]
            if not found:
                continue
            sign = -1 if data.mode(found[0]["data"]) == "min" else 1
            delta = float(found[0]["delta"])
            truth = true_density(dense, _scores(view, own, sweep), delta, sign)
            if truth is not None:
                yield Calibration(
                    panel=panel, series=search, truth=truth, answers=tuple(point.get("answer") for point in found),
                    intervals=tuple(_interval(point) for point in found),
                    level=fmean(dense.values()) - sign * delta,
                )  # fmt: skip


def true_density(
    dense: Mapping[str, float], density_sweep: Mapping[str, Mapping[float, float]], delta: float, sign: int = 1
) -> TrueDensity | None:
    """Where the sweep comes within delta of dense; None without seeds that have all densities and a dense network.

    Seeds are resampled as a multivariate Student distribution: a seed shifts all of its gaps, since its dense network
    is lucky or not, and each network has noise of its own.

    >>> dense, sweep = {"0": 0.9}, {"0": {0.1: 0.86, 0.4: 0.90}}
    >>> round(true_density(dense, sweep, 0.02).density, 6)  # halfway in log density
    0.2
    """
    densities = sorted({density for scores in density_sweep.values() for density in scores})
    seeds = [seed for seed, scores in density_sweep.items() if seed in dense and len(scores) == len(densities)]
    if not seeds:
        return None
    gaps = np.array([[sign * (dense[seed] - density_sweep[seed][density]) for density in densities] for seed in seeds])
    at, num = np.log(np.array([*densities, 1.0])), len(seeds)
    interval = None
    if num > 1:
        draw = np.random.default_rng(0)
        away = (gaps - gaps.mean(axis=0)) / math.sqrt(num * (num - 1))
        spread = np.sqrt((num - 1) / draw.chisquare(num - 1, (_NUM_DRAWS, 1)))
        drawn = gaps.mean(axis=0) + spread * (draw.standard_normal((_NUM_DRAWS, num)) @ away)
        low, high = np.quantile([_crossing(at, gap, delta) for gap in drawn], (0.05, 0.95))
        interval = (float(low), float(high))
    density = _crossing(at, gaps.mean(axis=0), delta)
    return TrueDensity(density=density, interval=interval, num_seeds=num, is_bound=density <= math.exp(at[0]))


def _crossing(at: _Array, gap: _Array, delta: float) -> float:
    """The density where the smoothed gap is delta; `at` are log densities, and the last one, 0, has no gap."""
    smooth = isotonic_regression(np.append(gap, 0.0), increasing=False).x - delta
    first = int(np.argmax(smooth <= 0))
    if first == 0:
        return float(np.exp(at[0]))
    fraction = smooth[first - 1] / (smooth[first - 1] - smooth[first])
    return float(np.exp(at[first - 1] + fraction * (at[first] - at[first - 1])))


def _scores(view: View, points: Sequence[_Point], series: str) -> dict[str, dict[float, float]]:
    """The score by seed and density: the mean of val and test, neither of which a network of a sweep is chosen by."""
    found: dict[str, dict[float, float]] = {}
    for point in points:
        if _series(view, point) == series:
            scores = [float(point[part]) for part in ("val", "test") if point.get(part) is not None]
            density = float(f"{point['density']:.3g}")  # counts of weights are rounded differently
            found.setdefault(str(point.get("seed")), {})[density] = fmean(scores)
    return found


def _interval(point: _Point) -> tuple[float, float] | None:
    low, high = point.get("low"), point.get("high")
    return None if low is None or high is None else (float(low), float(high))


def _series(view: View, point: _Point) -> str:
    return ", ".join(str(point[name]) for name in view.series if point.get(name) is not None)
