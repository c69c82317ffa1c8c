"""Verdicts on the claims of the paper, by fixed rules from the cells of studies.

    python -m benchmarks.verdicts results/studies/*.jsonl

What is compared, the three kinds of statements and their rules are described in docs/design/results_page.md.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from pathgrow.report.compare import mean_interval

Line = Mapping[str, Any]
Point = Mapping[str, Any]
Verdict = Literal["holds", "does not hold", "not shown"]
Curve = Mapping[float, float]
"""A metric by density."""
MARGIN = 0.005
"""How far below B a network may score that is "at least" B."""
PAIRS = {
    ("cifar10", "resnet32"): "CIFAR-10/ResNet-32", ("cifar100", "resnet56"): "CIFAR-100/ResNet-56",
    ("tiny-imagenet", "resnet18"): "TinyImageNet/ResNet-18", ("tiny-imagenet", "vit"): "TinyImageNet/ViT",
    ("digits", "mlp"): "digits/MLP",
}  # fmt: skip
NOT_OF_THE_PAPER = ("digits/MLP",)
_SCALES = ("full", "short", "digits")
"""Largest first."""
_LOW, _HIGH = (0.0, 0.1001), (0.2999, 1.0)
"""Ranges of densities that count as low and high."""
_NEAR = 1.05
"""How much denser than the density of a statement the sparsest level of IMP-C may be that stands for it."""


@dataclass(frozen=True)
class Measured:
    """A mean over seeds; the interval is that of 90% and None if there is only one seed."""

    what: str
    mean: float
    interval: tuple[float, float] | None
    num_seeds: int
    verdict: Verdict
    unit: Literal["points", "x", ""] = "points"
    note: str = ""

    def __str__(self) -> str:
        factor, digits = (100, 2) if self.unit == "points" else (1, 3 if self.unit == "" else 2)
        sign = "" if self.unit == "x" else "+"
        shown = f"{self.what}: {factor * self.mean:{sign}.{digits}f}{'x' if self.unit == 'x' else ''}"
        if self.interval is not None:
            shown += " ({})".format(" to ".join(f"{factor * end:{sign}.{digits}f}" for end in self.interval))
        return shown + (f"; {self.note}" if self.note else "")


@dataclass(frozen=True)
class Finding:
    """What the cells of one pair and scale say about a claim."""

    claim: str
    pair: str
    scale: str
    epochs: int
    measured: tuple[Measured, ...]

    @property
    def num_seeds(self) -> int:
        return min(each.num_seeds for each in self.measured)

    @property
    def verdict(self) -> Verdict:
        found = {each.verdict for each in self.measured}
        return next((v for v in ("does not hold", "not shown") if v in found), "holds")


@dataclass(frozen=True)
class Claim:
    """A claim, its figure in the paper, the study that tests it, and what is measured; () if cells are missing."""

    text: str
    paper: str
    study: str
    measure: Callable[[str, Sequence[Point]], tuple[Measured, ...]]
    pairs: tuple[str, ...]
    """Pairs that the paper makes it for, and those of ours on which it can be tested."""


def findings(lines: Iterable[Line], claims: Sequence[Claim] | None = None) -> list[Finding]:
    """What the finished cells say about each claim, largest scale first."""
    rows, found = list(lines), []
    for claim in CLAIMS if claims is None else claims:
        for pair, scale in itertools.product(claim.pairs, _SCALES):
            own = [line for line in rows if (line["study"], line["scale"]) == (claim.study, scale)]
            own = [line for line in own if PAIRS.get((line["points"][0]["data"], line["points"][0]["model"])) == pair]
            measured = claim.measure(pair, [point for line in own for point in line["points"]]) if own else ()
            if measured:
                found.append(Finding(claim.text, pair, scale, own[0]["epochs"], measured))
    return found


# Statements


def above(what: str, by_seed: Sequence[float], **more: Any) -> Measured:
    """A is better than B."""
    interval = mean_interval(by_seed)
    verdict = _decided(interval and interval[0] > 0, interval and interval[1] < 0)
    return Measured(what, fmean(by_seed), interval, len(by_seed), verdict, **more)


def at_least(what: str, by_seed: Sequence[float], interval: tuple[float, float] | None = None, **more: Any) -> Measured:
    """A matches or exceeds B."""
    interval = interval or mean_interval(by_seed)
    verdict = _decided(interval and interval[0] > -MARGIN, interval and interval[1] < 0)
    return Measured(what, fmean(by_seed), interval, len(by_seed), verdict, **more)


def at_most(what: str, by_seed: Sequence[float], limit: float, **more: Any) -> Measured:
    """A ratio of costs is below a limit."""
    interval = mean_interval(by_seed)
    verdict = _decided(interval and interval[1] < limit, interval and interval[0] > limit)
    return Measured(what, fmean(by_seed), interval, len(by_seed), verdict, unit="x", **more)


def _decided(holds: object, fails: object) -> Verdict:
    return "holds" if holds else "does not hold" if fails else "not shown"


# Points


def curves(points: Sequence[Point], metric: str, **place: Any) -> dict[str, Curve]:
    """A metric by seed and density, of the points at one place in the grid."""
    found: dict[str, dict[float, float]] = {}
    for point in points:
        if all(point.get(name) == value for name, value in place.items()) and point.get(metric) is not None:
            density = float(f"{point['density']:.3g}")  # counts of weights are rounded differently
            found.setdefault(str(point["seed"]), {})[density] = float(point[metric])
    return dict(sorted(found.items()))


def differences(
    a: Mapping[str, Curve], b: Mapping[str, Curve], within: tuple[float, float] = (0, 1), *, known: bool = False
) -> list[float]:
    """A minus B for each seed that both have, averaged over the densities within a range that both have.

    Seeds that lack a density that others have are left out, unless there are no two without gaps; then densities are
    left out that a seed lacks. `known`: B has other densities, between which it is interpolated, and its only seed may
    stand for all.
    """
    return [fmean(own.values()) for own in _paired(a, b, within, known)]


def _paired(
    a: Mapping[str, Curve], b: Mapping[str, Curve], within: tuple[float, float] = (0, 1), known: bool = False
) -> list[Curve]:
    """The differences of each seed, at densities that are the same for all."""
    found: dict[str, dict[float, float]] = {}
    for seed, one in a.items():
        other = next(iter(b.values())) if known and len(b) == 1 else b.get(seed, {})
        for density in sorted(one):
            is_there = _reaches(other, density) if known else density in other
            if is_there and within[0] <= density <= within[1]:
                found.setdefault(seed, {})[density] = one[density] - _interpolated(other, density)
    densities = {density for own in found.values() for density in own}
    if sum(own.keys() == densities for own in found.values()) < 2:
        densities = {density for density in densities if all(density in own for own in found.values())}
    complete = [own for own in found.values() if densities and densities <= own.keys()]
    return [{density: own[density] for density in own if density in densities} for own in complete]


def _averaged(kind: Callable[..., Measured], what: str, paired: Sequence[Curve]) -> Measured:
    """A statement about the mean over densities, which are named."""
    at = ", ".join(f"{100 * density:.3g}" for density in paired[0])
    return kind(f"{what} at {at}%", [fmean(own.values()) for own in paired])


def _reaches(curve: Curve, density: float) -> bool:
    """Whether the levels of IMP-C go down to a density: beyond its last level, a run says nothing."""
    return bool(curve) and min(curve) <= _NEAR * density


def _interpolated(curve: Curve, density: float) -> float:
    at = sorted(curve)
    return float(np.interp(np.log(density), np.log(at), [curve[each] for each in at]))


# Claims


def _growth_rules(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
    own = curves(points, "test", method="gcg")
    kinds = {
        "gradient_growth": (at_least, "GG"),
        "random_growth": (at_least, "RG"),
        "pathgrow_d": (above, "PathGrow-D"),
    }
    by_rule = {name: _paired(own, curves(points, "test", method=name)) for name in kinds}
    if not all(by_rule.values()):
        return ()
    return tuple(_averaged(kind, f"PathGrow - {rule}", by_rule[name]) for name, (kind, rule) in kinds.items())


def _parity(densities: Mapping[str, float]) -> Callable[[str, Sequence[Point]], tuple[Measured, ...]]:
    def measure(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
        pruned, near = curves(points, "val", method="imp_c"), densities[pair]
        by_seed = differences(curves(points, "val", method="gcg"), pruned, (0.999 * near, 1.001 * near), known=True)
        what = f"GCG - IMP-C at {near:.0%}, val"
        return (_beside_imp(what, by_seed, len(pruned), _unfinished(points)),) if by_seed else ()

    return measure


def _beside_imp(what: str, by_seed: Sequence[float], num_pruned: int, note: str = "") -> Measured:
    """At least IMP-C; its score, if there is one run for all seeds, is assumed to vary as much as the other."""
    if num_pruned > 1 or len(by_seed) < 2:
        return at_least(what, by_seed, note=note)
    half = float(student.ppf(0.95, len(by_seed) - 1)) * stdev(by_seed) * (1 + 1 / len(by_seed)) ** 0.5
    middle, assumed = fmean(by_seed), "one run of IMP-C, assumed to vary as much"
    return at_least(what, by_seed, (middle - half, middle + half), note="; ".join(filter(None, (assumed, note))))


def _unfinished(points: Sequence[Point]) -> str:
    """Which levels of an unfinished IMP-C there are; empty if all are there."""
    levels = [float(point["density"]) for point in points if point.get("unfinished")]
    return f"IMP-C unfinished, down to {min(levels):.0%} so far" if levels else ""


def _near_optimal(densities: Mapping[str, float]) -> Callable[[str, Sequence[Point]], tuple[Measured, ...]]:
    def measure(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
        by_seed, interval, note = [], None, ""
        runs = curves(points, "val", method="imp_c")
        runs = {seed: curve for seed, curve in runs.items() if _reaches(curve, densities[pair])}
        for curve in runs.values():
            level = [score for density, score in curve.items() if density >= _HIGH[0]]
            by_seed.append(_interpolated(curve, densities[pair]) - fmean(level))
        if len(runs) == 1 and len(level) > 2:
            # The scatter of the levels around their mean is what a single run says about its noise.
            half = student.ppf(0.95, len(level) - 1) * stdev(level) * (1 + 1 / len(level)) ** 0.5
            interval, note = (by_seed[0] - half, by_seed[0] + half), "one seed, interval from the scatter of levels"
        what = f"IMP-C at {densities[pair]:.0%} - its mean from 100% to 30%, val"
        note = "; ".join(filter(None, (note, _unfinished(points))))
        return (at_least(what, by_seed, interval, note=note),) if by_seed else ()

    return measure


def costs_beside_imp(points: Sequence[Point], search: str) -> list[dict[str, float]]:
    """For each seed of a search: its network, its cost, and both beside the network of IMP-C at the same density.

    `above` is the difference of validation accuracies, `relative` the ratio of costs.
    """
    spent, pruned = (curves(points, metric, search="IMP-C") for metric in ("flops", "val"))
    found = []
    for point in points:
        if point.get("search") == search and spent:
            seed = str(point["seed"]) if str(point["seed"]) in spent else next(iter(spent))
            own = {name: float(point[name]) for name in ("density", "val", "flops")}
            own["above"] = own["val"] - _interpolated(pruned[seed], own["density"])
            own["relative"] = own["flops"] / _interpolated(spent[seed], own["density"])
            found.append(own)
    return found


def imp_at_accuracy(points: Sequence[Point], val: float) -> tuple[float, float] | None:
    """Density and cost of the sparsest level of IMP-C whose mean validation accuracy is at least `val`."""
    spent, pruned = (curves(points, metric, search="IMP-C") for metric in ("flops", "val"))
    for density in sorted(set[float]().union(*pruned.values()).intersection(*pruned.values())):
        if fmean(curve[density] for curve in pruned.values()) >= val:
            return density, fmean(curve[density] for curve in spent.values())
    return None


def _cost(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
    found, pruned = costs_beside_imp(points, "GCG (paper)"), curves(points, "val", search="IMP-C")
    if not found:
        return ()
    sparsest = max(min(curve) for curve in pruned.values())
    is_bound = min(own["density"] for own in found) < sparsest
    note = f"IMP-C down to {sparsest:.0%} where GCG is sparser" if is_bound else ""
    note = "; ".join(filter(None, (note, _unfinished(points))))
    beside = (
        at_most("GCG / IMP-C at the density of GCG (limit 0.5)", [own["relative"] for own in found], 0.5, note=note),
        _beside_imp("GCG - IMP-C at the density of GCG, val", [own["above"] for own in found], len(pruned), note),
    )
    if is_bound:  # at the density of GCG, IMP-C costs more and may score less: this can confirm, but not refute
        beside = tuple(replace(m, verdict="not shown") if m.verdict == "does not hold" else m for m in beside)
    return (at_most("GCG / dense training (limit 1.75)", [own["flops"] for own in found], 1.75), *beside)


def _phew(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
    paired = _paired(curves(points, "test", method="gcg"), curves(points, "test", method="phew"))
    return (_averaged(above, "GCG - PHEW", paired),) if paired else ()


def _rigl(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
    grown, rewired = (curves(points, "test", method=name) for name in ("gcg", "rigl"))
    low, high = differences(rewired, grown, _LOW), differences(grown, rewired, _HIGH)
    if not low or not high:
        return ()
    return (at_least("RigL - GCG, density up to 10%", low), above("GCG - RigL, density from 30%", high))


def _timing(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
    late = curves(points, "test", rough="adaptive")
    by_length = {epochs: differences(curves(points, "test", rough=epochs), late) for epochs in (5, 10)}
    if not all(by_length.values()):
        return ()
    return tuple(at_least(f"{epochs} epochs - adaptive", by_seed) for epochs, by_seed in by_length.items())


def _topology(pair: str, points: Sequence[Point]) -> tuple[Measured, ...]:
    def of(metric: str, other: str, within: tuple[float, float] = (0, 1)) -> list[float]:
        return differences(curves(points, metric, method="gcg"), curves(points, metric, method=other), within)

    ratio, weight = "mean_tau_core_ratio", "log10_total"
    by_seed = (of(weight, "random_growth"), of(ratio, "gradient_growth"), of(ratio, "pathgrow_d", (0, 0.13)))
    names = (
        "log10 PWMP, PathGrow - RG",
        "tau-core ratio, PathGrow - GG",
        "tau-core ratio, PathGrow - PathGrow-D up to 13%",
    )
    return (
        tuple(above(name, found, unit="") for name, found in zip(names, by_seed, strict=True)) if all(by_seed) else ()
    )


_IMAGE_PAIRS = tuple(PAIRS.values())
_PARITY = {"CIFAR-10/ResNet-32": 0.4, "CIFAR-100/ResNet-56": 0.3, "digits/MLP": 0.4}
_OPTIMAL = {"CIFAR-10/ResNet-32": 0.15, "CIFAR-100/ResNet-56": 0.2, "digits/MLP": 0.15}
_SMALL = ("CIFAR-10/ResNet-32", "digits/MLP")
CLAIMS = (
    Claim(
        "GCG matches or exceeds IMP-C at moderate density",
        "at about 40% (CIFAR-10), 30% (CIFAR-100)", "density-curves", _parity(_PARITY), tuple(_PARITY),
    ),
    Claim(
        "IMP-C stays near its best accuracy at low density",
        "to about 15% (CIFAR-10), 20% (CIFAR-100)", "density-curves", _near_optimal(_OPTIMAL), tuple(_OPTIMAL),
    ),
    Claim(
        "GCG matches IMP-C on a ViT at a higher density", "at about 50% (TinyImageNet)", "density-curves",
        _parity({"TinyImageNet/ViT": 0.5}), ("TinyImageNet/ViT",),
    ),
    Claim(
        "A discovery costs less than half of IMP-C of the same accuracy", "about 1.5 dense trainings (CIFAR)",
        "cost", _cost, ("CIFAR-10/ResNet-32", "CIFAR-100/ResNet-56", "digits/MLP"),
    ),
    Claim(
        "PathGrow is at least as good as GG and RG; PathGrow-D is worse", "curves at 5 - 50%, four pairs",
        "growth-rules", _growth_rules, _IMAGE_PAIRS,
    ),
    Claim("GCG is above PHEW", "curves up to 50%, four pairs", "density-curves", _phew, _IMAGE_PAIRS),
    Claim(
        "RigL competes at low density, GCG is above it at high density", "curves up to 50%, four pairs",
        "density-curves", _rigl, _IMAGE_PAIRS,
    ),
    Claim(
        "Early growth is as good as late growth", "rough training of 5, 10 epochs and adaptive: very small differences",
        "growth-timing", _timing, _SMALL,
    ),
    Claim(
        "PathGrow combines high PWMP with a high tau-core ratio",
        "PWMP above RG; ratio above GG, and above PathGrow-D below 13%", "topology", _topology, _SMALL,
    ),
)  # fmt: skip


def main() -> None:
    rows = [json.loads(line) for name in sys.argv[1:] for line in Path(name).read_text(encoding="utf-8").splitlines()]
    for finding in findings(rows):
        print(f"{finding.verdict}: {finding.claim} ({finding.pair}, {finding.scale})")
        for measured in finding.measured:
            print(f"  {measured.verdict}: {measured}; {measured.num_seeds} seeds")


if __name__ == "__main__":
    main()
