"""A method by its name and options, to be created for any density and length of training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pathgrow  # for its methods, which import torch on first use
from pathgrow.errors import UserError, unknown_name
from pathgrow.registry import parse_pair, require_imported

if TYPE_CHECKING:
    from pathgrow.methods.method import Method

DENSITY_OPTIONS = ("density", "target_density")
"""Names that methods use for their final density."""
NUM_STEPS = "num_steps"
PRUNING = ("auto", "gts")
"""Names of the search that prunes a trained network; "auto" is the procedure that measured best."""
STATIC = "static"
_ANY_STEPS = 1000


@dataclass(frozen=True)
class NamedMethod:
    """A method by its name and options, without its density and the length of its training.

    >>> NamedMethod.parse("set:drop_fraction=0.2,anneal=constant")
    NamedMethod(name='set', options={'drop_fraction': 0.2, 'anneal': 'constant'})
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> NamedMethod:
        """Read `NAME[:option=value,...]`; values are read as those of `--method-option`."""
        name, _, words = text.rpartition(":")
        if "=" not in words:
            name, words = text, ""  # the name of a function may have a colon too
        pairs = re.split(r",(?=\w+=)", words) if words else []
        return cls(name, dict(parse_pair(pair, "finish") for pair in pairs))

    @property
    def density_option(self) -> str | None:
        """The method's own name for its final density."""
        known = pathgrow.methods.defaults(self.name)
        return next((name for name in DENSITY_OPTIONS if name in known), None)

    def create(self, density: float | None, num_steps: int) -> Method:
        """Create the method for a training of `num_steps` optimizer steps."""
        options = dict(self.options)
        if (name := self.density_option) is not None and density is not None:
            options[name] = density
        if NUM_STEPS in pathgrow.methods.defaults(self.name):
            options.setdefault(NUM_STEPS, num_steps)
        return pathgrow.methods.create(self.name, **options)

    def at(self, density: float, num_steps: int) -> Method:
        """Create the method for a candidate; one that starts sparse starts no sparser than it ends."""
        start = {**pathgrow.methods.defaults(self.name), **self.options}.get("start_density")
        if isinstance(start, int | float) and start < density:
            return NamedMethod(self.name, {**self.options, "start_density": density}).create(density, num_steps)
        return self.create(density, num_steps)

    def check_as_finisher(self) -> None:
        """Refuse a method that cannot train a candidate at any density in one training."""
        if self.name in (*PRUNING, STATIC):
            raise UserError(f"finish={self.name!r} takes no options, got {', '.join(self.options)}")
        require_imported("method", self.name, "--finish")
        if ":" not in self.name and self.name not in pathgrow.methods.names():
            raise unknown_name("finish", self.name, sorted({*PRUNING, STATIC, *pathgrow.methods.names()}))
        if own := next((name for name in (*DENSITY_OPTIONS, NUM_STEPS) if name in self.options), None):
            raise UserError(f"{own} is not an option of finish={self.name!r}: the search sets it; leave it out")
        if self.density_option == "target_density":
            raise UserError(
                f"method {self.name!r} grows between trainings; use finish='static' with method={self.name!r}"
            )
        if self.density_option is None:
            raise UserError(f"method {self.name!r} takes no density, so it cannot finish a search; use e.g. 'set'")
        method = self.at(0.5, _ANY_STEPS)
        if method.clock == "round" and method.drop is not None:
            raise UserError(
                f"method {self.name!r} prunes between trainings and would train each candidate several times; use "
                f"finish='gts', which prunes one network in rounds, or `pathgrow train --method {self.name}`"
            )
