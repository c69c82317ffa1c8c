"""Sparse training in anybody's loop: put masks on a model, grow them by what is observed, save and load the state.

`live` says what happens at each step. Nothing is wrapped, renamed or replaced, and `detach()` leaves nothing behind but
zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, SupportsIndex
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from pathgrow.density import words
from pathgrow.density.types import Answer, Curve, Grow, Point, Probe, Rule, Stop, Verdict
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import UserError
from pathgrow.graph.scope import trained_scope
from pathgrow.masks import Masks
from pathgrow.methods.method import MaskUpdate, Method, never
from pathgrow.methods.view import Batches, Loss
from pathgrow.sparse import enforce, optimizer_state
from pathgrow.sparse.checks import (
    Metric,
    check_needs,
    check_whole,
    checked_method,
    checked_parameters,
    checked_rule,
    checked_scope,
    parse_evaluation,
    unwrapped,
)
from pathgrow.sparse.ema import Averaging
from pathgrow.sparse.hooks import MaskedOptimizer, Parts
from pathgrow.sparse.update import decide_on_rank0, start_masks

_FORMAT = 2
# Two sets of masks on one optimizer, or on one weight, would each undo the growth of the other.
_IN_USE: WeakSet[Optimizer] = WeakSet()
_MASKED: MutableMapping[Parameter, None] = WeakIdKeyDictionary()


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method | str,
    example_input: Any = None,
    *,
    scope: Mapping[str, Tensor] | None = None,
    stop: Rule | str | None = None,
    loss: Loss | None = None,
    batches: Batches | None = None,
    seed: int = 0,
    average: Averaging | None = None,
    comm: Communicator = SINGLE_PROCESS,
) -> Attached:
    """Make a model sparse and keep it sparse while your own loop trains it.

    From here on, weights that are off and the optimizer state that belongs to them are exactly zero, also after every
    `optimizer.step()`, whatever the optimizer.

    Parameters
    ----------
    model, optimizer
        As they are used in the loop. The optimizer may own more or fewer parameters than the model.
    method : Method or str
        From `pathgrow.methods`, or a `Method` of your own.
    example_input : optional
        One input of the model, for methods that read its paths; None: guessed, for models that say what they take.
    scope : Masks or mapping of name to bool tensor, optional
        True where a weight may be switched; None: `pathgrow.scope(model)` without frozen weights.
    stop : Rule or str, optional
        The density rule that `observe` asks; None: "trajectory", which needs nothing but the observations.
    loss, batches : optional
        For methods that read gradients: `loss(model, batch)` returns the training loss, and `batches` is a loader, a
        list, or a function that returns an iterator.
    seed : int
        Decides all random choices.
    average : Averaging, optional
        Keep a running average of the weights for evaluation, see `Attached.averaged`.
    team : Team, optional
        Where several processes train this model together: `pathgrow.trainer.process_group.current_team()`. The first
        then decides on the masks for all of them; all processes have to attach, observe and load alike.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> sparse = attach(model, optimizer, "random_growth", torch.zeros(1, 8), scope=Masks.full(model))
    >>> model(torch.randn(4, 8)).sum().backward()
    >>> optimizer.step()
    >>> bool((model[0].weight[~sparse.masks["0.weight"]] == 0).all())
    True
    >>> sparse.observe(0.5).reason
    '...'

    To resume a run, build and attach as you did at first, then load the states of the model, of the optimizer and of
    this object, in any order. Attach *before* loading: attaching zeroes every weight that the start masks leave out.
    """
    method = checked_method(method)
    optimizer = unwrapped(optimizer)
    check_whole(model)
    if optimizer in _IN_USE:
        raise UserError("this optimizer is already attached: call detach() on the first attachment before another")
    switchable = checked_scope(model, trained_scope(model, example_input) if scope is None else scope)
    parameters = checked_parameters(model, optimizer, switchable)
    if taken := next((name for name, parameter in parameters.items() if parameter in _MASKED), None):
        raise UserError(
            f"{taken!r} of this model is already attached with another optimizer: "
            "call detach() on the first attachment before another"
        )
    check_needs(method, loss, batches)
    rule = checked_rule(stop)
    masks, cost = decide_on_rank0(
        comm, switchable, lambda: start_masks(model, method, switchable, example_input, seed, loss, batches)
    )
    parts = Parts(
        model=model,
        optimizer=optimizer,
        method=method,
        example_input=example_input,
        masks=masks,
        scope=switchable,
        parameters=parameters,
        loss=loss,
        batches=batches,
        seed=seed,
        average=average,
        comm=comm,
    )
    attached = Attached(parts, rule)
    attached.last_scoring_cost = cost
    return attached


class Attached(MaskedOptimizer):
    """A sparse model in training; made by `attach`."""

    def __init__(self, parts: Parts, rule: Rule) -> None:
        super().__init__(parts)
        self._rule = rule
        self._points: list[Point] = []
        self._stopped: Stop | None = None
        _IN_USE.add(self.optimizer)
        _MASKED.update(dict.fromkeys(self._parameters.values()))

    def __repr__(self) -> str:
        state = "" if self._handles else ", detached"
        return (
            f"Attached({self.method.name}: {self.masks.num_on} of {self._num} switchable weights on, density "
            f"{words.density(self.density)}, round {self.round}, step {self.step}{state})"
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self._handles:
            # Hooks are not copied: the copy would look attached while nothing enforced its masks.
            raise UserError(
                "an attachment was to be copied or pickled, its state_dict() is wanted: save or copy the model, and "
                "attach that one and load the state into it"
            )
        return super().__reduce_ex__(protocol)

    @property
    def density(self) -> float:
        """Share of the switchable weights that are on."""
        return self.masks.density

    @property
    def curve(self) -> Curve:
        """Everything observed up to the decision to stop."""
        return Curve(rough=tuple(self._points), can_probe=False, at_ceiling=self._due() is None)

    def rule_answer(self) -> Answer:
        """What the density rule makes of the observations so far."""
        return self._rule.answer(self.curve)

    def observe(self, metric: Metric) -> Verdict:
        """Report how well the network does on validation data; it grows here if the density rule says so.

        Parameters
        ----------
        metric : float or (float, float)
            A score, higher is better, or a pair of score and loss.

        Returns
        -------
        Verdict
            `Grow`: the masks have grown by one step of the method's schedule; train on. `Stop`: the density is settled
            and the masks stay as they are, but training may go on for as long as it pays. `reason` says why.
        """
        self._refuse_average("observed")
        score, loss = self._comm.broadcast_from_rank0(lambda: parse_evaluation(metric, "observe"))
        if self._stopped is not None:
            return self._stopped
        point = Point(round=self.round, density=self.density, epochs=len(self._points) + 1, score=score, loss=loss)
        due = self._due()
        verdict = self._decide(dataclasses.replace(self.curve, rough=(*self._points, point)), due)
        if isinstance(verdict, Stop):
            self._stopped = verdict
        else:
            assert due is not None
            self._grow_round_(due)
        # Kept last: an observation that could not be acted on can be repeated.
        self._points.append(point)
        return verdict

    def advance_(self) -> bool:
        """Make the change that the method's schedule has for this round; returns whether there was one.

        For methods that prune between trainings (IMP), where no density rule decides.
        """
        due = self._due() if self.method.clock == "round" else None
        if due is None:
            return False
        self._grow_round_(due)
        return True

    def grow_(self, num: int) -> int:
        """Add `num` weights by the method's growth rule, or all that are missing if those are fewer; returns how many.

        New weights are zero, so the network still computes what it did before.
        """
        if num < 0:
            raise UserError(f"grow_({num}) was asked for, a number of weights from 0 up is wanted")
        count = min(num, self._num - self._num_on)
        if count:
            self._grow_round_(MaskUpdate(num_grow=count))
        return count

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the model holds the running average of its weights (before the first update, its own)."""
        if self._average is None:
            yield
        else:
            with self._average.swapped_in():
                if self.method.weights is not None:
                    # Hidden weights went off without being taken out of the average.
                    self.masks.apply_(self.model)
                yield

    def state_dict(self) -> dict[str, Any]:
        """Masks, clock, memory, observations and average, as tensors and JSON values.

        Weights and optimizer slots are in the states of the model and of the optimizer.
        """
        return {
            "format": _FORMAT,
            "method": self.method.name,
            "seed": self._seed,
            "scope": self.scope.digest(),
            "masks": {name: mask.clone() for name, mask in self.masks.items()},
            "round": self.round,
            "step": self.step,
            "points": [dataclasses.asdict(point) for point in self._points],
            "stopped": None if self._stopped is None else dataclasses.asdict(self._stopped),
            "memory": optimizer_state.copied(self.method_state),
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken; the state of another model or method is refused untouched."""
        self._refuse_average("loaded")
        self._check_state(state)
        masks = Masks(state["masks"], self.masks.scope)
        self._seed = int(state["seed"])
        self.round = int(state["round"])
        self.step = int(state["step"])
        self._points = [Point(**point) for point in state["points"]]
        self._stopped = None if state["stopped"] is None else Stop(**state["stopped"])
        self._set_masks_(masks)
        optimizer_state.load_(self.method_state, state["memory"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        self._enforce_()

    def detach(self) -> None:
        """Take all hooks off. The masks can still be read, but nothing enforces them any more."""
        if not self._handles:
            return  # the optimizer may be somebody else's by now
        self._read_hidden_masks_()
        if self.method.weights is not None:
            # The optimizer's state belongs to the hidden weights; those that are left start without any.
            nothing = {name: torch.zeros_like(ones) for name, ones in self._keep.items()}
            enforce.mask_optimizer_state_(self.optimizer, self._parameters, nothing)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.companions.clear()
        _IN_USE.discard(self.optimizer)
        for parameter in self._parameters.values():
            _MASKED.pop(parameter, None)

    def _decide(self, curve: Curve, due: MaskUpdate | None) -> Verdict:
        if (without_growth := self._verdict_without_growth(due)) is not None:
            return without_growth
        verdict = self._rule.decide(curve)
        if isinstance(verdict, Probe):
            raise UserError(
                f"rule {self._rule.name!r} asks for trained copies, which somebody else's loop cannot give: "
                "choose stop='trajectory', or use pathgrow.discover"
            )
        if isinstance(verdict, Grow) and due is None:
            return Stop(reason=f"method {self.method.name!r} has nothing to change here at density {self.density:.4g}")
        return verdict

    def _verdict_without_growth(self, due: MaskUpdate | None) -> Verdict | None:
        """The verdict for a method that does not grow at observations, so that there is no density to find."""
        method, name = self.method, f"method {self.method.name!r}"
        if method.clock == "step" or method.weights is not None:
            return Stop(reason=f"{name} changes its masks within training and not here: train on")
        if method.grow is not None:
            return None
        if due is not None:
            return Grow(reason=f"the schedule of {name} goes on")
        if method.schedule is never:
            return Stop(reason=f"{name} does not grow, it keeps the masks it began with: train on")
        return Stop(reason=f"the schedule of {name} has come to its end, its masks stay: train on")

    def _check_state(self, state: Any) -> None:
        keys = {"format", "method", "seed", "scope", "masks", "round", "step", "points", "stopped", "memory", "average"}
        if not isinstance(state, Mapping) or state.keys() != keys or state["format"] != _FORMAT:
            raise UserError("this is no state of an attached model: give what Attached.state_dict() returned")
        if state["method"] != self.method.name:
            raise UserError(
                f"this state is of method {state['method']!r}, {self.method.name!r} is attached: attach that method"
            )
        shapes, wanted = ({name: mask.shape for name, mask in masks.items()} for masks in (state["masks"], self.masks))
        if state["scope"] != self.scope.digest() or shapes != wanted:
            raise UserError("this state is of another model or scope: attach to the model it was saved with")
        if (state["average"] is None) != (self._average is None):
            saved, attached = ("with", "without") if self._average is None else ("without", "with")
            raise UserError(
                f"this state was saved {saved} a weight average and this model is attached {attached} one: "
                "attach with the `average` it was saved with"
            )
