"""What a run started with: model, scope, optimizer and first masks, which are stored before anything is trained.

Stages belong to what they started with. Another model, scope or optimizer is refused here, before a stage is touched: a
stage of another model would otherwise look damaged, and be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.optim import Optimizer

from pathgrow.checkpoint import Stage
from pathgrow.checkpoint.manifest import architecture_difference
from pathgrow.config import from_json, option, to_json
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.runs.session import Session
from pathgrow.sparse.training_state import OptimizerSettings
from pathgrow.sparse.tree import tensor_digest

_STAGE = "start"


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a run started with, as JSON values."""

    weights: str
    """Digest of the initial weights."""
    shapes: Mapping[str, tuple[int, ...]] = option(factory=dict)
    """Shapes of all parameters and buffers."""
    scope: Mapping[str, str] = option(factory=dict)
    """For each layer in scope a digest of what is prunable in it."""
    optimizer: list[dict[str, str]]
    flops: int = option(0, at_least=0)
    """Cost of choosing the first masks."""
    seconds: float = option(0.0, at_least=0)

    @classmethod
    def of(cls, session: Session, optimizer: Optimizer) -> Start:
        """What this session starts with."""
        inside = session.scope
        return cls(
            weights=tensor_digest(session.initial),
            shapes={name: tuple(tensor.shape) for name, tensor in session.initial.items()},
            scope={name: Masks.select({name: inside[name]}, {name: inside[name]}).digest() for name in inside},
            optimizer=OptimizerSettings(optimizer).as_json(),
        )

    def refusal(self, now: Start, settings: OptimizerSettings) -> str | None:
        """Why the stages that started with this are not those of a run that starts now; None if they are."""
        if self.shapes and (change := architecture_difference(self.shapes, now.shapes)):
            return f"this store belongs to another model: {change}; choose another store"
        if self.scope and (change := _scope_difference(self.scope, now.scope)):
            return f"this store belongs to another scope: {change}; choose another store"
        if self.weights != now.weights:
            return (
                "the stored stages started from other initial weights: "
                "use the same model, seed and version of pathgrow, or another run directory"
            )
        if change := settings.difference(self.optimizer):
            return (
                f"the stored stages were trained with another optimizer ({change}): "
                "use the same one, or another run directory"
            )
        return None


def load_start(session: Session, now: Start, optimizer: Optimizer) -> tuple[Start, Masks] | None:
    """Return what the stored stages started with, and the first masks; refuses those of a run that started otherwise.

    None if nothing is stored, or if it is damaged.
    """
    settings = OptimizerSettings(optimizer)

    def read(stage: Stage) -> tuple[Start, Masks] | str:
        stored = from_json(Start, stage.metadata)
        return stored.refusal(now, settings) or (stored, Masks.restored(stage.tensors, session.scope))

    found: Any = session.stored(_STAGE, read)
    if isinstance(found, str):
        raise UserError(found)
    return found  # type: ignore[no-any-return]


def save_start(session: Session, start: Start, masks: Masks, *, flops: int, seconds: float) -> None:
    """Store what a run starts with."""
    session.store.save(_STAGE, to_json(replace(start, flops=flops, seconds=seconds)), dict(masks))


def _scope_difference(there: Mapping[str, str], here: Mapping[str, str]) -> str | None:
    for name in dict.fromkeys((*there, *here)):
        if name not in here:
            return f"{name} is prunable there and not here"
        if name not in there:
            return f"{name} is prunable here and not there"
        if there[name] != here[name]:
            return f"other weights of {name} are prunable there"
    return None
