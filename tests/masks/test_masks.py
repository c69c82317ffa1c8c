"""Masks: counts, set operations, in-place edits, models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.masks import Masks


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


class Fused(nn.Module):
    """Stands for a fused weight of which only the last row may be switched."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(2, 3)
        self.out = nn.Linear(2, 2)


SCOPE = {"qkv.weight": torch.tensor([[0, 0], [0, 0], [1, 1]], dtype=torch.bool), "out.weight": torch.ones(2, 2) > 0}


@pytest.fixture
def masks() -> Masks:
    return Masks({"qkv.weight": torch.tensor([[1, 1], [1, 1], [1, 0]]) > 0, "out.weight": torch.eye(2) > 0}, SCOPE)


class TestCounting:
    def test_only_prunable_positions_count(self, masks: Masks) -> None:
        assert (masks.num, masks.num_on, masks.density) == (6, 3, 0.5)

    def test_without_a_scope_every_position_counts(self) -> None:
        masks = Masks({"w": flags(1, 0, 0, 1, 1)})
        assert (masks.num, masks.num_on, masks.density) == (5, 3, 0.6)
        assert masks.scope["w"].tolist() == [True] * 5

    def test_a_scope_has_density_one(self) -> None:
        scope = Masks.select(SCOPE, SCOPE)
        assert (scope.num, scope.num_on, scope.density) == (6, 6, 1.0)
        assert all(torch.equal(scope.scope[name], SCOPE[name]) for name in SCOPE)

    def test_no_density_without_a_prunable_weight(self) -> None:
        with pytest.raises(UserError, match="no prunable weight"):
            _ = Masks({}).density

    def test_scalars_and_empty_tensors(self) -> None:
        masks = Masks({"scalar": torch.tensor(True), "nothing": torch.ones(0, 3) > 0})
        assert (masks.num, masks.num_on) == (1, 1)

    def test_repr_tells_the_counts(self, masks: Masks) -> None:
        assert repr(masks) == "Masks(2 tensors, 3 of 6 on)"


class TestConstruction:
    @pytest.mark.parametrize("bad", [torch.ones(2), torch.ones(2, dtype=torch.uint8), [True, False]])
    def test_anything_but_bool_is_refused_by_name(self, bad: object) -> None:
        with pytest.raises(UserError, match=r"a mask must be a torch.bool tensor, got .* for 'w'"):
            Masks({"w": bad})  # type: ignore[dict-item]

    def test_a_mask_is_true_outside_its_scope(self) -> None:
        with pytest.raises(UserError, match="mask of 'w' is False outside its scope"):
            Masks({"w": flags(0, 1)}, {"w": flags(0, 1)})

    def test_a_selection_is_false_outside_its_scope(self) -> None:
        with pytest.raises(UserError, match="selection of 'w' has positions outside its scope"):
            Masks.select({"w": flags(1, 1)}, {"w": flags(0, 1)})

    def test_names_must_match(self) -> None:
        with pytest.raises(UserError, match="only the scope has 'b'"):
            Masks({"a": flags(1)}, {"a": flags(1), "b": flags(1)})
        with pytest.raises(UserError, match="only the masks have 'b'"):
            Masks({"a": flags(1), "b": flags(1)}, {"a": flags(1)})

    def test_shapes_must_match(self) -> None:
        with pytest.raises(UserError, match=r"mask of 'w' has shape \(2,\) but its scope has shape \(1,\)"):
            Masks({"w": flags(1, 1)}, {"w": flags(1)})

    def test_tensors_are_held_and_the_scope_is_copied(self) -> None:
        tensor, inside = flags(1, 1), flags(1, 0)
        masks = Masks({"w": tensor}, {"w": inside})
        tensor[0] = False
        inside[1] = True
        assert (masks.num_on, masks.num) == (0, 1)

    def test_full_takes_linear_and_convolution_weights(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(5, 2), nn.Linear(4, 2))
        masks = Masks.full(model)
        assert list(masks) == ["0.weight", "3.weight"]
        assert masks.num_on == masks.num == 3 * 4 * 9 + 4 * 2

    def test_full_names_a_tied_weight_once(self) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        assert list(Masks.full(model)) == ["0.weight"]

    def test_full_keeps_the_memory_layout_of_the_weights(self) -> None:
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        assert Masks.full(model)["weight"].stride() == model.weight.stride()

    def test_full_with_a_scope(self) -> None:
        masks = Masks.full(Fused(), Masks.select(SCOPE, SCOPE))
        assert (masks.num, masks.num_on) == (6, 6)
        assert masks["qkv.weight"].all()

    def test_full_without_anything_to_mask(self) -> None:
        with pytest.raises(UserError, match="ReLU has no linear or convolution weight"):
            Masks.full(nn.ReLU())

    def test_empty_leaves_what_lies_outside_the_scope(self) -> None:
        masks = Masks.empty(Masks.select(SCOPE, SCOPE))
        assert masks["qkv.weight"].tolist() == [[True, True], [True, True], [False, False]]
        assert (masks.num, masks.num_on) == (6, 0)


class TestAlgebra:
    def test_present_and_missing_split_the_scope(self, masks: Masks) -> None:
        assert masks.present()["qkv.weight"].tolist() == [[False, False], [False, False], [True, False]]
        assert masks.missing()["qkv.weight"].tolist() == [[False, False], [False, False], [False, True]]
        assert masks.present() | masks.missing() == Masks.select(SCOPE, SCOPE)

    def test_growing_and_pruning_leave_a_mask(self, masks: Masks) -> None:
        picks = masks.missing()
        grown = masks | picks
        assert grown == Masks.full(Fused(), SCOPE)
        assert Masks(dict(grown - picks), SCOPE) == masks

    def test_what_a_mask_and_a_selection_share_is_a_selection(self, masks: Masks) -> None:
        assert masks & Masks.select(SCOPE, SCOPE) == masks.present()

    def test_different_models_are_refused(self) -> None:
        with pytest.raises(UserError, match="only one has 'b'"):
            Masks({"a": flags(1)}) | Masks({"a": flags(1), "b": flags(1)})
        with pytest.raises(UserError, match=r"'a' is \(1,\) in one and \(2,\) in the other"):
            Masks({"a": flags(1)}) & Masks({"a": flags(1, 1)})

    def test_different_scopes_are_refused(self) -> None:
        with pytest.raises(UserError, match="different scopes"):
            Masks({"a": flags(1, 1)}, {"a": flags(1, 0)}) - Masks({"a": flags(1, 1)})

    def test_equality_sees_values_names_shapes_and_scope(self) -> None:
        base = Masks({"a": flags(1, 1)})
        assert base == Masks({"a": flags(1, 1)})
        assert base == Masks({"a": flags(1, 1)}, {"a": flags(1, 1)})
        assert base != Masks({"a": flags(1, 0)})
        assert base != Masks({"b": flags(1, 1)})
        assert base != Masks({"a": flags(1, 1).reshape(2, 1)})
        assert base != Masks({"a": flags(1, 1)}, {"a": flags(1, 0)})
        assert base != {"a": flags(1, 1)}

    def test_operators_refuse_plain_dicts(self) -> None:
        with pytest.raises(TypeError):
            Masks({"a": flags(1)}) | {"a": flags(1)}  # type: ignore[operator]


class TestInPlace:
    def test_edits_reach_whoever_holds_a_tensor(self, masks: Masks) -> None:
        held, same = masks["out.weight"], masks
        before = masks.clone()
        masks |= masks.missing()
        assert masks is same
        assert masks["out.weight"] is held
        assert held.all()
        masks -= masks.present()
        assert not held.any()
        masks.copy_(before)
        assert masks == before
        assert masks["out.weight"] is held

    def test_intersection_in_place(self) -> None:
        masks = Masks({"w": flags(1, 1, 0)})
        held = masks["w"]
        masks &= Masks({"w": flags(0, 1, 1)})
        assert held.tolist() == [False, True, False]

    def test_a_clone_is_independent(self, masks: Masks) -> None:
        copy = masks.clone()
        copy -= copy.present()
        assert (copy.num_on, masks.num_on) == (0, 3)

    def test_a_selection_is_not_copied_over_a_mask(self, masks: Masks) -> None:
        before = masks.clone()
        with pytest.raises(UserError, match="a mask and a selection of 'qkv"):
            masks.copy_(masks.present())
        with pytest.raises(UserError, match="a mask and a selection of 'qkv"):
            masks &= masks.present()
        assert masks == before

    def test_tensors_cannot_be_exchanged(self, masks: Masks) -> None:
        with pytest.raises(TypeError):
            masks["out.weight"] = torch.ones(2, 2) > 0  # type: ignore[index]


class TestModel:
    def test_apply_zeroes_exactly_the_off_weights(self, masks: Masks) -> None:
        model = Fused()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        assert masks.apply_(model) is masks
        for name, parameter in model.named_parameters():
            expected = before[name] * masks[name] if name in masks else before[name]
            assert torch.equal(parameter, expected)

    def test_apply_keeps_parameters_and_removes_nan(self) -> None:
        model = nn.Linear(2, 1)
        weight = model.weight
        with torch.no_grad():
            weight.fill_(torch.nan)
        Masks({"weight": torch.tensor([[True, False]])}).apply_(model)
        assert model.weight is weight
        assert weight.isnan().tolist() == [[True, False]]
        assert weight[0, 1] == 0
        assert weight.requires_grad

    def test_check_names_what_is_wrong(self, masks: Masks) -> None:
        masks.check(Fused())
        with pytest.raises(UserError, match=r"there is a mask for 'qkv.weight' but Linear has no such parameter"):
            masks.check(nn.Linear(2, 2))
        wrong = Fused()
        wrong.out = nn.Linear(3, 2)
        with pytest.raises(UserError, match=r"'out.weight' has shape \(2, 2\) but .* Fused has shape \(2, 3\)"):
            masks.apply_(wrong)

    def test_a_device_and_back(self, masks: Masks) -> None:
        assert masks.to("meta")["qkv.weight"].is_meta
        assert masks.to("meta").scope["qkv.weight"].is_meta
        assert masks.to("cpu") == masks


# Laws of sets, for arbitrary scopes

Position = tuple[str, int]
SHAPES = {"a": (3,), "layer.b": (2, 3), "c": (2, 1, 2, 2), "d": ()}


def random_flags(shapes: dict[str, tuple[int, ...]], seed: int, fraction: float = 0.5) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {name: torch.tensor(rng.random(shape) < fraction) for name, shape in shapes.items()}


def positions(masks: Masks) -> set[Position]:
    """The True positions inside the scope, as a plain set."""
    return {
        (name, int(index))
        for name, flags in masks.items()
        for index in (flags & masks.scope[name]).reshape(-1).nonzero().reshape(-1)
    }


seeds = st.integers(0, 2**32 - 1)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Masks, Masks]:
    """Two Masks of one scope, each a mask or a selection."""
    scope = random_flags(SHAPES, draw(seeds), fraction=draw(st.sampled_from([0.5, 1.0])))

    def one() -> Masks:
        inside = {name: flags & scope[name] for name, flags in random_flags(SHAPES, draw(seeds)).items()}
        if draw(st.booleans()):
            return Masks.select(inside, scope)
        return Masks({name: flags | ~scope[name] for name, flags in inside.items()}, scope)

    return one(), one()


@given(pair=pairs())
def test_operators_are_those_of_sets(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    everything = {(name, int(i)) for name, flags in a.scope.items() for i in flags.reshape(-1).nonzero().reshape(-1)}
    assert positions(a | b) == positions(a) | positions(b)
    assert positions(a & b) == positions(a) & positions(b)
    assert positions(a - b) == positions(a) - positions(b)
    assert positions(a.missing()) == everything - positions(a)
    assert positions(a.present()) == positions(a)
    assert (a.num, a.num_on) == (len(everything), len(positions(a)))


@given(pair=pairs())
def test_every_result_is_a_mask_or_a_selection(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    for result in (a | b, a & b, a - b, a.present(), a.missing(), a.clone()):
        outside = torch.cat([flags[~result.scope[name]] for name, flags in result.items()])
        assert outside.all() or not outside.any()
    for selection in (a.present(), a.missing()):
        assert Masks.select(dict(selection), a.scope) == selection


@given(pair=pairs())
def test_equality_and_digest_agree(pair: tuple[Masks, Masks]) -> None:
    a, b = pair
    assert (a == b) == (a.digest() == b.digest())
    assert a == a.clone()
