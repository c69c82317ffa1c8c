"""Posterior distributions of both answers: the density within delta of the reference, and 95% of the gain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pathgrow.density.posterior import PosteriorSamples, evenly, sample_posterior
from pathgrow.density.saturation import SaturationFit, fit_saturation
from pathgrow.density.types import Answer, Curve, FloatArray, Point, Reference

LOG20 = math.log(20.0)
MIN_POINTS = 3
"""A curve has two numbers for its height and one for its shape. With no more points than these, the size of their error
is prior belief."""
SAMPLING = 0.5
"""Standard deviation over images, in units of sqrt(delta), of the difference in correctness between two networks that
are delta apart. Measured on digits: 0.4."""
SHRINKING = (0.2, 0.1)
"""Gaps between networks shrink with this power of the training length: mean and standard deviation of the power."""
LEVEL = (0.05, 0.5, 0.95)
"""Quantiles of a 90% interval and its median."""
NUM_BAND_DENSITIES = 61
POWERS = (0.3, 0.8, 1.5, 2.5, 5.0)
"""Exponents of the learning curve, equally likely beforehand. Two trainings of a network do not tell them apart, three
do. After twice the training, the next doubling gains 2^-power times as much."""
RESTART_SPREAD = (0.3, 0.1)
"""Prior standard deviation of what restarts of the learning rate cost, around 0: in units of delta, and of what the
training gained meanwhile. On six tasks the cost was between -0.07 and 0.17 of that after two phases, and as often below
as above 0 after three (`benchmarks.learning_curves`)."""
LARGE_RESTART_SPREAD = 0.3
"""The second of them for deciding where two trainings predict too little. On two tasks with few steps in a phase,
restarts cost 0.6 and 0.7 of what the last phase had gained."""
MAX_GAIN = 1 / math.hypot(float(np.std(np.exp2(-np.array(POWERS)))), LARGE_RESTART_SPREAD)
"""What the last phase before pruning may have gained, in units of delta (2.4): where it was more, two trainings do not
predict what a full one leads to. What the next doubling gains has a standard deviation of more than delta then, over
the exponents of the learning curve and what restarts cost."""
TRAINING_NOISE = 1.5
"""How much two trainings of one network differ beyond the noise of a score, in units of that noise. The networks of a
search are pruned from one another and share the luck of one training, so their noise is smaller. On six tasks with four
splits each the standard deviation between dense trainings was 0.7 to 3.7 times the noise that searches inferred, root
mean square 1.85 (`benchmarks.training_noise`)."""
_LEAST_TRAINED = 0.42
"""Fraction of a training that two of its quarters are, at least (8 of 19 epochs)."""
USUAL_POWER = 0.5
"""Exponent of a learning curve, where none is inferred."""
USUAL_NOISE = 0.25
"""Noise of one score in units of delta, if the number of validation examples is not known. Only the centre of a prior:
whoever chooses a tolerance can usually resolve it."""


@dataclass(frozen=True, kw_only=True)
class GainEstimate:
    """The gain answer: where the paper's exponential reaches 95% of its gain."""

    lowest: float
    """Lowest observed density."""
    exponential: SaturationFit
    """The paper's fit: the gain answer itself."""
    exponentials: PosteriorSamples
    """Posterior curves of the paper's shape: the spread of the gain answer."""

    @property
    def gain_density(self) -> FloatArray:
        """The gain answer on each of the `exponentials`."""
        return LOG20 / self.exponentials.speed

    @property
    def has_gain(self) -> bool:
        """Whether the points rise by more than their noise: a flat curve has no 95% of its gain."""
        rise = quantiles(self.exponentials.rise / self.exponentials.noise, (0.1,))[0]
        return not self.exponential.flat and rise > 1.0


@dataclass(frozen=True, kw_only=True)
class DensityEstimate(GainEstimate):
    """Both answers: the posterior curves through one set of points, and the delta answer on each of them."""

    densest: Point
    curves: PosteriorSamples
    reference: Reference
    level: FloatArray
    """True score of the reference, one entry per curve."""
    allowed: FloatArray
    """Allowed gap to it, one entry per curve: delta after full training, more after a short one."""
    delta_density: FloatArray
    """One entry per curve; 0: every density is within the gap; infinity: not even density 1 is."""

    @property
    def share_below(self) -> float:
        """Posterior probability that the delta answer is below every observed density."""
        return float(np.mean(self.delta_density <= self.lowest))

    @property
    def share_above(self) -> float:
        """Posterior probability that the delta answer is above every observed density, or does not exist."""
        return float(np.mean(self.delta_density > self.densest.density))


@lru_cache(maxsize=4)  # a verdict and an answer are requested for the same curve, one after the other
def estimate_from_probes(curve: Curve, delta: float) -> DensityEstimate | None:
    """Estimate both answers from the probes; None if there are too few."""
    return estimate_from_points(
        curve.probes,
        delta,
        curve.reference,
        noise_hint=trajectory_noise(curve.rough),
        num_val=curve.num_val,
        full_epochs=curve.full_epochs,
    )


def estimate_from_points(
    points: Sequence[Point],
    delta: float,
    reference: Reference | None,
    *,
    noise_hint: float | None,
    num_val: int | None = None,
    full_epochs: int | None = None,
) -> DensityEstimate | None:
    """Estimate both answers from points that are treated as equally trained.

    Without a reference the densest point is the reference. `full_epochs` is the training length of the networks in
    question if the points were trained for less. None: fewer than `MIN_POINTS` distinct densities.
    """
    if len({point.density for point in points}) < MIN_POINTS:
        return None
    points = sorted(points, key=lambda point: point.density)
    densities, scores = [point.density for point in points], [point.score for point in points]
    gain = gain_estimate(points, noise_hint=noise_hint)
    curves = sample_posterior(densities, scores, noise_hint=noise_hint)
    # All networks are evaluated on the same examples, so the choice of examples is not noise between the points. With
    # other examples, however, two networks that are delta apart would have come out this much closer or further apart.
    blur = 0.0 if num_val is None else SAMPLING * math.sqrt(delta / num_val)
    if reference is None:
        # The fitted value, not the raw score: the other points determine it better than one noisy measurement does.
        level = curves.at(points[-1].density) + blur * curves.reference_z
        reference = Reference(score=float(np.median(level)), kind="densest", epochs=points[-1].epochs)
    else:
        curves, level = _average_over_models(reference, points, curves, noise_hint, blur)
    allowed = delta * _gap_ratio(points[-1].epochs, full_epochs, curves.gap_z)
    return DensityEstimate(
        **vars(gain),
        densest=points[-1],
        curves=curves,
        reference=reference,
        level=level,
        allowed=allowed,
        delta_density=curves.reach(level - allowed),
    )


def gain_estimate(points: Sequence[Point], *, noise_hint: float | None) -> GainEstimate:
    """Estimate the gain answer alone, from at least `MIN_POINTS` distinct densities."""
    densities, scores = [point.density for point in points], [point.score for point in points]
    return GainEstimate(
        lowest=min(densities),
        exponential=fit_saturation(densities, scores),
        exponentials=sample_posterior(densities, scores, bends=(1.0,), noise_hint=noise_hint),
    )


def allowed_gap(delta: float, epochs: int, full_epochs: int | None) -> tuple[float, float, float]:
    """Return the gap after `epochs` that corresponds to `delta` after full training: median and 90% interval.

    >>> ["%.4f" % value for value in allowed_gap(0.01, 16, 160)]
    ['0.0158', '0.0109', '0.0231']
    """
    median, low, high = (float(_gap_ratio(epochs, full_epochs, np.asarray(z))) for z in (0.0, -1.645, 1.645))
    return delta * median, delta * low, delta * high


def _gap_ratio(epochs: int, full_epochs: int | None, z: FloatArray) -> FloatArray:
    """Return how many times larger gaps are after `epochs` than after full training.

    Errors fall with training, and those of sparse and dense networks fall by about the same fraction: on CIFAR-10 the
    error of a ResNet-32 is that of the dense one times density^-0.13, after 16 epochs as well as after 80. The dense
    error falls with the 0.21st power of the epochs there; on digits, powers of 0.2 to 0.4 make short and long probes
    agree on the answer. Without this factor, short probes ask for up to 50% more density than is needed.
    """
    if full_epochs is None or full_epochs <= epochs:
        return np.ones_like(z)
    power, spread = SHRINKING
    ratio: FloatArray = (full_epochs / epochs) ** (power + spread * z)
    return ratio


def _average_over_models(
    reference: Reference, points: Sequence[Point], apart: PosteriorSamples, noise_hint: float | None, blur: float
) -> tuple[PosteriorSamples, FloatArray]:
    """Return the posterior given a dense score, and for each curve the true value of that score.

    A dense score is the outcome of one training, as noisy as a probe. Under one hypothesis it is the end of the curve
    at density 1, and it and the probes inform each other; under the other it is offset (another recipe, a penalty that
    growth left in the weights) by about half of the observed rise. Both are weighted by their likelihood.
    """
    own_level = reference.score + np.hypot(apart.noise, blur) * apart.reference_z
    if reference.epochs is not None and reference.epochs != points[-1].epochs:
        return apart, own_level  # trained longer or shorter than the probes: not the end of their curve
    scores = [point.score for point in points]
    joined = sample_posterior(
        [*(point.density for point in points), 1.0], [*scores, reference.score], noise_hint=noise_hint
    )
    gap = reference.score - apart.top

    def likelihood(spread: FloatArray) -> float:
        return float(np.mean(np.exp(-0.5 * (gap / spread) ** 2) / spread))

    as_end = likelihood(apart.noise)
    as_apart = likelihood(np.hypot(apart.noise, 0.5 * float(np.ptp(scores))))
    weight = as_end / (as_end + as_apart) if as_end > 0 else 0.0
    num_joined = round(weight * len(gap))
    curves = joined.subsample(num_joined) + apart.subsample(len(gap) - num_joined)
    end_level = curves.top[:num_joined] + blur * curves.reference_z[:num_joined]
    return curves, np.concatenate([end_level, evenly(own_level, len(gap) - num_joined)])


def quantiles(values: FloatArray, probabilities: Sequence[float]) -> list[float]:
    """Return order statistics; nothing is interpolated, which keeps infinities intact."""
    ordered = np.sort(values)
    return [float(ordered[min(int(p * len(ordered)), len(ordered) - 1)]) for p in probabilities]


def trajectory_noise(rough: Sequence[Point]) -> float | None:
    """Estimate the noise of one score from third differences of the trajectory, which cancel a smooth rise.

    The median makes a single jump harmless. None for fewer than six rounds.
    """
    if len(rough) < 6:
        return None
    differences = np.diff([point.score for point in rough], n=3)
    return float(np.median(np.abs(differences))) / (0.6745 * math.sqrt(20.0))


def still_learns(curve: Curve, delta: float) -> bool:
    """Whether training gains so much that networks with less of it say little about fully trained ones.

    The last phase before pruning gained more than `MAX_GAIN` deltas, or a pruned network is better by as much than the
    one before pruning; or there was only one phase. A pretrained network is not at issue.
    """
    known, base = unpruned(curve), curve.rough[-1]
    if curve.reference is not None:
        known = [point for point in known if point not in curve.finished]
    if base.epochs == 0 or len(known) > 2:
        return False
    if len(known) < 2:
        return True
    gained = max([known[1].score - known[0].score, *(point.score - base.score for point in curve.probes)])
    return gained > MAX_GAIN * delta


def is_compared_directly(curve: Curve, delta: float) -> bool:
    """Whether only fully trained networks are compared with the reference, which was trained as long.

    A low cost limit shortens the training before pruning to much less than half, and leaves no room for these.
    """
    found, base = curve.reference, curve.rough[-1]
    is_affordable = base.epochs >= _LEAST_TRAINED * (curve.full_epochs or 0)
    return found is not None and found.kind != "pretrained" and is_affordable and still_learns(curve, delta)


def estimate_from_finished(curve: Curve, delta: float) -> DensityEstimate | None:
    """Estimate both answers from networks that were trained as long as the reference; None if there are too few.

    The reference was trained like them and is the end of their curve.
    """
    base, reference = curve.rough[-1], curve.reference
    assert reference is not None, "networks are compared with it"
    points = [point for point in curve.finished if point.density < base.density]
    if base.density == 1:
        points.append(replace(base, epochs=reference.epochs or base.epochs, score=reference.score))
        reference = None
    noise = expected_noise(curve, delta) * math.hypot(1.0, TRAINING_NOISE)
    return estimate_from_points(points, delta, reference, noise_hint=noise, num_val=curve.num_val)


def pruned_curve(curve: Curve, delta: float) -> DensityEstimate | None:
    """The curve through the pruned networks that answers are read from."""
    return (estimate_from_finished if is_compared_directly(curve, delta) else curve_of_rounds)(curve, delta)


def expected_noise(curve: Curve, delta: float) -> float:
    """Noise of one score, as the centre of a prior."""
    network = curve.reference if is_compared_directly(curve, delta) else None
    rate = abs((network or curve.rough[-1]).score)  # an error rate comes with a minus sign
    if curve.num_val is not None and 0 < rate < 1:
        # Two networks that make as many mistakes make about two thirds of them on the same examples.
        return math.sqrt(rate * (1 - rate) / (3 * curve.num_val))
    return USUAL_NOISE * delta


@lru_cache(maxsize=64)  # each decision reads the same curve several times
def curve_of_rounds(curve: Curve, delta: float, power: float = USUAL_POWER) -> DensityEstimate | None:
    """The curve through the pruned networks, as if all had been trained as long as the network before pruning.

    It may or may not end at the score of that network. Sparser networks have been through more rounds; what the
    unpruned network would have learned in the meantime is subtracted.
    """
    base, noise = curve.rough[-1], expected_noise(curve, delta)
    learned = [learned_until(curve, point.epochs, power) for point in curve.probes]
    points = [replace(p, score=p.score - more) for p, more in zip(curve.probes, learned, strict=True)]
    end = Reference(score=base.score, kind="densest")
    return estimate_from_points(points, delta, end, noise_hint=noise, num_val=curve.num_val)


def learned_until(curve: Curve, epochs: int, power: float = USUAL_POWER) -> float:
    """What the network before pruning would have gained by training on until then, by a power law."""
    known = [(point.epochs, point.score) for point in unpruned(curve)]
    if curve.reference is not None and curve.reference.epochs is not None and curve.rough[-1].density == 1:
        known.append((curve.reference.epochs, curve.reference.score))
    if len({epochs for epochs, _ in known}) < 2 or known[0][0] == 0:
        return 0.0
    left = np.array([point[0] for point in known]) ** -power
    slope = np.polyfit(left, [point[1] for point in known], 1)[0]
    return max(0.0, -float(slope)) * float(curve.rough[-1].epochs ** -power - epochs**-power)


def unpruned(curve: Curve) -> list[Point]:
    """The network without pruning after each phase, and as a control."""
    base = curve.rough[-1]
    whole = [point for point in curve.rough if point.density == base.density]
    phases = whole if curve.rough[0].density == 1 else whole[1:] or whole  # the first one ended the growth
    return [*phases, *(point for point in curve.finished if point.density == base.density)]


def fit_band(curve: Curve, answer: Answer | None = None) -> dict[str, list[float]] | None:
    """Return the fitted curve with its 90% band, from the lowest to the densest probe.

    The lists `density`, `score` (posterior median), `low` and `high` have equal lengths. None if there are too few
    probes. If networks cannot be probed, the band is that of the rough points.

    An answer that is another posterior quantile than the median is not where the median curve crosses the target. For
    such an answer the list `cautious` is added: the score that this fraction of the curves exceeds, each relative to
    its own target. It crosses the target at the answer. Not so if the answer depends on finished networks as well.
    """
    points = curve.probes if curve.can_probe else curve.rough
    is_read_from_rounds = answer is not None and bool(curve.finished) and not is_compared_directly(curve, answer.delta)
    if curve.finished and answer is not None:
        estimate = pruned_curve(curve, answer.delta)
    else:
        estimate = estimate_from_points(points, 1.0, curve.reference, noise_hint=trajectory_noise(curve.rough))
    if estimate is None:
        return None
    densities = np.geomspace(estimate.lowest, estimate.densest.density, NUM_BAND_DENSITIES)
    learned = np.zeros(NUM_BAND_DENSITIES)
    if is_read_from_rounds:
        known = np.array(sorted((math.log(point.density), learned_until(curve, point.epochs)) for point in points))
        learned = np.interp(np.log(densities), known[:, 0], known[:, 1])
    rows = [quantiles(estimate.curves.at(float(x)) + more, LEVEL) for x, more in zip(densities, learned, strict=True)]
    low, score, high = (list(column) for column in zip(*rows, strict=True))
    band = {"density": densities.tolist(), "score": score, "low": low, "high": high}
    if answer is not None and not curve.finished and isinstance(quantile := answer.details.get("quantile"), float):
        judged = estimate_from_probes(curve, answer.delta)
        if judged is not None:
            target = judged.reference.score - (answer.delta if answer.allowed is None else answer.allowed)
            targets = judged.level - judged.allowed
            margins = [judged.curves.at(float(density)) - targets for density in densities]
            band["cautious"] = [target + quantiles(margin, (1 - quantile,))[0] for margin in margins]
    return band
