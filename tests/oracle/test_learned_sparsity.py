"""STR, edge-popup, ST-3 and Top-KAST beside plain modules and loops that compute with the effective weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, OneCycleLR

from pathgrow import methods
from pathgrow.masks import Masks
from pathgrow.sparse.attach import Attached, attach

NUM_STEPS = 6
SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.02, "nesterov": True},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "maximize": True},
]


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(16, 5, generator=generator, dtype=torch.float64),
        torch.randint(0, 3, (16,), generator=generator),
    )


def mlp() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def trained(model: nn.Module, optimizer: Optimizer) -> list[float]:
    losses = []
    for step in range(NUM_STEPS):
        images, labels = batch(step)
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


class Soft(nn.Linear):
    """STR as its authors write it."""

    def __init__(self, plain: nn.Linear, start: float, inside: Tensor) -> None:
        super().__init__(plain.in_features, plain.out_features, dtype=torch.float64)
        self.load_state_dict(plain.state_dict())
        self.s = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.inside = inside

    def effective(self) -> Tensor:
        soft = torch.sign(self.weight) * torch.relu(self.weight.abs() - torch.sigmoid(self.s))
        return torch.where(self.inside, soft, self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.effective(), self.bias)


class Choose(torch.autograd.Function):
    """The k largest as ones; the gradient passes as if nothing had been chosen."""

    @staticmethod
    def forward(ctx: Any, sizes: Tensor, num: int) -> Tensor:
        order = sizes.flatten().argsort()
        chosen = torch.zeros_like(sizes).flatten()
        chosen[order[len(order) - num :]] = 1
        return chosen.view_as(sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Popup(nn.Module):
    """Edge-popup as its authors write it."""

    def __init__(self, plain: nn.Linear, frozen: Tensor, scores: Tensor, num: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(plain.bias.detach().clone())
        self.scores = nn.Parameter(scores.clone())
        self.frozen, self.num = frozen.clone(), num

    def effective(self) -> Tensor:
        return self.frozen * Choose.apply(self.scores.abs(), self.num)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.effective(), self.bias)


def attached(method: str, make: Callable[[Any], Optimizer], scope: Any = None, **options: Any) -> Attached:
    model = mlp()
    return attach(
        model, make(model.parameters()), methods.create(method, **options),
        scope=scope or {"0.weight": torch.ones(8, 5, dtype=torch.bool), "2.weight": torch.ones(3, 8, dtype=torch.bool)},
    )  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("start", [-1.5, -3.0])
def test_str_is_autograd_through_the_soft_threshold(settings: dict[str, Any], start: float) -> None:
    partial = {"0.weight": torch.ones(8, 5, dtype=torch.bool), "2.weight": torch.arange(24).view(3, 8) % 5 > 0}
    sparse = attached("str", lambda p: SGD(p, **settings), partial, s_init=start)
    plain = mlp()
    theirs = nn.Sequential(
        Soft(plain[0], start, partial["0.weight"]), nn.Tanh(), Soft(plain[2], start, partial["2.weight"])
    )

    losses = trained(sparse.model, sparse.optimizer)

    torch.testing.assert_close(losses, trained(theirs, SGD(theirs.parameters(), **settings)), rtol=1e-12, atol=1e-12)
    for index in (0, 2):
        name = f"{index}.weight"
        torch.testing.assert_close(sparse.model.get_parameter(name), theirs[index].effective())
        torch.testing.assert_close(sparse.method_state["latent"][name], theirs[index].weight.detach())
        torch.testing.assert_close(sparse.method_state["s"][name], theirs[index].s.detach())
        assert abs(float(theirs[index].s.detach()) - start) > 1e-4, "a threshold that never moved shows nothing"
    assert 0 < sparse.density < 1
    assert sparse.masks == Masks({n: (sparse.model.get_parameter(n) != 0) | ~partial[n] for n in partial}, partial)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.03), (0.9, 0.003)])
def test_thresholds_become_effective_halfway(momentum: float, decay: float) -> None:
    num_steps = 2000
    sparse = attached("str", lambda p: SGD(p, lr=0.1, momentum=momentum, weight_decay=decay), num_steps=num_steps)
    start = float(sparse.method_state["s"]["0.weight"])
    assert start < -10
    for step in range(num_steps):  # a schedule that averages half of its peak, and no gradient but that of decay
        sparse.optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / num_steps)
        sparse.optimizer.zero_grad()
        (0.0 * sparse.model(torch.ones(1, 5, dtype=torch.float64)).sum()).backward()
        sparse.optimizer.step()
    # As far above -5 in the end as it began below, by ratio.
    assert float(sparse.method_state["s"]["0.weight"]) == pytest.approx(25 / start, rel=0.1)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: LinearLR(optimizer, start_factor=0.001),
        lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=9, cycle_momentum=False),
    ],
)
def test_a_warmup_does_not_change_the_initial_threshold(schedule: Callable[[Optimizer], LRScheduler]) -> None:
    def warmed_up(parameters: Any) -> Optimizer:
        optimizer = plain(parameters)
        schedule(optimizer)
        assert optimizer.param_groups[0]["lr"] < 0.01
        return optimizer

    def plain(parameters: Any) -> Optimizer:
        return SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.003)

    starts = [attached("str", make, num_steps=2000).method_state["s"]["0.weight"] for make in (warmed_up, plain)]
    assert float(starts[0]) == pytest.approx(float(starts[1]))
    assert float(starts[0]) < -10


def test_thresholds_have_their_own_decay() -> None:
    sparse = attached("str", lambda p: SGD(p, lr=0.1, weight_decay=0.5), s_init=-3200.0, s_decay=0.01)
    trained(sparse.model, sparse.optimizer)
    # At -3200 the sigmoid is flat: nothing but the decay moves it.
    assert float(sparse.method_state["s"]["0.weight"]) == pytest.approx(
        -3200 * (1 - 0.1 * 0.01) ** NUM_STEPS, rel=1e-12
    )
    assert sparse.density == 1


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("density", [0.25, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_edge_popup_is_autograd_straight_through_the_choice(
    settings: dict[str, Any], density: float, optimizer: str
) -> None:
    def make(parameters: Any) -> Optimizer:
        return SGD(parameters, **{**settings, "lr": 0.5}) if optimizer == "sgd" else AdamW(parameters, lr=0.02)

    sparse = attached("edge_popup", make, density=density)
    plain, method_state = mlp(), sparse.method_state
    theirs = nn.Sequential(
        Popup(plain[0], method_state["frozen"]["0.weight"], method_state["scores"]["0.weight"], round(density * 40)),
        nn.Tanh(),
        Popup(plain[2], method_state["frozen"]["2.weight"], method_state["scores"]["2.weight"], round(density * 24)),
    )
    before = sparse.masks.clone()
    losses = trained(sparse.model, sparse.optimizer)

    torch.testing.assert_close(losses, trained(theirs, make(theirs.parameters())), rtol=1e-12, atol=1e-12)
    for index in (0, 2):
        torch.testing.assert_close(sparse.model.get_parameter(f"{index}.weight"), theirs[index].effective())
        torch.testing.assert_close(method_state["scores"][f"{index}.weight"], theirs[index].scores.detach())
    assert sparse.masks.num_on == before.num_on == round(density * 64)
    sparse.detach()
    assert sparse.masks != before, "a choice that never changed shows nothing"


def test_edge_popup_starts_from_signed_constants_and_uniform_scores() -> None:
    def scored(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 50))
        nn.init.normal_(model[0].weight)
        drawn = model[0].weight.detach().clone()
        sparse = attach(model, SGD(model.parameters(), lr=0.1), "edge_popup", scope=Masks.full(model), seed=seed)
        return drawn, sparse.method_state["frozen"]["0.weight"], sparse.method_state["scores"]["0.weight"]

    drawn, frozen, scores = scored(5)
    assert torch.equal(frozen.sign(), drawn.sign())
    assert frozen.abs().unique().item() == pytest.approx(math.sqrt(2 / 200))
    # Kaiming-uniform with a = sqrt 5: uniform in +-1 / sqrt(fan in), so its variance is a third of 1 / fan in.
    assert 0.99 / math.sqrt(200) < float(scores.abs().max()) <= 1 / math.sqrt(200)
    assert float(scores.var()) == pytest.approx(1 / 600, rel=0.02)
    assert abs(float(scores.mean())) < 4 * math.sqrt(1 / 600 / scores.numel())
    assert torch.equal(scored(5)[2], scores)
    assert not torch.equal(scored(6)[2], scores)
    twins = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    drawn_for = attach(twins, SGD(twins.parameters(), lr=0.1), "edge_popup", scope=Masks.full(twins)).method_state[
        "scores"
    ]
    assert not torch.equal(drawn_for["0.weight"], drawn_for["2.weight"])


def test_edge_popup_leaves_no_layer_empty() -> None:
    """A tenth of 4, 40 and 20 weights, six in all: the smallest fraction is less than half a weight."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1))
    scope = {name: torch.ones_like(model.get_parameter(name), dtype=torch.bool) for name in ("0.weight", "2.weight")}
    scope["4.weight"] = torch.ones(1, 20, dtype=torch.bool)
    sparse = attach(model, SGD(model.parameters(), lr=0.1), methods.create("edge_popup", density=0.1), scope=scope)
    assert [int(mask.sum()) for mask in sparse.masks.values()] == [1, 3, 2]


def test_weights_outside_the_scope_of_edge_popup_are_trained() -> None:
    inside = {"0.weight": torch.zeros(8, 5, dtype=torch.bool), "2.weight": torch.ones(3, 8, dtype=torch.bool)}
    sparse = attached("edge_popup", lambda p: SGD(p, lr=0.1), inside, density=1.0, constant=False)
    plain = mlp()
    trained(sparse.model, sparse.optimizer)
    optimizer = SGD([p for n, p in plain.named_parameters() if n != "2.weight"], lr=0.1)  # all chosen, none moves
    trained(plain, optimizer)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(sparse.model.get_parameter(name), parameter)


def straight(weights: list[Tensor], inside: list[Tensor], num_on: int) -> list[Tensor]:
    """The effective weights of ST-3, whose gradient is that of the weights."""
    sizes = torch.cat([weight[here].abs() for weight, here in zip(weights, inside, strict=True)]).sort().values
    threshold = sizes[-num_on - 1] if num_on < len(sizes) else 0.0
    found = []
    for weight, here in zip(weights, inside, strict=True):
        soft = torch.sign(weight) * torch.relu(weight.abs() - threshold)
        for row, (unit, there) in enumerate(zip(weight, here, strict=True)):
            left = unit.abs()[(unit.abs() > threshold) | ~there].sum() / unit.abs().sum()
            soft[row] *= 1.01 / (left + 0.01)
        found.append(weight + (torch.where(here, soft, weight) - weight).detach())
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_st3_is_autograd_straight_through_the_soft_threshold(optimizer: str) -> None:
    def make(parameters: Any) -> Optimizer:
        return SGD(parameters, **SETTINGS[2]) if optimizer == "sgd" else AdamW(parameters, lr=0.02)

    partial = {"0.weight": torch.ones(8, 5, dtype=torch.bool), "2.weight": torch.arange(24).view(3, 8) % 5 > 0}
    inside, num = list(partial.values()), int(sum(here.sum() for here in partial.values()))
    options = {"density": 0.2, "num_steps": NUM_STEPS, "start_fraction": 0.2, "stop_fraction": 0.7}
    sparse, plain = attached("st3", make, partial, **options), mlp()
    theirs, weights, counts, returned = make(plain.parameters()), [plain[0].weight, plain[2].weight], [], 0
    for step in range(NUM_STEPS):
        counts.append(round(num * (0.2 + 0.8 * min(1.0, max(0.0, (4 - step) / 3)) ** 3)))  # from step 1 to step 4
        assert sparse.masks.num_on == counts[-1]
        first, last = straight(weights, inside, counts[-1])
        torch.testing.assert_close(sparse.model[0].weight.detach(), first.detach(), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(sparse.model[2].weight.detach(), last.detach(), rtol=1e-5, atol=1e-7)
        images, labels = batch(step)
        hidden = torch.tanh(functional.linear(images, first, plain[0].bias))
        theirs.zero_grad()
        functional.cross_entropy(functional.linear(hidden, last, plain[2].bias), labels).backward()
        theirs.step()
        before = sparse.masks.clone()
        sparse.optimizer.zero_grad()
        functional.cross_entropy(sparse.model(images), labels).backward()
        sparse.optimizer.step()
        returned += (sparse.masks - before).num_on
    for name, latent in sparse.method_state["latent"].items():
        torch.testing.assert_close(latent, plain.get_parameter(name).detach(), rtol=1e-5, atol=1e-7)
    assert counts[0] == num
    assert counts[-1] == round(0.2 * num)
    assert returned > 0, "a pruned weight that never returned shows nothing"


def test_topkast_trains_more_weights_than_it_computes_with() -> None:
    """Against SGD with momentum written out, on all weights."""
    lr, inertia, decay, density = 0.5, 0.8, 0.05, 0.25
    inside = {"0.weight": torch.ones(8, 5, dtype=torch.bool), "2.weight": torch.arange(24).view(3, 8) % 5 > 0}
    sparse = attached(
        "topkast",
        lambda p: SGD(p, lr=lr, momentum=inertia, weight_decay=decay),
        inside, density=density, extra_density=0.25,
    )  # fmt: skip
    plain = mlp()
    dense = {name: plain.get_parameter(name).detach().clone() for name in inside}
    momentum = {name: torch.zeros_like(weight) for name, weight in plain.named_parameters()}
    first, untouched, num_changes = {name: w.clone() for name, w in dense.items()}, dict(inside), 0

    def top(name: str, share: float) -> Tensor:
        num = round(share * int(inside[name].sum()))
        border = dense[name][inside[name]].abs().sort().values[-num]
        return (dense[name].abs() >= border) | ~inside[name]

    for step in range(20):
        active, trained = ({name: top(name, share) for name in inside} for share in (density, 0.5))
        for name in inside:
            plain.get_parameter(name).data = dense[name] * active[name]
            assert torch.equal(sparse.masks[name], active[name])
            torch.testing.assert_close(sparse.model.get_parameter(name).detach(), dense[name] * active[name])
        before = sparse.masks.clone()
        for model in (plain, sparse.model):
            model.zero_grad()
            functional.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        sparse.optimizer.step()
        num_changes += sparse.masks != before
        for name, parameter in plain.named_parameters():
            if name not in inside:
                momentum[name] = inertia * momentum[name] + parameter.grad + decay * parameter.detach()
                parameter.data = parameter.data - lr * momentum[name]
                continue
            pull = parameter.grad + decay * torch.where(active[name], 1.0, 1 / density) * dense[name]
            momentum[name] = inertia * momentum[name] + pull * trained[name]
            dense[name] = dense[name] - lr * momentum[name] * trained[name]
            untouched[name] = untouched[name] & ~trained[name]
    for name, latent in sparse.method_state["latent"].items():
        torch.testing.assert_close(latent, dense[name])
        assert torch.equal(latent[untouched[name]], first[name][untouched[name]])
    assert num_changes > 2
    assert any(here.any() for here in untouched.values())


@pytest.mark.parametrize("method", ["st3", "str", "edge_popup", "topkast"])
def test_masks_are_always_current(method: str) -> None:
    """Training changes latent weights without touching the masks, which are refreshed when read."""
    options = {"str": {"s_init": -3.0}, "st3": {"num_steps": NUM_STEPS}}.get(method, {})
    read, never = (attached(method, lambda p: SGD(p, lr=0.5), **options) for _ in range(2))
    at_first = read.masks.clone()
    for sparse in (read, never):
        trained(sparse.model, sparse.optimizer)
        assert {name: mask.tolist() for name, mask in sparse.masks.items()} == {
            name: (sparse.model.get_parameter(name) != 0).tolist() for name in sparse.masks
        }
    assert f"{never.masks.num_on} of 64" in repr(read)
    assert read.masks == never.masks
    assert read.masks != at_first
