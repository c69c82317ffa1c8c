"""Several finishers: stages of their own, which network is returned, costs, resuming, the report."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from pathgrow.density.shrink import Check
from pathgrow.density.types import Reference
from pathgrow.errors import UserError
from pathgrow.report import html, terminal
from pathgrow.report.loading import load_finished
from pathgrow.report.networks import (
    compared_with_dense,
    finishers,
    lengths_compared,
    other_finishers,
    returned_finisher,
)
from pathgrow.report.schema import CheckReport, ReferenceReport, Score
from pathgrow.runs.finishers import select_finisher
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.result import Discovery
from tests.support.toy import Script, World, killed_at_every_save, stage_lengths, without_timing

BOTH = ["static", "set:drop_fraction=0.5"]


@pytest.fixture(scope="module")
def found() -> Discovery:
    return World().discover(finish=BOTH, reference="dense")


def test_each_finisher_has_stages_of_its_own_and_the_baseline_is_shared(found: Discovery) -> None:
    lengths = stage_lengths(found)
    own = [name for name, _ in lengths if name.endswith("--static")]
    assert [name.replace("static", "set_drop_fraction_0_5") for name in own] == [
        name for name, _ in lengths if name.endswith("_0_5")
    ]
    assert [name for name, _ in lengths if "--" not in name] == ["dense"]


def test_the_results_of_each_are_those_of_a_search_of_its_own(found: Discovery) -> None:
    for name in BOTH:
        alone = World().discover(finish=name, reference="dense")
        assert alone.by_finisher == {name: found.by_finisher[name]}
        assert found.by_finisher[name].cost == pytest.approx(alone.ledger.relative - 1.0)  # the dense baseline
    assert found.ledger.relative == pytest.approx(1 + sum(each.cost or 0 for each in found.by_finisher.values()))


def test_the_model_holds_the_network_of_the_best(found: Discovery) -> None:
    best = found.by_finisher[found.options.finishers[0]]
    assert (found.density, found.score) == (best.density, best.score)
    assert found.report().config["finish"] == BOTH
    model = found.attached.model
    assert World().evaluate(model)[0] == found.score
    assert all(bool((model.get_parameter(name)[~mask] == 0).all()) for name, mask in found.masks.items())


def result(density: float, score: float, *, outcome: str | None = None, dense: float | None = None) -> Discovery:
    """A discovery of which only what is compared is real."""
    made = object.__new__(Discovery)
    check = None if outcome is None else Check(outcome=outcome, shortfall=0.0, error=0.005)  # type: ignore[arg-type]
    reference = None if dense is None else Reference(score=dense, kind="estimated")
    answer = replace(Script().answer(_EMPTY), reference=reference)
    point = replace(_POINT, point=replace(_POINT.point, density=density, score=score))
    for name, value in {"check": check, "answer": answer, "network": point}.items():
        object.__setattr__(made, name, value)
    return made


_SAMPLE = World().discover()
_EMPTY, _POINT = _SAMPLE.curve, _SAMPLE.network


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("b", {"a": result(0.2, 0.9), "b": result(0.1, 0.8)}),  # nothing tells that one misses
        ("a", {"a": result(0.2, 0.9, outcome="consistent"), "b": result(0.1, 0.9, outcome="missed")}),
        # The dense score that one finisher estimated also tells whether the other misses: 0.021 > 0.01 + 2 * 0.005.
        ("a", {"a": result(0.2, 0.9, outcome="consistent", dense=0.9), "b": result(0.1, 0.879)}),
        ("b", {"a": result(0.2, 0.9, outcome="consistent", dense=0.9), "b": result(0.1, 0.881)}),
        ("b", {"a": result(0.2, 0.8, outcome="missed"), "b": result(0.3, 0.85, outcome="missed")}),  # the better one
    ],
)
def test_the_sparsest_network_that_does_not_miss(expected: str, found: dict[str, Discovery]) -> None:
    assert select_finisher(found, DiscoverOptions()) == expected


def test_searches_by_several_finishers_resume() -> None:
    assert killed_at_every_save(True, finish=["static", "erk"], rule=Script(last=1, probe=(0,)), budget=8) > 12


def test_pruning_and_probing_in_one_call_leave_a_run_that_can_be_shown(tmp_path: Path) -> None:
    options = {"finish": ["gts", "snip", "set"], "rule": Script(), "budget": 16, "store": tmp_path, **DATA}
    found = World().discover(**options)
    report = load_finished(tmp_path)
    assert [each.name for each in report.finishers] == ["gts", "snip", "set"]
    best = returned_finisher(report)
    assert best is not None
    assert best.density == found.density
    assert len(other_finishers(report)) == 2
    rows = finishers(report)[1]
    assert [row[0].removeprefix(">") for row in rows] == ["gts", "snip", "set"]
    page = html.page(report)
    assert "What each finisher found" in page
    assert all(f"{each.name}: " in page for each in other_finishers(report))
    console = Console(file=io.StringIO(), width=120)
    console.print(terminal.summary(report, 120))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "networks of other finishers" in shown
    assert f">{best.name}" in shown
    world = World()
    assert without_timing(world.discover(**options)) == without_timing(found)
    assert not world.fits


def test_a_network_compared_with_the_baseline_of_another_finisher_names_it() -> None:
    report = World().discover(finish="static", budget=8).report()
    assert report.answer is not None
    answer = replace(
        report.answer,
        status="found",
        reference=ReferenceReport(score=0.5, kind="densest", epochs=4),
        dense=Score(score=0.7, loss=None),
        check=CheckReport(outcome="consistent", shortfall=0.1, error=0.05),
    )
    compared = compared_with_dense(replace(report, answer=answer))
    assert compared is not None
    assert compared[0].endswith("below the dense baseline")
    later = compared_with_dense(replace(report, answer=replace(answer, check=None)))  # as `show --delta` reads it
    assert later is not None
    assert later[0].endswith("the dense baseline")
    assert lengths_compared(replace(report, answer=answer)) is None  # both have the whole budget


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


DATA = {"loss": loss_of, "batches": [(torch.randn(8, 8), torch.arange(8) % 2)]}


def test_names_are_given_once() -> None:
    for finish in ([], ["set", "set"]):
        with pytest.raises(UserError, match="finish must be names without repetition"):
            World().discover(finish=finish)
