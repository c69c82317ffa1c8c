"""Dense training: what every sparse network is compared with."""

from __future__ import annotations

from pathgrow.methods.method import Method
from pathgrow.methods.picks import everything


def dense() -> Method:
    """Every weight, from the first step to the last.

    It goes through masks like any other method, so that scope, recipe and ledger are the same in a comparison.
    """
    return Method(name="dense", start=everything, start_density=1.0, cost="dense")
