"""What a run started with: another model or scope is refused before its stages are touched, damage is recognized."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import pathgrow
from pathgrow.checkpoint import MemoryStore, RunDir
from pathgrow.checkpoint.stage_files import DamagedStageWarning
from pathgrow.errors import UserError
from tests.support.toy import INPUTS, World, without_timing

SEARCHES = [{"finish": "static"}, {"finish": "gts", "rule": "probe", "start_density": None, "seed_epochs": None}]


class Narrow(World):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.model = nn.Sequential(
            nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2)
        )
        self.optimizer = self.make_optimizer(self.model)


class Shallow(World):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = self.make_optimizer(self.model)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", SEARCHES, ids=["static", "gts"])
def test_another_architecture_is_refused_and_damages_nothing(tmp_path: Path, options: dict) -> None:
    found = World().discover(store=tmp_path, start="scratch", **options)
    before = contents(tmp_path)
    for other, change in (
        (Narrow(), r"0\.weight is 16x8 there and 12x8 here \(and 8 more\)"),
        (Shallow(), r"3\.weight is 16x16 there and 2x16 here \(and 3 more\)"),
    ):
        with pytest.raises(UserError, match=f"^this store belongs to another model: {change}; choose another store$"):
            other.discover(store=tmp_path, start="scratch", **options)
        assert other.fits == []
    with pytest.raises(UserError, match="other initial weights"):
        World(seed=1).discover(store=tmp_path, start="scratch", **options)
    assert contents(tmp_path) == before
    assert RunDir(tmp_path).damage() == {}
    again = World()
    assert without_timing(again.discover(store=tmp_path, start="scratch", **options)) == without_timing(found)
    assert again.fits == []


def test_another_scope_is_refused_and_damages_nothing() -> None:
    store, options = MemoryStore(), {"start": "scratch", **SEARCHES[1]}
    World().discover(store=store, **options)
    one, part = (pathgrow.scope(World().model, INPUTS[:1]) for _ in range(2))
    one = {"0.weight": one["0.weight"]}
    part = {name: inside.clone() for name, inside in part.items()}
    part["3.weight"][0, 0] = False
    for scope, change in ((one, "3.weight is prunable there and not here"), (part, "other weights of 3.weight are")):
        with pytest.raises(UserError, match=f"^this store belongs to another scope: {change}.*; choose another store$"):
            World().discover(store=store, scope=scope, **options)
    again = World()
    again.discover(store=store, **options)
    assert again.fits == []


@pytest.mark.parametrize("damage", ["missing", "shape", "value"])
def test_damaged_first_masks_are_chosen_again(damage: str) -> None:
    store = MemoryStore()
    expected = without_timing(World().discover(store=store))
    stage = store.load("start")
    masks = {name: mask.clone() for name, mask in stage.tensors.items()}
    metadata = dict(stage.metadata)
    if damage == "missing":
        del masks["3.weight"]
    elif damage == "shape":
        masks["3.weight"] = torch.ones(3, 3, dtype=torch.bool)
    else:
        metadata["flops"] = -1
    store.save("start", metadata, masks)
    with pytest.warns(DamagedStageWarning, match="stage 'start' is damaged"):
        assert without_timing(World().discover(store=store)) == expected
