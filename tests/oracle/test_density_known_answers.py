"""The default rule on simulated discoveries whose answers are known: right, and as sure as it says."""

from __future__ import annotations

import math

import pytest

from benchmarks.simulated import SETTINGS, Outcome, Simulation
from pathgrow.density.probe import ProbeRule


@pytest.mark.parametrize("reference", ["exact", "dense", "none"])
@pytest.mark.parametrize("name", ["fast", "medium", "slow", "slow, low gain"])
def test_single_runs_find_both_answers(name: str, reference) -> None:
    setting = SETTINGS[name]
    for seed in (0, 1):
        simulation = Simulation(setting=setting, noise=0.001, reference=reference, seed=seed)
        _, _, answer, _ = simulation.run(ProbeRule(delta=setting.delta))
        assert answer.status == "found"
        assert answer.density == pytest.approx(setting.known(), rel=0.15)
        assert answer.gain_density == pytest.approx(setting.gain_density, rel=0.15)


@pytest.mark.parametrize("name", ["power law", "stretched", "cifar-like"])
def test_other_tails_than_the_exponential(name: str) -> None:
    setting = SETTINGS[name]
    for reference in ("dense", "none"):
        simulation = Simulation(setting=setting, noise=0.001, reference=reference, seed=0)
        _, _, answer, _ = simulation.run(ProbeRule(delta=setting.delta))
        assert answer.density == pytest.approx(setting.known(), rel=0.2)


@pytest.mark.parametrize(("name", "reference"), [("medium", "none"), ("digits-like", "dense")])
def test_intervals_cover_about_as_often_as_they_say(name: str, reference) -> None:
    outcome = Outcome.of(SETTINGS[name], 0.004, reference, 40)
    # A true coverage of 90% gives fewer than 31 of 40 once in 120.
    assert sum(outcome.covered) >= 31
    assert len(outcome.covered) >= 36
    # The answer is meant to be dense enough two times out of three: noise moves it up, never beyond a half.
    ratios = sorted(outcome.ratios)
    assert 0.9 <= ratios[len(ratios) // 2] <= 1.5


def test_noise_widens_the_interval() -> None:
    widths = []
    for noise in (0.001, 0.006):
        simulation = Simulation(setting=SETTINGS["medium"], noise=noise, reference="none", seed=3)
        _, _, answer, _ = simulation.run(ProbeRule(delta=0.01))
        widths.append(math.log(answer.interval[1] / answer.interval[0]))
    assert widths[1] > 2 * widths[0]


def test_other_start_densities_and_growth_ratios() -> None:
    setting = SETTINGS["medium"]
    for start, gamma in ((0.01, 0.25), (0.05, 0.5), (0.02, 0.1)):
        simulation = Simulation(
            setting=setting, noise=0.002, reference="dense", seed=1, start=start, gamma=gamma, lag=0.8
        )
        _, _, answer, _ = simulation.run(ProbeRule(delta=0.01))
        assert answer.density == pytest.approx(setting.known(), rel=0.2)
        assert answer.gain_density == pytest.approx(setting.gain_density, rel=0.2)
