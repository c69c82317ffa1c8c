"""What is noticed about a user's functions: modes of layers, the length of a training, scores in percent."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from pathgrow.checkpoint import MemoryStore
from pathgrow.errors import RunFailed, UserError
from pathgrow.runs.result import Discovery
from pathgrow.runs.user_functions import CallMonitor, LayerModes, check_fraction
from tests.support.toy import INPUTS, TARGETS, Killed, World

PRUNED = {"finish": "gts", "rule": "probe", "start_density": None, "seed_epochs": None, "budget": 16, "delta": 0.05}


def said(world: World, **options: Any) -> list[str]:
    """The warnings of a discovery about its functions."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = world.discover(**options)
    sentences = [str(warning.message) for warning in caught]
    about = [sentence for sentence in sentences if "training mode" in sentence or "third argument" in sentence]
    assert set(about) <= set(found.warnings), "also in the report"
    return about


# Modes


class Forgetful(World):
    """Evaluates in the mode that training left the model in."""

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        model.train()
        with torch.no_grad():
            logits = model(INPUTS)
        return float((logits.argmax(1) == TARGETS).double().mean()), float(nn.functional.cross_entropy(logits, TARGETS))


@pytest.mark.parametrize("options", [{}, PRUNED, {**PRUNED, "start": "scratch"}, {**PRUNED, "finish": ["gts", "set"]}])
def test_an_evaluation_in_training_mode_is_a_warning_once(options: dict[str, Any]) -> None:
    [sentence] = said(Forgetful(), **options)
    assert sentence.startswith("evaluate runs the model with BatchNorm1d in training mode")
    assert "call model.eval() in evaluate" in sentence


def test_an_evaluation_that_never_calls_eval_is_found_after_training() -> None:
    """The model was passed in evaluation mode, so only `fit` switches it to training mode."""

    class Never(World):
        def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
            return float((model(INPUTS).argmax(1) == TARGETS).double().mean())

    world = Never()
    world.model.eval()
    assert len(said(world)) == 1


def test_evaluations_that_are_right_are_no_warning() -> None:
    class Polite(World):
        """Updates statistics first, scores in evaluation mode and switches back."""

        def evaluate(self, model: nn.Module) -> tuple[float, float]:
            with torch.no_grad():
                model.train()(INPUTS)
            score = super().evaluate(model)
            model.train()
            return score

    class Other(World):
        """Scores something that is not the model."""

        def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
            return 0.5

    for world in (World(), Polite(), Other()):
        assert said(world) == []


def test_models_without_layers_that_have_a_mode_are_no_warning() -> None:
    world = Forgetful()
    world.model[1] = nn.BatchNorm1d(16, track_running_stats=False)  # type: ignore[operator]
    world.model[2] = nn.Sequential(nn.ReLU(), nn.Dropout(0.0))  # type: ignore[operator]
    world.optimizer = SGD(world.model.parameters(), lr=0.1)
    assert said(world) == []


class DropPath(nn.Identity):
    """As in timm."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob


@pytest.mark.parametrize(
    ("layer", "matters"),
    [
        (nn.Dropout2d(0.1), True),
        (nn.InstanceNorm1d(4), False),
        (nn.InstanceNorm1d(4, track_running_stats=True), True),
        (nn.LayerNorm(4), False),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.1), True),
        (nn.LSTM(4, 4, num_layers=2), False),
        (nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (nn.MultiheadAttention(4, 2), False),
        (nn.RReLU(), True),
        (DropPath(0.1), True),
        (DropPath(0.0), False),
    ],
)
def test_layers_whose_mode_matters(layer: nn.Module, matters: bool) -> None:
    modes, model = LayerModes(), nn.ModuleList([nn.Linear(2, 2), layer])
    modes(model, ())
    assert modes.in_training == ([type(layer).__name__] if matters else [])
    modes(model.eval(), ())
    assert modes.in_training == []


def test_a_watched_model_can_be_copied_and_pickled() -> None:
    """An evaluation may save its model, or send it to another process."""
    model, monitor = nn.Sequential(nn.Linear(2, 2), nn.Dropout()), CallMonitor()
    with monitor.watch_evaluation(model, is_trained=False):
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(torch.zeros(1, 2))
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("options", [{}, PRUNED, {**PRUNED, "finish": ["gts", "static"]}])
@pytest.mark.parametrize("trains", [True, False])
def test_the_model_is_returned_in_the_modes_that_it_was_passed_in(options: dict[str, Any], trains: bool) -> None:
    world = World()
    world.model.train(trains)[1].train(not trains)  # type: ignore[index]
    before = [module.training for module in world.model.modules()]
    world.discover(**options)
    assert [module.training for module in world.model.modules()] == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed, RuntimeError])
def test_modes_are_restored_after_an_error(error: type[BaseException]) -> None:
    class Ends(World):
        def evaluate(self, model: nn.Module) -> tuple[float, float]:
            score = super().evaluate(model)
            if len(self.fits) == 3:
                raise error
            return score

    world = Ends()
    with pytest.raises(error):
        world.discover()
    assert all(module.training for module in world.model.modules())


# The length of a training


class Deaf(World):
    """Trains for three epochs, whatever it is asked for."""

    def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        super().fit(model, optimizer, 3)


class Uncounted(Deaf):
    """Trains without running the model itself, so that only steps can be counted."""

    def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            outputs = INPUTS
            for layer in model:  # type: ignore[attr-defined]
                outputs = layer(outputs)
            nn.functional.cross_entropy(outputs, TARGETS).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("world", "num"), [(Deaf, "trained on 48 samples and {} trained on 48"), (Uncounted, "made 3 steps and {} made 3")]
)
@pytest.mark.parametrize("options", [PRUNED, {**PRUNED, "finish": ["gts", "static"]}])
def test_a_fit_that_ignores_its_length_is_a_warning_once(world: type[World], num: str, options: dict[str, Any]) -> None:
    [sentence] = said(world(), **options)
    assert sentence.startswith("fit(model, optimizer, 4) " + num.format("fit(model, optimizer, 2)"))
    assert "unless it stops early" in sentence


def test_a_fit_that_follows_its_length_is_no_warning() -> None:
    assert said(World(), **PRUNED) == []


@pytest.mark.parametrize(
    ("lengths", "warns"),
    [
        ([(10, 1000), (14, 1000)], False),  # too close to tell
        ([(10, 1000), (15, 1019)], True),
        ([(10, 1000), (15, 1021)], False),  # longer by more than 2%
        ([(10, 1000), (8, 1000), (12, 1000)], True),  # the last two differ by half
        ([(10, 1000), (5, 500), (20, 1000)], False),  # only the first two that can be compared
        ([(10, 0), (20, 0)], False),
    ],
)
def test_the_first_two_lengths_that_differ_are_compared(lengths: list[tuple[int, float]], warns: bool) -> None:
    monitor = CallMonitor()
    found = [monitor.length_warning(epochs, num, 0) for epochs, num in lengths]
    assert [sentence is not None for sentence in found] == [False] * (len(lengths) - 1) + [warns]


# Scores in percent


class Percent(World):
    """Scores in percent, the first of them below 1, as of a network that has learned nothing yet."""

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        score, loss = super().evaluate(model)
        return (100 * score if len(self.fits) > self.late else 0.9), loss

    late = -1


def in_percent(late: int, **options: Any) -> tuple[World, MemoryStore]:
    world, store = Percent(), MemoryStore()
    world.late = late  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"evaluate returned [4-9]\d.*, but num_val, .* divide them by 100 .* or else"):
        world.discover(num_val=32, store=store, **options)
    return world, store


@pytest.mark.parametrize("options", [{}, PRUNED, {**PRUNED, "start": "scratch"}, {**PRUNED, "mode": "min"}])
def test_scores_in_percent_are_refused_if_num_val_says_that_they_are_not(options: dict[str, Any]) -> None:
    world, _ = in_percent(-1, **options)
    assert len(world.fits) <= 1, "at the first score"


def test_stages_that_were_finished_before_stay_stored() -> None:
    world, store = in_percent(1)
    assert len(world.fits) == 2
    assert store.load("seed") is not None
    assert store.load("round-001") is None


def test_a_score_above_one_by_rounding_is_not_refused() -> None:
    class Rounded(World):
        def evaluate(self, model: nn.Module) -> tuple[float, float]:
            return 1.0000002, super().evaluate(model)[1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Discovery = Rounded().discover(num_val=32)
    assert found.score == 1.0000002


class ErrorRate(World):
    """Scores by the fraction of wrong predictions, times `sign`."""

    sign = 1

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        score, loss = super().evaluate(model)
        return self.sign * (1 - score), loss


@pytest.mark.filterwarnings("ignore:training improved no network")
def test_error_rates_are_fractions_and_negated_ones_are_not() -> None:
    assert 0 <= ErrorRate().discover(num_val=32, mode="min").score <= 1
    world = ErrorRate()
    world.sign = -1
    with pytest.raises(UserError, match=r"evaluate returned -.*, but num_val, .* use mode='min' instead of a minus"):
        world.discover(num_val=32)
    assert len(world.fits) <= 1, "at the first score"


@pytest.mark.parametrize(("score", "is_refused"), [(-3.0, True), (-0.002, True), (-1e-9, False), (0.0, False)])
def test_a_score_below_zero_is_no_fraction(score: float, is_refused: bool) -> None:
    with pytest.raises(UserError) if is_refused else nullcontext():
        check_fraction(score)


# Faults of the first calls


class Freezing(World):
    def fit(self, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        super().fit(model, optimizer, epochs)
        model.requires_grad_(False)


class Noisy(World):
    """Scores its model with noise on the weights, and leaves it there."""

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        with torch.no_grad():
            model.get_parameter("0.weight").add_(0.01)
        return super().evaluate(model)


class Restoring(Noisy):
    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = super().evaluate(model)
        model.load_state_dict(before)
        return found


class Undefined(World):
    def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
        return math.nan


@pytest.mark.parametrize("options", [PRUNED, {}], ids=["gts", "static"])
def test_a_fit_that_freezes_what_it_has_to_train_is_refused(options: dict[str, Any]) -> None:
    world = Freezing()
    with pytest.raises(
        RunFailed, match=r"^fit\(model, optimizer, epochs\) left 0\.weight frozen .*: set requires_grad"
    ):
        world.discover(**options, start="scratch")
    assert len(world.fits) == 1


@pytest.mark.parametrize("options", [PRUNED, {}], ids=["gts", "static"])
def test_an_evaluation_that_changes_weights_is_refused(options: dict[str, Any]) -> None:
    world = Noisy()
    with pytest.raises(
        UserError, match=r"^evaluate\(model\) changes the weights of the model .*copy\.deepcopy\(model\)"
    ):
        world.discover(**options)
    assert len(world.fits) <= ("finish" not in options)
    before = World().model.state_dict()
    assert all(tensor.equal(before[name]) for name, tensor in world.model.state_dict().items())
    Restoring().discover(**options)


@pytest.mark.parametrize("start", ["scratch", None])
def test_a_score_that_is_not_finite_before_training_blames_no_learning_rate(start: str | None) -> None:
    world = Undefined()
    with pytest.raises(UserError, match=r"^evaluate returned nan before any training: check evaluate"):
        world.discover(**PRUNED, start=start)
    assert world.fits == []
