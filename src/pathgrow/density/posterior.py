"""Posterior over monotone accuracy-density curves with a free tail.

A curve is `score(density) = top - rise * h(density)`, where `h` falls from 1 at the lowest observed density to 0 at
density 1, as an exponential of the Box-Cox transform `B` of the density:

    h(density) proportional to exp(-speed * B(density)) - 1,   B(density) = (density**bend - 1) / bend.

`bend = 1` is the paper's exponential and `bend = 0` (the limit) a power law; stretched exponentials are between them,
longer tails below zero, and a small `speed` gives a root or a logarithm. The family contains every shape seen in
measurements, so the tail is inferred instead of assumed.

`top` and `rise` enter linearly and are integrated exactly; `bend`, `speed` and the noise run over a grid. The posterior
is returned as equally weighted samples, drawn without random numbers: the same points give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from pathgrow.density.saturation import sorted_points
from pathgrow.density.types import FloatArray

BENDS = tuple(i / 10 for i in range(-4, 14))
"""Grid of tail shapes; the prior is uniform in the bend and in the log density at half of the rise."""
SPEEDS = (0.05, 200.0)
"""Slowest and fastest, in units of the range of `B` from the lowest density to 1: nearly straight, or a step."""
WIDEST_RISE = 10.0
"""Prior standard deviation of the rise in units of the observed score range: weak, for points that do not bound it."""
NUM_SPEEDS = 40
NUM_NOISES = 14
NUM_ZOOMS = 2
NUM_SAMPLES = 4096


@dataclass(frozen=True, kw_only=True)
class PosteriorSamples:
    """Equally likely curves; every field but `lowest` has one entry per curve."""

    lowest: float
    """Lowest observed density."""
    bend: FloatArray
    speed: FloatArray
    top: FloatArray
    """Value at density 1."""
    rise: FloatArray
    """Rise from the lowest observed density to density 1; never negative."""
    noise: FloatArray
    """Standard deviation of one observed score."""
    reference_z: FloatArray
    """Standard normal draws for the noise of a reference."""
    gap_z: FloatArray
    """Standard normal draws for how much gaps between networks shrink with further training."""

    def subsample(self, num: int) -> PosteriorSamples:
        """Return `num` of the curves at even distances; they are ordered by shape."""
        return PosteriorSamples(lowest=self.lowest, **{name: evenly(getattr(self, name), num) for name in _PER_CURVE})

    def __getitem__(self, which: NDArray[np.intp]) -> PosteriorSamples:
        """Return some of the curves."""
        return PosteriorSamples(lowest=self.lowest, **{name: getattr(self, name)[which] for name in _PER_CURVE})

    def __add__(self, other: PosteriorSamples) -> PosteriorSamples:
        """Pool two sets of samples with equal weight per curve."""
        assert self.lowest == other.lowest, "curves over different points cannot be pooled"
        joined = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _PER_CURVE}
        return PosteriorSamples(lowest=self.lowest, **joined)

    def at(self, density: float) -> FloatArray:
        """Return the value of each curve at a density."""
        return self.top - self.rise * normalized_gap(np.asarray(density), self.lowest, self.bend, self.speed)

    def reach(self, target: FloatArray) -> FloatArray:
        """Return the smallest density at which each curve reaches its target.

        0: at every density; infinity: not even at density 1.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = (self.top - target) / self.rise
        return np.where(self.top < target, np.inf, _density_at(gap, self.lowest, self.bend, self.speed))


_PER_CURVE = tuple(field.name for field in fields(PosteriorSamples) if field.name != "lowest")


def sample_posterior(
    densities: Sequence[float],
    scores: Sequence[float],
    *,
    bends: Sequence[float] = BENDS,
    noise_hint: float | None = None,
) -> PosteriorSamples:
    """Sample the curves that fit equally trained networks.

    Parameters
    ----------
    densities, scores : at least two distinct densities.
    bends : the tails to consider; `(1.0,)` is the exponential alone.
    noise_hint : the noise of other scores (along the rough trajectory), which centres the prior of the noise.
    """
    rho, score = sorted_points(densities, scores, 2)
    lowest = float(rho[0])
    # Everything below is in units of the observed range, which makes the unit of the score irrelevant. An exactly
    # constant curve has no range; any tiny one then gives the same answer.
    unit = float(np.ptp(score)) or max(abs(float(score[0])), 1.0) * 1e-9
    centred = (score - score.mean()) / unit
    # The prior of the noise, as a fraction of the range, is log-normal.
    prior = (math.log(0.03), 1.5) if noise_hint is None else (float(np.log(np.clip(noise_hint / unit, 1e-4, 1.0))), 0.8)
    every = np.asarray(bends)
    shapes = _shapes(lowest, every, np.full_like(every, SPEEDS[0]), np.full_like(every, SPEEDS[1]))
    posterior = _posterior(rho, centred, shapes, *prior)
    for _ in range(NUM_ZOOMS):
        posterior = _posterior(rho, centred, _zoom(lowest, posterior), *prior)
    return _sample(lowest, len(score), float(score.mean()), unit, posterior)


@dataclass(frozen=True)
class _Shapes:
    """Grid cells: `NUM_SPEEDS` speeds per bend, ordered by bend."""

    bend: FloatArray
    speed: FloatArray
    log_prior: FloatArray


@dataclass(frozen=True)
class _Grid:
    """Posterior weights on the grid, and the normal distribution of the rise in each cell."""

    shapes: _Shapes
    log_noise: FloatArray
    weight: FloatArray
    """(shapes, noises)"""
    mean_h: FloatArray
    mean_rise: FloatArray
    sd_rise: FloatArray


def _posterior(
    rho: FloatArray, score: FloatArray, shapes: _Shapes, expected_log_noise: float, noise_spread: float
) -> _Grid:
    log_noise = expected_log_noise + noise_spread * np.linspace(-2.5, 3.0, NUM_NOISES)
    variance = np.exp(2 * log_noise)
    h = normalized_gap(rho[None, :], float(rho[0]), shapes.bend[:, None], shapes.speed[:, None])
    mean_h = h.mean(axis=1)
    centred = h - mean_h[:, None]
    precision = np.sum(centred**2, axis=1)[:, None] / variance + WIDEST_RISE**-2
    mean_rise = (-centred @ score)[:, None] / variance / precision
    sd_rise = precision**-0.5
    misfit = np.sum(score**2) / variance - mean_rise**2 * precision
    log_weight = (
        shapes.log_prior[:, None]
        - 0.5 * ((log_noise - expected_log_noise) / noise_spread) ** 2
        - (len(rho) - 1) * log_noise
        - 0.5 * misfit
        + np.log(sd_rise)
        + log_ndtr(mean_rise / sd_rise)
    )
    return _Grid(shapes, log_noise, np.exp(log_weight - log_weight.max()), mean_h, mean_rise, sd_rise)


def _sample(lowest: float, num_points: int, mean_score: float, unit: float, posterior: _Grid) -> PosteriorSamples:
    # Cells in proportion to their weights, by systematic resampling.
    cumulative = np.cumsum(posterior.weight)
    cells = np.searchsorted(cumulative, (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES * cumulative[-1])
    shape, level = np.unravel_index(cells, posterior.weight.shape)
    mean, sd = posterior.mean_rise[shape, level], posterior.sd_rise[shape, level]
    u_rise, u_top, u_reference, u_gap = _quasi_random()
    # rise: a normal truncated at zero, by inversion (falling points leave only its far tail, an exponential);
    # top: normal given that rise.
    z = mean / sd
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.where(z > -8.0, mean - sd * ndtri((1.0 - u_rise) * ndtr(z)), -sd * np.log1p(-u_rise) / np.abs(z))
    rise = np.maximum(rise, 0.0)
    noise = np.exp(posterior.log_noise[level])
    top = rise * posterior.mean_h[shape] + noise / np.sqrt(num_points) * ndtri(u_top)
    return PosteriorSamples(
        lowest=lowest,
        bend=posterior.shapes.bend[shape],
        speed=posterior.shapes.speed[shape],
        top=mean_score + unit * top,
        rise=unit * rise,
        noise=unit * noise,
        reference_z=ndtri(u_reference),
        gap_z=ndtri(u_gap),
    )


def evenly(values: FloatArray, num: int) -> FloatArray:
    """Return `num` of the values at even distances."""
    return values[(np.arange(num) * 2 + 1) * len(values) // max(2 * num, 1)]


def normalized_gap(density: FloatArray, lowest: float, bend: FloatArray, speed: FloatArray) -> FloatArray:
    """Return `h`: 1 at the lowest observed density, 0 at density 1."""
    # Far below the lowest density it would overflow; beyond this limit no caller can distinguish two values.
    gap = np.expm1(np.minimum(-speed * _box_cox(density, bend), 500.0))
    h: FloatArray = gap / np.expm1(-speed * _box_cox(np.asarray(lowest), bend))
    return h


def _density_at(gap: FloatArray, lowest: float, bend: FloatArray, speed: FloatArray) -> FloatArray:
    """Invert `normalized_gap` for `gap >= 0`; 0 for a curve that never falls that low."""
    transformed = -np.log1p(np.maximum(gap, 0.0) * np.expm1(-speed * _box_cox(np.asarray(lowest), bend))) / speed
    base = np.maximum(1.0 + bend * transformed, 0.0)
    with np.errstate(divide="ignore"):
        density: FloatArray = np.where(bend == 0, np.exp(transformed), base ** (1.0 / np.where(bend == 0, 1.0, bend)))
    return density


def _box_cox(density: FloatArray, bend: FloatArray) -> FloatArray:
    log = np.log(density)
    safe = np.where(bend == 0, 1.0, bend)
    transformed: FloatArray = np.where(bend == 0, log, np.expm1(safe * log) / safe)
    return transformed


def _shapes(lowest: float, bend: FloatArray, slowest: FloatArray, fastest: FloatArray) -> _Shapes:
    """Build a grid whose prior is log-uniform, for every bend, in the density at half of the rise."""
    share = np.linspace(0.0, 1.0, NUM_SPEEDS)
    speed = slowest[:, None] * (fastest / slowest)[:, None] ** share / _range_of_b(lowest, bend)[:, None]
    bends = np.broadcast_to(bend[:, None], speed.shape)
    half = _density_at(np.full(speed.shape, 0.5), lowest, bends, speed)
    log_prior = np.log(np.abs(np.gradient(np.log(half), axis=1)))
    return _Shapes(bends.ravel(), speed.ravel(), log_prior.ravel())


def _zoom(lowest: float, coarse: _Grid) -> _Shapes:
    """Return a finer grid over the cells with posterior mass: precise points fall between coarse cells."""
    possible = (coarse.weight.max(axis=1) > 1e-5).reshape(-1, NUM_SPEEDS)
    kept = possible.any(axis=1)
    bend = coarse.shapes.bend.reshape(-1, NUM_SPEEDS)[kept, 0]
    speed = coarse.shapes.speed.reshape(-1, NUM_SPEEDS)[kept] * _range_of_b(lowest, bend)[:, None]
    step = speed[:, 1] / speed[:, 0]
    slowest = np.where(possible[kept], speed, np.inf).min(axis=1) / step
    fastest = np.where(possible[kept], speed, 0.0).max(axis=1) * step
    return _shapes(lowest, bend, np.maximum(slowest, SPEEDS[0]), np.minimum(fastest, SPEEDS[1]))


def _range_of_b(lowest: float, bend: FloatArray) -> FloatArray:
    """The difference of `B` between density 1 and the lowest density."""
    return -_box_cox(np.asarray(lowest), bend)


@lru_cache(maxsize=1)
def _quasi_random() -> FloatArray:
    """Return low-discrepancy points in four dimensions.

    Three coordinates are a Kronecker sequence of the generalised golden ratio; the fourth has a step of its own.
    """
    ratio = 1.2207440846057596
    steps = np.append(ratio ** -np.arange(1, 4), 2**-0.5)
    points: FloatArray = (0.5 + np.outer(steps, np.arange(1, NUM_SAMPLES + 1))) % 1.0
    return points
