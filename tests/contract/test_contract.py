"""The contract for every method of the table and every optimizer; a new method is enrolled by its table entry."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathgrow import methods
from pathgrow.distributed.comm import Communicator
from pathgrow.distributed.process_group import join_process_group
from pathgrow.errors import RunFailed, UserError
from pathgrow.rng import derive
from pathgrow.sparse.attach import Attached
from tests.contract import contract
from tests.contract.contract import BATCH, NUM_STEPS, OPTIMIZERS, attached, backward, same_state, small, trained
from tests.support.catalogue import Trials
from tests.support.ranks import together

NAMES = methods.names()
GROWTH = [name for name in NAMES if contract.is_growth(name)]
STEPWISE = [name for name in NAMES if methods.create(name).clock == "step"]
PAIRS = [(name, "nesterov") for name in NAMES] + [("gcg", optimizer) for optimizer in OPTIMIZERS]
"""Every method and every optimizer; their interaction does not depend on which ones they are."""
PAIRS += [("rigl", "adamw_fused"), ("imp_c", "adam"), ("edge_popup", "adam"), ("str", "adamw_fused")]
PAIRS += [("st3", "adam"), ("topkast", "adam")]
COSTS = {
    "dense": "dense",
    "st3": "dense",
    "topkast": "more_gradients",
    "str": "dense",
    "edge_popup": "dense",
    "snfs": "dense_gradient_at_steps",
    "rigl": "dense_gradient_at_updates",
    "itop": "dense_gradient_at_updates",
    "granet": "dense_gradient_at_updates",
    "gse": "batch_at_updates",
}
"""The cost formula of each method; all others train sparse."""
seeds = st.integers(0, 2**31)


def test_the_suite_sees_both_clocks_and_every_exception() -> None:
    assert len(GROWTH) >= 5
    assert {"rigl", "set", "gmp"} <= set(STEPWISE)
    assert [name for name in NAMES if methods.entry(name).exceptions] == ["st3", "topkast", "str", "edge_popup"]
    assert all(reason for name in NAMES for reason in methods.entry(name).exceptions.values())


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3)
@given(seed=seeds, density=st.floats(0.05, 0.95))
def test_counts_are_exact(name: str, seed: int, density: float) -> None:
    contract.check_counts(name, seed, density)


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_pruned_weights_are_zero_after_any_step(name: str, optimizer: str) -> None:
    contract.check_off_is_zero(name, optimizer)


@pytest.mark.parametrize("name", STEPWISE)
def test_an_update_on_a_step_keeps_what_stays(name: str) -> None:
    num_new = contract.check_change_on_a_step(name, seed=1)
    assert (num_new > 0) == (name != "gmp"), "only pruning grows nothing"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=2)
@given(seed=seeds)
def test_masks_depend_on_the_seed_alone(name: str, seed: int) -> None:
    contract.check_seed(name, seed)


@pytest.mark.parametrize(
    "name", sorted({"gcg", "random_growth", "random", "erk", "phew", "dpai", "edge_popup", *STEPWISE} - {"gmp", "acdc"})
)
def test_another_seed_gives_other_masks(name: str) -> None:
    ones, others = (trained(attached(small(name), seed)).masks.digest() for seed in (0, 1))
    assert ones != others


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_a_killed_run_resumes_bit_for_bit(name: str, optimizer: str) -> None:
    somewhere = derive(0, name, optimizer)
    contract.check_resume(name, optimizer, seed=somewhere, killed=1 + somewhere % (NUM_STEPS - 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_run_can_be_killed_right_before_and_after_an_update(name: str) -> None:
    for killed in (3, 4):
        contract.check_resume(name, "nesterov", seed=0, killed=killed)


@pytest.mark.parametrize("name", NAMES)
def test_costs(name: str) -> None:
    assert methods.create(name).cost == COSTS.get(name, "sparse")
    contract.check_cost(name)


def logits(model: torch.nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(BATCH[0])


@pytest.mark.parametrize("name", GROWTH)
@settings(max_examples=3)
@given(seed=seeds, num=st.integers(1, 300))
def test_growth_changes_nothing_but_masks(name: str, seed: int, num: int) -> None:
    sparse = trained(attached(small(name), seed), last=2)
    model, before, answers = sparse.model, sparse.masks.clone(), logits(sparse.model)
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(sparse.optimizer.state_dict()["state"])
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    modes = [module.training for module in model.modules()]
    generator = torch.get_rng_state()

    added = sparse.grow_(num)

    assert added == min(num, before.num - before.num_on) == (sparse.masks - before).num_on
    assert torch.equal(logits(model), answers)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    torch.testing.assert_close(sparse.optimizer.state_dict()["state"], state, rtol=0, atol=0)
    assert all(torch.equal(model.get_parameter(n).grad, gradient) for n, gradient in gradients.items())
    assert torch.equal(torch.get_rng_state(), generator)
    model.train(modes[0])
    assert [module.training for module in model.modules()] == modes
    with sparse.ema_weights():
        new = (sparse.masks - before).items()
        assert all(bool((model.get_parameter(n)[positions] == 0).all()) for n, positions in new)


@pytest.mark.parametrize("name", GROWTH)
@settings(max_examples=4)
@given(seed=seeds, density=st.floats(0.01, 1.0), gamma=st.floats(0.01, 3.0), target=st.floats(0.01, 1.0))
def test_growth_adds_exactly_its_fraction(name: str, seed: int, density: float, gamma: float, target: float) -> None:
    start = min(density, target)
    sparse = attached(small(name, start_density=start, gamma=gamma, target_density=target), seed)
    num_on, goal = (max(1, round(fraction * sparse.masks.num)) for fraction in (start, target))
    for _ in range(3):
        before = sparse.masks.clone()
        sparse.observe(0.5)
        num_on = max(num_on, min(goal, num_on + max(1, int(gamma * num_on + 1e-6))))
        assert sparse.masks.num_on == num_on
        assert (before - sparse.masks).num_on == 0


@pytest.mark.item(14)
@pytest.mark.parametrize("kind", ["loss", "gradients", "weights"])
def test_a_diverged_training_is_refused_or_cannot_be_saved(kind: str, trials: Trials) -> None:
    """A mask update is refused in one sentence and changes nothing; or the state of the training is."""
    for name in NAMES:
        for _ in range(trials.count(quick=1, full=2)):
            value, at = trials.draw.choice((math.nan, math.inf, -math.inf)), trials.draw.randint(0, NUM_STEPS - 1)
            with trials.one(f"{name}: {value} in the {kind} of step {at}"):
                check_divergence(name, kind, value, at)


def check_divergence(name: str, kind: str, value: float, at: int) -> None:
    sparse, num_on, refused = attached(small(name), seed=1), 0, ""
    target, latent = sparse.model.get_parameter("inner.weight"), "off_is_zero" in contract.exceptions_of(name)
    try:
        for step in range(NUM_STEPS):
            num_on = sparse.masks.num_on
            backward(sparse, step)
            assert target.grad is not None
            if step == at:
                active = sparse.masks["inner.weight"].nonzero()
                hit = active[0].tolist() if len(active) else [0] * target.dim()
                gradients = [p.grad for p in sparse.model.parameters() if p.grad is not None]
                for gradient in gradients if kind == "loss" else ():
                    gradient.fill_(math.nan)
                {"gradients": target.grad, "weights": target.detach()}.get(kind, target.grad)[tuple(hit)] = value
            sparse.optimizer.step()
            if step % 3 == 2:
                sparse.observe(0.5)
    except (UserError, RunFailed) as error:
        refused = str(error)
    if refused:
        assert "\n" not in refused
        assert latent or sparse.masks.num_on == num_on, "masks are unchanged"
    elif not all(bool(p.isfinite().all()) for p in sparse.model.parameters()):  # otherwise it was dropped
        with pytest.raises(RunFailed, match="not finite, training has diverged"):
            sparse.state_dict()


HALFWAY, END = 4, 7
"""Steps of a training on two ranks: saved by rank 0 at HALFWAY, between updates."""


def as_a_rank(names: list[str], is_tied: bool, seed: int) -> dict[str, dict[str, Any]]:
    """Methods trained for some steps, with different batches on each rank: uninterrupted, and resumed halfway."""
    with join_process_group("cpu") as comm:
        return {name: rank_trained(name, comm, is_tied, seed) for name in names}


def rank_trained(name: str, comm: Communicator, is_tied: bool, seed: int) -> dict[str, Any]:
    noise = torch.Generator().manual_seed(seed + comm.rank)
    how = {"comm": comm, "batches": [(torch.randn(8, 2, 5, 5, generator=noise), BATCH[1])], "ema": None}
    how["is_tied"] = is_tied
    sparse = attached(small(name), seed=3, **how)
    digests = rank_steps(sparse, comm, 0, HALFWAY)
    states = [sparse.model.state_dict(), sparse.optimizer.state_dict(), sparse.state_dict()]
    saved = comm.broadcast_from_rank0(lambda: copy.deepcopy(states))
    digests += rank_steps(sparse, comm, HALFWAY, END)
    other = attached(small(name), seed=9, model_seed=7, **how)
    for part, state in zip((other.model, other.optimizer, other), saved, strict=True):
        part.load_state_dict(state)
    resumed = rank_steps(other, comm, HALFWAY, END)
    weights = {n: p.detach().clone() for n, p in sparse.model.named_parameters()}
    found = {"digests": digests, "weights": weights, "state": sparse.state_dict()}
    assert resumed == digests[HALFWAY:], name
    assert same_state(other.state_dict(), found["state"]), name
    assert all(torch.equal(p, weights[n]) for n, p in other.model.named_parameters()), name
    for each in (sparse, other):
        each.detach()
    return found


def rank_steps(sparse: Attached, comm: Communicator, first: int, last: int) -> list[str]:
    """The masks after each step."""
    digests = []
    for step in range(first, last):
        contract.backward(sparse, 100 * comm.rank + step)
        gradients = [p.grad for p in sparse.model.parameters() if p.grad is not None]
        comm.all_reduce_(gradients)
        for gradient in gradients:
            gradient /= comm.size
        sparse.optimizer.step()
        if step % 3 == 2:
            sparse.observe(0.5)
        assert sparse.density > 0
        digests.append(sparse.masks.digest())
    return digests


@pytest.mark.item(7)
@pytest.mark.skipif(sys.platform == "win32", reason="gloo over forked processes")
@pytest.mark.parametrize(
    ("num", "is_tied"),
    [
        (2, False),
        (2, True),
        pytest.param(4, True, marks=pytest.mark.slow),
        pytest.param(4, False, marks=pytest.mark.slow),
    ],
)
def test_ranks_have_equal_masks_and_method_state(num: int, is_tied: bool, tmp_path: Path, trials: Trials) -> None:
    """After every update, with different random numbers and batches on each rank."""
    for number in range(trials.count(quick=1, full=3)):
        names = NAMES if trials.full or not is_tied else trials.draw.sample(NAMES, 6)
        seed = trials.draw.randint(0, 2**31) if number else 0
        ranks = together(tmp_path, as_a_rank, names, is_tied, seed, num=num)
        assert [rank.code for rank in ranks] == [0] * num, [rank.output for rank in ranks]
        ours = ranks[0].value
        for name in names:
            with trials.one(f"{name} on {num} ranks"):
                for rank in ranks[1:]:
                    theirs = rank.value[name]
                    assert theirs["digests"] == ours[name]["digests"]
                    assert all(torch.equal(weight, theirs["weights"][n]) for n, weight in ours[name]["weights"].items())
                    assert same_state(ours[name]["state"], theirs["state"])
                trials.add("mask hashes compared", (num - 1) * len(ours[name]["digests"]))
        if not is_tied:
            moved = {name for name in NAMES if len(set(ours[name]["digests"])) > 1}
            assert moved >= {*GROWTH, *STEPWISE, "imp", "st3", "str", "edge_popup"}
            seen = ours["itop"]["state"]
            assert seen["method_state"]["explored"] > 0.31, "more than the 0.3 that are active"
