"""Options of the function `pathgrow.discover`: those of the command, and the Python objects that only it takes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from pathgrow.atomic import checked_path
from pathgrow.checkpoint import RunDir, Store, strict_json
from pathgrow.config import MAX_EPOCHS, option
from pathgrow.density import rules
from pathgrow.density.types import Point, Rule
from pathgrow.distributed.comm import Communicator
from pathgrow.distributed.process_group import current_communicator
from pathgrow.errors import UserError, is_int, require, unknown_name
from pathgrow.masks.masks import require_module
from pathgrow.methods.gradients import Batches, Loss
from pathgrow.methods.method import GrowEachRound, Method
from pathgrow.runs.named_method import PRUNING, STATIC, NamedMethod
from pathgrow.runs.records import Callback, Record
from pathgrow.runs.search_options import (
    GROWTH_ONLY,
    PROBES_ONLY,
    SEARCH_PRESETS,
    SearchOptions,
    with_relative_delta,
)
from pathgrow.sparse.attach import check_data, checked_method

WITH_REFERENCE = 2.0
"""Most that a search with a reference spends by default, in dense trainings."""
WITH_TRAINED_REFERENCE = WITH_REFERENCE + 1
"""The same for a search that has to train the reference, which counts."""
LEAST_COST_TO_COMPARE = 0.75
"""Cost limit below which no network is trained as long as the reference to be compared with it: one would use it up."""
MIN_DIVIDED_BUDGET = 16
"""Shortest budget that is divided into phases before and after pruning: each of four warms up and anneals its learning
rate, which takes at least four epochs."""
_RELATIVE_TO_ZERO = (
    "a delta in percent is relative to the dense score, which is 0: pass delta in the unit of the scores"
)
_MIN_PROBE_EPOCHS = 16
_MAX_MIN_PROBE_SHARE = 0.3
"""Fraction of a small budget that `_MIN_PROBE_EPOCHS` may take."""


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions(SearchOptions):
    """Keyword options of `pathgrow.discover`.

    Phase lengths are fractions of `budget`: those of the default search are in `runs/shrinking.py` (`Lengths`), those
    of the static search in the `num_*_epochs` properties below.
    """

    rule: str | Rule = option(SearchOptions.rule, expected="a name or a density rule")  # type: ignore[assignment]
    method: str | Method = option(SearchOptions.method, expected="a name or a pathgrow.Method")  # type: ignore[assignment]
    final_epochs: int | Literal["extensive"] | Callable[[Sequence[Record]], int] | None = option(  # type: ignore[assignment]
        None,
        at_least=1,
        limit=MAX_EPOCHS,
        expected="an integer >= 1, 'extensive' or a function that returns an integer",
        example="160",
    )
    """Epochs of the returned network; None: the budget; "extensive": the budget plus those of grown weights.
    A function receives the records of all earlier stages. A probe that was trained for as many epochs is returned as
    it is."""
    num_val: int | None = option(None, at_least=1, example="5000")
    """Number of validation examples, if the score is an accuracy; the fewer, the wider the interval. Reports then show
    scores in [0, 1] as percentages."""
    store: Store | str | os.PathLike[str] | None = None
    """Run directory or `Store` of finished stages; stages found in it are not trained again. `pathgrow.discover` also
    writes its report and the network to a run directory."""
    name: str | None = option(None, example="'wide, no dropout'")
    """Name of the run in reports and tables, which tell runs of equal options apart by it; None: the class of the
    model."""
    metric: str | None = option(None, example="'MAE'")
    """What `evaluate` returns, by its name in reports; None: "accuracy" with `num_val`, otherwise "score"."""
    unit: str | None = option(None, example="'steps'")
    """What `budget` and the third argument of `fit` count, by its name in reports; None: the name of that argument if
    it ends in one of steps, iterations, updates or batches, otherwise epochs."""
    callback: Callback | Sequence[Callback] = ()
    """One or several; called at the start and end of stages, after epochs and each decision of the density rule."""
    loss: Loss | None = None
    """`loss(model, batch)`; required, with `batches`, by growth methods that use gradients."""
    batches: Batches | None = None
    """Training batches for `loss`."""
    start: Literal["scratch", "pretrained"] | None = option(None, example="'pretrained'")
    """"scratch": training goes on from the given weights for the whole budget, as if they were new; "pretrained": they
    are kept and pruned, and `budget` is the epochs of a usual fine-tuning. None: "scratch", but a model that seems
    trained is refused."""
    mode: Literal["max", "min"] = option("max", example="'min'")
    """Whether a higher or a lower score is better; "min" for losses, perplexities and error rates."""
    comm: Communicator | None = None
    """The ranks that train one network; None: those of `fit`, or of the default process group of torch.distributed, if
    there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_store = self.store is None or _has(self.store, "load", "save", "delete_tensors")
        is_directory = isinstance(self.store, str | os.PathLike)
        require(is_store or is_directory, "store", self.store, "a directory or a Store", "'runs/first'")
        if is_directory:
            checked_path(self.store, "store")
        require(0 < len(set(self.finishers)) == len(self.finishers), "finish", self.finish, "names without repetition")
        for finisher in self.finishers:
            if finisher not in (*PRUNING, STATIC):
                NamedMethod.parse(finisher).check_as_finisher()
        if self.num_val is not None and not isinstance(self.reference, str | None):
            allowed = "in [0, 1], since num_val says that scores are accuracies or error rates"
            require(0 <= self.reference <= 1, "reference", self.reference, allowed, "0.93")
        check_data(self.loss, self.batches)
        is_rule = isinstance(self.rule, str) or _has(self.rule, "decide", "answer")
        require(is_rule, "rule", self.rule, "a name or a density rule", "'probe'")
        is_comm = self.comm is None or _has(self.comm, "broadcast_from_rank0")
        require(is_comm, "comm", self.comm, "a Communicator or None")
        are_callbacks = all(isinstance(callback, Callback) for callback in self.callbacks)
        require(are_callbacks, "callback", self.callback, "an instance of pathgrow.Callback, or several")

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> DiscoverOptions:
        """Build options from keywords; an unknown name is refused with the nearest known ones."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in given:
            if name == "target_density":
                raise UserError(
                    "discover searches for the density and takes no target_density; "
                    "use `pathgrow train --method gcg --density D`, or attach(..., create('gcg', target_density=D))"
                )
            if name == "epochs":
                raise UserError("unknown option 'epochs': did you mean budget, the epochs of a full dense training?")
            if name not in known:
                raise unknown_name("option", name, known)
        given = with_relative_delta(given)
        preset = given.get("preset")
        if given.get("delta_is_relative") and given.get("reference") == 0:
            raise UserError(_RELATIVE_TO_ZERO)
        options = cls(**{**(SEARCH_PRESETS.get(preset, {}) if isinstance(preset, str) else {}), **given})
        options.refuse_unused()
        return options

    def as_dict(self) -> dict[str, Any]:
        """The options as JSON values; methods and rules by name, functions left out."""
        objects = ["store", "callback", "loss", "batches", "method", "rule", "comm"]
        if callable(self.final_epochs):
            objects.append("final_epochs")
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in objects}
        named = {name: getattr(self, name) for name in ("method", "rule")}
        return values | {name: value if isinstance(value, str) else value.name for name, value in named.items()}

    def open_run(self, path: str | os.PathLike[str], seed: int, model: nn.Module) -> RunDir:
        """Open the run directory of a discovery with these options; it is refused if it holds another one."""
        require_module(model)
        # Through JSON, because numbers may be NumPy scalars.
        config = strict_json.loads(strict_json.dumps({"seed": seed, **self.as_dict()}))
        return RunDir.open(path, config, device=next((p.device.type for p in model.parameters()), "cpu"))

    def growth_method(self) -> Method:
        """The growth method, with the requested gamma and start density."""
        method = checked_method(self.method)
        if method.target_density is not None:
            raise UserError(
                f"method {method.name!r} has target_density {method.target_density:g}, but discover searches for the "
                f"density; use attach, or `pathgrow train --method {method.name} --density {method.target_density:g}`"
            )
        own = method.schedule.gamma if isinstance(method.schedule, GrowEachRound) else None
        if isinstance(self.method, Method) and self.gamma is not None and own not in (None, self.gamma):
            raise UserError(f"gamma is {self.gamma:g}, but the method has gamma={own:g}; set it on the method only")
        return method.growing(gamma=self.gamma, start_density=self.start_density)

    def density_rule(self) -> Rule:
        """The density rule."""
        return rules.create(self.rule, delta=self.delta) if isinstance(self.rule, str) else self.rule

    def is_improvement(self, before: float, after: float) -> bool:
        """Whether a longer training of one network improved its score by more than half of delta."""
        return self.sign * (after - before) > self.with_absolute_delta(before).delta / 2

    def with_comm_of(self, fit: object) -> DiscoverOptions:
        """The options for one rank of the process group of `fit`; only rank 0 keeps its callbacks."""
        comm = self.comm if self.comm is not None else getattr(fit, "comm", None) or current_communicator()
        return dataclasses.replace(self, comm=comm, callback=() if comm.rank else self.callback)

    def refuse_unused(self) -> None:
        """Refuse options that would have no effect."""
        probing = next((name for name in self.finishers if name not in PRUNING), None)
        unused = () if probing else (*PROBES_ONLY, *(GROWTH_ONLY if self.max_density == 1 else ()))
        for name in unused:
            if getattr(self, name) != getattr(DiscoverOptions, name):
                grown = " or max_density below 1" if name in GROWTH_ONLY else ""
                raise UserError(f"{name} has no effect on a network that is pruned: it needs finish='static'{grown}")
        if self.max_cost is not None and not self.prunes:
            raise UserError(
                f"max_cost has no effect with finish={probing!r}, whose rule decides how many networks are trained: "
                "leave it out, or use finish='gts', which prunes within a cost limit"
            )
        if probing and self.max_density < 1:
            raise UserError(
                f"max_density has no effect with finish={probing!r}, which grows as far as its rule asks for"
            )
        if self.delta_is_relative and not isinstance(self.rule, str):
            raise UserError(f"a relative delta needs a rule by name, but rule {self.rule.name!r} has its own delta")
        if self.start == "pretrained" and (probing or self.max_density < 1):
            unfit = f"finish={probing!r}" if probing else "max_density below 1"
            raise UserError(f"start='pretrained' prunes the given weights, but {unfit} starts from a sparse network")
        if self.final == "grown" and (named := [name for name in self.finishers if name not in (*PRUNING, STATIC)]):
            raise UserError(f"final must be 'fresh' with finish={named[0]!r}, which starts from its own masks")

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        return tuple(self.callback) if isinstance(self.callback, Sequence) else (self.callback,)

    @property
    def sign(self) -> int:
        """What scores are multiplied by for a rule, which takes the higher one for the better."""
        return -1 if self.mode == "min" else 1

    def ranked(self, record: Record) -> Point:
        """The network of a record with a score of which the higher is the better."""
        return dataclasses.replace(record.point, score=self.sign * record.point.score)

    def with_absolute_delta(self, score: float) -> DiscoverOptions:
        """The options with a tolerance in the unit of the scores."""
        if not self.delta_is_relative:
            return self
        if score == 0:
            raise UserError(_RELATIVE_TO_ZERO)
        return dataclasses.replace(self, delta=self.delta * abs(score), delta_is_relative=False)

    @property
    def cost_limit(self) -> float:
        """Cost limit in dense trainings: higher by default with a reference, because that allows a precise answer."""
        return self.max_cost if self.max_cost is not None else 1.0 if self.reference is None else WITH_REFERENCE

    @property
    def may_train_reference(self) -> bool:
        """Whether a dense baseline may be trained although nobody asked for it.

        Only if half of the budget does not predict its score, since the search then costs more than a dense training.
        """
        is_free = self.reference is None and (self.max_cost is None or self.max_cost >= WITH_REFERENCE)
        return self.prunes and is_free and self.max_density == 1 and self.start != "pretrained"

    @property
    def trains_dense_first(self) -> bool:
        """Whether the search starts with the dense baseline: half of a short budget would not predict its score."""
        is_asked_for = self.prunes and self.reference == "dense" and self.cost_limit >= LEAST_COST_TO_COMPARE
        is_trained = self.may_train_reference or is_asked_for
        is_dense = self.max_density == 1 and self.start != "pretrained"
        return is_trained and is_dense and self.budget < MIN_DIVIDED_BUDGET

    @property
    def highest_cost(self) -> float:
        """Most that the search may cost: its limit, or that of one that has to train a dense baseline."""
        if not self.may_train_reference:
            return self.cost_limit
        return WITH_TRAINED_REFERENCE if self.max_cost is None else self.max_cost

    @property
    def finishers(self) -> tuple[str, ...]:
        """How candidates are trained, one name or several."""
        return (self.finish,) if isinstance(self.finish, str) else tuple(self.finish)

    @property
    def prunes(self) -> bool:
        """Whether a network is trained and pruned."""
        return any(name in PRUNING for name in self.finishers)

    @property
    def probes(self) -> bool:
        """Whether networks are probed at the densities of growth rounds."""
        return any(name not in PRUNING for name in self.finishers)

    @property
    def finishing_method(self) -> NamedMethod | None:
        """The method that trains probes and the final network; None: they have the masks of growth rounds."""
        [finisher] = self.finishers
        return None if finisher in (*PRUNING, STATIC) else NamedMethod.parse(finisher)

    @property
    def num_seed_epochs(self) -> int:
        return self.seed_epochs if self.seed_epochs is not None else max(1, self.budget // 8)

    @property
    def num_rough_epochs(self) -> int | None:
        """Epochs of a growth round; None if adaptive."""
        if isinstance(self.rough, str):
            return None
        return self.rough if isinstance(self.rough, int) else max(1, round(self.rough * self.budget))

    def num_final_epochs(self, before: Sequence[Record], grown_epochs: int = 0) -> int:
        """Epochs of the returned network, given the records of all earlier stages and the epochs of its growth."""
        if self.final_epochs == "extensive":
            return self.budget + (grown_epochs if self.final == "grown" else 0)
        if self.final_epochs is None:
            return self.budget
        if not callable(self.final_epochs):
            return self.final_epochs
        found = self.final_epochs(before)
        if not is_int(found) or not 1 <= found <= MAX_EPOCHS:
            raise UserError(
                f"final_epochs must return an integer in [1, {MAX_EPOCHS}], got {found!r} for {len(before)} records; "
                "fix the function and rerun, finished stages are kept if there is a store"
            )
        return found

    @property
    def num_probe_epochs(self) -> int:
        """Epochs of every probe: those of the reference, if there is one.

        Grown weights come with more epochs than a fraction of the budget, so such probes need the whole budget too.
        """
        if self.reference is not None or self.final == "grown":
            return self.budget
        if self.probe_fraction is not None:
            return max(1, round(self.probe_fraction * self.budget))
        # After very few epochs sparse networks are still far behind dense ones, which would bias answers upward.
        least = min(_MIN_PROBE_EPOCHS, round(_MAX_MIN_PROBE_SHARE * self.budget))
        return max(1, least, round(self.budget / 10))


def _has(value: object, *methods: str) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)
