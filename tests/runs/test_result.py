"""What a discovery returns: the network, the report, the cost, what its store keeps."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pathgrow.checkpoint import MemoryStore
from pathgrow.density.shrink import Check
from pathgrow.density.types import Answer, Curve, Reference
from pathgrow.report.schema import load_report
from pathgrow.runs.result import Discovery
from tests.support.toy import (
    Script,
    World,
)


def test_the_model_holds_the_returned_network() -> None:
    world = World()
    found = world.discover()
    assert world.evaluate(world.model)[0] == found.score
    for name, mask in found.masks.items():
        weight = world.model.get_parameter(name)
        assert bool((weight[~mask] == 0).all())
        assert bool((weight[mask] != 0).any())
    assert found.density == found.masks.density == found.network.point.density
    num_parameters = sum(p.numel() for p in world.model.parameters())
    num_present = num_parameters - (found.masks.num - found.masks.num_on)
    assert found.density_model == pytest.approx(num_present / num_parameters)


def test_masks_are_enforced_in_further_training() -> None:
    world = World()
    found = world.discover()
    assert world.optimizer.param_groups[0]["lr"] == 0.1
    world.fit(world.model, world.optimizer, 5)
    assert all(bool((world.model.get_parameter(n)[~m] == 0).all()) for n, m in found.masks.items())
    found.attached.detach()
    world.optimizer.param_groups[0]["lr"] = 0.1
    world.fit(world.model, world.optimizer, 5)
    assert not all(bool((world.model.get_parameter(n)[~m] == 0).all()) for n, m in found.masks.items())


@pytest.mark.parametrize(
    ("script", "options", "round"),
    [
        (Script(density=0.12), {}, 1),
        (Script(density=0.05), {}, 0),
        (Script(density=0.9), {}, 3),
        (Script(density=None, status="flat"), {}, 0),
        (Script(density=None, status="unreached"), {}, 3),
        (Script(density=0.12, gain_density=0.15), {"select_by": "gain"}, 2),
        (Script(density=0.12, gain_density=None), {"select_by": "gain"}, 3),
    ],
)
def test_the_sparsest_sufficient_network_is_returned(script: Script, options: dict, round: int) -> None:
    found = World().discover(rule=script, **options)
    assert found.network.point.round == round


def test_within_uses_the_same_curve() -> None:
    @dataclass(frozen=True)
    class Tells(Script):
        def answer(self, curve: Curve) -> Answer:
            return replace(super().answer(curve), density=self.delta * 10)

    found = World().discover(rule=Tells())
    assert found.operating_density == pytest.approx(0.1)
    assert found.within(0.03) == pytest.approx(0.3)


@pytest.mark.parametrize("options", [{"reference": "dense"}, {"finish": ["static", "set"]}])
def test_the_cost_is_that_of_the_whole_call(options: dict) -> None:
    found = World().discover(**{"rule": "probe", "budget": 8, **options})
    assert found.cost == found.ledger.relative
    assert found.cost >= sum(one.cost for one in found.by_finisher.values()) - 1e-9
    assert found.cost == pytest.approx(sum(r.flops for r in found.trained) / found.ledger.dense_training_flops)


def test_the_report_is_complete() -> None:
    world = World()
    found = world.discover(reference="dense")
    network, dense = found.examine(world.evaluate)
    report = found.report(test=network, dense_test=dense)
    assert load_report(json.loads(json.dumps(report.as_json())), "report.json") == report
    num_parameters = sum(parameter.numel() for parameter in world.model.parameters())
    assert (report.network.num, report.network.num_parameters) == (NUM, num_parameters)
    assert report.network.inference_flops == 2 * (found.masks.num_on + OUTPUT)
    assert report.network.dense_inference_flops == 2 * (NUM + OUTPUT)
    assert [point.round for point in report.curve.rounds] == [0, 1, 2, 3]
    assert [point.round for point in report.curve.probes] == [0, 2]
    assert [row.round for row in report.topology] == [0, 1, 2, 3]
    assert report.ledger.samples == 16 * (2 + 16 + 3 * 1 + 2 * 16 + 16)
    assert report.ledger.epochs_trained == 2 + 16 + 3 * 1 + 2 * 16 + 16
    assert report.method.options == {"gamma": 0.25, "start_density": 0.1}
    assert report.answer is not None
    assert found.dense is not None
    assert report.answer.dense == report.answer.dense_test == found.dense.score
    assert report.network.test == report.network.val


def test_repr() -> None:
    found = World().discover()
    assert repr(found) == (
        "Discovery(Operating density: 20.0%;\n"
        f"  returned model: density {100 * found.density:.1f}%, score {found.score:.5g} after 16 epochs, "
        "not verified; 4 rounds, 2 probes)"
    )
    answer = replace(found.answer, interval=(0.1, 0.253))
    assert "20.0% (90% interval 10.0-25.3%);" in repr(replace(found, answer=answer))
    check = Check(outcome="consistent", shortfall=0.0, error=0.1)
    assert "after 16 epochs, consistent; 4 rounds" in repr(replace(found, check=check))
    answer = replace(found.answer, density=None, status="open")
    assert "; more training, more validation examples or a reference may narrow it down;\n" in repr(
        replace(found, answer=answer)
    )
    answer = replace(answer, reference=Reference(score=0.9, kind="given"))
    assert "; more training or more validation examples may narrow it down;\n" in repr(replace(found, answer=answer))
    answer = replace(found.answer, density=None, status="unreached")
    assert repr(replace(found, answer=answer)).startswith("Discovery(No operating density: no network up to ")


def test_a_notebook_shows_answer_and_curve() -> None:
    found = World().discover(name="<b>toy</b>")
    shown = found._repr_html_()
    assert "<b>Operating density: 20.0%.</b>" in shown
    assert "&lt;b&gt;toy&lt;/b&gt;, seed 0" in shown
    assert "<svg" in shown


NUM = 8 * 16 + 16 * 16
"""Prunable weights of the toy network; in linear layers a weight is a multiply-add."""


OUTPUT = 16 * 2


SAMPLES = 16
"""An epoch is one step."""


def num_on(found: Discovery, stage: str) -> int:
    """Active weights of a stage, counted in its masks."""
    if stage.endswith("dense"):
        return NUM
    if stage == "final":
        return found.masks.num_on
    return found.masks_at(0 if stage == "seed" else int(stage.rpartition("-")[2])).num_on


@pytest.mark.parametrize(
    "options",
    [
        {},  # the returned network was not probed
        {"rule": Script(probe=(0, 3), density=0.19)},  # it continues from its probe
        {"rule": Script(probe=(0, 3), density=0.19), "warm_start": False},
        {"rule": Script(probe=(0, 3), density=0.19), "reference": 0.9},  # it is its probe
        {"reference": "dense"},
        {"final": "grown"},
        {"rule": Script(probe=(), last=1), "rough": "adaptive"},
        {"rule": Script(probe=(), last=1), "seed_epochs": None, "budget": 32},  # the seed is trained to its plateau
    ],
    ids=["final", "warm start", "from scratch", "probe", "dense", "grown", "adaptive", "plateau"],
)
def test_the_ledger_counts_every_phase_once_at_its_own_masks(options: dict[str, Any]) -> None:
    world = World()
    found = world.discover(**options)
    ledger, epochs = found.ledger, [call.epochs for call in world.fits]
    assert sum(phase.epochs for phase in ledger.phases) == sum(epochs)
    assert ledger.samples == SAMPLES * sum(epochs)
    assert len({phase.phase for phase in ledger.phases}) == len(ledger.phases)
    flops = 0
    for phase in ledger.phases:
        # Forward, to the inputs and to the weights: each multiply-add three times, two FLOPs for it. Before each growth
        # the paths are read, forward and backward through all weights, missing ones too.
        expected = phase.epochs * SAMPLES * 3 * 2 * (num_on(found, phase.phase) + OUTPUT)
        expected += 6 * (NUM + OUTPUT) if phase.phase.startswith("round") else 0
        assert phase.training_flops == expected
        flops += expected
    dense = found.options.budget * SAMPLES * 6 * (NUM + OUTPUT)
    assert (ledger.training_flops, ledger.dense_training_flops) == (flops, dense)
    assert ledger.relative == pytest.approx(flops / dense)


@pytest.mark.parametrize("final", ["fresh", "grown"])
def test_a_store_keeps_no_tensors_that_are_not_needed(final: str) -> None:
    """Masks of all rounds and the returned network; weights of a round only while probes may start from them."""
    store = MemoryStore()
    found = World().discover(store=store, final=final, rule=Script(probe=(0, 1), last=2))
    assert found.network.stage == "final"
    kept = {stage for stage in store._stages if store._stages[stage].tensors}
    rounds = {"seed", "round-001", "round-002"}
    weights = {"weights-002"} if final == "fresh" else {f"weights-{k:03d}" for k in range(3)}
    assert kept == {"start", *rounds, *weights, "final"}
    again = World()
    again.discover(store=store, final=final, rule=Script(probe=(0, 1), last=2))
    assert again.fits == []
