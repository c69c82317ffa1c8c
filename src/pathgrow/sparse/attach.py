"""Sparse training in any training loop: attach a method to a model and an optimizer, save and load its state.

Nothing is wrapped, renamed or replaced, and `detach()` leaves nothing behind but zeros. `hooks` says what happens at
each step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from pathgrow import methods
from pathgrow.config import Option, check_value
from pathgrow.density import rules
from pathgrow.density.types import Point, Rule, Stop
from pathgrow.distributed.comm import Communicator
from pathgrow.distributed.process_group import current_communicator
from pathgrow.errors import RunFailed, UserError, checked_int, is_int, require, short
from pathgrow.graph import trace
from pathgrow.graph.scope import is_traceable, trained_scope
from pathgrow.masks import Masks
from pathgrow.masks.masks import require_module
from pathgrow.methods.gradients import Batches, Loss, loss_gradients
from pathgrow.methods.growth import without_paths
from pathgrow.methods.method import Method, NetworkView, ScoringCost, count_at
from pathgrow.methods.picks import at_random, by_walks
from pathgrow.rng import derive, generator
from pathgrow.sparse import enforce
from pathgrow.sparse.ema import EMA
from pathgrow.sparse.hooks import DEFAULT_RULE
from pathgrow.sparse.pruning import PruningOptimizer
from pathgrow.sparse.tree import check_method_state, copy_method_state, decide_on_rank0, layout, load_method_state_
from pathgrow.walks.phew import start_density

_FORMAT = 3


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method | str,
    example_input: Any = None,
    *,
    scope: Mapping[str, Tensor] | None = None,
    stop: Rule | str | None = None,
    loss: Loss | None = None,
    batches: Batches | None = None,
    seed: int = 0,
    ema: EMA | None = None,
    comm: Communicator | None = None,
    on_mask_update: Callable[[Attached], None] | None = None,
) -> Attached:
    """Make a model sparse and keep it sparse while your own loop trains it.

    From here on pruned weights and their optimizer state are exactly zero, also after every `optimizer.step()`,
    whatever the optimizer.

    Parameters
    ----------
    model, optimizer
        As used in the training loop; a list if several optimizers step after one backward pass, in any order. They must
        own all weights in scope, unless these are frozen.
    method : Method or str
        A `Method`, or a name from `pathgrow.methods`: that method with all its defaults. The default length of a
        training, 10,000 steps, is rarely yours, so there is a warning about it.
    example_input : optional
        One batch as the model accepts it; None: the one that the model declares, or one that fits its first layer.
        Layers that it does not reach are named in a warning.
    scope : Masks or mapping of name to bool tensor, optional
        True where a weight is prunable; None: `pathgrow.scope(model)` without frozen weights.
    stop : Rule or str, optional
        Density rule used by `observe`; None: "trajectory", which needs nothing but the observations.
    loss, batches : optional
        For methods that use gradients: `loss(model, batch)` returns the training loss; `batches` is a loader, a list,
        or a function that returns an iterator.
    seed : int
        Determines all random choices.
    ema : EMA, optional
        Keep an exponential moving average of the weights for evaluation, see `Attached.ema_weights`.
    comm : Communicator, optional
        The ranks that train one network; None: those of the default process group of torch.distributed, if there is
        one. All start from the weights of rank 0, which decides on the masks, and have to attach, observe and load
        alike. To train another network on every rank, pass `pathgrow.distributed.comm.SINGLE_PROCESS`.
    on_mask_update : callable, optional
        Called with the `Attached` once the initial masks are set and after every mask update, on all ranks. It may read
        `masks`, `step`, `round` and `last_scoring_cost`, and may store JSON values in `method_state`, which is saved
        with the state.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> sparse = attach(model, optimizer, "random_growth", torch.zeros(1, 8), scope=Masks.full(model))
    >>> model(torch.randn(4, 8)).sum().backward()
    >>> optimizer.step()
    >>> bool((model[0].weight[~sparse.masks["0.weight"]] == 0).all())
    True
    >>> sparse.observe(0.5).stop
    False

    To resume a run, build and attach as before, then load the state dicts of the model, of the optimizer and of this
    object, in any order. Attach *before* loading: attaching zeroes every weight outside the initial masks.
    """
    given, method = method, checked_method(method)
    optimizers = checked_optimizers(optimizer, method)
    check_unsharded(model)
    if method.grow is at_random and method.start is by_walks and not is_traceable(model, example_input):
        method = without_paths(method)
    needs_paths, is_given = "paths" in method.needs, scope is not None
    if scope is None:
        scope = trained_scope(model, example_input, needs_paths=needs_paths)
    elif example_input is not None and needs_paths:
        trace(model, example_input)  # here, where the error says which methods do without
    prunable = checked_scope(model, scope)
    parameters = checked_parameters(model, optimizers, prunable)
    if taken := next((name for name, parameter in parameters.items() if parameter in enforce.MASKED), None):
        raise UserError(f"{taken!r} is already attached with another optimizer; call detach() first")
    enforce.warn_of_half_precision(parameters)
    check_needs(method, loss, batches)
    rule = checked_rule(stop)
    require(ema is None or isinstance(ema, EMA), "ema", ema, "an EMA or None", "EMA(decay=0.99)")
    require(on_mask_update is None or callable(on_mask_update), "on_mask_update", on_mask_update, "a function or None")
    if comm is None:
        comm = current_communicator()
        enforce.warn_of_other_weights(model, comm)
    require(hasattr(comm, "broadcast_from_rank0"), "comm", comm, "a Communicator or None")
    if not is_given or example_input is not None:
        enforce.warn_of_uncalled(model, prunable, example_input, comm, is_given=is_given)
    enforce.warn_of_default_length(given, comm)
    masks, cost = decide_on_rank0(
        comm, prunable, lambda: start_masks(model, method, prunable, example_input, seed, loss, batches)
    )
    attached = Attached(
        model,
        optimizers,
        method,
        masks,
        scope=prunable,
        parameters=parameters,
        rule=rule,
        example_input=example_input,
        loss=loss,
        batches=batches,
        seed=seed,
        ema=ema,
        comm=comm,
        scoring_cost=cost,
        on_mask_update=on_mask_update,
    )
    attached.finite_buffers = {name for name, buffer in model.named_buffers() if bool(buffer.isfinite().all())}
    enforce.register(attached, parameters)
    if on_mask_update is not None:
        on_mask_update(attached)
    return attached.handle()


def start_masks(
    model: nn.Module,
    method: Method,
    scope: Masks,
    example_input: Any,
    seed: int,
    loss: Loss | None = None,
    batches: Batches | None = None,
) -> tuple[Masks, ScoringCost]:
    """The initial masks, picked by `method.start` at its start density, and what scoring for them cost."""
    draw = generator(seed, "start")
    density = method.start_density
    if density is None:
        density, walked = start_density(model, example_input, scope=scope, seed=draw.initial_seed())
        target = method.target_density
        if method.start is by_walks and (target is None or density <= target):
            return walked, ScoringCost()  # the same seed, scope and density: the pick would walk the same walks again
        density = density if target is None else min(density, target)
    empty = Masks.empty(scope)
    gradients = None
    if loss is not None and batches is not None:
        gradients = partial(loss_gradients, model, list(scope), loss, batches, derive(seed, "batch", "start"))
    net = NetworkView(model, empty, scope, example_input, gradients, loss=loss, batches=batches)
    masks = empty | method.pick("start", net, scope, count_at(density, scope.num), draw)
    return masks, net.scoring_cost


class Attached(PruningOptimizer):
    """A model in sparse training; returned by `attach`."""

    __slots__ = ("_held",)
    _held: tuple[Optimizer, ...]
    finite_buffers: Collection[str] = ()
    """Buffers that were finite when the method was attached; attention masks, for example, hold infinities."""

    def handle(self) -> Attached:
        """The same attachment, for users: it also keeps the optimizers alive, which hooks must not do."""
        handle = Attached.__new__(Attached)
        handle.__dict__ = self.__dict__
        handle._held = self.optimizers
        return handle

    def __repr__(self) -> str:
        state = "" if self._handles else ", detached"
        return (
            f"Attached({self.method.name}: {self.masks.num_on} of {self._num} prunable weights active, "
            f"density {100 * self.density:.3g}%, round {self.round}, step {self.step}{state})"
        )

    def summary(self) -> str:
        """What the observations say about density, and what they cannot: the dense network was not trained.

        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> attach(model, optimizer, "random_growth", torch.zeros(1, 8)).summary()
        'No density yet after 0 observations. The dense network was not trained, ... compares with dense.'
        """
        num = self._num_not_zero()
        but = f" But {num} pruned weights are not zero: others were loaded after the last step." if num else ""
        method, is_ended = self.method, self.method.num_steps is None or self.step >= self.method.num_steps
        if method.final_density is not None and (not is_ended or method.is_unfinished(self.masks.num_on, self._num)):
            return f"{method.where(round=self.round, step=self.step, density=self.density)}.{but}"
        if self.method.grow is None or self.method.clock == "step":
            return f"{100 * self.density:.3g}% density; method {self.method.name!r} does not search for one.{but}"
        answer, num = self.rule_answer(), len(self._points)
        grown = max((point.density for point in self._points), default=self.density)
        within = f"within {answer.delta:g} of the densest network grown ({100 * grown:.3g}%)"
        found = f"No density yet after {num} observation{'' if num == 1 else 's'}."
        if answer.status == "flat":
            found = f"No lower bound: even the sparsest network observed is {within}."
        if answer.density is not None and answer.interval is not None:
            low, high = (f"{100 * end:.3g}%" for end in answer.interval)
            found = (
                f"Lower bound: {100 * answer.density:.3g}% density (90% interval {low} to {high}), enough to stay "
                f"{within}."
            )
        if num > 1 and self._points[-1].score < self._points[0].score - answer.delta:
            found = "No density: scores fell. observe() takes higher scores for better ones; negate a loss."
        return (
            f"{found} The dense network was not trained, and staying within {answer.delta:g} of it may need a higher "
            f"density: pathgrow.discover compares with dense.{but}"
        )

    def _num_not_zero(self) -> int:
        """How many pruned weights hold something else, as after weights were loaded."""
        if self.method.weights is not None or not self._handles or (self._ema is not None and self._ema.swapped):
            return 0
        return enforce.num_not_zero(self.model, self._masks)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self._handles:
            # Hooks are not copied: the copy would look attached while nothing enforced its masks.
            raise UserError("an Attached cannot be copied or pickled; use state_dict()")
        return super().__reduce_ex__(protocol)

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        """Put the EMA of the weights into the model inside the block (before the first update, its own weights)."""
        if self._ema is None:
            yield
        else:
            with self._ema.swapped_in():
                if self.method.weights is not None:
                    # Effective weights that became zero are still nonzero in the EMA.
                    self.masks.apply_(self.model)
                yield

    def state_dict(self) -> dict[str, Any]:
        """Masks, clock, method state, observations and EMA, as tensors and JSON values.

        Weights and optimizer state are in the state dicts of the model and of the optimizer. The state of a training
        that has diverged is a `RunFailed`, so that it does not replace the last good checkpoint.
        """
        self.check_parameters()
        if name := self.not_finite():
            raise RunFailed(f"{name} is not finite, training has diverged: load an earlier checkpoint")
        return {
            "format": _FORMAT,
            "method": self.method.name,
            "seed": self._seed,
            "scope": self.scope.digest(),
            "masks": {name: mask.clone() for name, mask in self.masks.items()},
            "round": self.round,
            "step": self.step,
            "points": [dataclasses.asdict(point) for point in self._points],
            # As a plain string: `torch.load` refuses enums.
            "stopped": self._stopped and {"reason": str(self._stopped.reason), "details": dict(self._stopped.details)},
            "method_state": copy_method_state(self.method_state),
            "ema": None if self._ema is None else self._ema.state_dict(),
            **({"stepped": sorted(self._stepped)} if self._stepped else {}),
        }

    def not_finite(self) -> str:
        """Name of the first weight, optimizer state or buffer that became NaN or infinite, or an empty string."""
        found: list[tuple[str, Tensor]] = list(self.model.named_parameters())
        for name, weight in list(found):
            for state in (optimizer.state.get(weight, {}) for optimizer in self.optimizers):
                slots = {f"{key} of {name}": value for key, value in state.items() if isinstance(value, Tensor)}
                found += [(slot, value) for slot, value in slots.items() if value.shape == weight.shape]
        found += [(name, buffer) for name, buffer in self.model.named_buffers() if name in self.finite_buffers]
        return next((name for name, tensor in found if not bool(tensor.isfinite().all())), "")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`; nothing is changed if it belongs to another model or method."""
        self._check_ema_inactive("load_state_dict()")
        self._check_state(state)
        masks = Masks(state["masks"], self.masks.scope)
        self._check_count(masks.num_on, state["round"], state["step"] + bool(state.get("stepped")))
        points: list[Point] = check_value(state["points"], list[Point], Option(), "points")
        are_valid = all(point.round >= 0 and 0 < point.density <= 1 and point.epochs >= 0 for point in points)
        require(are_valid, "points", state["points"], "networks that were observed")
        stopped = None if state["stopped"] is None else Stop(**state["stopped"])
        self._seed = int(state["seed"])
        self.round = int(state["round"])
        self.step = int(state["step"])
        self._stepped = set(state.get("stepped", ()))
        self._points, self._stopped = points, stopped
        self._copy_masks_(masks)
        self._check_masks()
        load_method_state_(self.method_state, state["method_state"])
        if self._ema is not None:
            self._ema.load_state_dict(state["ema"])
        self._enforce_()

    def detach(self) -> None:
        """Zero the pruned weights and remove all hooks. The masks can still be read, but nothing enforces them."""
        if not self._handles:
            return  # the optimizer may be attached elsewhere by now
        self._read_latent_masks_()
        if self.step and self.method.is_unfinished(self._num_on, self._num):
            where = self.method.where(round=self.round, step=self.step, density=self.density)
            enforce.warn_of_unfinished(where, self.method.num_steps is None, self._comm)
        if num := self._num_not_zero():
            enforce.zero_pruned_(self.model, self._masks)
            enforce.warn_of_loaded(num, self._comm)
        if self.method.weights is not None:
            # The optimizer state belongs to the latent weights; the effective ones start without any.
            nothing = {name: torch.zeros_like(ones) for name, ones in self._keep.items()}
            for optimizer in self.optimizers:
                enforce.mask_optimizer_state_(optimizer, self._parameters, nothing)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.engine_cache.clear()
        self._optimizers = self.optimizers
        enforce.unregister(self, self._parameters)

    def _check_state(self, state: Any) -> None:
        keys = {"format", "method", "seed", "scope", "masks", "round", "step", "points", "stopped", "method_state"}
        stored = state.keys() - {"stepped"} if isinstance(state, Mapping) else set()
        if stored != keys | {"ema"} or not is_int(state["format"]) or state["format"] != _FORMAT:
            raise UserError("not a pathgrow state dict (expected the output of Attached.state_dict())")
        for key in ("seed", "round", "step"):
            number = checked_int(key, state[key])
            require(number >= 0 or key == "seed", key, number, "an integer >= 0")
        if not isinstance(state["method"], str) or state["method"] != self.method.name:
            raise UserError(
                f"the state dict is of method {short(state['method'])}, but method {self.method.name!r} is attached"
            )
        shapes, expected = (
            {name: mask.shape for name, mask in masks.items() if not mask.is_meta}
            for masks in (Masks(state["masks"]), self.masks)
        )
        if not isinstance(state["scope"], str) or state["scope"] != self.scope.digest() or shapes != expected:
            raise UserError("the state dict is of another model or scope")
        has_memory = self.method.init_state is not None or self.method.after_update == "rewind"
        check_method_state(state["method_state"], self._initial_state if has_memory else {})
        match state["stopped"]:
            case None | {"reason": str(), "details": Mapping()}:
                pass
            case other:
                require(False, "stopped", other, "None or a reason and its details")
        stepped = state.get("stepped", [])
        is_subset = isinstance(stepped, list) and {*map(repr, stepped)} <= {*map(repr, range(len(self._optimizers)))}
        require(is_subset, "stepped", stepped, "a list of positions of the attached optimizers")
        if (state["ema"] is None) != (self._ema is None):
            with_or_without = "without" if state["ema"] is None else "with"
            raise UserError(f"the state dict was saved {with_or_without} ema=EMA(...); attach the same way")
        if self._ema is not None:
            check_method_state(state["ema"], layout(self._ema.state_dict()), "ema")

    def _check_count(self, num_on: int, round: int, step: int) -> None:
        """Refuse masks of another density, where method, round and step determine it; fixed masks are replaced."""
        counts = self.method.counts_at(self._num, round=round, step=step)
        if num_on == 0 or (counts is not None and num_on not in counts):
            expected = "some" if not counts else " or ".join(f"{count}" for count in sorted({min(counts), max(counts)}))
            raise UserError(
                f"the masks of the state dict have {num_on} active weights, but method {self.method.name!r} as "
                f"attached has {expected} of {self._num}; attach it with the density of the state dict"
            )


# Arguments, checked before anything is written


def checked_optimizers(given: Any, method: Method) -> list[Optimizer]:
    """One optimizer or several, as a list."""
    optimizers = [enforce.unwrapped(each) for each in (given if isinstance(given, Sequence) and given else [given])]
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise UserError("an optimizer is listed twice")
    if any(optimizer in enforce.IN_USE for optimizer in optimizers):
        raise UserError("this optimizer is already attached; call detach() first")
    if len(optimizers) > 1 and method.weights is not None:
        raise UserError(f"method {method.name!r} trains latent weights and takes a single optimizer, got several")
    return optimizers


def check_unsharded(model: nn.Module) -> None:
    """Raise a `UserError` for weights without values or sharded over ranks: picks need whole tensors."""
    require_module(model)
    if meta := next((name for name, p in model.named_parameters() if p.is_meta), None):
        raise UserError(
            f"{meta!r} is on the meta device; call to_empty(device=...) and initialize the model before attach()"
        )
    # By attribute: torch.distributed takes time to import and is rarely needed.
    if sharded := next((name for name, p in model.named_parameters() if hasattr(p, "device_mesh")), None):
        raise UserError(
            f"{sharded!r} is a DTensor, sharded over ranks (FSDP2, tensor parallel), which is not supported, before or "
            "after attach(); use DistributedDataParallel"
        )


def checked_scope(model: nn.Module, scope: Mapping[str, Tensor], uncalled: Collection[str] = ()) -> Masks:
    """The scope as a selection, on the device of the weights, without those of layers that are not called."""
    if not isinstance(scope, Mapping):
        raise UserError(
            f"scope must be Masks or a mapping of name to bool tensor, got {type(scope).__name__} "
            "(e.g. pathgrow.scope(model, ...) or Masks.full(model))"
        )
    device = next((p.device for name, p in model.named_parameters() if name in scope), torch.device("cpu"))
    selection = Masks.select(scope, scope).to(device)
    selection.check(model)
    if selection.num == 0:
        raise UserError(
            f"nothing to sparsify: the scope of {type(model).__name__} is empty (e.g. scope=Masks.full(model))"
        )
    called = {name: inside for name, inside in selection.items() if name not in uncalled}
    if not any(bool(inside.any()) for inside in called.values()):
        raise UserError(f"example_input reaches no layer in the scope of {type(model).__name__}: pass another batch")
    return Masks.select(called, called) if len(called) < len(selection) else selection


def checked_parameters(model: nn.Module, optimizers: Sequence[Optimizer], scope: Masks) -> dict[str, Parameter]:
    """The weights in scope, by name, all of them owned by the optimizers."""
    named = dict(model.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    if tied := next((name for name in scope if first[id(named[name])] != name), None):
        raise UserError(
            f"the scope has {tied!r}, which is the same weight as {first[id(named[tied])]!r}; use the latter name only"
        )
    parameters = {name: named[name] for name in scope}
    owned = {id(parameter) for each in optimizers for group in each.param_groups for parameter in group["params"]}
    if not any(id(parameter) in owned for parameter in parameters.values()):
        raise UserError("the optimizer owns none of the weights in scope; create it from model.parameters()")
    if left := next((name for name, p in parameters.items() if p.requires_grad and id(p) not in owned), None):
        raise UserError(
            f"{left!r} is in scope but not owned by the optimizer; pass all optimizers as a list (optimizer=[a, b]), "
            "freeze it, or leave it out of the scope"
        )
    return parameters


def checked_method(method: Any) -> Method:
    """The method as a value."""
    if isinstance(method, str):
        return methods.create(method)
    if not isinstance(method, Method):
        raise UserError(f"method must be a name or a pathgrow.Method, got {type(method).__name__} (e.g. 'gcg')")
    return method


def checked_rule(stop: Any) -> Rule:
    """The density rule as a value."""
    if stop is None:
        return DEFAULT_RULE
    if isinstance(stop, str):
        return rules.create(stop)
    if isinstance(stop, type) or not (hasattr(stop, "decide") and hasattr(stop, "answer")):
        raise UserError(f"stop must be a density rule or its name, got {short(stop)} (e.g. 'trajectory')")
    return stop  # type: ignore[no-any-return]


def check_data(loss: object, batches: object) -> None:
    """Refuse values that cannot be a loss function and a source of batches."""
    require(loss is None or callable(loss), "loss", loss, "a function loss(model, batch)")
    is_source = batches is None or callable(batches) or (hasattr(batches, "__iter__") and not isinstance(batches, str))
    require(is_source, "batches", batches, "a loader, a list or a function that returns an iterator")


def check_needs(method: Method, loss: Loss | None, batches: Batches | None) -> None:
    """Raise a `UserError` for a method that uses gradients if they cannot be computed."""
    check_data(loss, batches)
    at_rounds = "gradients" in method.needs and method.clock == "round"
    if (at_rounds or "data" in method.needs) and (loss is None or batches is None):
        raise UserError(f"method {method.name!r} uses loss gradients; pass loss=f(model, batch) and batches=loader")
