"""Sentences for unknown names, and generators that depend on seed and name alone."""

from __future__ import annotations

import pytest
import torch

from pathgrow.errors import RunFailed, UserError, unknown_name
from pathgrow.rng import derive, generator


def test_a_user_error_is_a_value_error_and_a_failed_run_is_not() -> None:
    assert issubclass(UserError, ValueError)
    assert not issubclass(RunFailed, UserError)


def test_an_unknown_name_lists_the_nearest_first_and_all_known() -> None:
    error = unknown_name("model", "resnet23", iter(["vit", "resnet32", "resnet20"]))
    assert isinstance(error, UserError)
    assert str(error).startswith("unknown model 'resnet23': did you mean resnet")
    assert str(error).endswith("(known: resnet20, resnet32, vit)")


@pytest.mark.parametrize(
    ("got", "near"), [("STR", "str"), ("Resnet32", "ResNet32"), ("SeT", "set"), ("RESNET23", "ResNet32")]
)
def test_capitals_do_not_keep_a_name_from_being_found(got: str, near: str) -> None:
    error = unknown_name("method", got, ["str", "ResNet32", "set", "gcg"])
    assert str(error).startswith(f"unknown method {got!r}: did you mean {near}")


@pytest.mark.parametrize(("got", "known"), [("zzz", "probe"), ("adam", "random"), ("pruning", "gmp")])
def test_an_unknown_name_like_nothing_known_makes_no_guess(got: str, known: str) -> None:
    assert str(unknown_name("rule", got, [known])) == f"unknown rule {got!r} (known: {known})"


def test_equal_names_draw_equal_numbers_whatever_was_drawn_before() -> None:
    torch.rand(10, generator=generator(3, "fit"))
    assert torch.equal(
        torch.rand(5, generator=generator(3, "grow", 2)), torch.rand(5, generator=generator(3, "grow", 2))
    )


def test_every_part_of_seed_and_name_matters() -> None:
    uses = [(0,), (1,), (0, "grow"), (0, "grow", 1), (0, "grow", 2), (0, "seed", 1), (10, "grow")]
    assert len({derive(*use) for use in uses}) == len(uses)


def test_a_derived_seed_fits_a_torch_generator() -> None:
    for seed in range(200):
        assert 0 <= derive(seed, "x") < 2**63


def test_derived_seeds_do_not_change_between_processes_and_versions() -> None:
    # Stored runs resume with the seeds they began with; Python's own `hash` would be salted anew by every process.
    assert derive(0, "grow", 4) == 9154747259981604273
