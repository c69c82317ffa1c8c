"""Connectivity of units under masks."""

from __future__ import annotations

import torch
from torch import nn

from pathgrow.graph import trace
from pathgrow.graph.reachability import alive_units, dead_units, isolated_units
from pathgrow.graph.topology import count_isolated
from pathgrow.masks import Masks


def test_isolated_means_no_way_in_or_no_way_out() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    first = torch.tensor([[1, 0], [0, 1], [0, 0], [1, 1]], dtype=torch.bool)
    second = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    masks = Masks({"0.weight": first, "1.weight": second})
    graph = trace(net, torch.ones(1, 2))
    isolated = isolated_units(graph, masks)
    assert isolated[0].tolist() == [False, True, True, True]
    assert isolated[1].tolist() == [False, True, False]
    assert count_isolated(graph, masks) == (4, 7)
    # In the first layer, unit 2 has no input weight, and units 1 and 3 have no output weight.
    assert dead_units(graph, masks)[0].tolist() == [False, True, True, True]
    assert all(flags.all() for flags in alive_units(graph).values())
