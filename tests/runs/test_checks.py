"""Sanity checks: units of scores, training without effect, too few mask updates."""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau
from torch import nn

import pathgrow
from pathgrow import methods
from pathgrow.checkpoint import MemoryStore
from pathgrow.density.types import Curve, Point, Reason, Reference
from pathgrow.errors import RunFailed, UserError
from pathgrow.methods.method import Progress
from pathgrow.report.html import page
from pathgrow.runs.api import discover
from pathgrow.runs.checks import (
    check_reference,
    delta_warning,
    has_learned,
    has_risen,
    reference_warning,
    training_warnings,
)
from pathgrow.runs.iso_flop import Workload
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.result import Discovery
from tests.support.toy import INPUTS, Script, World
from tests.support.trainings import workload

# Units of scores


def curve(reference: float, rough: list[float], probes: list[float], kind: str = "given") -> Curve:
    def points(scores: list[float]) -> tuple[Point, ...]:
        return tuple(
            Point(round=k, density=0.01 * 1.25**k, epochs=8, score=score, loss=None) for k, score in enumerate(scores)
        )

    caught = Reference(score=reference, kind=kind, epochs=8)  # type: ignore[arg-type]
    return Curve(rough=points(rough), probes=points(probes), reference=caught)


@pytest.mark.parametrize(
    ("reference", "rough", "probes"),
    [
        (93, [0.1, 0.5, 0.6, 0.7, 0.8], []),
        (93, [0.1], [0.11]),
        (76, [0.0, 0.0], [0.4, 0.6]),
        (0.93, [87.5], []),
        (0.93, [10.0, 12.0, 15.0, 60.0], []),
    ],
)
def test_a_reference_in_another_unit_fails(reference: float, rough: list[float], probes: list[float]) -> None:
    with pytest.raises(RunFailed, match=r"reference is .* they seem to be in different units"):
        check_reference(curve(reference, rough, probes))


@pytest.mark.parametrize(
    ("reference", "rough", "probes"),
    [
        (93, [0.1, 0.5, 0.6, 0.8], []),  # percent of a network that has hardly begun to learn: wait
        (27, [0.0, 0.0, 0.0, 0.01, 0.02, 0.05], []),  # BLEU of very sparse networks
        (27, [0.1, 0.3, 0.8, 2.0, 4.0], [9.0]),
        (30, [0.2, 0.4, 0.6, 0.8, 0.9], []),  # a reward
        (-1.2, [-6.0, -4.0, -3.0, -2.5, -2.0], [-1.4]),  # losses with a minus sign
        (-0.05, [-2.3, -1.0, -0.4, -0.2, -0.1], [-0.06]),
        (18.0, [-21.0, -20.0, 0.5, 2.0, 5.0], [17.0]),
        (0.5, [-3.0, -1.0, 0.1, 0.2, 0.3], [0.45]),  # R2
        (2.0, [0.3, 0.5, 0.7, 0.9, 0.95], [0.99]),
        (0.93, [10.0], []),
        (0.0, [0.1, 0.2, 0.3, 0.4, 50.0], []),
    ],
)
def test_other_scores_do_not_fail(reference: float, rough: list[float], probes: list[float]) -> None:
    check_reference(curve(reference, rough, probes))


def test_a_trained_reference_never_fails() -> None:
    check_reference(curve(93, [0.1] * 5, [0.5], kind="dense"))


@given(st.floats(1e-6, 1e6), st.lists(st.floats(0.05, 2.0), min_size=1, max_size=8), st.booleans())
def test_scores_within_a_factor_of_20_of_the_reference_never_fail(
    reference: float, shares: list[float], negative: bool
) -> None:
    sign = -1 if negative else 1
    scores = [sign * reference * share for share in [*shares, 0.06]]
    check_reference(curve(sign * reference, scores, scores))


@pytest.mark.parametrize(
    ("reference", "rough", "probes", "doubt"),
    [
        (
            7.3,
            [0.3, 0.6],
            [0.9, 0.92],
            r"7\.3, but the best score so far is 0\.92; if scores are accuracies",
        ),  # an error
        (2.1, [0.0, 0.01], [0.3], r"2\.1, but the best score so far is 0\.3; if scores are accuracies"),  # a loss
        (1.2, [-6.0, -3.0], [-1.4], r"1\.2, but the best score so far is -1\.4; if scores are negative losses"),
        (0.25, [-2.0, -0.9], [-0.3], "if scores are negative losses"),
    ],
)
def test_a_reference_that_looks_like_an_error_or_a_loss_is_a_warning(
    reference: float, rough: list[float], probes: list[float], doubt: str
) -> None:
    check_reference(curve(reference, rough, probes))
    assert re.search(doubt, reference_warning(curve(reference, rough, probes)) or "")
    assert reference_warning(curve(reference, rough, [])) is None, "scores of networks trained out are waited for"
    assert reference_warning(curve(reference, rough, probes, kind="dense")) is None


def test_a_negated_reference_is_shown_as_it_was_given() -> None:
    said = reference_warning(curve(1.2, [-6.0, -3.0], [-1.4]), sign=-1)
    assert said == "reference is -1.2, but the best score so far is 1.4; pass the reference in the sign of the scores"


@pytest.mark.parametrize(
    ("reference", "probes"),
    [
        (0.93, [0.1]),
        (0.93, [0.95]),
        (1.0, [0.2]),
        (93, [45.0, 91.0]),
        (15.0, [0.9, 1.2]),  # a reward
        (-1.2, [-6.0, -1.4]),
        (0.8, [-0.3]),  # R2
        (18.0, [-3.0]),
        (0.0, [0.5]),
    ],
)
def test_plausible_references_are_no_warning(reference: float, probes: list[float]) -> None:
    assert reference_warning(curve(reference, probes[:1], probes)) is None


def test_a_discovery_warns_about_its_reference_once() -> None:
    with pytest.warns(UserWarning, match=r"reference is 7\.3, but .*, not its error") as caught:
        found = World().discover(reference=7.3, rule=Script(probe=(0, 1, 2)))
    assert len(found.probes) == 3
    assert len(caught) == 1


def in_percent(world: World, factor: float = 100, **options: object) -> Discovery:
    def evaluate(model: nn.Module) -> tuple[float, float]:
        score, loss = world.evaluate(model)
        return factor * score, loss

    settings = {"finish": "static", "start_density": 0.1, "budget": 16, "seed_epochs": 2, **options}
    return discover(world.model, world.optimizer, world.fit, evaluate, INPUTS[:1], **settings)  # type: ignore[arg-type]


def test_stages_trained_before_a_wrong_reference_are_reused() -> None:
    store, world = MemoryStore(), World()
    script = Script(probe=(0,), last=9)
    with pytest.raises(RunFailed, match="reference is 93, but the best score so far is 0"):
        in_percent(world, 1, reference=93, rule=script, store=store)
    assert [call.epochs for call in world.fits] == [2, 16]
    again = World()
    found = in_percent(again, 1, reference=0.93, rule=script, store=store)
    assert len(found.rounds) == 10
    assert [call.epochs for call in again.fits] == [*[1] * 9, 16]


def test_percentages_with_the_default_delta_are_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"delta is 0\.01, .* \(1 for one percentage point\)") as caught:
        in_percent(World(), rule="exponential")
    assert len(caught) == 1
    assert caught[0].filename == __file__, "it points at the caller"


@pytest.mark.parametrize(
    ("factor", "options"),
    [(100, {"delta": 1.0, "rule": "exponential"}), (1, {"rule": "exponential"}), (100, {"rule": Script()})],
)
def test_other_deltas_and_scores_are_no_warning(factor: float, options: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_percent(World(), factor, **options)


def test_negative_losses_are_no_warning() -> None:
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        discover(
            world.model, world.optimizer, world.fit, lambda model: -3 - world.evaluate(model)[1], INPUTS[:1],
            start_density=0.1, budget=16, seed_epochs=2, rule="exponential", finish="static",
        )  # fmt: skip


@pytest.mark.parametrize("options", [{"rule": "exponential"}, {"finish": "gts", "start_density": None}])
def test_a_delta_in_percentage_points_is_a_warning_beside_fractions(options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"cannot differ by more than delta=2: pass 0\.02 for 2 percentage") as caught:
        in_percent(World(), 1, delta=2.0, **options, seed_epochs=2 if "rule" in options else None)
    assert sum("delta" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("options", [{"rule": "exponential", "seed_epochs": 2}, {"finish": "gts", "seed_epochs": None}])
def test_it_is_an_error_if_num_val_says_that_they_are_fractions(options: dict[str, Any], mode: str) -> None:
    world = World()
    settings = {"start_density": 0.1 if "rule" in options else None, "num_val": 32, "mode": mode, **options}
    with pytest.raises(UserError, match=r"evaluate returned 0.*: pass 0\.01 for 1 percentage point"):
        in_percent(world, 1, delta=1.0, **settings)
    assert len(world.fits) <= 1


@pytest.mark.parametrize(
    ("score", "options", "is_trained"),
    [
        (0.0, {"delta": 1.0}, False),  # BLEU of an untrained network
        (35.0, {"delta": 1.0}, True),
        (-0.3, {"delta": 2.0}, True),  # R2, or a negative loss
        (0.8, {"delta": 1.0, "mode": "min"}, True),  # a loss
        (0.8, {"delta": 0.99}, True),
        (0.8, {"delta": 2.0, "delta_is_relative": True}, True),
    ],
)
def test_other_large_deltas_are_no_warning(score: float, options: dict[str, Any], is_trained: bool) -> None:
    assert delta_warning(score, DiscoverOptions(**options), is_trained=is_trained) is None


# Budgets of a few epochs


class Quick(World):
    """Learns something in every epoch."""

    def fit(self, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        super().fit(model, optimizer, 20 * epochs)


@pytest.mark.parametrize(
    ("budget", "max_cost"), [(1, None), (2, None), (3, None), (1, 1.0), (2, 1.0), (4, None), (5, None), (4, 1.0)]
)
def test_what_is_said_about_the_cost_of_a_short_search_holds(budget: int, max_cost: float | None) -> None:
    options = {"finish": "gts", "start_density": None, "seed_epochs": None, "rule": "probe", "delta": 0.1}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = Quick().discover(**options, budget=budget, max_cost=max_cost)
    sentences = [str(warning.message) for warning in caught if "budget of" in str(warning.message)]
    cost = found.ledger.relative
    assert cost is not None
    if budget < 4:
        [sentence] = sentences
        assert "No phase is shorter than one epoch, so the search may exceed max_cost (at budget 1:" in sentence
        assert "Use a budget of at least 16" in sentence
        assert "up to" not in sentence
        assert "prevent" not in sentence
        assert cost > (max_cost or 1.0)
    else:
        assert len(sentences) == (max_cost is None)
        assert cost <= (max_cost or 3.0) + 0.25


# Training without effect

NUM = 150
GENERATOR = torch.Generator().manual_seed(0)
SAMPLES = torch.randn(NUM, 12, generator=GENERATOR)
LABELS = (SAMPLES @ torch.randn(12, 4, generator=GENERATOR)).argmax(1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for batch in torch.randperm(NUM).split(25):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(SAMPLES[batch]), LABELS[batch]).backward()
            optimizer.step()


@torch.no_grad()
def do_nothing(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    """Change weights, as a fit has to, but not what the model computes."""
    bias = list(model.parameters())[-1]
    bias.copy_(torch.nextafter(bias, torch.ones_like(bias)))
    optimizer.zero_grad()
    optimizer.step()


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(SAMPLES).argmax(1) == LABELS).float().mean())


def negative_loss(model: nn.Module) -> float:
    with torch.no_grad():
        return -float(nn.functional.cross_entropy(model(SAMPLES), LABELS))


def noise(model: nn.Module) -> float:
    return float(0.25 + 0.02 * torch.randn(()))


def found_by(fit: Callable[..., None], evaluate: Callable[..., float], **options: Any) -> pathgrow.Discovery:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return pathgrow.discover(
        model, optimizer, fit, evaluate, SAMPLES[:1], **{"budget": 20, "finish": "static", **options}
    )


@pytest.mark.parametrize("options", [{}, {"rule": "trajectory"}, {"eval_weights": "ema"}, {"reference": "dense"}])
@pytest.mark.parametrize(
    ("fit", "evaluate"),
    [(do_nothing, accuracy), (do_nothing, negative_loss), (train, noise), (train, lambda model: 0.25)],
)
def test_scores_that_training_does_not_improve_give_no_density(
    fit: Callable[..., None], evaluate: Callable[..., float], options: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match="training improved no network"):
        found = found_by(fit, evaluate, **options)
    assert found.answer.status == "unlearned"
    assert (found.operating_density, found.gain_density, found.within(0.1)) == (None, None, None)
    assert found.interval == (0.0, 1.0)
    report = found.report()
    assert report.answer is not None
    assert (report.answer.operating_density, report.answer.interval) == (None, (0.0, 1.0))
    assert report.answer.reason == Reason.NOTHING_LEARNED
    assert any("training improved no network" in note for note in report.notes)
    compared = report.curve.probes or report.curve.rounds
    assert {point.round for point in report.curve.untrained} == {point.round for point in compared}
    assert report.curve.fit is None
    assert (report.reference is not None) == (options.get("reference") == "dense"), "none that was fitted"
    for name, points in (("before", report.curve.untrained), ("after", compared)):
        scores = [point.score for point in points]
        assert (report.answer.details[f"{name}_low"], report.answer.details[f"{name}_high"]) == (
            min(scores),
            max(scores),
        )
    if fit is do_nothing and report.curve.probes and "reference" not in options:
        assert sorted(point.score for point in found.untrained) == sorted(point.score for point in compared)
    assert "raining improved no network" in unescape(page(report))


def test_a_network_that_learns_is_not_evaluated_untrained() -> None:
    found = found_by(train, accuracy)
    assert found.answer.status != "unlearned"
    assert has_risen(found.curve.rough)
    assert found.untrained == ()
    assert found.report().curve.untrained == ()


@pytest.mark.filterwarnings("error")
def test_an_easy_task_still_has_an_answer() -> None:
    """The seed network already solves it, so nothing rises; but untrained networks do not."""
    found = found_by(train, lambda model: float(accuracy(model) > 0.5), start_density=0.3, seed_epochs=40, budget=60)
    assert not has_risen(found.curve.rough)
    assert [point.score for point in found.untrained] == [0.0] * len(found.curve.probes)
    assert found.answer.status == "flat"


def test_scores_before_training_are_stored() -> None:
    store = MemoryStore()
    with pytest.warns(UserWarning, match="training improved no network"):
        first = found_by(do_nothing, accuracy, store=store)

    def never(*args: object) -> float:
        raise AssertionError("everything is stored")

    with pytest.warns(UserWarning, match="training improved no network"):
        again = found_by(never, never, store=store)
    assert again.untrained == first.untrained
    assert again.answer == first.answer


def points(scores: list[float]) -> list[Point]:
    return [Point(round=k, density=0.1, epochs=1, score=score) for k, score in enumerate(scores)]


def test_rises_agree_with_kendalls_test() -> None:
    rng = torch.Generator().manual_seed(3)
    for num in (6, 9, 14):
        for slope in (0.0, 0.2, 0.5):
            scores = (slope * torch.arange(num) + torch.randn(num, generator=rng)).mul(2).round().tolist()
            exact = kendalltau(range(num), scores, alternative="greater", method="asymptotic").pvalue
            if abs(exact - 0.01) > 1e-3:
                assert has_risen(points(scores)) == (exact < 0.01)
    assert not has_risen(points([0.5] * 10))


def test_chance_rarely_looks_like_learning() -> None:
    """Of all orders of six scores, three of them after training, one in twenty has these on top."""
    cases = [([*before], [s for s in range(6) if s not in before]) for before in itertools.combinations(range(6), 3)]
    assert sum(min(after) > max(before) for before, after in cases) == len(cases) / 20 == 1
    for before, after in cases:
        stands_out = max(after) - max(before) > max(before) - min(before)
        assert has_learned(points(before), points(after)) == (min(after) > max(before) or stands_out)
    assert not has_learned(points([0.1, 0.2]), points([0.1, 0.2])), "nothing has changed"


# Mask updates

STEPS = 898 // 64
load = functools.cache(workload)
"""Data and model are only read here."""


def with_options(method: str, **options: Any) -> Workload:
    """The workload of a method with its own defaults, but for some options."""
    own = {
        name: value
        for name, value in methods.defaults(method).items()
        if name not in ("density", "target_density", "num_steps")
    }
    return workload(method, method_options={**own, **options})


def num_updates(load: Workload, epochs: int) -> int:
    """Mask updates, counted step by step."""
    method, num = load.method(epochs), load.session.scope.num
    num_on, found = round((method.start_density or 1.0) * num), 0
    for step in range(epochs * STEPS):
        update = method.schedule(Progress(round=0, step=step, num_on=num_on, num=num))
        if update is not None and (method.update is not None or update.num_drop or update.num_grow):
            found += 1
            num_on += update.num_grow - update.num_drop
    return found


@pytest.mark.parametrize("method", ["rigl", "set", "dsr", "gmp", "snfs", "gse", "itop", "granet"])
@pytest.mark.parametrize("every", [3, 100, 10**6])
def test_fewer_than_five_mask_updates_are_a_warning(method: str, every: int) -> None:
    options = {"update_interval": every} if "update_interval" in methods.defaults(method) else {}
    for epochs in (1, 2, 30):
        made = with_options(method, **options)
        num = num_updates(made, epochs)
        warnings_ = training_warnings(made, epochs)
        assert len(warnings_) == (num < 5)
        if warnings_:
            assert f"only {num} mask update{'' if num == 1 else 's'} in {epochs * STEPS} steps" in warnings_[0]


@pytest.mark.parametrize("method", ["gmp", "granet", "snfs", "gse", "itop", "str", "random", "imp", "gcg"])
def test_methods_that_follow_the_length_of_the_training_need_no_warning(method: str) -> None:
    options = {"start_density": 0.1} if method == "gcg" else {}
    for epochs in (2, 3, 40):
        assert training_warnings(with_options(method, **options), epochs) == []


@given(epochs=st.integers(1, 100), rewind_step=st.integers(0, 2000))
@settings(deadline=None)
def test_levels_that_lose_more_than_half_of_their_steps_are_a_warning(epochs: int, rewind_step: int) -> None:
    num_steps = epochs * STEPS
    found = training_warnings(with_options("imp", rewind_step=rewind_step), epochs)
    if rewind_step >= num_steps or 2 * rewind_step <= num_steps:  # the first are refused
        assert found == []
    else:
        assert found[0].startswith(
            f"rewind_step {rewind_step} leaves {num_steps - rewind_step} of {num_steps} steps per level"
        )
