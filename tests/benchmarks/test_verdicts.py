"""Verdicts on claims: rules at their borders, and differences computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.verdicts import (
    CLAIMS,
    Finding,
    above,
    at_least,
    at_most,
    curves,
    differences,
    findings,
    imp_at_accuracy,
)


@pytest.mark.parametrize(
    ("by_seed", "is_above", "is_at_least"),
    [
        ([0.010, 0.012, 0.011], "holds", "holds"),
        ([-0.010, -0.012, -0.011], "does not hold", "does not hold"),
        ([-0.002, -0.001, -0.0015], "does not hold", "holds"),  # below, but by less than half a point
        ([0.02, -0.02, 0.001], "not shown", "not shown"),
        ([0.02], "not shown", "not shown"),  # one seed has no interval
    ],
)
def test_a_statement_is_decided_by_its_interval(by_seed: list[float], is_above: str, is_at_least: str) -> None:
    assert above("A - B", by_seed).verdict == is_above
    assert at_least("A - B", by_seed).verdict == is_at_least


@pytest.mark.parametrize(
    ("costs", "verdict"), [([1, 1.1], "holds"), ([2, 2.01], "does not hold"), ([1, 2], "not shown")]
)
def test_a_cost_is_compared_with_its_limit(costs: list[float], verdict: str) -> None:
    assert at_most("cost", costs, 1.75).verdict == verdict


def test_an_interval_is_that_of_student() -> None:
    found = above("A - B", [0.01, 0.03])
    assert found.mean == pytest.approx(0.02)
    assert found.interval == pytest.approx((0.02 - 6.3138 * 0.01, 0.02 + 6.3138 * 0.01), abs=1e-5)
    assert str(found) == "A - B: +2.00 (-4.31 to +8.31)"


def test_differences_are_paired_by_seed_and_density() -> None:
    points = [
        {"method": name, "seed": seed, "density": density, "test": test}
        for name, seed, density, test in [
            ("a", 0, 0.1, 0.5), ("a", 0, 0.2, 0.7), ("a", 0, 0.4, 0.9), ("a", 1, 0.1, 0.6),
            ("b", 0, 0.1001, 0.4), ("b", 0, 0.2, 0.5), ("b", 2, 0.1, 0.1),
        ]
    ]  # fmt: skip
    # 0.4 has no partner, 0.1001 is rounded to 0.1, and seeds 1 and 2 have no partner.
    found = differences(curves(points, "test", method="a"), curves(points, "test", method="b"))
    assert found == pytest.approx([(0.1 + 0.2) / 2])


def test_seeds_with_gaps_are_left_out_or_else_the_densities_they_lack() -> None:
    """A seed with the difference at 10% alone must not be averaged with others at 10% and 40%."""
    b = {str(seed): {0.1: 0.0, 0.4: 0.0} for seed in range(3)}
    whole, part = {0.1: 0.3, 0.4: 0.1}, {0.1: 0.4}
    assert differences({"0": whole, "1": whole, "2": part}, b) == pytest.approx([0.2, 0.2])
    assert differences({"0": whole, "1": part, "2": part}, b) == pytest.approx([0.3, 0.4, 0.4])
    assert differences({"0": whole, "1": part}, b, (0.3, 1)) == pytest.approx([0.1])
    assert differences({"0": {0.4: 0.1}, "1": part}, b) == []


def test_one_run_of_imp_is_interpolated_for_all_seeds() -> None:
    grown = {"0": {0.2: 0.9}, "1": {0.2: 0.8}}
    pruned = {"0": {0.1: 0.6, 0.4: 0.8}}  # 0.2 is halfway between them on a log axis
    assert differences(grown, pruned, known=True) == pytest.approx([0.2, 0.1])


def lines(study: str, points: list[dict[str, Any]], scale: str = "short", **place: Any) -> list[dict[str, Any]]:
    place = {"data": "cifar10", "model": "resnet32", **place}
    return [{"study": study, "scale": scale, "epochs": 80, "points": [{**place, **point}]} for point in points]


def found_for(number: int, cells: list[dict[str, Any]]) -> list[Finding]:
    return findings(cells, [CLAIMS[number - 1]])


def scores(method: str, test: float, seeds: int = 3, **more: Any) -> list[dict[str, Any]]:
    return [
        {"method": method, "seed": seed, "density": density, "test": test + 0.0001 * seed * (method == "gcg"), **more}
        for seed in range(seeds) for density in (0.1, 0.3)
    ]  # fmt: skip


def test_growth_rules_need_all_three_comparisons() -> None:
    best = scores("gcg", 0.9) + scores("gradient_growth", 0.9) + scores("random_growth", 0.89)
    assert found_for(5, lines("growth-rules", best)) == []
    [finding] = found_for(5, lines("growth-rules", best + scores("pathgrow_d", 0.88)))
    assert (finding.pair, finding.verdict) == ("CIFAR-10/ResNet-32", "holds")
    [finding] = found_for(5, lines("growth-rules", best + scores("pathgrow_d", 0.92)))
    assert finding.verdict == "does not hold"
    assert [each.verdict for each in finding.measured] == ["holds", "holds", "does not hold"]
    assert [each.what for each in finding.measured] == [
        f"PathGrow - {x} at 10, 30%" for x in ("GG", "RG", "PathGrow-D")
    ]


def test_the_largest_scale_comes_first_and_pairs_are_separate() -> None:
    cells = lines("density-curves", scores("gcg", 0.9) + scores("phew", 0.8))
    cells += lines("density-curves", scores("gcg", 0.9) + scores("phew", 0.95), "full")
    cells += lines("density-curves", scores("gcg", 0.9) + scores("phew", 0.95), "digits", data="digits", model="mlp")
    assert [(finding.scale, finding.verdict) for finding in found_for(6, cells)] == [
        ("full", "does not hold"), ("short", "holds"), ("digits", "does not hold"),
    ]  # fmt: skip


def test_a_single_run_of_imp_widens_the_interval() -> None:
    grown = [{"method": "gcg", "seed": seed, "density": 0.4, "val": 0.91 + 0.01 * seed} for seed in range(3)]
    [finding] = found_for(1, lines("density-curves", grown + levels({1.0: 0.9, 0.4: 0.9})))
    [measured] = finding.measured
    half = 2.91999 * 0.01 * (1 + 1 / 3) ** 0.5  # Student's t of two degrees of freedom
    assert measured.interval == pytest.approx((0.02 - half, 0.02 + half), abs=1e-6)
    paired = [point for seed in range(3) for point in levels({1.0: 0.9, 0.4: 0.9}, seed)]
    [measured] = found_for(1, lines("density-curves", grown + paired))[0].measured
    half = 2.91999 * 0.01 / 3**0.5
    assert measured.interval == pytest.approx((0.02 - half, 0.02 + half), abs=1e-6)


GROWN = [{"method": "gcg", "seed": seed, "density": 0.4, "val": 0.95 + 0.001 * seed} for seed in range(3)]


@pytest.mark.parametrize(
    ("last", "claims"), [(0.512, []), (0.4096, [1]), (0.3277, [1]), (0.168, [1]), (0.15, [1, 2]), (0.134, [1, 2])]
)
def test_an_unfinished_run_of_imp_decides_what_its_levels_reach_and_says_so(last: float, claims: list[int]) -> None:
    densities = [density for density in (1.0, 0.8, 0.64, 0.512, 0.4096, 0.3277) if density >= last]
    pruned = [{**point, "unfinished": True} for point in levels(dict.fromkeys({*densities, last}, 0.93))]
    cells = lines("density-curves", GROWN + pruned)
    found = {number: found_for(number, cells) for number in (1, 2)}
    assert [number for number, own in found.items() if own] == claims
    for finding in (finding for own in found.values() for finding in own):
        assert finding.verdict == "holds"
        assert f"IMP-C unfinished, down to {last:.0%} so far" in str(finding.measured[0])
    whole = lines("density-curves", GROWN + levels(dict.fromkeys({*densities, last}, 0.93)))
    assert all("unfinished" not in str(f.measured[0]) for number in (1, 2) for f in found_for(number, whole))


def levels(val: dict[float, float], seed: int = 0) -> list[dict[str, Any]]:
    return [{"method": "imp_c", "seed": seed, "density": density, "val": score} for density, score in val.items()]


@pytest.mark.parametrize(("at_low", "verdict"), [(0.93, "holds"), (0.90, "does not hold"), (0.9275, "not shown")])
def test_near_optimal_with_one_seed_uses_the_scatter_of_levels(at_low: float, verdict: str) -> None:
    # Around a mean of 0.93 with a standard deviation of 0.001: half the interval is 2.353 * 0.001 * sqrt(1.25).
    deviation = 0.001 * (3 / 4) ** 0.5
    upper = {1.0: 0.93 + deviation, 0.8: 0.93 - deviation, 0.64: 0.93 + deviation, 0.5: 0.93 - deviation}
    [finding] = found_for(2, lines("density-curves", levels({**upper, 0.15: at_low})))
    [measured] = finding.measured
    assert measured.interval is not None
    assert measured.interval[1] - measured.mean == pytest.approx(2.3534 * 0.001 * 1.25**0.5, abs=1e-6)
    assert measured.verdict == verdict


def test_cost_is_relative_to_pruning_to_the_same_density() -> None:
    pruned = [{"search": "IMP-C", "seed": 0, "density": d, "val": 0.9, "flops": f} for d, f in ((1.0, 1.0), (0.4, 3.0))]
    grown = [{"search": "GCG (paper)", "seed": seed, "density": 0.4, "val": 0.9, "flops": 1.2} for seed in (0, 1)]
    [finding] = found_for(4, lines("cost", pruned + grown))
    assert [each.mean for each in finding.measured] == pytest.approx([1.2, 0.4, 0.0])
    assert finding.verdict == "holds"


def test_a_search_sparser_than_imp_is_compared_with_its_last_level_and_says_so() -> None:
    pruned = [
        {"search": "IMP-C", "seed": 0, "density": d, "val": 0.9, "flops": f} for d, f in ((1.0, 1.0), (0.15, 4.0))
    ]
    for density, note in ((0.2, False), (0.1, True)):
        grown = [
            {"search": "GCG (paper)", "seed": s, "density": density, "val": 0.9, "flops": 1.0 + s / 10} for s in (0, 1)
        ]
        [finding] = found_for(4, lines("cost", pruned + grown))
        assert ["IMP-C down to 15%" in str(measured) for measured in finding.measured] == [False, note, note]
        if note:
            assert finding.measured[1].mean == pytest.approx(1.05 / 4)


def test_levels_that_end_above_the_density_of_a_search_cannot_refute_it() -> None:
    pruned = [
        {"search": "IMP-C", "seed": 0, "density": d, "val": 0.95, "flops": f} for d, f in ((1.0, 1.0), (0.5, 1.9))
    ]
    for density, verdict in ((0.5, "does not hold"), (0.3, "not shown")):
        grown = [
            {"search": "GCG (paper)", "seed": s, "density": density, "val": 0.9, "flops": 1.2 + s / 100} for s in (0, 1)
        ]
        [finding] = found_for(4, lines("cost", pruned + grown))
        assert [each.verdict for each in finding.measured] == ["holds", verdict, verdict]


@pytest.mark.parametrize(("val", "level"), [(0.925, (0.2, 3.0)), (0.94, (0.5, 2.0)), (0.95, None)])
def test_imp_is_as_accurate_at_its_sparsest_level_that_is(val: float, level: tuple[float, float] | None) -> None:
    levels = ((1.0, 0.93, 1.0), (0.5, 0.94, 2.0), (0.2, 0.93, 3.0), (0.1, 0.90, 3.5))
    points = [
        {"search": "IMP-C", "seed": seed, "density": density, "val": score + noise, "flops": cost}
        for density, score, cost in levels for seed, noise in enumerate((0.004, -0.004))
    ]  # fmt: skip
    assert imp_at_accuracy(points, val) == level


def test_topology_compares_at_equal_density() -> None:
    metrics = {"gcg": (3.0, 0.8), "random_growth": (1.0, 0.9), "gradient_growth": (3.0, 0.5), "pathgrow_d": (4.0, 0.4)}
    points = [
        {"method": name, "seed": seed, "density": density}
        | {"log10_total": total + noise, "mean_tau_core_ratio": ratio + noise}
        for name, (total, ratio) in metrics.items() for density in (0.05, 0.1, 0.4)
        for seed, noise in enumerate((0.0, 0.01 * (name == "gcg")))
    ]  # fmt: skip
    [finding] = found_for(9, lines("topology", points))
    assert [each.mean for each in finding.measured] == pytest.approx([2.005, 0.305, 0.405])
    assert finding.verdict == "holds"
