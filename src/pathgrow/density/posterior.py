"""A rising curve with a free tail, and everything the observed points leave possible.

The curve is `score(density) = top - rise * h(density)`, where `h` falls from 1 at the lowest observed density to 0 at
density 1 along a Box-Cox clock,

    h(density) proportional to exp(-speed * B(density)) - 1,   B(density) = (density**bend - 1) / bend.

`bend = 1` is the paper's exponential, `bend = 0` (the limit) a power law; stretched exponentials lie between them and
longer tails still below zero, and a slow `speed` gives a plain root or logarithm. This one family holds every shape
seen in measurements, so the tail is inferred instead of assumed.

`top` and `rise` are linear and integrated exactly; `bend`, `speed` and the noise run over a grid. The posterior is
returned as a set of equally likely curves, drawn without random numbers: the same points give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from pathgrow.density.least_squares import Array, check_points

BENDS = tuple(i / 10 for i in range(-4, 14))
"""Grid of tail shapes, equally likely beforehand."""
SPEEDS = (0.05, 200.0)
"""Slowest and fastest, in units of the clock from the lowest density to 1: nearly straight, or over at once."""
WIDEST_RISE = 10.0
"""In units of the span of the observed scores: a weak bound where the points say nothing about the rise."""
NUM_SPEEDS = 40
NUM_NOISES = 14
NUM_ZOOMS = 2
NUM_CURVES = 4096


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Equally likely curves through the points; every field but `lowest` has one entry for each curve."""

    lowest: float
    bend: Array
    speed: Array
    top: Array
    """Value at density 1."""
    rise: Array
    """Rise from the lowest observed density to density 1; never negative."""
    noise: Array
    """Standard deviation of one observed score."""
    offset: Array
    """A standard normal draw for each curve, for noise outside the points (that of a reference)."""
    lag: Array
    """Another such draw, for how much gaps between networks shrink in trainings longer than those of the points."""

    def thin(self, num: int) -> Curves:
        """`num` of the curves, evenly chosen; they are ordered by shape."""
        return Curves(lowest=self.lowest, **{name: evenly(getattr(self, name), num) for name in _PER_CURVE})

    def __add__(self, other: Curves) -> Curves:
        """Both sets of curves, each curve as likely as any other."""
        assert self.lowest == other.lowest, "curves over different points cannot be pooled"
        joined = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _PER_CURVE}
        return Curves(lowest=self.lowest, **joined)

    def at(self, density: float) -> Array:
        """Each curve's value at a density."""
        return self.top - self.rise * fall(np.asarray(density), self.lowest, self.bend, self.speed)

    def reach(self, target: Array) -> Array:
        """The smallest density at which each curve reaches its target; 0: always, infinity: not even at density 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = (self.top - target) / self.rise
        return np.where(self.top < target, np.inf, _density_of(wanted, self.lowest, self.bend, self.speed))


_PER_CURVE = tuple(field.name for field in fields(Curves) if field.name != "lowest")


def fit_curves(
    densities: Sequence[float],
    scores: Sequence[float],
    *,
    bends: Sequence[float] = BENDS,
    noise_hint: float | None = None,
) -> Curves:
    """The posterior of the family given equally trained networks.

    Parameters
    ----------
    densities, scores : at least two different densities.
    bends : the tails to consider; `(1.0,)` is the exponential alone.
    noise_hint : the scatter of other scores (along the rough trajectory), as a first guess of the noise of one score.
    """
    rho, score = check_points(densities, scores, 2)
    lowest = float(rho[0])
    # Everything below is in units of the observed span, so that the unit of the score cannot matter. An exactly
    # constant curve has no span of its own; any tiny one then gives the same answer.
    unit = float(np.ptp(score)) or max(abs(float(score[0])), 1.0) * 1e-9
    centred = (score - score.mean()) / unit
    prior = _Prior.of(None if noise_hint is None else noise_hint / unit)
    posterior = _posterior(rho, centred, _Shapes.all(lowest, tuple(bends)), prior)
    for _ in range(NUM_ZOOMS):
        posterior = _posterior(rho, centred, _Shapes.near(lowest, posterior), prior)
    return _draw(lowest, len(score), float(score.mean()), unit, posterior)


@dataclass(frozen=True)
class _Prior:
    """The prior of the noise, as a share of the span of the points: a guess, and the doubt about it."""

    log_noise: float
    doubt: float

    @staticmethod
    def of(noise_hint: float | None) -> _Prior:
        if noise_hint is None:
            return _Prior(float(np.log(0.03)), 1.5)
        return _Prior(float(np.log(np.clip(noise_hint, 1e-4, 1.0))), 0.8)


@dataclass(frozen=True)
class _Posterior:
    shapes: _Shapes
    log_noise: Array
    weight: Array
    """(shapes, noises)"""
    mean_h: Array
    mean_rise: Array
    sd_rise: Array


def _posterior(rho: Array, score: Array, shapes: _Shapes, prior: _Prior) -> _Posterior:
    log_noise = prior.log_noise + prior.doubt * np.linspace(-2.5, 3.0, NUM_NOISES)
    variance = np.exp(2 * log_noise)
    h = fall(rho[None, :], float(rho[0]), shapes.bend[:, None], shapes.speed[:, None])
    mean_h = h.mean(axis=1)
    centred = h - mean_h[:, None]
    precision = np.sum(centred**2, axis=1)[:, None] / variance + WIDEST_RISE**-2
    mean_rise = (-centred @ score)[:, None] / variance / precision
    sd_rise = precision**-0.5
    misfit = np.sum(score**2) / variance - mean_rise**2 * precision
    log_weight = (
        shapes.log_prior[:, None]
        - 0.5 * ((log_noise - prior.log_noise) / prior.doubt) ** 2
        - (len(rho) - 1) * log_noise
        - 0.5 * misfit
        + np.log(sd_rise)
        + log_ndtr(mean_rise / sd_rise)
    )
    return _Posterior(shapes, log_noise, np.exp(log_weight - log_weight.max()), mean_h, mean_rise, sd_rise)


def _draw(lowest: float, num: int, mean_score: float, unit: float, posterior: _Posterior) -> Curves:
    weight = posterior.weight
    shape, level = np.unravel_index(_systematic(weight.ravel()), weight.shape)
    mean, sd = posterior.mean_rise[shape, level], posterior.sd_rise[shape, level]
    u_rise, u_top, u_offset, u_lag = _even_points()
    # rise: its normal cut off below zero, by inversion (falling points leave only the far tail, an exponential);
    # top: normal around what the points say given that rise.
    z = mean / sd
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.where(z > -8.0, mean - sd * ndtri((1.0 - u_rise) * ndtr(z)), -sd * np.log1p(-u_rise) / np.abs(z))
    rise = np.maximum(rise, 0.0)
    noise = np.exp(posterior.log_noise[level])
    top = rise * posterior.mean_h[shape] + noise / np.sqrt(num) * ndtri(u_top)
    return Curves(
        lowest=lowest,
        bend=posterior.shapes.bend[shape],
        speed=posterior.shapes.speed[shape],
        top=mean_score + unit * top,
        rise=unit * rise,
        noise=unit * noise,
        offset=ndtri(u_offset),
        lag=ndtri(u_lag),
    )


def evenly(values: Array, num: int) -> Array:
    """`num` of the values at even distances."""
    return values[(np.arange(num) * 2 + 1) * len(values) // max(2 * num, 1)]


def fall(density: Array, lowest: float, bend: Array, speed: Array) -> Array:
    """`h`: 1 at the lowest observed density, 0 at density 1."""
    # Far below the lowest density it would overflow; beyond this limit no caller can tell two values apart.
    fallen = np.expm1(np.minimum(-speed * _box_cox(density, bend), 500.0))
    h: Array = fallen / np.expm1(-speed * _box_cox(np.asarray(lowest), bend))
    return h


def _density_of(wanted: Array, lowest: float, bend: Array, speed: Array) -> Array:
    """The density where `h` equals `wanted >= 0`; 0 where the family never falls that low."""
    clock = -np.log1p(np.maximum(wanted, 0.0) * np.expm1(-speed * _box_cox(np.asarray(lowest), bend))) / speed
    inside = np.maximum(1.0 + bend * clock, 0.0)
    with np.errstate(divide="ignore"):
        density: Array = np.where(bend == 0, np.exp(clock), inside ** (1.0 / np.where(bend == 0, 1.0, bend)))
    return density


def _box_cox(density: Array, bend: Array) -> Array:
    log = np.log(density)
    safe = np.where(bend == 0, 1.0, bend)
    clock: Array = np.where(bend == 0, log, np.expm1(safe * log) / safe)
    return clock


@dataclass(frozen=True)
class _Shapes:
    """Cells of the grid: `NUM_SPEEDS` speeds for each bend, bend by bend."""

    bend: Array
    speed: Array
    log_prior: Array

    @staticmethod
    @lru_cache(maxsize=32)
    def all(lowest: float, bends: tuple[float, ...]) -> _Shapes:
        """Everything thought possible."""
        every = np.asarray(bends)
        return _Shapes._grid(lowest, every, np.full_like(every, SPEEDS[0]), np.full_like(every, SPEEDS[1]))

    @staticmethod
    def near(lowest: float, coarse: _Posterior) -> _Shapes:
        """A finer grid over what the points leave possible: precise points would fall between coarse cells."""
        possible = (coarse.weight.max(axis=1) > 1e-5).reshape(-1, NUM_SPEEDS)
        kept = possible.any(axis=1)
        bend = coarse.shapes.bend.reshape(-1, NUM_SPEEDS)[kept, 0]
        speed = coarse.shapes.speed.reshape(-1, NUM_SPEEDS)[kept] * _clock(lowest, bend)[:, None]
        step = speed[:, 1] / speed[:, 0]
        low = np.where(possible[kept], speed, np.inf).min(axis=1) / step
        high = np.where(possible[kept], speed, 0.0).max(axis=1) * step
        return _Shapes._grid(lowest, bend, np.maximum(low, SPEEDS[0]), np.minimum(high, SPEEDS[1]))

    @staticmethod
    def _grid(lowest: float, bend: Array, low: Array, high: Array) -> _Shapes:
        """Weighted so that the density where half of the rise is made is log-uniform for every bend."""
        share = np.linspace(0.0, 1.0, NUM_SPEEDS)
        speed = low[:, None] * (high / low)[:, None] ** share / _clock(lowest, bend)[:, None]
        bends = np.broadcast_to(bend[:, None], speed.shape)
        half = _density_of(np.full(speed.shape, 0.5), lowest, bends, speed)
        log_prior = np.log(np.abs(np.gradient(np.log(half), axis=1)))
        return _Shapes(bends.ravel(), speed.ravel(), log_prior.ravel())


def _clock(lowest: float, bend: Array) -> Array:
    """The time that `B` counts from the lowest density to 1."""
    return -_box_cox(np.asarray(lowest), bend)


def _systematic(weight: Array) -> NDArray[np.intp]:
    """`NUM_CURVES` cells in proportion to their weights, chosen systematically instead of at random."""
    cumulative = np.cumsum(weight)
    cells: NDArray[np.intp] = np.searchsorted(cumulative, (np.arange(NUM_CURVES) + 0.5) / NUM_CURVES * cumulative[-1])
    return cells


@lru_cache(maxsize=1)
def _even_points() -> Array:
    """Evenly spread points: three coordinates are a Kronecker sequence of the generalised golden ratio, the fourth one
    has a step of its own."""
    ratio = 1.2207440846057596
    steps = np.append(ratio ** -np.arange(1, 4), 2**-0.5)
    points: Array = (0.5 + np.outer(steps, np.arange(1, NUM_CURVES + 1))) % 1.0
    return points
