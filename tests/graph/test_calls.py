"""Layers by their calls: FLOPs against hand counts and against the tracer, scope, layers that are not reached."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import pathgrow.models
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.calls import called_layers, called_scope, uncalled_layers
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.scope import scope


class Recurrent(nn.Module):
    """A recurrent network with a layer that it calls for long inputs only."""

    def __init__(self, cell: type[nn.RNNBase] = nn.LSTM, **options: object) -> None:
        super().__init__()
        self.cell = cell(3, 4, batch_first=True, **options)  # type: ignore[arg-type]
        self.rare, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.cell(x)[0][:, -1, :4]
        return self.head(self.rare(hidden) if x.shape[1] > 8 else hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "macs"),
    [
        (Recurrent(), 6 * 4 * 4 * (3 + 4) + 8),
        (Recurrent(nn.GRU), 6 * 3 * 4 * (3 + 4) + 8),
        (Recurrent(nn.GRU, bidirectional=True), 2 * 6 * 3 * 4 * (3 + 4) + 8),
        (Recurrent(nn.LSTM, num_layers=2), 6 * 4 * 4 * (3 + 4 + 4 + 4) + 8),
    ],
)
def test_recurrent_layers_cost_every_time_step(model: nn.Module, macs: int) -> None:
    assert forward_macs(called_layers(model, torch.zeros(5, 6, 3))) == macs


def test_a_batch_without_samples_is_refused() -> None:
    for example in (torch.zeros(0, 6, 3), "text"):
        with pytest.raises(UserError, match=r"^example_input (is empty|must hold)"):
            scope(Recurrent(), (example,))
        with pytest.raises(UserError, match=r"^example_input must hold at least one sample"):
            called_layers(Recurrent(), example)


def test_a_packed_sequence_costs_its_mean_length() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(input=pack_sequence([x[0], x[1, :4]]))[1]  # type: ignore[no-any-return]

    assert forward_macs(called_layers(Packed(), torch.zeros(2, 6, 3))) == 5 * 3 * 4 * 7


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_other_models_cost_what_the_tracer_says(name: str) -> None:
    model = pathgrow.models.create(name, 10)
    example = model.example_input()  # type: ignore[operator]
    assert forward_macs(called_layers(model, example)) == forward_macs(trace(model, example))


def test_a_transposed_convolution_costs_its_input_positions() -> None:
    model, example = nn.Sequential(nn.ConvTranspose2d(3, 5, 2, stride=2)), torch.zeros(2, 3, 4, 4)
    assert forward_macs(called_layers(model, example)) == forward_macs(trace(model, example)) == 16 * 60


def test_the_scope_is_what_is_reached_but_for_the_last_layer() -> None:
    model = Recurrent()
    model.cell.weight_hh_l0.requires_grad_(False)
    graph = called_layers(model, torch.zeros(1, 6, 3))
    assert set(called_scope(model, graph)) == {"cell.weight_ih_l0"}
    with pytest.raises(UserError, match="nothing to sparsify in Linear"):
        called_scope(nn.Linear(3, 2), called_layers(nn.Linear(3, 2), torch.zeros(1, 3)))


def test_layers_that_are_not_reached_are_named() -> None:
    model = Recurrent()
    for length, names in ((6, ["rare.weight"]), (9, [])):
        example = torch.zeros(1, length, 3)
        assert uncalled_layers(model, example, called_layers(model, example)) == names
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    example = torch.zeros(1, 4, 8)
    assert uncalled_layers(attention, example, trace(attention, example)) == []


class Branching(nn.Module):
    """A network whose layers are used in every way but by being called."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.by_function, self.computed, self.tied = (nn.Linear(4, 4) for _ in range(4))
        self.in_training, self.unused, self.inspected, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.tied.weight = self.called.weight
        self.norm, self.squeezed = nn.BatchNorm1d(4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.inspected.weight.dtype).to(self.inspected.weight.device)
        x = F.linear(self.norm(self.called(x)), self.by_function.weight) @ (2 * self.computed.weight).T
        return self.head(self.in_training(x) if self.training else x)  # type: ignore[no-any-return]


def test_a_layer_is_unused_only_if_nothing_uses_its_weight() -> None:
    model, example = Branching(), torch.rand(1, 4)
    before = copy.deepcopy(model.state_dict())
    for graph in (None, trace(model, example)):
        assert uncalled_layers(model, example, graph) == ["unused.weight", "inspected.weight"]
    assert uncalled_layers(nn.DataParallel(model), example) == ["module.unused.weight", "module.inspected.weight"]
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_forward_pass_that_fails_cannot_tell() -> None:
    class Demanding(Branching):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            assert y is not None or not self.training, "training needs labels"
            return super().forward(x)

    assert uncalled_layers(Demanding(), torch.rand(1, 4)) == []
    assert uncalled_layers(Demanding(), torch.rand(1, 5)) == []
