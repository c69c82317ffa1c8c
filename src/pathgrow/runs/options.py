"""The options of a discovery: typed, checked by name and value before anything is trained."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pathgrow.checkpoint import MemoryStore, RankZeroStore, RunDir, Store, strict_json
from pathgrow.density import rules
from pathgrow.density.types import AnswerKind, Rule
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator, held_by_rank0
from pathgrow.errors import UserError, is_int, is_number, require, unknown_name
from pathgrow.methods.method import Method
from pathgrow.methods.view import Batches, Loss
from pathgrow.runs.callback import Callback
from pathgrow.runs.records import Record
from pathgrow.sparse.checks import checked_method

Final = Literal["fresh", "grown"]
Observe = Literal["annealed", "average"]

_LEAST_PROBE = 16
"""A probe has at least this many epochs, however small the budget,"""
_LEAST_SHARE = 0.3
"""but not more than this share of the budget because of it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen about a discovery; `discover` takes each of these by keyword.

    How much training there is follows from `budget`: an eighth of it for the seed network, a 160th per round of growth,
    all of it for the network handed back, and for each probe a tenth, but at least 16 epochs or 0.3 of a small budget
    (with a `reference`, all of it).
    """

    delta: float = 0.01
    """How far below the reference a network may stay; in units of the score."""
    reference: float | Literal["dense"] | None = None
    """The dense score if it is known, or "dense" to train for it. None: the reference is a dense copy trained as long
    as the probes, or, where probes have the whole budget (`final="grown"`), the densest network grown."""
    budget: int = 160
    """Epochs of the usual dense training."""
    start_density: float | None = None
    """Density of the seed network; None: the smallest of 1, 2, 3, 5% that isolates few units, or a lower target."""
    target_density: float | None = None
    """Grow to exactly this density and train the network out: no probes, no question asked."""
    method: str | Method = "gcg"
    """The growth method, by name or as a value."""
    gamma: float = 0.25
    """Each round adds this share of the weights that are on."""
    rule: str | Rule = "probe"
    """The density rule, by name or as a value."""
    seed_epochs: int | None = None
    """Epochs of the seed network; None: an eighth of the budget, and for rules that do not probe on to its plateau."""
    rough: int | float | Literal["adaptive"] = 1 / 160
    """Training of a round: epochs (int), a share of the budget (float), or until the validation loss has not improved
    for 3 epochs ("adaptive")."""
    final: Final = "fresh"
    """Probes and the final network start from a fresh initialisation of the found mask, or from the grown weights."""
    final_epochs: int | Callable[[Sequence[Record]], int] | None = None
    """Epochs of the network handed back; None: the budget. A function is called with the records of all that was
    trained before. A probe that has had as many epochs is handed back as it is."""
    probe_fraction: float | None = None
    """Without a reference: length of a probe as a share of the budget; None: a tenth, but at least 16 epochs, or 0.3 of
    the budget if that is less. With a reference a probe has the whole budget."""
    head_start: bool = True
    """Whether the network handed back goes on from its short probe, whose epochs then count; False: it starts anew."""
    answer: AnswerKind = "delta"
    """Which answer chooses the network that is handed back."""
    observe: Observe = "annealed"
    """Score the weights as they are after an annealed phase, or their running average."""
    num_val: int | None = None
    """How many validation examples there are, where the score is the share of them that are right; few of them widen
    the interval."""
    store: Store | str | os.PathLike[str] | None = None
    """Where finished stages are kept, a folder or a `Store`; stages that are found there are not repeated. In a folder
    `pathgrow.discover` leaves its report as well."""
    callback: Callback = dataclasses.field(default_factory=Callback)
    """Is told when stages begin and end, and what the density rule says."""
    loss: Loss | None = None
    """`loss(model, batch)`, and"""
    batches: Batches | None = None
    """training batches, for growth rules that read gradients."""
    comm: Communicator | None = None
    """The processes that train together, see `pathgrow.trainer.process_group`; None: those of `fit`, else this one."""

    def __post_init__(self) -> None:
        require(is_number(self.delta) and self.delta > 0, "delta", self.delta, "a number above 0", "0.01 for one point")
        require(
            is_int(self.budget) and self.budget >= 1,
            "budget", self.budget, "a whole number of epochs from 1 up", "160",
        )  # fmt: skip
        require(
            self.reference is None or self.reference == "dense" or is_number(self.reference),
            "reference", self.reference, 'a score, "dense" or None', "0.93",
        )  # fmt: skip
        for name in ("start_density", "target_density"):
            value = getattr(self, name)
            require(value is None or (is_number(value) and 0 < value <= 1), name, value, "a density in (0, 1]", "0.05")
        require(is_number(self.gamma) and self.gamma > 0, "gamma", self.gamma, "a number above 0", "0.25")
        require(
            self.seed_epochs is None or (is_int(self.seed_epochs) and self.seed_epochs >= 1),
            "seed_epochs", self.seed_epochs, "a whole number of epochs from 1 up", "20",
        )  # fmt: skip
        require(
            self.rough == "adaptive"
            or (is_int(self.rough) and self.rough >= 1)
            or (isinstance(self.rough, float) and 0 < self.rough <= 1),
            "rough", self.rough, 'epochs (an int), a share of the budget in (0, 1] (a float) or "adaptive"', "4",
        )  # fmt: skip
        require(
            self.final_epochs is None or callable(self.final_epochs)
            or (is_int(self.final_epochs) and self.final_epochs >= 1),
            "final_epochs", self.final_epochs, "a whole number of epochs from 1 up, or a function that gives it", "160",
        )  # fmt: skip
        require(
            self.probe_fraction is None or (is_number(self.probe_fraction) and 0 < self.probe_fraction <= 1),
            "probe_fraction", self.probe_fraction, "a share of the budget in (0, 1]", "0.1",
        )  # fmt: skip
        require(
            self.num_val is None or (is_int(self.num_val) and self.num_val >= 1),
            "num_val", self.num_val, "a whole number of examples from 1 up", "5000",
        )  # fmt: skip
        require(
            self.store is None
            or isinstance(self.store, str | os.PathLike)
            or _has(self.store, "load", "save", "delete_tensors"),
            "store", self.store, "a folder or a Store", "'runs/first'",
        )  # fmt: skip
        require(
            _has(self.callback, "on_stage_start", "on_stage_end", "on_decision"),
            "callback", self.callback, "a pathgrow.Callback", "an instance of a subclass of it",
        )  # fmt: skip
        require(isinstance(self.head_start, bool), "head_start", self.head_start, "true or false", "true")
        for name, allowed in (("final", Final), ("answer", AnswerKind), ("observe", Observe)):
            if getattr(self, name) not in get_args(allowed):
                raise unknown_name(f"value of {name}", str(getattr(self, name)), get_args(allowed))
        if None not in (self.start_density, self.target_density):
            self.growth_method()  # refuses a start above the target

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> Options:
        """Options from keywords; an unknown name is refused with the nearest known ones."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in given:
            if name not in known:
                raise unknown_name("option", name, known)
        return cls(**given)

    def as_dict(self) -> dict[str, Any]:
        """What was chosen, as JSON values; methods and rules by name, functions not at all."""
        objects = ["store", "callback", "loss", "batches", "method", "rule", "comm"]
        if callable(self.final_epochs):
            objects.append("final_epochs")
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in objects}
        return {**values, "method": self.growth_method().name, "rule": self.density_rule().name}

    def growth_method(self) -> Method:
        """The growth method as a value, starting where it was asked to."""
        method = checked_method(self.method)
        if method.grow is None:
            raise UserError(f"method {method.name!r} does not grow, but discovery adds weights: choose a growth method")
        start = self.start_density if self.start_density is not None else method.start_density
        return dataclasses.replace(method, start_density=start, target_density=self.target_density)

    def density_rule(self) -> Rule:
        """The density rule as a value."""
        return rules.create(self.rule, delta=self.delta) if isinstance(self.rule, str) else self.rule

    def with_comm_of(self, fit: object) -> Options:
        """These options for one of the processes that train with `fit`: only the first of them tells the observer."""
        comm = self.comm if self.comm is not None else getattr(fit, "comm", SINGLE_PROCESS)
        return dataclasses.replace(self, comm=comm, callback=Callback() if comm.rank else self.callback)

    @contextmanager
    def opened_store(self, seed: int) -> Iterator[Store]:
        """The store, for the duration of the discovery: a folder is locked, and refused if it has other options."""
        comm = self.comm or SINGLE_PROCESS
        if isinstance(self.store, str | os.PathLike):
            with self.opened_folder(self.store, seed) as folder:
                yield _shared(comm, folder or MemoryStore())
        else:
            yield _shared(comm, self.store if self.store is not None else MemoryStore())

    def opened_folder(self, place: str | os.PathLike[str], seed: int) -> AbstractContextManager[RunDir | None]:
        """The folder of a discovery with these options, for the first of a team to work in; the others get None."""
        # By way of JSON, since numbers may be NumPy's.
        config = strict_json.loads(strict_json.dumps({"seed": seed, **self.as_dict()}))
        return held_by_rank0(self.comm or SINGLE_PROCESS, lambda: RunDir.open(place, config))

    @property
    def num_seed_epochs(self) -> int:
        return self.seed_epochs if self.seed_epochs is not None else max(1, self.budget // 8)

    @property
    def num_rough_epochs(self) -> int | None:
        """Length of a round; None where it is adaptive."""
        if isinstance(self.rough, str):
            return None
        return self.rough if isinstance(self.rough, int) else max(1, round(self.rough * self.budget))

    def num_final_epochs(self, before: Sequence[Record]) -> int:
        """Epochs of the network handed back, given the records of all that was trained before."""
        if self.final_epochs is None:
            return self.budget
        if not callable(self.final_epochs):
            return self.final_epochs
        found = self.final_epochs(before)
        if not is_int(found) or found < 1:
            raise UserError(
                f"final_epochs gave {found!r} for the records of {len(before)} stages, a whole number of epochs from 1 "
                "up is wanted: mend the function and go on, what was trained is kept where there is a store"
            )
        return found

    @property
    def num_probe_epochs(self) -> int:
        """One common total for every probe: that of the reference, where there is one.

        Grown weights bring along more epochs than a fraction of the budget, so they need the whole budget too.
        """
        if self.reference is not None or self.final == "grown":
            return self.budget
        if self.probe_fraction is not None:
            return max(1, round(self.probe_fraction * self.budget))
        # After a handful of epochs sparse networks are still far behind dense ones: every answer would be too dense.
        return max(1, min(_LEAST_PROBE, round(_LEAST_SHARE * self.budget)), round(self.budget / 10))


def _shared(comm: Communicator, store: Store) -> Store:
    return store if comm.size == 1 else RankZeroStore(comm, store)


def _has(value: object, *methods: str) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)
