"""Grow, train, shrink in the loop: stages, lengths, costs, resuming, limits."""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from pathgrow import data, discover, methods, models, plan
from pathgrow.checkpoint.store import MemoryStore
from pathgrow.density.shrink import DENSITIES, NextRound, ShrinkRule
from pathgrow.density.types import Curve, Point, Reference
from pathgrow.errors import RunFailed, UserError
from pathgrow.methods.method import Method
from pathgrow.report import networks
from pathgrow.report.text import explanations, findings, goal_label
from pathgrow.runs import checks
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.result import Discovery
from pathgrow.runs.shrinking import Lengths
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe
from tests.support.toy import (
    INPUTS,
    TARGETS,
    Loss,
    NegativeLoss,
    Script,
    World,
    killed_at_every_save,
    stage_lengths,
    without_timing,
)

SHRINK = {"finish": "gts", "rule": "probe", "start_density": None, "seed_epochs": None, "budget": 40, "delta": 0.08}


def shrunk(world: World | None = None, **options: object) -> Discovery:
    return (world or World()).discover(**{**SHRINK, **options})


def test_stages_and_their_lengths_follow_from_the_budget() -> None:
    lengths = stage_lengths(shrunk())
    assert lengths[:3] == [("train-1", 10), ("train-2", 10), ("shrink-1", 4)]
    assert {epochs for stage, epochs in lengths if stage.startswith("shrink")} == {4}
    assert {epochs for stage, epochs in lengths if stage.startswith("final")} == {10}


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 160])
@pytest.mark.parametrize("reference", [None, 0.9])
def test_every_phase_has_an_epoch(budget: int, reference: float | None) -> None:
    lengths = Lengths(DiscoverOptions(budget=budget, reference=reference))
    assert min(*lengths.phases, lengths.finish(2 * budget), lengths.round, lengths.seed, lengths.growth) >= 1


def test_what_is_compared_with_a_reference_is_trained_as_long() -> None:
    lengths = Lengths(DiscoverOptions(budget=160, reference=0.9))
    assert [trained + lengths.finish(trained) for trained in (80, 90, 120)] == [160, 160, 160]
    lengths = Lengths(DiscoverOptions(budget=160))
    assert [lengths.finish(trained) for trained in (80, 150)] == [40, 40]
    lengths.has_reference = True
    assert lengths.finish(90) == 70


@pytest.mark.parametrize(("start", "epochs"), [("scratch", 40), ("pretrained", 36)])
def test_a_low_cost_limit_does_not_shorten_what_is_trained_like_the_reference(start: str, epochs: int) -> None:
    lengths = Lengths(DiscoverOptions(budget=40, reference=0.9, max_cost=0.8, start=start))
    assert sum(lengths.phases) + lengths.finish(sum(lengths.phases)) == 36
    assert lengths.finish(0) == epochs


def test_the_model_holds_the_returned_network() -> None:
    world = World()
    found = shrunk(world)
    assert found.network in found.finished
    assert found.attached.model is world.model
    for name, mask in found.masks.items():
        assert bool((world.model.get_parameter(name)[~mask] == 0).all())
    assert found.masks.num_on == found.network.num_on
    score, loss = world.evaluate(world.model)
    assert (score, loss) == (found.network.point.score, found.network.point.loss)
    # It stays sparse when it is trained further.
    world.fit(world.model, world.optimizer, 2)
    assert bool((world.model[0].weight[~found.masks["0.weight"]] == 0).all())


def test_pruned_networks_are_nested_and_the_smallest_weights_go() -> None:
    found = shrunk()
    first = len(found.rounds)
    before, after = found.masks_at(first - 1), found.masks_at(first)
    assert before.density == 1.0
    assert (after - before).num_on == 0
    assert after.num_on == round(0.3 * after.num)


def test_a_repeated_search_is_bit_identical() -> None:
    assert without_timing(shrunk()) == without_timing(shrunk())


class Averaged(World):
    """Ends each training with the average of all weights on the way."""

    def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        states: list[dict[str, torch.Tensor]] = []

        def copy(*_: object) -> None:
            states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

        handle = optimizer.register_step_post_hook(copy)
        super().fit(model, optimizer, epochs)
        handle.remove()
        mean = {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}
        model.load_state_dict(mean)


def test_weights_that_fit_loads_are_trained_with_the_masks() -> None:
    """An average, or the best ones so far, which hold weights that were pruned later."""
    world = Averaged()
    with pytest.warns(UserWarning, match="fit returned weights other than those of its last step"):
        found = shrunk(world, budget=120, delta=0.1)
    repeated = [call for call in world.fits if call.epochs == 30]
    control, *pruned = found.finished
    assert control.point.density == 1.0
    assert len(repeated) == 2 + 1 + 2 * len(pruned)
    assert {call.lr for call in repeated} == {world.fits[0].lr}
    # A repeated training counts in full, and a dense one costs what its own epochs cost.
    assert [record.num_epochs for record in found.finished] == [30, *[60] * len(pruned)]
    dense = 4 * found.trained[0].flops
    assert found.ledger.relative == pytest.approx(sum(record.flops for record in found.trained) / dense, rel=1e-6)
    assert min(record.point.epochs for record in pruned) >= 60 + 60
    assert world.evaluate(world.model)[0] == found.score
    for name, mask in found.masks.items():
        assert bool((world.model.get_parameter(name)[~mask] == 0).all())


def test_a_fit_that_ends_early_reaches_the_density() -> None:
    class Early(World):
        def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            super().fit(model, optimizer, epochs // 3 if epochs == 30 and len(self.fits) > 2 else epochs)

    with pytest.warns(UserWarning, match="or made fewer steps than before"):
        found = shrunk(Early(), budget=120, delta=0.1)
    chosen = [round(density * found.masks.num) for density in DENSITIES]
    assert all(min(abs(record.num_on - num) for num in chosen) <= 1 for record in found.finished)
    assert found.score > 0.6


def test_weights_of_other_calls_are_removed_before_they_are_scored() -> None:
    class Best(World):
        """Ends every call with the best weights of all calls, as one checkpoint for all of them would."""

        best: tuple[float, dict[str, torch.Tensor]] | None = None

        def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            super().fit(model, optimizer, epochs)
            loss = self.evaluate(model)[1]
            if self.best is None or loss < self.best[0]:
                self.best = loss, {name: tensor.clone() for name, tensor in model.state_dict().items()}
            model.load_state_dict(self.best[1])

    world = Best()
    with pytest.warns(
        UserWarning, match="at the end of stage 'shrink-1' pruned weights were not zero and were removed"
    ):
        found = shrunk(world, delta=0.1)
    assert world.evaluate(world.model)[0] == found.score
    for name, mask in found.masks.items():
        assert bool((world.model.get_parameter(name)[~mask] == 0).all())


def test_what_a_diverged_training_leaves_is_not_trained_again() -> None:
    class Diverging(World):
        def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            super().fit(model, optimizer, epochs)
            if len(self.fits) > 2 and epochs == 10:
                with torch.no_grad():
                    model[0].weight[model[0].weight != 0] = float("nan")

    world = Diverging()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RunFailed, match="diverged"):
            shrunk(world)
    assert [call.epochs for call in world.fits].count(10) == 3


def test_a_trainer_that_ends_before_the_last_pruning_is_reported() -> None:
    class Half(Trainer):
        def train(self, jobs: Sequence[Job], on_done: Callable[[int], None] | None = None) -> list[int]:
            halved = [replace(job, epochs=job.epochs // 2) if job.attached.is_pruning else job for job in jobs]
            return super().train(halved, on_done)

    digits = data.load("digits")
    engine = Half(digits, Recipe(batch_size=256, lr=0.1), EngineOptions())
    model, optimizer = engine.place(models.create("mlp", 10, seed=0, widths=(24, 24)))
    with pytest.warns(UserWarning, match=r"at the end of stage 'final-\d' pruned weights were not zero"):
        discover(
            model, optimizer, engine, engine.evaluate(digits.val), torch.zeros(1, 1, 8, 8), budget=16, delta=0.02,
            max_cost=1.2, progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("num_calls", [1, 2], ids=["L-BFGS", "SAM"])
def test_optimizers_that_call_a_closure_train_in_every_phase(num_calls: int) -> None:
    """Pruning by magnitude needs no gradients, so nothing comes between the optimizer and its closure."""

    class Closure(World):
        calls = steps = 0

        def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            model.train()
            for _ in range(epochs):
                Closure.steps += 1

                def closure() -> torch.Tensor:
                    Closure.calls += 1
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(INPUTS), TARGETS)
                    loss.backward()
                    return loss

                optimizer.step(closure)

    class Twice(torch.optim.SGD):
        """Needs the gradients of a second call, as sharpness-aware minimization does."""

        def step(self, closure: Callable[[], torch.Tensor]) -> None:  # type: ignore[override]
            for _ in range(2):
                with torch.enable_grad():
                    closure()
            super().step()

    def lbfgs(model: nn.Module) -> Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=3)

    def twice(model: nn.Module) -> Optimizer:
        return Twice(model.parameters(), lr=0.1)

    found = shrunk(Closure(make_optimizer=lbfgs if num_calls == 1 else twice), budget=120, delta=0.1)
    assert found.score > 0.7
    assert found.density < 1
    assert Closure.calls == 2 * Closure.steps if num_calls == 2 else Closure.calls > 2 * Closure.steps


@pytest.mark.filterwarnings("error::pathgrow.checkpoint.stage_files.DamagedStageWarning")
@pytest.mark.filterwarnings("ignore:fit ends with other weights")
@pytest.mark.parametrize(
    ("saves_the_last", "options"),
    [
        (True, {"budget": 12}),
        (False, {"max_density": 0.5, "start_density": 0.3}),
        (True, {"world": Loss, "mode": "min", "delta": 0.05, "budget": 16, "max_cost": 1.2}),
        (True, {"world": Loss, "mode": "min", "delta": 0.015, "budget": 16}),
        (False, {"world": Averaged, "budget": 120}),
    ],
    ids=["short", "grown", "control", "late", "averaged"],
)
def test_a_search_killed_at_any_save_ends_alike(saves_the_last: bool, options: dict[str, object]) -> None:
    assert killed_at_every_save(saves_the_last, **{**SHRINK, "budget": 4, **options}) > 8


class Concurrent(Trainer):
    """Trains several networks by turns, one step each, as on a GPU."""

    is_concurrent = True  # type: ignore[assignment]

    def train(self, jobs: Sequence[Job], on_done: Callable[[int], None] | None = None) -> list[int]:
        self.most = max(getattr(self, "most", 0), len(jobs))
        return super().train(jobs, on_done)


def test_a_control_and_pruned_networks_are_trained_concurrently_with_the_same_result() -> None:
    """By turns, one after the other, and by a function that trains one network."""
    digits, found = data.load("digits"), []
    engines = [
        kind(digits, Recipe(batch_size=128, lr=0.02), EngineOptions(device="cpu")) for kind in (Trainer, Concurrent)
    ]
    for engine in engines:
        model, optimizer = engine.place(models.create("mlp", 10, seed=0))
        arguments = (model, optimizer, engine, engine.evaluate(digits.val), torch.zeros(1, 1, 8, 8))
        found.append(discover(*arguments, budget=32, delta=0.03, max_cost=1.2, seed=1))
    alone, together = found
    assert [(record.stage, record.point.density == 1) for record in alone.finished] == [
        ("final-1", True),
        ("final-2", False),
        ("final-3", False),
    ]
    assert engines[1].most == 3
    assert without_timing(alone) == without_timing(together)
    assert alone.masks == together.masks


def test_the_density_limit_holds_in_every_stage() -> None:
    found = shrunk(max_density=0.5, start_density=0.2)
    assert [record.stage for record in found.rounds][:2] == ["grow-0", "grow-1"]
    assert max(record.num_on for record in found.trained) == round(0.5 * found.masks.num)
    assert found.rounds[-1].point.density == pytest.approx(0.5, abs=0.002)
    assert found.ledger.relative < shrunk().ledger.relative


class Untraceable(nn.Module):
    """Calls a layer as often as its data says, which tracing refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = World().model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs) if float(inputs.detach().sum()) > -1e9 else inputs


@pytest.mark.parametrize(
    ("method", "options", "density"),
    [
        (methods.create("random_growth", start_density=0.04), {}, 0.04),
        ("random_growth", {}, 0.1),
        ("random_growth", {"max_density": 0.06}, 0.06),
        ("random_growth", {"start_density": 0.2}, 0.2),
    ],
    ids=["own", "default", "limit", "option"],
)
@pytest.mark.filterwarnings("ignore:Untraceable cannot be traced", "ignore:training improved no network")
def test_a_model_without_paths_starts_at_the_density_of_its_method(
    method: str | Method, options: dict, density: float
) -> None:
    world = World()
    world.model = Untraceable()
    world.optimizer = world.make_optimizer(world.model)
    found = shrunk(world, method=method, **{"max_density": 0.5, **options})
    first = found.rounds[0]
    assert first.stage == "grow-0"
    assert first.num_on == round(density * found.masks.num)


SLOW = r"gained .* more than 2.4 times delta, .*\. A dense baseline is .* trained .* up to 3 dense trainings\. To"
SHORT = r"a budget of 8 epochs is too short to be divided\. A dense baseline is therefore trained for the whole budget"


@pytest.mark.parametrize(
    ("options", "sentence", "phases"),
    [({"delta": 0.02}, SLOW, [10, 10]), ({"budget": 8}, SHORT, [])],
    ids=["slow", "short"],
)
def test_a_dense_baseline_is_trained_if_half_of_the_training_does_not_predict_its_score(
    options: dict, sentence: str, phases: list[int]
) -> None:
    options = {"mode": "min", **options}
    with pytest.warns(UserWarning, match=sentence):
        found = shrunk(Loss(), **options)
    lengths, budget = stage_lengths(found), options.get("budget", 40)
    assert [epochs for stage, epochs in lengths if stage.startswith("train")] == phases
    assert dict(lengths)["dense"] == budget
    assert found.dense is not None
    assert (found.reference.kind, found.reference.score) == ("dense", found.dense.point.score)
    for record in found.finished:
        assert record.point.epochs == budget  # as the baseline
    assert found.check.outcome in ("verified", "consistent", "missed")
    assert 1.0 < found.ledger.relative <= 3.05  # one pruned network is finished in any case
    said = networks.procedure(found.report())
    if phases:
        assert said.pop(0).startswith(f"Trained the dense network for {sum(phases)} epochs")
        reason = ": half of it does not predict the score"
    else:
        reason = ", because the budget is too short to predict its score from half of it"
        assert found.rounds == (found.dense,)
        assert len(found.trained) == 1 + len(found.finished)  # the baseline counts once
    assert said[0] == f"Trained a dense baseline for {budget} epochs{reason}."
    assert any(re.search(sentence, warning) for warning in found.warnings)


def test_a_short_search_in_other_units_compares_networks_of_equal_length() -> None:
    class Percent(World):
        def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
            return 100 * super().evaluate(model)[0]

    with pytest.warns(UserWarning, match=r"delta is 0.01, the default for scores in \[0, 1\]"):
        found = shrunk(Percent(), budget=12, delta=0.01)
    assert stage_lengths(found)[0] == ("dense", 12)
    assert [record.point.epochs for record in found.finished] == [12] * len(found.finished)
    assert found.finished


def test_a_low_cost_limit_leaves_a_short_search_its_rounds() -> None:
    found = shrunk(budget=12, reference="dense", max_cost=0.5)
    stages = [stage for stage, _ in stage_lengths(found)]
    assert stages[0] == "train-1"
    assert "shrink-1" in stages
    assert "dense" in stages


def test_a_short_search_that_learned_nothing_is_reported_as_such() -> None:
    world = World()
    world.evaluate = lambda model: 0.5  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="training improved no network"):
        found = shrunk(world, budget=8)
    report = found.report()
    assert networks.procedure(report)[0].startswith("Trained a dense baseline for 8 epochs")
    assert [row[0] for row in networks.table(report)[1]] == ["dense"]
    assert "0 pruned, 0 finished" in repr(found)


def test_the_dense_baseline_of_a_short_search_is_one_row() -> None:
    report = shrunk(budget=12).report()
    phases = [row[0] for row in networks.table(report)[1]]
    assert phases == ["dense"] + ["finished"] * len(report.curve.finished)


@pytest.mark.parametrize(
    "options", [{"max_cost": 1.9}, {"max_density": 0.5}, {"reference": 0.5}], ids=lambda o: next(iter(o))
)
def test_it_is_not_if_a_limit_or_a_reference_was_given(options: dict) -> None:
    found = shrunk(Loss(), mode="min", delta=0.02, **options)
    assert "dense" not in {record.stage for record in found.trained}
    assert found.reference is None or found.reference.kind != "dense"


class Counted(World):
    """Notes the active weights at every step: those that are not zero when the gradients are computed."""

    active: list[int]

    def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        def after(*_: object) -> None:
            self.active.append(sum(int(model[k].weight.count_nonzero()) for k in (0, 3)))

        # The gradients of a step are computed with the masks of the step before.
        self.active.append(sum(int(model[k].weight.count_nonzero()) for k in (0, 3)))
        handle = optimizer.register_step_post_hook(after)
        super().fit(model, optimizer, epochs)
        handle.remove()
        self.active.pop()


def test_costs_follow_the_masks_of_every_step() -> None:
    """Within a training that prunes gradually too."""
    world = Counted()
    world.active = []
    found = shrunk(world, budget=120, delta=0.1)
    assert len(set(world.active)) > 10
    # Three products with the active weights, and the output layer, for each of 16 samples per step.
    assert found.ledger.training_flops == sum(6 * 16 * (num_on + 32) for num_on in world.active)
    assert found.ledger.epochs_times_prunable is None


@pytest.mark.parametrize("max_cost", [0.3, 0.6])
def test_the_cost_limit_shortens_all_phases(max_cost: float) -> None:
    found, free = shrunk(max_cost=max_cost, budget=160), shrunk(budget=160)
    assert dict(stage_lengths(found))["train-1"] < dict(stage_lengths(free))["train-1"]
    assert found.ledger.relative <= max_cost * 1.15


def test_a_reference_is_compared_with() -> None:
    reached, missed = shrunk(reference=0.5), shrunk(reference=1.0, delta=0.001)
    assert reached.check.outcome == "verified"
    assert reached.reference.kind == "given"
    assert missed.check.shortfall > 0.001
    dense = shrunk(reference="dense")
    assert dense.dense.point.epochs == 40
    assert dense.reference.score == dense.dense.point.score


def test_training_without_effect_has_no_density() -> None:
    world = World()
    world.evaluate = lambda model: (0.5, 0.7)  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="training improved no network"):
        found = shrunk(world)
    assert found.answer.status == "unlearned"
    assert found.operating_density is None
    assert found.masks.density == 1.0
    assert [record.stage for record in found.trained] == ["train-1", "train-2", "final-1"], "nothing is pruned"
    report = found.report()
    assert explanations(report)[-1].endswith(
        "the returned model is the densest one that was grown, or the one before pruning."
    )
    assert networks.procedure(report)[1:] == ["Finished 1 network (100% density)."]


@pytest.mark.filterwarnings("ignore:training improved no network")
def test_a_network_that_learns_late_is_not_called_unlearned() -> None:
    """Scores rise only after 25 of 40 epochs, when the search would have pruned already."""
    world = World()
    world.evaluate = lambda model: (0.5 if sum(call.epochs for call in world.fits) < 25 else 0.9, 0.7)  # type: ignore[method-assign]
    found = shrunk(world)
    assert (found.answer.status, found.masks.density, found.score) == ("open", 1.0, 0.9)
    assert explanations(found.report())[0].startswith("Nothing was pruned, since the network did not improve before")


def replaced(model: torch.nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    World().fit(model, torch.optim.SGD(model.parameters(), lr=0.1), epochs)


def by_hand(model: torch.nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01


def without_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    World().fit(model, torch.optim.SGD([torch.zeros(1)], lr=0.1), epochs)


@pytest.mark.parametrize(
    ("fit", "sentence"),
    [
        (lambda model, optimizer, epochs: None, "changed no weight of its model, nor did it run it"),
        (lambda model, optimizer, epochs: (other := World()).fit(other.model, other.optimizer, epochs), "not another"),
        (without_steps, r"changed no weight of its model, which it ran: call step\(\) of the optimizer it receives"),
        (replaced, "SGD would update '0.weight'.* in a fit function, step the optimizer that it receives"),
        (by_hand, r"the weights of its model without its optimizer: call step\(\) of the optimizer it receives"),
    ],
    ids=["nothing", "another model", "no step", "another optimizer", "no optimizer"],
)
@pytest.mark.parametrize("finish", ["gts", "static"])
def test_a_fit_that_does_not_train_is_found_out_after_its_first_call(finish: str, fit: object, sentence: str) -> None:
    world, calls = World(), []

    def counted(model: torch.nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        calls.append(epochs)
        fit(model, optimizer, epochs)  # type: ignore[operator]

    world.fit = counted  # type: ignore[method-assign]
    with pytest.raises((RunFailed, UserError), match=sentence):
        shrunk(world, finish=finish)
    assert len(calls) == 1


def test_a_failure_restores_the_model() -> None:
    world = World()
    before = {name: tensor.clone() for name, tensor in world.model.state_dict().items()}
    fit, calls = world.fit, []

    def failing(model: torch.nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        calls.append(epochs)
        if len(calls) == 4:
            raise KeyError("data")
        fit(model, optimizer, epochs)

    world.fit = failing  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        shrunk(world)
    assert all(torch.equal(tensor, before[name]) for name, tensor in world.model.state_dict().items())


def pretrained(epochs: int = 300, world: World | None = None) -> World:
    world = world or World()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        world.fit(world.model, world.optimizer, epochs)
    world.optimizer = world.make_optimizer(world.model)
    world.fits.clear()
    return world


def test_pretrained_weights_are_kept_and_compared_with() -> None:
    world = pretrained()
    given, _ = world.evaluate(world.model)
    weight = world.model[0].weight.detach().abs()
    found = shrunk(world, start="pretrained", delta=0.04, budget=20)
    assert stage_lengths(found)[:2] == [("given", 0), ("shrink-1", 2)]
    assert [record.stage for record in found.rounds] == ["given"]
    assert (found.reference.kind, found.reference.score, found.reference.epochs) == ("pretrained", given, None)
    assert found.check.outcome in ("verified", "consistent")
    assert found.density < 1
    kept = found.masks_at(1)["0.weight"]
    assert float(weight[kept].min()) >= float(weight[~kept].max())  # the weights that were given decide
    assert "the pretrained model" in dict(findings(found.report()))["reference"]


def test_a_trained_model_is_not_trained_from_scratch_unasked() -> None:
    world = pretrained()
    before = [tensor.clone() for tensor in world.model.state_dict().values()]
    with pytest.raises(
        UserError, match=r"seems to be trained: .*start='pretrained' .*start='scratch' to train on from these"
    ):
        shrunk(world, delta=0.01)
    assert world.fits == []
    assert all(torch.equal(*pair) for pair in zip(world.model.state_dict().values(), before, strict=True))
    assert stage_lengths(shrunk(world, delta=0.01, start="scratch", budget=4))[0] == ("dense", 4)


def test_a_trained_model_that_training_does_not_improve_is_named() -> None:
    world = pretrained()
    world.evaluate = lambda model: 0.5  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"training improved no network.*start='scratch' trains on from the given"):
        shrunk(world, start="scratch", budget=4).attached.detach()
    with pytest.warns(UserWarning, match=r"training improved no network.*evaluate scores that model$"):
        shrunk(world, budget=4)


def with_new_head() -> World:
    world = pretrained()
    with torch.no_grad():
        for parameter in world.model[-1].parameters():
            parameter.zero_()
    return world


def test_a_pretrained_model_with_a_new_head_is_trained_before_it_is_pruned() -> None:
    """Any density is within delta of a network that cannot do its task yet."""
    world = with_new_head()
    with pytest.warns(UserWarning, match=r"not clearly better than fresh initializations .* trained from"):
        found = shrunk(world, start="pretrained", delta=0.04, budget=20)
    assert stage_lengths(found)[:2] == [("train-1", 5), ("train-2", 5)]
    assert found.reference.kind == "estimated"


def test_a_pretrained_model_that_still_improves_is_pointed_out() -> None:
    with pytest.warns(UserWarning, match=r"better than the given one \(.*reference='dense'"):
        shrunk(pretrained(60, Loss()), start="pretrained", mode="min", delta=0.01, budget=40)


def test_a_pruned_network_far_below_the_finished_one_without_pruning_is_not_returned() -> None:
    found = shrunk(Loss(), mode="min", delta=0.02, max_cost=1.0)
    control, *_, pruned = sorted(found.curve.finished, key=lambda point: -point.density)
    assert control.density == 1 > pruned.density
    assert control.score - 0.04 > pruned.score > found.curve.rough[-1].score - 0.04
    assert (found.masks.density, found.score) == (1.0, -control.score)


def test_a_loss_is_minimized_and_shown_with_its_own_sign() -> None:
    """Equal to the search with negated scores, but for the sign of everything that is shown."""
    options = {"delta": 0.4, "budget": 120}
    found, negated = shrunk(Loss(), mode="min", **options), shrunk(NegativeLoss(), **options)
    assert found.operating_density == negated.operating_density is not None
    assert found.masks == negated.masks
    assert found.interval == negated.interval
    assert found.score == -negated.score > 0
    assert found.reference.score == -negated.reference.score
    assert found.check == negated.check
    report, other = found.report(), negated.report()
    for here, there in zip(report.curve.probes, other.curve.probes, strict=True):
        assert here.score == -there.score
    assert report.target_score == pytest.approx(report.reference.score + 0.4)
    assert report.curve.fit.high == tuple(-low for low in other.curve.fit.low)
    assert report.answer.details["dense_low"] == -other.answer.details["dense_high"]
    assert "0.4 worse than the reference" in goal_label(report)
    assert report.probes_too_short == other.probes_too_short


@pytest.mark.parametrize(("reference", "unit"), [(None, None), (0.4, 0.4), ("dense", None)])
def test_a_relative_delta_is_a_fraction_of_the_reference(reference: float | str | None, unit: float | None) -> None:
    found = shrunk(Loss(), mode="min", delta="20%", reference=reference, budget=8)
    if unit is None:
        unit = found.dense.point.score
    assert found.answer.delta == pytest.approx(0.2 * unit)


@pytest.mark.parametrize(("world", "mode", "asked"), [(Loss, "max", "lower .* mode='min'"), (World, "min", "higher")])
def test_scores_that_fall_in_training_raise_the_question(world: type[World], mode: str, asked: str) -> None:
    with pytest.warns(UserWarning, match=rf"scores went from 0\.\d+ to 0?\.?\d+ in training: {asked}"):
        found = shrunk(world(), mode=mode)
    assert found.answer.status == "unlearned"


@pytest.mark.parametrize("seed", range(5))
def test_a_fresh_model_is_not_taken_for_a_trained_one(seed: int) -> None:
    shrunk(World(seed=seed), delta=0.001, budget=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rule": "trajectory"}, "rule has no effect on a network that is pruned: it needs finish='static'$"),
        ({"gamma": 0.5}, "gamma has no effect .* finish='static' or max_density below 1"),
        ({"rough": 2}, "rough has no effect"),
        ({"finish": "static", "max_density": 0.5}, "max_density has no effect with finish='static'"),
        ({"finish": "magic"}, "unknown finish 'magic' .known: acdc, auto"),
        ({"max_density": 0.0}, "max_density must be"),
        (
            {"start": "pretrained", "finish": "static", "rule": "probe"},
            "start='pretrained' .* but finish='static' starts",
        ),
        ({"start": "pretrained", "max_density": 0.5}, "start='pretrained' .* but max_density below 1 starts"),
        (
            {"delta": "1%", "finish": "static", "rule": Script()},
            "a relative delta needs a rule by name",
        ),
        ({"delta": "a bit"}, "delta must be a positive number or percentage of the score, got 'a bit'"),
        ({"delta": "0.01"}, "delta must be a positive number or percentage"),
        ({"delta": "-1%"}, "delta must be a positive number or percentage of the score, got '-1%'"),
        ({"start": "warm"}, "start must be one of 'scratch', 'pretrained', got 'warm'"),
        ({"max_cost": -1}, "max_cost must be .*, got -1"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, object], sentence: str) -> None:
    world = World()
    with pytest.raises(UserError, match=sentence):
        shrunk(world, **options)
    assert world.fits == []


class Dollars(World):
    """Scored by an amount: the lower, the better."""

    def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
        return 1e5 * super().evaluate(model)[1]


@pytest.mark.parametrize(
    ("world", "options", "sentence", "num_fits"),
    [
        (Dollars, {"mode": "min", "delta": 0.01}, r"evaluate returned \d\d,\d{3}, but delta is 0.01", 0),
        (Dollars, {"delta": 500.0}, r"scores went from \d\d,\d{3} to [\d,]+ in training: lower is better\?", 2),
    ],
)
def test_warnings_come_as_soon_as_they_are_known(
    world: type[World], options: dict, sentence: str, num_fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the search ends, hours later; and the report keeps them."""
    here, told = world(), list[tuple[int, str]]()
    monkeypatch.setattr(warnings, "warn", lambda text, **_: told.append((len(here.fits), text)))
    found = shrunk(here, **options)
    [(when, text)] = told
    assert when == num_fits
    assert re.match(sentence, text)
    assert found.warnings == (text,)


def test_a_reference_in_another_unit_is_refused_before_anything_is_pruned() -> None:
    class Percent(World):
        def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
            return 100 * super().evaluate(model)[0]

    world = Percent()
    with pytest.raises(RunFailed, match=r"reference is 0.9, .* kept if there is a store"):
        shrunk(world, reference=0.9, delta=1.0)
    assert [call.epochs for call in world.fits] == [10, 10]


def test_an_unpruned_network_is_not_called_a_pruned_one() -> None:
    best = Point(round=3, density=1.0, epochs=5, score=-96_860.0)
    given = Reference(score=-98_000.0, kind="pretrained")
    options = DiscoverOptions(start="pretrained", mode="min", delta=100.0)
    found = checks.improved_warning(options, Curve(finished=(best,), reference=given))
    assert found is not None
    assert found.startswith(
        "after more training a network at 100% density scores 96,860, better than the given one (98,"
    )


def test_reports_speak_of_the_users_unit_and_metric(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A `fit` that counts steps is not reported in epochs."""
    world = Dollars()

    def fit(model: nn.Module, optimizer: Optimizer, num_steps: int) -> None:
        world.fit(model, optimizer, num_steps)

    options = {"budget": 40, "delta": 500.0, "mode": "min", "metric": "MAE"}
    arguments = (world.model, world.optimizer, fit, world.evaluate, INPUTS[:1])
    planned = str(plan(*arguments, **options))
    found = discover(*arguments, **options, store=tmp_path)
    told, report = capsys.readouterr().err, found.report()
    assert "10 steps" in told
    assert "10 steps at 100% density" in planned
    assert "steps" in networks.table(report)[0]
    assert "MAE" in networks.table(report)[0]
    assert dict(findings(report))["trained"] == f"{report.network.epochs} steps"
    page = (tmp_path / "report.html").read_text()
    for text in (
        told,
        planned,
        " ".join(map(str, findings(report))),
        " ".join(networks.procedure(report)),
        repr(found),
    ):
        assert "epoch" not in text
    assert "MAE" in repr(found)
    assert "epoch" not in re.sub(r"<(style|svg).*?</\1>|<h2[^>]*>Config.*", "", page, flags=re.DOTALL)


def test_a_dict_of_metrics_is_refused_before_training() -> None:
    world = World()
    world.evaluate = lambda model: {"eval_loss": 0.3}  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(
        UserError, match=r"evaluate \(before training\): expected a score or .*, got {'eval_loss': 0.3}"
    ):
        shrunk(world)
    assert not world.fits


def test_the_cost_of_a_finished_network_is_known_before_it_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradual pruning costs more than training at the final density."""
    expected: dict[float, float] = {}
    decide = ShrinkRule.candidates

    def candidates(rule: ShrinkRule, curve: Curve, *, cost: Callable[[float], float], left: float) -> list[NextRound]:
        due = decide(rule, curve, cost=cost, left=left)
        expected.update({one.density: cost(one.density) for one in due})
        return due

    monkeypatch.setattr(ShrinkRule, "candidates", candidates)
    found = shrunk(budget=160, delta=0.1)
    assert len(expected) == len(found.finished)
    for record, cost in zip(found.finished, expected.values(), strict=True):
        assert record.training_flops == pytest.approx(cost, rel=0.01)


@pytest.mark.parametrize("stage", ["shrink-1", "final-1"])
def test_a_store_of_a_search_with_other_stages_is_refused(stage: str) -> None:
    """Such as one by a version of pathgrow that trained a round more."""
    store = MemoryStore()
    found = shrunk(store=store)
    [number] = [record.point.round for record in found.trained if record.stage == stage]
    saved = store.load(stage)
    store.save(stage, {**saved.metadata, "round": number + 1}, saved.tensors)
    with pytest.raises(UserError, match=f"stage '{stage}' in the store is number {number + 1} of its search"):
        shrunk(store=store)
