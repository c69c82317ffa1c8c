"""The default rule on simulated discoveries with known answers: accuracy, and coverage of its intervals."""

from __future__ import annotations

import math

import pytest

from benchmarks.simulated import SETTINGS, Outcome, Simulation
from pathgrow.density.probe import ProbeRule


def simulate(name: str, reference, noise: float = 0.001, **options: float):
    simulation = Simulation(setting=SETTINGS[name], noise=noise, reference=reference, **{"seed": 0, **options})
    return simulation.run(ProbeRule(delta=SETTINGS[name].delta)).answer


@pytest.mark.parametrize("reference", ["exact", "dense", "none"])
@pytest.mark.parametrize("name", ["fast", "medium", "slow", "slow, low gain"])
def test_single_runs_find_both_answers(name: str, reference) -> None:
    for seed in (0, 1):
        answer = simulate(name, reference, seed=seed)
        assert answer.status == "found"
        assert answer.density == pytest.approx(SETTINGS[name].known(), rel=0.15)
        assert answer.gain_density == pytest.approx(SETTINGS[name].gain_density, rel=0.15)


@pytest.mark.parametrize("name", ["power law", "stretched", "cifar-like"])
def test_tails_other_than_the_exponential(name: str) -> None:
    for reference in ("dense", "none"):
        assert simulate(name, reference).density == pytest.approx(SETTINGS[name].known(), rel=0.2)


@pytest.mark.parametrize(("name", "reference"), [("medium", "none"), ("digits-like", "dense")])
def test_intervals_have_about_their_nominal_coverage(name: str, reference) -> None:
    outcome = Outcome.of(SETTINGS[name], 0.004, reference, 40)
    # A true coverage of 90% gives fewer than 31 of 40 in one of 200 cases.
    assert sum(outcome.covered) >= 31
    assert len(outcome.covered) >= 36
    # The answer is meant to be dense enough two times out of three: noise moves it up, by less than a half.
    ratios = sorted(outcome.ratios)
    assert 0.9 <= ratios[len(ratios) // 2] <= 1.5


def test_noise_widens_the_interval() -> None:
    low, high = (simulate("medium", "none", noise, seed=3).interval for noise in (0.001, 0.006))
    assert math.log(high[1] / high[0]) > 2 * math.log(low[1] / low[0])


def test_other_start_densities_and_growth_steps() -> None:
    setting = SETTINGS["medium"]
    for start, gamma in ((0.01, 0.25), (0.05, 0.5), (0.02, 0.1)):
        answer = simulate("medium", "dense", 0.002, seed=1, start=start, gamma=gamma, lag=0.8)
        assert answer.density == pytest.approx(setting.known(), rel=0.2)
        assert answer.gain_density == pytest.approx(setting.gain_density, rel=0.2)
