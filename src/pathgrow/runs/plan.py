"""What a discovery will do: layers, trainings, cost, time and memory, before anything is trained."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow.checkpoint import MemoryStore
from pathgrow.checkpoint.manifest import check_entries
from pathgrow.distributed.comm import SINGLE_PROCESS
from pathgrow.errors import printable
from pathgrow.graph.calls import left_out, run_on
from pathgrow.graph.inputs import guess_example_input
from pathgrow.graph.running import eager_eval, num_samples
from pathgrow.masks import Masks
from pathgrow.methods.method import fixed
from pathgrow.report.formats import duration, flops, percent, plural, size, stage_label
from pathgrow.report.progress import ProgressBar
from pathgrow.rng import seeded_globals
from pathgrow.runs import checks
from pathgrow.runs.command import open_session, using_threads
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.discovery import check_methods
from pathgrow.runs.forecast import search_forecast
from pathgrow.runs.options import MIN_DIVIDED_BUDGET, DiscoverOptions
from pathgrow.runs.records import SearchForecast
from pathgrow.runs.session import Session
from pathgrow.trainer import Trainer
from pathgrow.trainer.feed import epoch_batches
from pathgrow.trainer.interface import Job

_MAX_LAYERS_SHOWN = 8
"""Layers that the text of a plan lists one by one."""
_MEASURED_STEPS = 10
_LEAST, _MOST = 0.6, 1.3
"""What searches by growth have cost on digits, relative to their plans."""


@dataclass(frozen=True, kw_only=True)
class DiscoveryPlan:
    """What a discovery will probably do; `print` it, or read its fields."""

    name: str
    scope: Mapping[str, int]
    """Prunable weights of each layer."""
    left_out: Mapping[str, tuple[int, str]]
    """Weights of layers that stay dense, and the reason."""
    num_parameters: int
    """All parameters of the model."""
    forecast: SearchForecast
    """The trainings to come."""
    max_cost: float | None
    """The most it may cost, in dense trainings, with a dense baseline if one is trained; None: its rule decides."""
    usual_limit: float | None
    """The same if half of the training predicts the final score."""
    num_samples: int | None
    """Training samples per epoch; None: only the user's `fit` knows."""
    batch_size: int | None
    seconds: float | None
    """How long all trainings and evaluations will take, from measured steps; None: unknown for a user's `fit`."""
    state_bytes: int | None
    """Memory of weights, gradients and optimizer state; None: unknown for this optimizer."""
    sample_bytes: int | None
    """Memory of what the backward pass of one sample keeps; None: unknown for this model."""
    kept_bytes: int | None
    """Size of the stages that are kept until the end."""
    is_on_disk: bool
    """Whether they are kept in a run directory."""
    unit: str = "epochs"
    """What lengths are counted in."""

    @property
    def cost(self) -> float:
        """Training FLOPs, in dense trainings."""
        return self.forecast.cost

    @property
    def training_flops(self) -> float | None:
        """Training FLOPs; None without the number of samples."""
        if self.num_samples is None:
            return None
        return self.cost * self.forecast.budget * self.num_samples * self.forecast.dense_flops

    def __str__(self) -> str:
        prunable = f"{sum(self.scope.values()):,} of {self.num_parameters:,} parameters"
        lines = [f"Plan: {printable(self.name)}", f"Prunable: {prunable}, in {plural(len(self.scope), 'layer')}"]
        lines += _listed([f"  {printable(name)}: {number:,}" for name, number in self.scope.items()])
        lines.append("Left out:")
        lines += _listed(
            [f"  {printable(name)}: {number:,} ({reason})" for name, (number, reason) in self.left_out.items()]
        )
        others = self.num_parameters - sum(self.scope.values()) - sum(number for number, _ in self.left_out.values())
        lines.append(f"  other parameters: {others:,} (biases, norms, embeddings and the like are never pruned)")
        whole, unit = self.forecast, self.unit.removesuffix("s")
        lines.append(f"Trainings: about {whole.num_stages}, {plural(whole.num_epochs, unit)} in all{self._searches()}")
        for stage in whole.stages:
            length = f"{stage.count} x {plural(stage.epochs, unit)} at {percent(stage.density)} density"
            name = stage.kind if stage.finisher is None else f"{stage.kind}--{stage.finisher}"
            lines.append(f"  {stage_label(name)}: {length}, {whole.cost_of(stage):.2f} dense trainings")
        total = "" if self.training_flops is None else f", {flops(self.training_flops)}"
        sample = f"one dense training sample is {flops(whole.dense_flops)}"
        limit = f" ({self._limit()})"
        lines.append(f"Cost: about {self.cost:.2f} dense trainings{limit}{total}; {sample}")
        unknown = f"unknown before the first training, since only your fit knows how long {self.unit} take"
        lines.append(f"Time: {unknown if self.seconds is None else f'about {duration(self.seconds)}'}")
        return "\n".join([*lines, f"Memory: {self._memory()}"])

    def _searches(self) -> str:
        """What each of several finishers adds to the sum."""
        costs: dict[str, float] = {}
        for stage in self.forecast.stages:
            if stage.finisher is not None:
                costs[stage.finisher] = costs.get(stage.finisher, 0.0) + self.forecast.cost_of(stage)
        listed = ", ".join(f"{printable(name)} {cost:.2f}" for name, cost in costs.items())
        return f"; each finisher searches from the beginning ({listed} dense trainings)" if costs else ""

    def _limit(self) -> str:
        if self.max_cost is None or self.usual_limit is None:
            return f"{_LEAST * self.cost:.2g} to {_MOST * self.cost:.2g} in most measured searches; no limit"
        limit = f"at most {self.usual_limit:g}"
        if self.max_cost > self.usual_limit:
            too_short = "half of the training is too short to predict the final score"
            limit += f"; up to {self.max_cost:g} with a dense baseline if {too_short}, unless max_cost is less"
        if self.forecast.budget < checks.MIN_SEARCH_BUDGET:
            limit += f", but no training is shorter than one {self.unit.removesuffix('s')}"
        return limit

    def _memory(self) -> str:
        parts = [f"{_known(self.state_bytes)} for weights, gradients and optimizer"]
        batch = ""
        if self.sample_bytes is not None and self.batch_size is not None:
            batch = f" ({size(self.sample_bytes * self.batch_size)} for a batch of {self.batch_size})"
        parts.append(f"{_known(self.sample_bytes)} of activations per sample{batch}")
        where = "in the run directory" if self.is_on_disk else "in memory; store=DIR keeps them on disk"
        parts.append(f"up to {_known(self.kept_bytes)} of finished stages {where}")
        return ", ".join(parts)


def make_discovery_plan(
    session: Session, options: DiscoverOptions, *, trainer: Trainer | None = None, is_scope_given: bool = False
) -> DiscoveryPlan:
    """Return the plan of a discovery; with `trainer`, which will train it, its time is measured.

    What the discovery would refuse before it trains is refused here.
    """
    check_methods(session, options)
    if isinstance(place := options.store, str | os.PathLike):
        session.comm.on_rank0(lambda: check_entries(Path(place)))
    whole, model = search_forecast(session, options), session.model
    outside = left_out(
        model,
        session.graph,
        session.scope,
        uncalled=session.uncalled,
        is_given=is_scope_given,
    )
    batch_size = num_samples = seconds = None
    if trainer is not None:
        batch_size, num_steps = epoch_batches(len(trainer.data.train), trainer.recipe, trainer.comm.size)
        num_samples, seconds = batch_size * num_steps, _seconds(session, trainer, num_steps, whole)
    weights = _bytes(dict(model.named_parameters()))
    slots = _optimizer_bytes(*session.untrained_copy())
    # Rounds may start again from any pruned network, so all of them are kept; growth needs the latest only.
    num_kept = whole.num_stages if options.prunes else 2
    baseline = 1 if options.reference == "dense" else 0
    limits = options.highest_cost, options.highest_cost if options.budget < MIN_DIVIDED_BUDGET else options.cost_limit
    # The rule of probes has no such limit.
    most, usual = (None if options.probes else len(options.finishers) * limit + baseline for limit in limits)
    return DiscoveryPlan(
        name=options.name or type(model).__name__,
        scope={name: int(inside.count_nonzero()) for name, inside in session.scope.items()},
        left_out=outside,
        num_parameters=session.num_parameters,
        forecast=whole,
        unit=options.unit or "epochs",
        max_cost=most,
        usual_limit=usual,
        num_samples=num_samples,
        batch_size=batch_size,
        seconds=seconds,
        state_bytes=None if slots is None else 2 * weights + slots,
        sample_bytes=_activation_bytes(session),
        kept_bytes=None if slots is None else num_kept * (weights + slots) + whole.num_stages * session.scope.num,
        is_on_disk=options.store is not None,
    )


def plan_command(config: DiscoverConfig) -> DiscoveryPlan:
    """Return the plan of `pathgrow discover` with this config; loads the data and writes nothing."""
    config = config.resolved()
    assert config.threads is not None
    on_disk = MemoryStore()  # stands for the run directory, which is not known
    options = DiscoverOptions(**config.search(), comm=SINGLE_PROCESS, store=on_disk, name=config.title)
    with using_threads(config.threads), config.engine.resolve().flags_between_trainings():
        session, trainer = open_session(config, None, ProgressBar(), SINGLE_PROCESS, num_epochs=None)
        return make_discovery_plan(session, options, trainer=trainer)


def _seconds(session: Session, trainer: Trainer, num_steps: int, whole: SearchForecast) -> float:
    """Time of all trainings: of the last steps of an epoch, on a copy, and of an evaluation after each stage.

    Masks are enforced at any density by steps of the same size, so the density does not matter.
    """
    model, optimizer = session.untrained_copy()
    attached = session.attach(model, optimizer, fixed(Masks.full(model, session.scope)))

    def measured(steps: int) -> float:
        began = time.perf_counter()
        trainer.train([Job(attached=attached, epochs=1, seed=0, first_step=num_steps - steps)])
        return time.perf_counter() - began

    try:
        more = min(_MEASURED_STEPS, num_steps - 1)
        measured(1)  # allocates, compiles and captures
        once = measured(1)
        several = measured(1 + more)
        # On a busy machine a single step may take longer than several.
        step = (several - once) / more if several > once else several / (1 + more)
        began = time.perf_counter()
        session.score(attached, "plan")
        evaluation = time.perf_counter() - began
    finally:
        attached.detach()
    return whole.num_epochs * num_steps * step + whole.num_stages * evaluation


def _bytes(tensors: Mapping[Any, Any]) -> int:
    return sum(value.nbytes for value in tensors.values() if isinstance(value, Tensor))


def _optimizer_bytes(model: nn.Module, optimizer: Optimizer) -> int | None:
    """State of an optimizer after its first step; changes the model."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    with suppress(RuntimeError, TypeError, ValueError):
        try:
            optimizer.step()
        except TypeError:  # LBFGS and others evaluate the loss themselves
            optimizer.step(lambda: torch.zeros(()))  # type: ignore[arg-type, return-value]
        return sum(_bytes(slots) for slots in optimizer.state.values() if isinstance(slots, Mapping))
    return None


def _activation_bytes(session: Session) -> int | None:
    """What autograd keeps of one sample, each storage once and weights not at all."""
    model, _ = session.untrained_copy()
    example = session.example_input if session.example_input is not None else guess_example_input(model)
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if (place := storage.data_ptr()) not in weights:
            kept[place] = max(kept.get(place, 0), min(tensor.nbytes, storage.nbytes()))  # it may be a view
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with suppress(RuntimeError, TypeError, ValueError), eager_eval(model), seeded_globals(session.seed, "plan"), hooks:
        output = run_on(model, example)  # while it lives, no address is used twice
        found, _ = round(sum(kept.values()) / num_samples(example)), output
        return found
    return None


def _known(number: int | None) -> str:
    return "an unknown number of bytes" if number is None else size(number)


def _listed(lines: list[str]) -> list[str]:
    more = len(lines) - _MAX_LAYERS_SHOWN
    return lines if more <= 1 else [*lines[:_MAX_LAYERS_SHOWN], f"  and {more} more"]
