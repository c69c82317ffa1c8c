"""One call of a torch function, as the tables of meanings see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pathgrow.graph.labels import label_of
from pathgrow.graph.tracer import Tracer


@dataclass(frozen=True)
class Call:
    """One call of a torch function on followed activations."""

    tracer: Tracer
    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    @property
    def followed(self) -> list[Tensor]:
        """The followed activations among the arguments, in order."""
        values = [*self.args, *self.kwargs.values()]
        flat = [item for v in values for item in (v if isinstance(v, (tuple, list)) else [v])]
        return [value for value in flat if label_of(value) is not None]
