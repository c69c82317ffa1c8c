"""Every rule replayed on recorded CIFAR-10 runs: the default finds the truth, the literal one cannot."""

from __future__ import annotations

import pytest

from benchmarks.rules import DELTA, EXTRACT, Recorded, lines, replay
from pathgrow.density import rules


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded.read(EXTRACT)


def test_the_extract_has_thirteen_trunks(recorded: Recorded) -> None:
    assert len(recorded.trunks) == 13
    assert sum(bool(trunk.probes) for trunk in recorded.trunks) == 3
    truth = recorded.truth()
    assert 0.24 <= truth["dense"] <= 0.29
    assert truth["gain"] == pytest.approx(0.33, abs=0.01)


def test_the_probe_rule_finds_the_truth_on_every_trunk(recorded: Recorded) -> None:
    truth, rule = recorded.truth(), rules.create("probe", delta=DELTA)
    for trunk in recorded.trunks:
        if trunk.probes:
            answer = replay(rule, trunk, recorded.dense[trunk.seed])[2]
            assert answer.density == pytest.approx(truth["dense"], rel=0.15)
            assert answer.interval[0] <= truth["dense"] <= answer.interval[1]
            own = replay(rule, trunk, None)[2]
            assert own.density == pytest.approx(truth["densest"], rel=0.25)


def test_the_literal_rule_varies_with_the_length_of_a_round(recorded: Recorded) -> None:
    answers = [replay(rules.create("exponential"), trunk, None)[2].density for trunk in recorded.trunks]
    assert max(answers) / min(answers) > 3


def test_the_intervals_of_the_trajectory_rule_contain_the_truth(recorded: Recorded) -> None:
    truth, rule = recorded.truth(), rules.create("trajectory", delta=DELTA)
    for trunk in recorded.trunks:
        answer = replay(rule, trunk, None)[2]
        assert answer.interval[0] <= truth["densest"] <= answer.interval[1]
        assert answer.gain_interval[0] <= truth["gain"] <= answer.gain_interval[1]


def test_the_table_has_a_row_for_every_rule(recorded: Recorded) -> None:
    few = Recorded(tuple(trunk for trunk in recorded.trunks if trunk.probes), recorded.dense)
    text = "\n".join(lines(few))
    for name in rules.names():
        assert f"| {name} |" in text
