"""Forecasts: the stages of a usual search, those of several finishers added up, and what methods cost on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import pathgrow
from pathgrow.runs.forecast import expected_stages, mean_sample_flops
from pathgrow.runs.named_method import NamedMethod
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.session import Session
from tests.support.toy import INPUTS, Script, World


def totals(**options: Any) -> Counter[str]:
    """Epochs of each kind of stage."""
    found: Counter[str] = Counter()
    for stage in expected_stages(DiscoverOptions(**options)):
        found[stage.kind] += stage.count * stage.epochs
    return found


@pytest.mark.parametrize("reference", [None, "dense", 0.9])
@pytest.mark.parametrize("finish", [("rigl", "gmp"), ("static", "gts"), ("auto", "set", "static")])
def test_several_finishers_add_up_and_share_a_dense_baseline(finish: tuple[str, ...], reference: Any) -> None:
    """Each searches from the beginning, so the run is the sum of their searches, without a second baseline."""
    alone = [totals(finish=name, reference=reference, budget=40) for name in finish]
    expected: Counter[str] = sum(alone, Counter())
    if reference == "dense":
        assert all(each["dense"] == 40 for each in alone)
        expected["dense"] = 40
    assert totals(finish=finish, reference=reference, budget=40) == expected
    stages = expected_stages(DiscoverOptions(finish=finish, reference=reference, budget=40))
    assert list(dict.fromkeys(stage.finisher for stage in stages if stage.kind != "dense")) == list(finish)


def test_the_baseline_of_a_short_search_is_shared_too() -> None:
    assert totals(finish=("auto", "set"), budget=8)["dense"] == totals(finish="auto", budget=8)["dense"] == 8
    assert totals(finish=("auto", "set"), budget=8, reference=0.9)["dense"] == 0


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, {"seed", "round", "probe", "probe-dense", "final"}),
        ({"reference": 0.9}, {"seed", "round", "probe"}),
        ({"rule": "trajectory"}, {"seed", "round", "final"}),
        ({"preset": "paper", "rule": "exponential", "final": "grown"}, {"seed", "round", "final"}),
        ({"final": "grown"}, {"seed", "round", "probe"}),
        ({"reference": 0.9, "final_epochs": 60}, {"seed", "round", "probe", "final"}),
    ],
)
def test_only_what_the_rule_asks_for_is_expected(options: dict[str, Any], kinds: set[str]) -> None:
    assert set(totals(finish="static", budget=40, **options)) == kinds


def session() -> Session:
    world = World()
    return Session(world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1])


# By hand, of 8 * 16 + 16 * 16 prunable weights and 16 * 2 dense ones.
_PRUNABLE, _DENSE = 384, 32


def test_constant_masks_cost_what_their_density_says() -> None:
    method = pathgrow.methods.create("set", density=0.25)
    found = mean_sample_flops(session(), method, 0.25, 1000)
    assert found == pytest.approx(6 * (0.25 * _PRUNABLE + _DENSE), rel=0.01)


def test_a_method_that_starts_dense_costs_more_than_its_network() -> None:
    """A cubic curve from 20% to 75% of the steps: 0.2 + 0.55 / 4 of the pruned part, and the final density."""
    method = pathgrow.methods.create("gmp", density=0.1, num_steps=1000)
    density = 0.1 + (0.2 + 0.55 / 4) * 0.9
    assert mean_sample_flops(session(), method, 0.1, 1000) == pytest.approx(
        6 * (density * _PRUNABLE + _DENSE), rel=0.02
    )


BATCHES = [(torch.ones(8, 8), torch.arange(8) % 2)]


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("finish", ["gmp", "acdc", "st3", "snfs", "topkast", "edge_popup", "mest", "snip", "erk"])
def test_methods_cost_what_the_ledger_says_later(finish: str) -> None:
    """The training of a probe, with as many steps: the ledger counts the masks that it really had."""
    world = World()
    found = world.discover(finish=finish, rule=Script(last=4, probe=(4,)), budget=40, batches=BATCHES, loss=loss_of)
    [probe] = found.probes
    method = NamedMethod.parse(finish).at(probe.point.density, probe.num_epochs)
    expected = mean_sample_flops(session(), method, probe.point.density, probe.num_epochs)
    assert expected == pytest.approx(probe.training_flops / probe.num_samples, rel=0.02)


def test_a_short_search_starts_with_its_baseline_and_another_one_ends_with_it() -> None:
    short, long = (expected_stages(DiscoverOptions(budget=budget, reference="dense")) for budget in (8, 80))
    assert [stages[0].kind for stages in (short, long)] == ["dense", "train"]
    assert long[-1].kind == "dense"
