"""The functions `pathgrow.discover` and `pathgrow.plan`: a discovery with a user's own training and evaluation."""

import dataclasses
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from pathgrow.checkpoint import RunDir, Store
from pathgrow.distributed import interrupts
from pathgrow.distributed.comm import held_by_rank0
from pathgrow.errors import RunFailed, UserError, checked_int, frames_to_the_caller, printable, require
from pathgrow.graph.calls import unreached_sentence
from pathgrow.masks import Masks
from pathgrow.report import progress as displays
from pathgrow.report.formats import ScoreFormat
from pathgrow.report.loading import unfinished
from pathgrow.runs import checks
from pathgrow.runs.discovery import search
from pathgrow.runs.fingerprint import warn_of_changed_functions
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.plan import DiscoveryPlan, make_discovery_plan
from pathgrow.runs.records import Callback, CallbackList, MetricsLogger, ProgressCallback
from pathgrow.runs.result import Discovery
from pathgrow.runs.session import Session
from pathgrow.sparse.attach import check_unsharded
from pathgrow.sparse.enforce import unwrapped
from pathgrow.trainer import Trainer
from pathgrow.trainer.interface import Evaluate, Fit, JobTrainer


def discover(
    model: nn.Module,
    optimizer: Optimizer,
    fit: Fit,
    evaluate: Evaluate,
    example_input: Any = None,
    *,
    scope: Masks | None = None,
    start_density: float | None = None,
    delta: float | str = DiscoverOptions.delta,
    reference: float | Literal["dense"] | None = None,
    budget: int = DiscoverOptions.budget,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Discovery:
    """Find the smallest density that keeps the score, and the network of that density.

    Parameters
    ----------
    model, optimizer
        The dense network with its initial weights, and the one optimizer that owns all weights in scope. On return
        `model` holds the found network; if the call fails or is interrupted, both are restored.
    fit : callable
        `fit(model, optimizer, epochs)` trains for that many epochs, including learning-rate annealing. Each call starts
        with the current learning rates of the optimizer.
    evaluate : callable
        `evaluate(model)` returns a validation score, or a pair (score, loss). Both functions may be
        called with copies of the model and its optimizer.
    example_input : optional
        One batch as the model accepts it; None: the one that the model declares, or one that fits its first layer.
    scope : Masks, optional
        True where a weight is prunable; None: `pathgrow.scope(model)` without frozen weights.
    start_density : float, optional
        Density of the seed network, if the network grows; None: the smallest of 1, 2, 3, 5% that isolates few units.
    delta : float or str
        Tolerated drop below the reference, in units of the score. "1%" is relative to the reference or, without one, to
        the score of the trained network.
    reference : float or "dense", optional
        Score of the dense baseline, or "dense" to train it. None: estimated from half of a dense training, or trained
        if that is too short to predict the final score (static masks: a dense probe on the same short schedule, or with
        `final="grown"` the densest network grown).
    budget : int
        Epochs of a full dense training; the lengths of all phases follow from it. A `fit` that counts steps, or
        anything else, has its budget in that unit: `fit(model, optimizer, steps)` is reported in steps.
    seed : int
        Determines all random choices.
    progress : bool
        Show stages, cost so far and time left, on stderr or in the notebook.
    **options
        See `pathgrow.runs.options.DiscoverOptions`. The most important ones:

        - `store`: run directory of finished stages; repeat the call with the same model, seed and options to resume,
          with bit-identical results. On return it holds report.html, the network and its masks, as after
          `pathgrow discover --out`. Without it, `found.save(DIR)` writes them.
        - `name`: name of the run in reports and tables, by default the class of the model.
        - `start`: "pretrained" keeps the weights of a trained model, prunes and fine-tunes it; its score is the
          reference. "scratch" trains on from the given weights for the whole budget, whatever they are: it does not
          initialize them again.
        - `mode`: "min" if a lower score is better (losses, error rates).
        - `callback`: a `Callback` or several, called when a stage starts or ends, after its epochs and at decisions of
          the density rule; `pathgrow.LoggingCallback()` writes to a logger.
        - `metric`: name of the score in reports, such as "MAE".
        - `num_val`: number of validation examples, if the score is an accuracy; reports then show percentages.
        - `finish`: instead of pruning a trained network, "static" trains the masks of growth rounds, as in the paper,
          and a method such as "set" or "gmp:score=lamp" trains networks at their densities. With a list of these, each
          searches in turn, the sparsest network whose check is not "missed" is returned, and `.by_finisher` compares
          them.
        - `preset`: "paper" for the procedure of the paper as written; options passed explicitly take
          precedence.
        - `max_density`: never hold more than this fraction of the weights; below 1 the network grows up to it.
        - `max_cost`: cost limit in dense trainings of a search that prunes: 1 by default, 2 with a reference. With
          `max_cost` unset or at least 2, a dense baseline may be trained for the whole budget, and the search may then
          cost 3 (or `max_cost`).
        - `method`, `gamma`: growth method, and the fraction of the nonzero weights added per growth round.
        - `rule`, `rough`, `seed_epochs`, `probe_fraction`, `final`: with static masks only, the density rule, the
          lengths of a growth round, of the seed training and of a probe, and the initial weights of probes ("fresh" or
          "grown").
        - `loss`, `batches`: `loss(model, batch)` and training batches, for methods that use gradients.
        - `comm`: the process group of distributed training; all ranks call `discover` alike.

    Returns
    -------
    Discovery
        `.operating_density` with its `.interval`, `.gain_density`, the `.density` of the returned network, `.check`,
        which compares it with dense, the `.cost` of the call, and more.

    Examples
    --------
    How dense must a small network be to tell whether two numbers have the same sign?

    >>> import torch
    >>> from pathgrow.runs.records import Callback
    >>> _ = torch.manual_seed(0)
    >>> inputs = torch.randn(512, 8)
    >>> labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    >>> model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    >>> def fit(model, optimizer, epochs):
    ...     schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    ...     for _ in range(epochs):
    ...         for batch in torch.randperm(384).split(64):
    ...             optimizer.zero_grad()
    ...             nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
    ...             optimizer.step()
    ...         schedule.step()
    >>> def evaluate(model):
    ...     with torch.no_grad():
    ...         return float((model(inputs[384:]).argmax(1) == labels[384:]).float().mean())
    >>> class Announcer(Callback):
    ...     def on_stage_end(self, record, *, resumed):
    ...         if record.stage == "train-2":
    ...             print("network trained, pruning begins")
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> found = discover(
    ...     model, optimizer, fit, evaluate, inputs[:1], delta=0.05, budget=60, num_val=128, callback=Announcer(),
    ...     progress=False,
    ... )
    network trained, pruning begins
    >>> found
    Discovery(Operating density (within 5 pp of dense): ...;
      returned model: density ..., accuracy ...% after ... epochs, ...; ... pruned, ... finished)
    >>> bool((model[0].weight[~found.masks["0.weight"]] == 0).all())
    True
    """
    require(isinstance(progress, bool), "progress", progress, "True or False")
    began = time.perf_counter()
    chosen = DiscoverOptions.checked(
        {"start_density": start_density, "delta": delta, "reference": reference, "budget": budget, **options}
    ).with_comm_of(fit)
    chosen = dataclasses.replace(chosen, name=chosen.name or type(model).__name__, unit=_unit(chosen, fit))
    assert chosen.comm is not None
    is_shown = progress and chosen.comm.rank == 0
    # Bars would be torn by what a function of the user prints.
    shown = displays.create(bars=isinstance(fit, JobTrainer)) if is_shown else displays.ProgressBar()
    shown.unit = chosen.unit or shown.unit
    if chosen.num_val or chosen.metric:
        default = "error rate" if chosen.mode == "min" else "accuracy"
        shown.scores = ScoreFormat(bool(chosen.num_val), printable(chosen.metric or default))
    # Within a `fit` of the user nothing can be saved, and its own handling of Ctrl-C must not see other signals.
    can_save = isinstance(fit, JobTrainer) and chosen.store is not None
    signals = interrupts.save_on_signal() if can_save else nullcontext()
    with signals, closing(shown), _opened(chosen, seed, model) as (store, run_dir):
        callbacks: list[Callback] = [] if run_dir is None else [MetricsLogger(run_dir)]
        callbacks += [ProgressCallback(shown), *chosen.callbacks]
        if run_dir is not None and (num_stages := len(unfinished(run_dir).results)):
            shown.resumes(num_stages, {}, "" if isinstance(fit, JobTrainer) else _REUSED)
        session = _session(model, optimizer, fit, evaluate, example_input, scope, seed, store, callbacks, chosen)
        if session.is_kept:
            warn_of_changed_functions(session, fit=fit, evaluate=evaluate)
        if chosen.start is None and chosen.prunes:
            checks.refuse_trained(session, chosen)
        if chosen.start == "pretrained":
            chosen = checks.resolve_start(session, chosen)
        found = search(session, chosen)
        if chosen.store is None:
            found = dataclasses.replace(found, run_seconds=time.perf_counter() - began)
        _write(found, run_dir)
    return found


def plan(
    model: nn.Module,
    optimizer: Optimizer,
    fit: Fit,
    evaluate: Evaluate,
    example_input: Any = None,
    *,
    scope: Masks | None = None,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> DiscoveryPlan:
    """Return what `discover` will do with the same arguments: layers, trainings, cost, time and memory.

    Nothing is trained or written. If `fit` is a `Trainer`, a few steps and one evaluation of a copy are timed.
    Otherwise `fit` and `evaluate` are not called.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> def fit(model, optimizer, epochs): ...
    >>> planned = plan(model, optimizer, fit, lambda model: 0.5, torch.zeros(1, 8), budget=40)
    >>> planned.scope, planned.left_out
    ({'0.weight': 256, '2.weight': 1024}, {'4.weight': (64, 'output layer')})
    >>> print(planned)
    Plan: Sequential
    Prunable: 1,280 of 1,410 parameters, in 2 layers
    ...
    """
    require(isinstance(progress, bool), "progress", progress, "True or False")
    chosen = DiscoverOptions.checked(options).with_comm_of(fit)
    chosen = dataclasses.replace(chosen, unit=_unit(chosen, fit))
    session = _session(model, optimizer, fit, evaluate, example_input, scope, seed, None, [], chosen)
    trainer = fit if isinstance(fit, Trainer) else None
    return make_discovery_plan(session, chosen, trainer=trainer, is_scope_given=scope is not None)


_REUSED = "They are used as they are; whether data that fit loads itself has changed since cannot be checked."


def _unit(options: DiscoverOptions, fit: Fit) -> str:
    return options.unit or ("epochs" if isinstance(fit, JobTrainer) else checks.unit_of(fit))


def _session(
    model: nn.Module,
    optimizer: Optimizer,
    fit: Fit,
    evaluate: Evaluate,
    example_input: Any,
    scope: Masks | None,
    seed: int,
    store: Store | None,
    callbacks: Sequence[Callback],
    options: DiscoverOptions,
) -> Session:
    """The session of a call, checked."""
    assert options.comm is not None
    checks.check_functions(fit, evaluate)
    require(checked_int("seed", seed) >= 0, "seed", seed, ">= 0")
    checks.check_optimizer(optimizer)
    if callable(options.final_epochs):
        checks.check_signature(options.final_epochs, "final_epochs", "records")
    check_unsharded(model)
    session = Session(
        model,
        unwrapped(optimizer),
        fit,
        evaluate,
        example_input,
        scope=scope,
        seed=seed,
        store=store,
        callback=CallbackList(callbacks),
        loss=options.loss,
        batches=options.batches,
        use_ema=options.eval_weights == "ema",
        comm=options.comm,
        needs_paths=False,
    )
    if not session.has_paths:
        checks.refuse_paths(model, options)
    checks.check_owned(session)
    if session.uncalled:
        session.warnings.append(unreached_sentence(model, session.uncalled))
    return session


@contextmanager
def _opened(options: DiscoverOptions, seed: int, model: nn.Module) -> Iterator[tuple[Store | None, RunDir | None]]:
    """Open the store of a discovery; a run directory is locked on rank 0."""
    place = options.store
    if not isinstance(place, str | os.PathLike):
        yield place, None
        return
    assert options.comm is not None
    with held_by_rank0(options.comm, lambda: options.open_run(place, seed, model)) as run_dir:
        yield None if run_dir is None else run_dir.stages, run_dir


def _write(found: Discovery, run_dir: RunDir | None) -> None:
    """Write network and report of a discovery to its run directory, if it has one."""
    if not isinstance(found.options.store, str | os.PathLike):
        return
    try:
        found.write_to(run_dir, found.report())
    except (UserError, RunFailed, OSError) as error:
        # The result of hours of training is worth more than a page about it.
        warnings.warn(
            f"the discovery finished, but writing its report failed: {error}", stacklevel=frames_to_the_caller()
        )
