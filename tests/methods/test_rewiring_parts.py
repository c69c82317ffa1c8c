"""Invariants of the parts that rewiring methods share."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pathgrow.methods.rewire import any_of, apportioned, largest

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**31)


@given(data=st.data(), num=sizes, kinds=st.integers(1, 6), seed=seeds)
def test_largest_takes_exactly_the_largest(data: st.DataObject, num: int, kinds: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores, candidates = draw.integers(0, kinds, num).astype(float), draw.random(num) < 0.7
    count = data.draw(st.integers(0, int(candidates.sum())))
    chosen = largest(torch.tensor(scores), torch.tensor(candidates), count, torch.Generator().manual_seed(seed)).numpy()
    assert chosen.sum() == count
    assert not (chosen & ~candidates).any()
    assert sorted(scores[chosen]) == sorted(scores[candidates])[len(scores[candidates]) - count :]


@given(data=st.data(), num=sizes, seed=seeds)
def test_any_of_takes_exactly_so_many(data: st.DataObject, num: int, seed: int) -> None:
    candidates = np.random.default_rng(seed).random(num) < 0.7
    count = data.draw(st.integers(0, int(candidates.sum())))
    chosen = any_of(torch.tensor(candidates), count, torch.Generator().manual_seed(seed)).numpy()
    assert chosen.sum() == count
    assert not (chosen & ~candidates).any()


def test_ties_are_drawn_evenly() -> None:
    scores = torch.tensor([2.0, 1, 1, 1, 1, 0])
    counts = torch.zeros(6)
    draw = torch.Generator().manual_seed(0)
    for _ in range(1000):
        counts += largest(scores, torch.ones(6, dtype=torch.bool), 3, draw)
    assert counts[0] == 1000
    assert counts[5] == 0
    assert bool((abs(counts[1:5] - 500) < 70).all())


@given(seed=seeds)
def test_memory_layout_does_not_matter(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.tensor(draw.integers(0, 4, (3, 4, 2, 2)).astype(float))
    candidates = torch.tensor(draw.random((3, 4, 2, 2)) < 0.6)
    count = int(candidates.sum()) // 2
    plain = largest(scores, candidates, count, torch.Generator().manual_seed(seed))
    last = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (scores, candidates))
    assert torch.equal(largest(*last, count, torch.Generator().manual_seed(seed)), plain)


rooms = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50)), min_size=1, max_size=8)


@given(data=st.data(), places=rooms)
def test_apportioned_is_exact_fits_and_is_fair(data: st.DataObject, places: list[tuple[float, int]]) -> None:
    shares = {str(k): share for k, (share, _) in enumerate(places)}
    room = {str(k): number for k, (_, number) in enumerate(places)}
    num = data.draw(st.integers(0, sum(room.values())))
    counts = apportioned(num, shares, room)
    assert list(counts) == list(shares)
    assert sum(counts.values()) == num
    assert all(0 <= counts[name] <= room[name] for name in room)
    # Among places with room to spare, nobody is more than one away from the common proportion.
    spare = [name for name in room if counts[name] < room[name] and shares[name] > 1e-6]
    for one in spare:
        for other in shares:
            if shares[other] > 0:
                assert counts[other] - 1 <= (counts[one] + 1) * shares[other] / shares[one] * (1 + 1e-6) + 1e-3


@given(total=st.integers(0, 300), shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_without_limits_every_number_is_a_rounded_quota(total: int, shares: list[float]) -> None:
    named = {str(k): share for k, share in enumerate(shares)}
    counts = apportioned(total, named, dict.fromkeys(named, 1000))
    for name, share in named.items():
        assert abs(counts[name] - total * share / sum(shares)) < 1 + 1e-5


def test_where_no_share_is_left_room_is_the_share() -> None:
    assert apportioned(8, {"a": 1.0, "b": 0.0, "c": 0.0}, {"a": 2, "b": 10, "c": 2}) == {"a": 2, "b": 5, "c": 1}
