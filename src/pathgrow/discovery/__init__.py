"""Gradual Capacity Growth over the user's own `fit` and `evaluate`.

- `options`: what may be chosen; `observer`: who is told; `result`: what comes out; `scale`: numbers in the wrong unit;
- `loop`: the order of stages and the decisions between them;
- `trunk`: the network that grows; `copies`: networks trained out beside it;
- `site`, `phases`, `stages`: how a stage is seeded, trained, observed, written down and found again;
- `snapshot`, `partial`: the whole state of a network, after a stage and in the middle of a long training.
"""

from pathgrow.discovery.loop import discover
from pathgrow.discovery.observer import Observer
from pathgrow.discovery.options import Options
from pathgrow.discovery.result import Discovery
from pathgrow.discovery.stages import Record

__all__ = ["Discovery", "Observer", "Options", "Record", "discover"]
