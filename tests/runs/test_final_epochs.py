"""How long the network handed back is trained, where that is not the budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pathgrow.checkpoint import MemoryStore
from pathgrow.errors import UserError
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record
from tests.support.toy import Script, World, killed_at_every_save, stage_lengths, without_timing

PROBED = Script(probe=(0, 3), density=0.19)
"""The network of the third round is handed back, and was probed."""


def as_long_as_all_before(records: Sequence[Record]) -> int:
    return sum(record.num_epochs for record in records)


def lengths(world: World) -> list[int]:
    return [call.epochs for call in world.fits]


def test_a_number_is_that_of_the_last_training_alone() -> None:
    usual, world = World(), World()
    usual.discover(rule=Script(probe=()))
    found = world.discover(rule=Script(probe=()), final_epochs=30)
    assert lengths(usual) == [2, 1, 1, 1, 16]
    assert lengths(world) == [2, 1, 1, 1, 30]
    assert (found.network.num_epochs, found.network.point.epochs) == (30, 30)
    assert stage_lengths(found)[-1] == ("final", 30)
    assert found.ledger.budget == 16, "dense training is as long as it was"


def test_a_function_sees_all_that_was_trained_before() -> None:
    seen: list[Record] = []

    def note(records: Sequence[Record]) -> int:
        seen.extend(records)
        return as_long_as_all_before(records)

    world = World()
    found = world.discover(rule=Script(probe=(1,), last=2, density=0.1), reference="dense", final_epochs=note)
    assert [record.stage for record in seen] == ["seed", "dense", "round-001", "round-002", "probe-001"]
    assert [(record.stage, record.num_epochs) for record in seen] == stage_lengths(found)[:-1]
    assert (found.network.stage, found.network.point.epochs) == ("final", 2 + 16 + 1 + 1 + 16)


@pytest.mark.parametrize("epochs", [16, 10, lambda records: 16])
def test_a_probe_that_had_as_many_is_handed_back_as_it_is(epochs: Any) -> None:
    usual, world = World(), World()
    expected = usual.discover(reference=0.9, rule=PROBED)
    found = world.discover(reference=0.9, rule=PROBED, final_epochs=epochs)
    assert found.network.stage == expected.network.stage == "probe-003"
    assert lengths(world) == lengths(usual) == [2, 16, 1, 1, 1, 16]
    assert all(torch.equal(a, b) for a, b in zip(world.model.parameters(), usual.model.parameters(), strict=True))


def test_a_probe_that_had_fewer_is_trained_on_or_all_of_it_anew() -> None:
    world, anew = World(), World()
    found = world.discover(reference=0.9, rule=PROBED, final_epochs=21)
    assert lengths(world)[-2:] == [16, 5]
    assert (found.network.stage, found.network.point.epochs) == ("final", 21)
    assert world.fits[-1].num_slots > 0, "with its momentum"
    found = anew.discover(reference=0.9, rule=PROBED, final_epochs=21, warm_start=False)
    assert lengths(anew)[-2:] == [16, 21]
    assert (found.network.stage, found.network.point.epochs) == ("final", 21)
    assert anew.fits[-1].num_slots == 0


def test_grown_weights_bring_their_epochs_along() -> None:
    world = World()
    found = world.discover(rule=Script(probe=()), final="grown", final_epochs=30)
    assert lengths(world) == [2, 1, 1, 1, 30 - found.rounds[found.network.point.round].point.epochs]
    assert found.network.point.epochs == 30


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, "long"])
def test_a_wrong_number_is_refused_before_anything_is_trained(wrong: Any) -> None:
    world = World()
    with pytest.raises(UserError, match=rf"final_epochs must be .* got {wrong!r}"):
        world.discover(final_epochs=wrong)
    assert world.fits == []


def test_a_function_that_cannot_be_called_is_refused_before_anything_is_trained() -> None:
    world = World()
    with pytest.raises(UserError, match=r"final_epochs takes \(\), but it will be called as final_epochs\(records\)"):
        world.discover(final_epochs=lambda: 3)
    assert world.fits == []


@pytest.mark.parametrize("wrong", [0, 2.5, None, True])
def test_a_wrong_number_of_a_function_costs_nothing_that_was_trained(wrong: Any) -> None:
    store, world = MemoryStore(), World()
    before = [weight.detach().clone() for weight in world.model.parameters()]
    with pytest.raises(UserError, match=rf"final_epochs gave {wrong!r} for the records of 6 stages, a whole number"):
        world.discover(store=store, final_epochs=lambda records: wrong)
    assert all(torch.equal(a, b) for a, b in zip(world.model.parameters(), before, strict=True))
    mended = World()
    found = mended.discover(store=store, final_epochs=as_long_as_all_before)
    assert lengths(mended) == [found.network.num_epochs]
    assert without_timing(found) == without_timing(World().discover(final_epochs=as_long_as_all_before))


def test_a_function_is_not_written_and_a_number_is() -> None:
    written = {given: DiscoverOptions(final_epochs=given).as_dict() for given in (None, 30, as_long_as_all_before)}
    assert written[None]["final_epochs"] is None
    assert written[30] == {**written[None], "final_epochs": 30}
    assert written[as_long_as_all_before] == {k: v for k, v in written[None].items() if k != "final_epochs"}
    for values in written.values():
        json.dumps(values)


def test_a_folder_belongs_to_one_way_of_choosing(tmp_path: Path) -> None:
    by_function = World().discover(store=tmp_path, final_epochs=as_long_as_all_before)
    again = World()
    found = again.discover(store=tmp_path, final_epochs=as_long_as_all_before)
    assert again.fits == []
    assert without_timing(found) == without_timing(by_function)
    with pytest.raises(UserError, match="another config: final_epochs was absent, now 30"):
        World().discover(store=tmp_path, final_epochs=30)
    with pytest.raises(UserError, match="another config: final_epochs was absent, now null"):
        World().discover(store=tmp_path)


@pytest.mark.parametrize("saves_the_last", [True, False])
def test_killed_anywhere_and_resumed_it_is_as_long(saves_the_last: bool) -> None:
    rule = Script(probe=(1,), last=2, density=0.15)
    assert killed_at_every_save(saves_the_last, rule=rule, final_epochs=as_long_as_all_before) > 5
