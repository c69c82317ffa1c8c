"""A long training half done: kept so that a killed run repeats a minute of it and not all."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pathgrow.attach import Attached
from pathgrow.discovery.snapshot import put_back_, take
from pathgrow.runs.store import Store

_NOISE = "noise"


@dataclass(frozen=True)
class Partial:
    """Where one training leaves its whole state now and then; trainers decide when, `seconds` says how often.

    What comes back is what was left, bit for bit: weights, optimizer state, masks, clock, average, the number of steps
    done and the state of the generator that dropout draws from.
    """

    store: Store
    name: str
    seconds: float = 60.0

    def save(self, attached: Attached, step: int, noise: Tensor) -> None:
        """The state after `step` steps."""
        tensors, facts = take(attached)
        self.store.save(self.name, {"step": step, "state": facts}, {**tensors, _NOISE: noise})

    def load(self, attached: Attached) -> tuple[int, Tensor] | None:
        """Bring the network to the state that was left last; the steps it had then, and its noise. None: no such."""
        found = self.store.load(self.name)
        if found is None or not found.tensors:
            return None
        tensors = {name: tensor for name, tensor in found.tensors.items() if name != _NOISE}
        put_back_(attached, tensors, found.facts["state"])
        return int(found.facts["step"]), found.tensors[_NOISE]

    def forget(self) -> None:
        """The stage is stored: what was half done is no longer needed."""
        self.store.forget_tensors(self.name)
