"""Batches of walks stay on the map and alternate in direction."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathgrow.graph import trace
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker


def test_walks_alternate_where_some_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without redraws many walks leave a 2x2 map; a forward walk is still followed by a backward one."""
    monkeypatch.setattr("pathgrow.walks.walker._TRIES", 1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 3, 1))
    with torch.no_grad():
        net[2].weight[1:] *= 1e-12  # forward walks end at output 0, backward ones begin at 0, 1, 2 in turn
    walker = Walker(Transitions(trace(net, torch.ones(1, 1, 2, 2)), net))
    walks = walker.walk(0, 50, generator(0))
    outputs = walks.units[walker.transitions.graph.outputs[0][0]]
    assert 0 < walks.num < 100
    assert set(outputs[0::2]) == {0}
    assert set(outputs[1::2]) == {0, 1, 2}
    assert walker.real(walks).all()


@pytest.mark.parametrize(
    ("net", "size"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 1, stride=2)), 2),
        (nn.Sequential(nn.ConvTranspose2d(1, 4, 1, stride=2, output_padding=1), nn.Conv2d(4, 3, 2)), 1),
    ],
    ids=["forward", "backward"],
)
def test_no_walk_strays_where_nothing_leads_on(net: nn.Sequential, size: int) -> None:
    """One layer reads, or writes, one corner of a map; taps of the other that lead elsewhere are not taken."""
    for parameter in net.parameters():
        nn.init.ones_(parameter)  # the tap that leads on is drawn within a few tries
    walker = Walker(Transitions(trace(net, torch.ones(1, 1, size, size)), net))
    walks = walker.walk(0, 200, generator(0))
    assert walks.num == 400
    assert walker.real(walks).all()
