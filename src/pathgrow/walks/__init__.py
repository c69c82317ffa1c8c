"""Random walks on a wiring: the law of one step, walkers that move together, and which units masks leave connected."""

from pathgrow.graph.reachability import alive_units, dead_units, isolated_units
from pathgrow.walks.transitions import Law
from pathgrow.walks.walker import Walker, Walks

__all__ = ["Law", "Walker", "Walks", "alive_units", "dead_units", "isolated_units"]
