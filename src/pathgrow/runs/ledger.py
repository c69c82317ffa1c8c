"""The price of a run, phase by phase, beside that of training dense.

It counts training FLOPs (a multiply and an add are two; a training sample costs three forward passes at the masks it
was trained with) and the reading of the network before each growth, but not evaluation. Seconds are kept apart: they
differ from machine to machine, while everything else is the same in every repetition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One stage of a run."""

    name: str
    epochs: int
    samples: int
    density: float
    """The density at which its samples were trained."""
    training_flops: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "phase": self.name,
            "epochs": self.epochs,
            "samples": self.samples,
            "density": self.density,
            "training_flops": self.training_flops,
        }


@dataclass(repr=False)
class Ledger:
    """What a run has cost so far.

    >>> ledger = Ledger(dense_flops=1000, budget=10)
    >>> ledger.add("seed", epochs=5, samples=500, density=0.1, sample_flops=100)
    >>> ledger.add("round 1", epochs=5, samples=500, density=0.2, sample_flops=200, growth_flops=1000)
    >>> ledger.training_flops, ledger.dense_training_flops, ledger.relative
    (151000, 1000000, 0.151)
    >>> ledger
    Ledger(2 phases, 1000 samples, 1.51e+05 training FLOPs, 15% of training dense)
    """

    dense_flops: int
    """Training FLOPs of one sample in the dense network."""
    budget: int
    """Epochs of the dense training this run is compared with."""
    phases: list[Phase] = field(default_factory=list)

    def add(
        self,
        name: str,
        *,
        epochs: int,
        samples: int,
        density: float,
        sample_flops: int,
        growth_flops: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Enter a finished phase: `samples` trained at `sample_flops` each, after a growth that cost `growth_flops`."""
        flops = samples * sample_flops + growth_flops
        self.phases.append(
            Phase(name=name, epochs=epochs, samples=samples, density=density, training_flops=flops, seconds=seconds)
        )

    def __repr__(self) -> str:
        share = "" if self.relative is None else f", {self.relative:.0%} of training dense"
        cost = f"{self.training_flops:.3g} training FLOPs{share}"
        return f"Ledger({len(self.phases)} phases, {self.samples} samples, {cost})"

    @property
    def samples(self) -> int:
        return sum(phase.samples for phase in self.phases)

    @property
    def training_flops(self) -> int:
        return sum(phase.training_flops for phase in self.phases)

    @property
    def dense_training_flops(self) -> int | None:
        """The dense budget at the samples per epoch that were counted here; None before any sample was."""
        epochs = sum(phase.epochs for phase in self.phases)
        if not epochs or not self.samples:
            return None
        return round(self.budget * self.samples / epochs) * self.dense_flops

    @property
    def relative(self) -> float | None:
        """This run as a share of the dense training."""
        dense = self.dense_training_flops
        return self.training_flops / dense if dense else None

    def as_dict(self) -> dict[str, Any]:
        """JSON values without anything that depends on a clock."""
        return {
            "phases": [phase.as_dict() for phase in self.phases],
            "training_flops": self.training_flops,
            "dense_training_flops": self.dense_training_flops,
            "relative": self.relative,
            "samples": self.samples,
        }

    def timing(self) -> dict[str, Any]:
        """Wall-clock seconds, in all and per phase."""
        return {
            "seconds": sum(phase.seconds for phase in self.phases),
            "phases": [{"phase": phase.name, "seconds": phase.seconds} for phase in self.phases],
        }
