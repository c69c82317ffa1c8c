"""Invariants of the parts that dynamic sparse training methods share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pathgrow.methods.rewire import apportion

rooms = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50)), min_size=1, max_size=8)


@given(data=st.data(), places=rooms)
def test_apportion_is_exact_fits_and_is_fair(data: st.DataObject, places: list[tuple[float, int]]) -> None:
    shares = {str(k): share for k, (share, _) in enumerate(places)}
    room = {str(k): number for k, (_, number) in enumerate(places)}
    num = data.draw(st.integers(0, sum(room.values())))
    counts = apportion(num, shares, room)
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
    counts = apportion(total, named, dict.fromkeys(named, 1000))
    for name, share in named.items():
        assert abs(counts[name] - total * share / sum(shares)) < 1 + 1e-5


def test_where_no_share_is_left_room_is_the_share() -> None:
    assert apportion(8, {"a": 1.0, "b": 0.0, "c": 0.0}, {"a": 2, "b": 10, "c": 2}) == {"a": 2, "b": 5, "c": 1}
