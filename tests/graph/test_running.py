"""How a batch is passed to a model: spread where `forward` takes its parts, otherwise whole."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from pathgrow.graph import trace
from pathgrow.graph.calls import called_layers, run_on
from pathgrow.graph.flops import forward_macs, training_flops
from pathgrow.graph.running import call_arguments, map_tensors, num_samples, one_sample
from pathgrow.graph.scope import scope

X, Y = torch.ones(2, 3), torch.ones(2, 4)


class Taking(nn.Module):
    """A model whose forward pass has another signature."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = forward


def one(batch: Any) -> Any:
    return batch


def two(x: Any, y: Any = None) -> Any:
    return x, y


def anything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


@pytest.mark.parametrize(
    ("forward", "example", "expected"),
    [
        (one, X, ((X,), {})),
        (one, (X,), ((X,), {})),
        (one, {"batch": X}, ((), {"batch": X})),
        (one, {"x": X, "y": Y}, (({"x": X, "y": Y},), {})),
        (one, UserDict(x=X), ((UserDict(x=X),), {})),
        (one, (X, Y), (((X, Y),), {})),
        (one, [X, Y], (([X, Y],), {})),
        (two, (X, Y), ((X, Y), {})),
        (two, {"x": X}, ((), {"x": X})),
        (two, UserDict(x=X), ((), {"x": X})),
        (two, {"z": X}, (({"z": X},), {})),
        (anything, {"z": X}, ((), {"z": X})),
        (max, (X, Y), ((X, Y), {})),  # without a signature
        (lambda: None, {"z": X}, ((), {"z": X})),
    ],
)
def test_a_batch_is_spread_if_that_fits(forward: Callable[..., Any], example: Any, expected: Any) -> None:
    assert str(call_arguments(Taking(forward), example)) == str(expected)


def test_a_parallel_model_takes_what_its_module_takes() -> None:
    model = nn.DataParallel(Taking(one))
    assert call_arguments(model, (X, Y)) == (((X, Y),), {})
    assert call_arguments(model, {"batch": X}) == ((), {"batch": X})


def test_the_first_sample_of_a_nested_batch() -> None:
    (batch,), _ = one_sample(Taking(one), {"x": X, "parts": [Y, (Y, "text")], "shared": torch.ones(5)})
    assert [batch["x"].shape[0], batch["parts"][0].shape[0], batch["parts"][1][0].shape[0]] == [1, 1, 1]
    assert batch["parts"][1][1] == "text"
    assert batch["shared"].shape == (5,)


IDS, TIMES, TABLE = torch.tensor([3, 0, 2]), torch.tensor([0.1, 0.5, 0.9]), torch.rand(7, 4)
SQUARE = torch.rand(3, 3)


@pytest.mark.parametrize(
    ("forward", "example", "lengths"),
    [
        (anything, (IDS, SQUARE), [1, 1]),
        (anything, (SQUARE, TIMES), [1, 1]),
        (anything, (torch.tensor(3), SQUARE), [None, 1]),
        (anything, (torch.ones(5), SQUARE), [5, 1]),
        (anything, (IDS, TIMES, TABLE), [1, 1, 7]),
        (anything, (IDS[:1], SQUARE[:1]), [1, 1]),
        # vectors alone may be one sample
        (anything, (IDS,), [3]),
        (nn.Linear(3, 2).forward, (TIMES,), [3]),
        # of the length of the batch by chance: the model does not accept it without the rest, or nothing else without
        (lambda x, weights: x @ weights, (SQUARE, TIMES), [1, 3]),
        (lambda ids, table: table[ids], (IDS, TABLE), [1, 7]),
        (lambda ids, table: table[ids], (IDS - 1, SQUARE), [3, 3]),
        (nn.functional.embedding_bag, (IDS, TABLE, torch.tensor([0, 2])), [3, 7, 2]),
        (lambda x, weights: x.view(3, 3) @ weights, (SQUARE, TIMES), [3, 3]),
    ],
)
def test_vectors_of_a_batch_are_cut_with_it(
    forward: Callable[..., Any], example: tuple[Tensor, ...], lengths: list[int | None]
) -> None:
    found, _ = one_sample(Taking(forward), example)
    assert [tensor.shape[0] if tensor.ndim else None for tensor in found] == lengths
    assert all(torch.equal(cut, whole[: len(cut)]) for cut, whole in zip(found, example, strict=True) if cut.ndim)


def test_the_number_of_samples() -> None:
    batches = [X, IDS, TIMES, torch.tensor(3), (), (TIMES, X), {"t": torch.tensor(3), "x": X}, (IDS, TABLE)]
    assert [num_samples(batch) for batch in batches] == [2, 3, 3, 1, 0, 2, 2, 3]


class WithIds(nn.Module):
    """Features and the embedding of an id for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.a, self.b, self.o = nn.Embedding(7, 4), nn.Linear(9, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.o(self.b(self.a(torch.cat([self.ids(ids), x], 1)).relu()).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("num", [1, 3, 5])
def test_ids_beside_features_are_traced(num: int) -> None:
    model, ids, x = WithIds(), torch.arange(num), torch.rand(num, 5)
    for example in ((ids, x), {"x": x, "ids": ids}):
        assert set(scope(model, example)) == {"a.weight", "b.weight"}
        macs = 9 * 6 + 6 * 6 + 6 * 2
        assert forward_macs(trace(model, example)) == forward_macs(called_layers(model, example)) == macs
        assert training_flops(model, example) == 6 * macs


def test_nested_values_keep_their_types() -> None:
    Pair = namedtuple("Pair", "a b")
    packed, own = pack_sequence([X, Y[:, :3]]), UserDict(x=X)
    found = map_tensors(lambda tensor: 2 * tensor, (Pair(X, 3), own, packed, [Y]))
    assert isinstance(found[0], Pair)
    assert torch.equal(found[0].a, 2 * X)
    assert found[0].b == 3
    assert isinstance(found[1], UserDict)
    assert torch.equal(found[1]["x"], 2 * X)
    assert own["x"] is X
    assert found[2] is packed
    assert torch.equal(found[3][0], 2 * Y)


class Graphs(nn.Module):
    """A graph network whose only argument is a dict, or whose arguments are its entries."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.o = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x, adj, mask = batch["x"], batch["adj"], batch["mask"]
        h = self.b(adj @ self.a(adj @ x).relu()).relu() * mask[..., None]
        return self.o(self.c(h.sum(1) / mask.sum(1, keepdim=True)).relu())  # type: ignore[no-any-return]


class Spread(Graphs):
    def forward(self, x: Tensor, adj: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward({"x": x, "adj": adj, "mask": mask})


@pytest.mark.parametrize("model", [Graphs(), Spread()])
def test_a_dict_is_traced_and_inputs_beside_it_are_factors(model: nn.Module) -> None:
    example = {"x": torch.rand(2, 4, 3), "adj": torch.rand(2, 4, 4), "mask": torch.ones(2, 4)}
    graph = trace(model, example)
    assert [layer.name for layer in graph.layers] == ["a.weight", "b.weight", "c.weight", "o.weight"]
    assert set(scope(model, example)) == {"a.weight", "b.weight", "c.weight"}
    layers = 4 * 3 * 5 + 4 * 5 * 5 + 5 * 5 + 5 * 2
    assert forward_macs(called_layers(model, example)) == layers
    assert forward_macs(graph) == layers + 4 * 4 * 3 + 4 * 4 * 5  # with the products with `adj`
    assert run_on(model, example).shape == (2, 2)
