"""Random walks on the graph of a network and the PHEW initialization that is built from them."""

from pathgrow.walks.transitions import Transitions
from pathgrow.walks.walker import Walker, Walks

__all__ = ["Transitions", "Walker", "Walks"]
