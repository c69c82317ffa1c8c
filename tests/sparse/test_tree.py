"""Nested state as flat tensors and JSON."""

from __future__ import annotations

import json
import math

import pytest
import torch

from pathgrow.errors import UserError
from pathgrow.sparse.tree import flatten_state, unflatten_state


def test_round_trip() -> None:
    value = {
        "a.b": torch.ones(1),
        "a": {"b": torch.zeros(1), 3: (1, [None, True], "x")},
        "f": [math.inf, 0.1, -0.0],
    }
    tensors, metadata = flatten_state(value)
    back = unflatten_state(tensors, json.loads(json.dumps(metadata, allow_nan=False)))
    assert back["a.b"] is value["a.b"]
    assert back["a"]["b"] is value["a"]["b"]
    assert back["a"][3] == (1, [None, True], "x")
    assert back["f"] == value["f"]
    with pytest.raises(UserError, match=r"got object at a\.0"):
        flatten_state({"a": [object()]})
    with pytest.raises(UserError, match="keys of state must be"):
        flatten_state({"a": {(1, 2): 3}})
