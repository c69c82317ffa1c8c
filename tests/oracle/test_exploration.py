"""GSE against its definition: gradient estimates in loops, the distribution of candidates, exact moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.gse import gradient_estimates
from pathgrow.methods.method import MaskUpdate, NetworkView, Progress
from pathgrow.rng import generator
from tests.support.chain import (
    NAMES,
    attached,
    batch,
    best_of_all,
    chain,
    flags,
    magnitudes,
    num_on,
    same,
    squares,
    steps,
)

Array = npt.NDArray[Any]


class Recorded(nn.Module):
    """One layer whose output and its gradient can be read off."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        self.output = self.layer(x)
        self.output.retain_grad()
        return self.output


def cube(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).pow(3).mean()


def patches(layer: nn.Conv2d, x: Array, out: int) -> Array:
    """(samples, positions, inputs of output channel `out`), by loops."""
    (top, left), (stride, _), (spread, _) = layer.padding, layer.stride, layer.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    _, per_group, kh, kw = layer.weight.shape
    group = out // (layer.out_channels // layer.groups)
    channels = padded[:, group * per_group : (group + 1) * per_group]
    rows = (padded.shape[2] - spread * (kh - 1) - 1) // stride + 1
    columns = (padded.shape[3] - spread * (kw - 1) - 1) // stride + 1
    found = []
    for i in range(rows):
        for j in range(columns):
            down = slice(i * stride, i * stride + spread * (kh - 1) + 1, spread)
            along = slice(j * stride, j * stride + spread * (kw - 1) + 1, spread)
            found.append(channels[:, :, down, along].reshape(len(x), -1))
    return np.stack(found, axis=1)


LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (6, 5)),
    "tokens": (lambda: nn.Linear(5, 4), (3, 7, 5)),
    "conv": (lambda: nn.Conv2d(2, 4, 3, padding=1), (3, 2, 5, 4)),
    "strided": (lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), groups=2), (2, 4, 7, 6)),
    "dilated": (lambda: nn.Conv2d(2, 3, 3, dilation=2), (2, 2, 7, 8)),
}


def read(kind: str, estimate: str) -> tuple[Array, Array, Array, Array]:
    """Our estimates, the true |gradient|, and both sides of it: inputs and output gradients of each (output, place)."""
    make, shape = LAYERS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Recorded(make().double())
        x = torch.randn(shape).double()
    full = Masks.full(model)
    net = NetworkView(model, full, Masks.select(full), loss=cube, batches=[x])
    found = gradient_estimates(net, estimate, generator(0, "draw"))["layer.weight"].numpy()
    assert net.scoring_cost.num_gradient_samples == shape[0]
    cube(model, x).backward()
    back, true = model.output.grad.numpy(), model.layer.weight.grad.abs().numpy()
    if isinstance(model.layer, nn.Linear):
        flat = x.numpy().reshape(-1, shape[-1])
        inputs = np.stack([flat] * model.layer.out_features)
        outputs = back.reshape(-1, back.shape[-1]).T
    else:
        num = model.layer.out_channels
        inputs = np.stack([patches(model.layer, x.numpy(), k).reshape(-1, true[0].size) for k in range(num)])
        outputs = np.moveaxis(back, 1, 0).reshape(num, -1)
    return found, true, inputs, outputs


@pytest.mark.parametrize("kind", LAYERS)
def test_the_two_sides_make_the_gradient(kind: str) -> None:
    _, true, inputs, outputs = read(kind, "bound")
    gradient = np.einsum("kpi,kp->ki", inputs, outputs).reshape(true.shape)
    np.testing.assert_allclose(abs(gradient), true, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("kind", LAYERS)
def test_grabo_is_the_product_of_summed_magnitudes(kind: str) -> None:
    found, true, inputs, outputs = read(kind, "bound")
    expected = abs(inputs).sum(1) * abs(outputs).sum(1)[:, None]
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-9)
    assert (found >= true).all()


@pytest.mark.parametrize("kind", LAYERS)
def test_graest_has_one_sign_for_both_sides(kind: str) -> None:
    found, _, inputs, outputs = read(kind, "sketch")
    draw = generator(0, "draw")
    torch.randint(1 << 62, (), generator=draw)  # of the batch
    num = outputs.shape[1]
    signs = 2 * torch.randint(0, 2, (num,), generator=draw).numpy() - 1
    expected = abs(np.einsum("kpi,p->ki", inputs, signs)) * abs(outputs @ signs)[:, None]
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-9, atol=1e-15)


def test_a_layer_that_runs_twice_has_the_sum_and_no_hook_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    model, x = Twice(), torch.randn(5, 4).double()
    net = NetworkView(model, Masks.full(model), Masks.select(Masks.full(model)), loss=cube, batches=[x])
    found = gradient_estimates(net, "bound", generator(0, "draw"))["layer.weight"]
    first = model.layer(x)
    first.retain_grad()
    second = model.layer(torch.tanh(first))
    second.retain_grad()
    second.pow(3).mean().backward()
    expected = torch.outer(first.grad.abs().sum(0), x.abs().sum(0))
    expected += torch.outer(second.grad.abs().sum(0), torch.tanh(first).abs().sum(0))
    torch.testing.assert_close(found, expected.detach())
    assert not model.layer._forward_hooks


def looked_at_before(first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        second(torch.tanh(first(x)))
    return second(torch.tanh(first(x)))


CALLS: dict[str, Callable[[nn.Module, nn.Module, Tensor], Tensor]] = {
    "plainly": lambda first, second, x: second(torch.tanh(first(x))),
    "by name": lambda first, second, x: second(input=torch.tanh(first(input=x))),
    "also without gradients": looked_at_before,
    "again in the backward pass": lambda first, second, x: checkpoint(
        lambda x: second(torch.tanh(first(x))), x, use_reentrant=False
    ),
    "without a dimension of samples": lambda first, second, x: second(torch.tanh(first(x[0])))[None],
}


@pytest.mark.parametrize("estimate", ["bound", "sketch"])
@pytest.mark.parametrize("call", [call for call in CALLS if call != "plainly"])
def test_how_a_layer_is_called_does_not_matter(call: str, estimate: str) -> None:
    class Pair(nn.Module):
        def __init__(self, call: str) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.first, self.second = nn.Conv2d(2, 4, 3).double(), nn.Conv2d(4, 3, 2).double()
            self.call = CALLS[call]

        def forward(self, x: Tensor) -> Tensor:
            return self.call(self.first, self.second, x)

    def estimates(call: str) -> dict[str, Tensor]:
        with torch.random.fork_rng():
            model = Pair(call)
        full = Masks.full(model)
        net = NetworkView(model, full, Masks.select(full), loss=cube, batches=[x])
        return gradient_estimates(net, estimate, generator(0, "draw"))

    x = torch.randn(1, 2, 6, 7, generator=torch.Generator().manual_seed(1)).double()
    expected, found = estimates("plainly"), estimates(call)
    assert expected.keys() == found.keys() == {"first.weight", "second.weight"}
    for name, product in expected.items():
        torch.testing.assert_close(found[name], product)


def test_compiled_models_show_their_layers() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.ones(5, 4)
    compiled = torch.compile(model, backend="eager")
    cube(compiled, x)  # before there are hooks to compile
    found = []
    for each in (model, compiled):
        net = NetworkView(each, Masks.full(each), Masks.select(Masks.full(each)), loss=cube, batches=[x])
        found.append(gradient_estimates(net, "bound", generator(0, "draw")))
    plain, ours = found
    assert {f"_orig_mod.{name}" for name in plain} == set(ours) != set()
    assert all(torch.equal(ours[f"_orig_mod.{name}"], product) for name, product in plain.items())


def test_frozen_layers_have_no_estimate() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    model[1].weight.requires_grad_(False)
    net = NetworkView(
        model, Masks.full(model), Masks.select(Masks.full(model)), loss=cube, batches=[torch.ones(5, 4).double()]
    )
    assert gradient_estimates(net, "bound", generator(0, "draw")).keys() == {"0.weight"}


@pytest.mark.parametrize("guide", ["grabo", "graest", "uniform"])
def test_with_all_as_candidates_the_largest_gradients_grow_and_the_smallest_weights_go(guide: str) -> None:
    model, masks = chain(0.3)
    method = methods.create("gse", guide=guide, gamma=1e9, update_interval=4, num_steps=60, drop_fraction=0.3)
    sparse = attached(method, model, masks, loss=squares, batches=[batch(99)])
    expected, num_new = None, 0
    for step, on, now, _, gradient in steps(sparse, 60):
        if expected is not None:
            assert same(on, expected)
        expected = on
        if step and step % 4 == 0 and step <= 36:
            num_moved = int(0.15 * (1 + math.cos(math.pi * step / 36)) * num_on(on) + 1e-6)
            grown = best_of_all(magnitudes(gradient), {name: ~on[name] for name in NAMES}, num_moved)
            kept = best_of_all(magnitudes(now), on, num_on(on) - num_moved)
            expected = {name: kept[name] | grown[name] for name in NAMES}
            num_new += num_moved
    assert num_new > 20
    assert same(flags(sparse.masks), expected)


@pytest.mark.parametrize("guide", ["grabo", "uniform"])
def test_candidates_are_missing_weights_and_follow_the_estimates(guide: str) -> None:
    """With one candidate there is nothing to rank: what grows is the candidate."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(4, 3)).double()
        x = torch.randn(6, 4).double() * torch.tensor([3.0, 1, 1, 0.3]).double()
    masks = Masks({"0.weight": torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0]]).bool()})
    masks.apply_(model)
    gradients = {"0.weight": torch.rand(3, 4).double()}
    net = NetworkView(
        model, masks, Masks.select(Masks.full(model)), compute_gradients=lambda: (gradients, 0), loss=cube, batches=[x]
    )
    update = methods.create("gse", guide=guide, gamma=1e-9, drop_fraction=0.5).update
    progress = Progress(round=0, step=0, num_on=4, num=12)
    counts: Counter[int] = Counter()
    num = 250
    for seed in range(num):
        after = update(net, MaskUpdate(), progress, generator(seed, "draw"))
        new = (after - masks)["0.weight"].flatten()
        assert after.num_on == 4
        assert int(new.sum()) == 1
        counts[int(new.nonzero())] += 1
    shares = (
        torch.ones(3, 4).double()
        if guide == "uniform"
        else gradient_estimates(net, "bound", generator(0, "x"))["0.weight"]
    )
    off = (~masks["0.weight"]).flatten().nonzero().flatten().tolist()
    likely = shares.flatten()[off] / shares.flatten()[off].sum() * num
    assert set(counts) <= set(off)
    assert stats.chisquare([counts[place] for place in off], likely.tolist()).pvalue > 0.005
    if guide == "grabo":
        assert stats.chisquare([counts[place] for place in off]).pvalue < 1e-6


def grown_by(guide: str, masks: Masks, pull: dict[str, Tensor], **options: Any) -> Masks:
    """What an update at step 0 grows in a network of linear layers."""
    layers = [nn.Linear(*mask.shape[::-1], bias=False).double() for mask in masks.values()]
    model = nn.Sequential(*layers)
    masks.apply_(model)
    x = torch.randn(6, layers[0].in_features, generator=torch.Generator().manual_seed(1)).double()
    net = NetworkView(
        model, masks, Masks.select(Masks.full(model)), compute_gradients=lambda: (pull, 0), loss=cube, batches=[x]
    )
    progress = Progress(round=0, step=0, num_on=masks.num_on, num=masks.num)
    after = methods.create("gse", guide=guide, **options).update(net, MaskUpdate(), progress, generator(0, "draw"))
    assert after.num_on == masks.num_on
    return after - masks


@pytest.mark.parametrize("guide", ["uniform", "grabo", "graest"])
def test_a_layer_has_gamma_candidates_per_weight_or_all_at_half_density(guide: str) -> None:
    """With more moves than candidates, all of these grow."""
    sparse, half = torch.arange(80).view(8, 10) < 12, torch.arange(48).view(6, 8) < 24
    for other, num_new in ((half, 24), (torch.arange(48).view(6, 8) < 23, 11)):
        masks = Masks({"0.weight": sparse.clone(), "1.weight": other.clone()})
        new = grown_by(guide, masks, ones(masks), gamma=0.5, drop_fraction=0.99)
        assert [int(flags.sum()) for flags in new.values()] == [6, num_new]


def ones(masks: Masks) -> dict[str, Tensor]:
    return {name: torch.ones(mask.shape).double() for name, mask in masks.items()}


def test_graest_never_draws_what_cancels_and_grabo_does() -> None:
    """Two samples, two inputs and two outputs, equal or opposite in them: half of the gradients are sums of +1 and -1.

    Under any signs one of the inputs cancels, and with it the output that is like it does not.
    """
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).double()
    masks = Masks({"0.weight": torch.zeros(2, 2, dtype=torch.bool)})
    like = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()  # by sample
    net = NetworkView(
        model, masks, Masks.select(Masks.full(model)), compute_gradients=lambda: (ones(masks), 0),
        loss=lambda model, x: (model(x) * like).sum(), batches=[like],
    )  # fmt: skip
    drawn = {}
    for guide in ("grabo", "graest"):
        update = methods.create("gse", guide=guide, gamma=1.0).update
        drawn[guide] = sum(update._candidates(net, generator(seed, "draw"))["0.weight"].int() for seed in range(40))
    assert (drawn["grabo"] > 0).all()
    assert drawn["graest"].fill_diagonal_(0).sum() == 0
    assert sum(int(total.sum()) for total in drawn.values()) >= 40


def test_no_data_no_guide() -> None:
    model, masks = chain()
    with pytest.raises(UserError, match="loss"):
        attached(methods.create("gse"), model, masks)
    attached(methods.create("gse", guide="uniform"), model, masks).detach()
    net = NetworkView(model, masks, Masks.select(Masks.full(model)))
    with pytest.raises(UserError, match="batches"):
        net.probe_gradients(0)


def test_weights_of_no_layer_of_their_own_are_drawn_uniformly() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 5))
            self.fc = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.tanh(x @ self.weight.T))

    model, x = Bare(), torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    names = ("weight", "fc.weight")
    scope = Masks.select({name: torch.ones_like(model.get_parameter(name)).bool() for name in names})
    draw = torch.Generator().manual_seed(0)
    masks = Masks({name: torch.rand(scope[name].shape, generator=draw) < 0.3 for name in names})
    masks.apply_(model)
    pull = {"weight": torch.ones(6, 5), "fc.weight": torch.zeros(2, 6)}
    net = NetworkView(model, masks, scope, compute_gradients=lambda: (pull, 0), loss=cube, batches=[x])
    assert gradient_estimates(net, "bound", draw).keys() == {"fc.weight"}
    update = methods.create("gse", drop_fraction=0.3).update
    after = update(net, MaskUpdate(), Progress(round=0, step=0, num_on=masks.num_on, num=42), draw)
    new = after - masks
    assert after.num_on == masks.num_on
    assert int(new["weight"].sum()) == int(0.3 * masks.num_on)
