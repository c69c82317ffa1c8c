"""Sparse training in anybody's loop: the clock, and the only writer of live weights, masks and optimizer slots.

What is written stands in `enforce`, when it is written stands here: through the optimizer's own step hooks, and at each
observation. Nothing is wrapped, renamed or replaced; `detach()` leaves no trace but zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, Optimizer
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from pathgrow import enforce, methods
from pathgrow.attach_checks import (
    Metric,
    check_needs,
    check_whole,
    checked_metric,
    checked_parameters,
    checked_scope,
    unwrapped,
)
from pathgrow.average import Averaging, WeightAverage
from pathgrow.density import rules, words
from pathgrow.density.curve import Answer, Curve, Grow, Point, Probe, Rule, Stop, Verdict
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.method import Change, Memory, Method, Progress
from pathgrow.net import Batches, Loss, Net, Reading, loss_gradients, mean_gradients
from pathgrow.revise import decided, revised_masks, start_masks
from pathgrow.rng import derive, generator
from pathgrow.scope import scope as default_scope
from pathgrow.team import ALONE, Team

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
    team: Team = ALONE,
) -> Attached:
    """Make a model sparse and keep it so while its own loop trains it.

    Weights that are off, and all optimizer state that belongs to them, are exactly zero from here on and after every
    `optimizer.step()`, whatever the optimizer.

    Parameters
    ----------
    model, optimizer
        As they are used in the loop. The optimizer may own more or fewer parameters than the model.
    method : Method or str
        From `pathgrow.methods`, or a `Method` of your own.
    example_input : optional
        One input of the model, for methods that read its paths; None: guessed where the model says what it takes.
    scope : Masks or mapping of name to bool tensor, optional
        True where a weight may be switched; None: `pathgrow.scope(model)`.
    stop : Rule or str, optional
        The density rule that `observe` asks; None: "trajectory", which needs nothing but the observations.
    loss, batches : optional
        `loss(model, batch)` gives the training loss, `batches` is a loader, a list, or a function that returns an
        iterator; for methods that read gradients.
    seed : int
        All random choices follow from it.
    average : Averaging, optional
        Keep a running average of the weights for evaluation, see `Attached.averaged`.
    team : Team, optional
        Where several processes train this model together: `pathgrow.engine.distributed.current_team()`. Masks are then
        decided by the first and equal everywhere; all processes attach, observe and load alike.

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

    To resume a run: build and attach as at first, then load the states of the model, of the optimizer and of this
    object, in any order. A model that was loaded *before* it is attached would lose its grown weights.
    """
    method = methods.create(method) if isinstance(method, str) else method
    optimizer = unwrapped(optimizer)
    check_whole(model)
    if optimizer in _IN_USE:
        raise UserError("this optimizer is already attached: call detach() on the first attachment before another")
    switchable = checked_scope(model, default_scope(model, "auto", example_input) if scope is None else scope)
    parameters = checked_parameters(model, optimizer, switchable)
    if taken := next((name for name, parameter in parameters.items() if parameter in _MASKED), None):
        raise UserError(
            f"{taken!r} of this model is already attached with another optimizer: "
            "call detach() on the first attachment before another"
        )
    check_needs(method, loss, batches)
    rule = rules.create(stop or "trajectory") if stop is None or isinstance(stop, str) else stop
    masks, _ = decided(
        team,
        switchable,
        lambda: (start_masks(model, method, switchable, example_input, seed, loss, batches), Reading()),
    )
    return Attached(
        model, optimizer, method, example_input, masks, switchable, parameters, rule, loss, batches, seed, average, team
    )


class Attached:
    """A sparse model in training. Made by `attach`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        example_input: Any,
        masks: Masks,
        scope: Masks,
        parameters: dict[str, Parameter],
        rule: Rule,
        loss: Loss | None,
        batches: Batches | None,
        seed: int,
        average: Averaging | None,
        team: Team,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.method = method
        self.scope = scope
        self.masks = masks
        """What is on now; edited in place, never rebound."""
        self.round = 0
        """Growth steps so far."""
        self.step = 0
        """Optimizer steps so far."""
        self.last_reading = Reading()
        """What the last change of the masks had to look at."""
        self.companions: dict[str, Any] = {}
        """What an engine made for this attachment (a captured step), kept as long as it: gone at `detach`."""
        self._example_input = example_input
        self._parameters = parameters
        self._rule = rule
        self._loss = loss
        self._batches = batches
        self._seed = seed
        self._team = team
        self._points: list[Point] = []
        self._stopped: Stop | None = None
        self._driven = False
        # Counted once: a step clock asks at every step, and counting waits for the device.
        self._num, self._num_on = masks.num, masks.num_on
        self._keep = enforce.keep_tensors(parameters, masks)
        self.memory: Memory = {}
        """What the method remembers, saved with this attachment."""
        self._undo: list[tuple[Tensor, Tensor]] = []
        """Tensors and what they held before a step that is not to count."""
        self._check_masks()
        if method.afterwards == "rewind" and method.rewind_step == 0:
            self._remember_weights_()
        masks.apply_(model)
        if method.remember is not None:
            self.memory |= method.remember(self._net())
        enforce.mask_slots_(optimizer, parameters, self._keep)
        self._average = WeightAverage(model, average) if average is not None else None
        self._handles = self._hooked()
        _IN_USE.add(optimizer)
        _MASKED.update(dict.fromkeys(parameters.values()))

    def __repr__(self) -> str:
        state = "" if self._handles else ", detached"
        return (
            f"Attached({self.method.name}: {self._num_on} of {self._num} switchable weights on, density "
            f"{words.density(self.density)}, round {self.round}, step {self.step}{state})"
        )

    @property
    def density(self) -> float:
        """Share of the switchable weights that is on."""
        self._look_under_()
        return self.masks.density

    @property
    def curve(self) -> Curve:
        """Everything observed up to the decision to stop."""
        return Curve(rough=tuple(self._points), can_probe=False, at_ceiling=self._due() is None)

    def rule_answer(self) -> Answer:
        """What the density rule makes of the observations so far."""
        return self._rule.answer(self.curve)

    def observe(self, metric: Metric) -> Verdict:
        """Tell how well the network does on validation data; it grows here, when the density rule says so.

        Parameters
        ----------
        metric : float or (float, float)
            A score, higher is better, or a score and a loss.

        Returns
        -------
        Verdict
            `Grow`: the masks have grown by one step of the method's schedule, train on. `Stop`: the density is settled;
            the masks stay from now on and training may go on as long as it pays. `reason` says why.
        """
        self._refuse_average("observed")
        score, loss = self._team.from_first(lambda: checked_metric(metric))
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
        # Last: an observation that could not be acted on can be made again.
        self._points.append(point)
        return verdict

    def advance_(self) -> bool:
        """Make the change that the method's schedule has for this round; False: there is none (any more).

        For methods that prune between trainings (IMP), where `observe` has no density rule to ask.
        """
        due = self._due() if self.method.clock == "round" else None
        if due is None:
            return False
        self._grow_round_(due)
        return True

    def grow_(self, num: int) -> int:
        """Add `num` weights by the method's growth rule, all that are missing if there are fewer; returns how many.

        New weights are zero, so the network computes what it did before.
        """
        if num < 0:
            raise UserError(f"grow_({num}) was asked for, a number of weights from 0 up is wanted")
        count = min(num, self._num - self._num_on)
        if count:
            self._grow_round_(Change(num_grow=count))
        return count

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the model holds its running average; before the first update, its own weights."""
        if self._average is None:
            yield
        else:
            with self._average.swapped_in():
                yield

    def state_dict(self) -> dict[str, Any]:
        """Masks, clock, memory, observations, average: tensors and JSON. Weights and slots have their own states."""
        self._look_under_()
        return {
            "format": _FORMAT,
            "method": self.method.name,
            "seed": self._seed,
            "scope": self.scope.digest(),
            "masks": {name: mask.clone() for name, mask in self.masks.items()},
            "round": self.round,
            "step": self.step,
            "points": [dataclasses.asdict(point) for point in self._points],
            "stopped": None if self._stopped is None else self._stopped.reason,
            "memory": _copied(self.memory),
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken. The state of another model or method is refused and changes nothing."""
        self._refuse_average("loaded")
        self._check_state(state)
        masks = Masks(state["masks"], self.masks.scope)
        self._seed = int(state["seed"])
        self.round = int(state["round"])
        self.step = int(state["step"])
        self._points = [Point(**point) for point in state["points"]]
        self._stopped = None if state["stopped"] is None else Stop(reason=state["stopped"])
        self._set_masks_(masks)
        _load_(self.memory, state["memory"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        self._enforce_()

    def detach(self) -> None:
        """Take all hooks off. Masks can still be read; nobody enforces them any more."""
        if not self._handles:
            return  # the optimizer may be somebody else's by now
        self._look_under_()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.companions.clear()
        _IN_USE.discard(self.optimizer)
        for parameter in self._parameters.values():
            _MASKED.pop(parameter, None)

    def _hooked(self) -> list[RemovableHandle]:
        handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        if self.method.clock == "round" and self.method.watch is None and self.method.weights is None:
            # Nobody needs dense gradients here, and whoever clips their norm must see those that count.
            handles += [
                parameter.register_post_accumulate_grad_hook(partial(self._mask_gradient_, keep=self._keep[name]))
                for name, parameter in self._parameters.items()
                if parameter.requires_grad
            ]
        return handles

    def _mask_gradient_(self, parameter: Tensor, *, keep: Tensor) -> None:
        assert parameter.grad is not None
        if not self._driven:
            enforce.mask_(parameter.grad, keep)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._driven:
            return
        self._refuse_average("trained")
        self.watch_()
        if self.change_if_due_():
            # A hook cannot keep an optimizer from stepping, but it can see to it that nothing is left of the step.
            self._undo = [(tensor, tensor.detach().clone()) for tensor in self._trained()]
        self.mask_gradients_()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._driven:
            return
        with torch.no_grad():
            for tensor, before in self._undo:
                tensor.copy_(before)
        self._undo = []
        self.mask_weights_()
        self.stepped_()

    # For engines, whose captured steps run no hooks

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Inside the block the hooks rest, and whoever drives the optimizer calls the methods below itself."""
        self._refuse_average("trained")
        before, self._driven = self._driven, True
        try:
            yield
        finally:
            self._driven = before

    def watch_(self) -> None:
        """Show the dense gradients to a method that wants to see those of every step. Can be captured."""
        if self.method.watch is not None:
            self.method.watch(self._net(self._gradients_now))

    def change_if_due_(self) -> bool:
        """Let a method with a step clock change masks by the dense gradients: after the backward pass. Not captured.

        True: the change takes the place of the optimizer's step.
        """
        if self.method.clock != "step" or (due := self._due()) is None:
            return False
        self._change_(due, self._net(self._gradients_now), generator(self._seed, "change", self.step))
        return self.method.instead_of_step

    def mask_gradients_(self) -> None:
        """Zero the gradients of weights that are off: after the backward pass, before clipping. Can be captured."""
        if self.method.weights is not None:
            self.method.weights.reveal_(self._net(self._gradients_now))
        else:
            enforce.mask_gradients_(self._parameters, self._keep)

    def mask_weights_(self) -> None:
        """Zero weights and optimizer state that are off: after the optimizer's step. Can be captured."""
        if self.method.weights is not None:
            self.method.weights.cover_(self._net())
        else:
            enforce.mask_weights_(self._parameters, self._keep)
            enforce.mask_slots_(self.optimizer, self._parameters, self._keep)

    def stepped_(self) -> None:
        """A step was made: the clock goes on and the average takes the weights in. Not to be captured."""
        self.step += 1
        if self.method.afterwards == "rewind" and self.step == self.method.rewind_step:
            self._remember_weights_()
        if self._average is not None:
            self._average.step_(self.step)

    @property
    def change_is_due(self) -> bool:
        """The method wants to change masks at the next step, which no captured step can do."""
        return self.method.clock == "step" and self._due() is not None

    def _due(self) -> Change | None:
        """The change that the schedule asks for now."""
        change = self.method.schedule(self._progress)
        if change is None or (self.method.revise is None and not change.num_drop and not change.num_grow):
            return None
        return change

    @property
    def _progress(self) -> Progress:
        return Progress(round=self.round, step=self.step, num_on=self._num_on, num=self._num)

    def _decide(self, curve: Curve, due: Change | None) -> Verdict:
        if self.method.clock == "round" and self.method.grow is None and due is not None:
            return Grow(reason=f"the schedule of method {self.method.name!r} goes on")  # no density to be found
        verdict = self._rule.decide(curve)
        if isinstance(verdict, Probe):
            raise UserError(
                f"rule {self._rule.name!r} asks for trained copies, which somebody else's loop cannot give: "
                "choose stop='trajectory', or use pathgrow.discover"
            )
        if isinstance(verdict, Grow) and (due is None or self.method.clock != "round"):
            return Stop(reason=f"method {self.method.name!r} has nothing to change here at density {self.density:.4g}")
        return verdict

    def _net(self, gradients: Callable[[], tuple[Mapping[str, Tensor], int]] | None = None) -> Net:
        # A team sums gradients, which all take part in: a pick that asked for them unannounced would wait for ever.
        announced = self._team.size == 1 or "gradients" in self.method.needs
        if gradients is None and announced and self._loss is not None and self._batches is not None:
            seed = derive(self._seed, "batch", self.round)
            read = partial(loss_gradients, self.model, list(self.masks), self._loss, self._batches, seed)
            gradients = partial(mean_gradients, self._team, read)
        return Net(
            self.model,
            self.masks,
            self.scope,
            self._example_input,
            gradients,
            memory=self.memory,
            optimizer=self.optimizer,
            loss=self._loss,
            batches=self._batches,
        )

    def _gradients_now(self) -> tuple[Mapping[str, Tensor], int]:
        return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self._parameters.items()}, 0

    def _trained(self) -> Iterator[Tensor]:
        """Everything that a step of the optimizer writes."""
        yield from (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        for slots in self.optimizer.state.values():
            yield from (value for value in slots.values() if isinstance(value, Tensor))

    def _grow_round_(self, change: Change) -> None:
        self._change_(change, self._net(), generator(self._seed, "grow", self.round))
        self.round += 1
        if self.method.afterwards == "rewind":
            weights = self.memory["rewind"]
            with torch.no_grad():
                for name, tensor in _weights_and_buffers(self.model):
                    tensor.copy_(weights[name])
        if self.method.afterwards != "keep":
            _forget_slots_(self.optimizer)
            self._enforce_()

    def _remember_weights_(self) -> None:
        """Of this moment, to come back to."""
        self.memory["rewind"] = {name: tensor.detach().clone() for name, tensor in _weights_and_buffers(self.model)}

    def _look_under_(self) -> None:
        """Where weights are hidden, nobody told the masks what became of them."""
        if self.method.weights is not None and self._handles:
            self._set_masks_(self.method.weights.masks(self._net()))

    def _change_(self, change: Change, net: Net, draw: torch.Generator) -> None:
        self._refuse_average("grown")
        if not self._handles:
            raise UserError("masks were asked to change after detach(), when nobody enforces them: attach again")
        # Weights may have been loaded since the last step: what is off must be zero before it is switched on.
        self._enforce_()
        self._check_masks()
        if self._team.size > 1 and "gradients" in self.method.needs:
            net.gradients()  # all take part, although the first alone decides

        def decide() -> tuple[Masks, Reading]:
            return revised_masks(self.method, net, change, self._progress, draw), net.reading

        masks, self.last_reading = decided(self._team, self.scope, decide)
        self._set_masks_(masks)
        self._enforce_()

    def _set_masks_(self, masks: Masks) -> None:
        self.masks.copy_(masks)
        enforce.set_keep_(self._keep, self.masks)
        self._num_on = self.masks.num_on
        self._check_masks()

    def _check_masks(self) -> None:
        """Around every change: ranks with different masks would train different networks without a sign of it."""
        self._team.check_same("masks", self.masks.digest)

    def _enforce_(self) -> None:
        if self.method.weights is not None:
            return
        enforce.mask_weights_(self._parameters, self._keep)
        enforce.mask_slots_(self.optimizer, self._parameters, self._keep)
        if self._average is not None:
            self._average.mask_(self.masks)

    def _refuse_average(self, what: str) -> None:
        if self._average is not None and self._average.swapped:
            raise UserError(
                f"the model was to be {what} inside averaged(), where it holds its average: do so after the block"
            )

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


def _weights_and_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


@torch.no_grad()
def _forget_slots_(optimizer: Optimizer) -> None:
    """As new. In place where zero is what a new optimizer has, since a captured step holds these very tensors."""
    if not isinstance(optimizer, SGD | Adam):
        optimizer.state.clear()
        return
    for slots in optimizer.state.values():
        for value in slots.values():
            if isinstance(value, Tensor):
                value.zero_()


def _copied(memory: Any) -> Any:
    if isinstance(memory, Mapping):
        return {name: _copied(value) for name, value in memory.items()}
    return memory.detach().clone() if isinstance(memory, Tensor) else memory


def _load_(memory: Memory, stored: Mapping[str, Any]) -> None:
    """Into the same tensors where there are such: a captured step holds them."""
    for name in [name for name in memory if name not in stored]:
        del memory[name]
    for name, value in stored.items():
        here = memory.get(name)
        if isinstance(value, Mapping):
            _load_(memory.setdefault(name, {}), value)
        elif isinstance(value, Tensor) and isinstance(here, Tensor) and here.shape == value.shape:
            with torch.no_grad():
                here.copy_(value)
        else:
            memory[name] = value.clone() if isinstance(value, Tensor) else value
