"""Discovery: run the search that the options select, forecast it, and run it as the command."""

import dataclasses
import os
import warnings
from functools import partial

from pathgrow.checkpoint import RunDir
from pathgrow.distributed import interrupts
from pathgrow.distributed.comm import Communicator
from pathgrow.methods.growth import without_paths
from pathgrow.report.formats import ScoreFormat
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import RunReport
from pathgrow.runs import checks
from pathgrow.runs.command import open_session, run_in
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.finishers import search_by_each
from pathgrow.runs.forecast import expected_stages, search_forecast
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.result import Discovery, draw_figures
from pathgrow.runs.session import Session
from pathgrow.runs.shrinking import ShrinkingTrunk, ShrinkSearch
from pathgrow.runs.static_search import StaticSearch
from pathgrow.runs.trunk import GrowingTrunk


def search(session: Session, options: DiscoverOptions) -> Discovery:
    """Run the search of a session, with each of its finishers; a failure restores its model and optimizer."""
    check_methods(session, options)
    session.warn_of_kept()
    session.warn(checks.least_cost_warning(options))
    session.holds_fractions = options.num_val is not None
    session.callback.on_run_start(search_forecast(session, options))
    by_each = _search if len(options.finishers) == 1 else partial(search_by_each, search=_search)
    try:
        found = by_each(session, options)
    finally:
        session.restore_modes_()
    return dataclasses.replace(found, warnings=tuple(dict.fromkeys((*session.warnings, *found.warnings))))


def check_methods(session: Session, options: DiscoverOptions) -> None:
    """Refuse methods and rules that cannot be created, or that use gradients of a loss that was not passed."""
    for name in options.finishers:
        if (method := dataclasses.replace(options, finish=name).finishing_method) is not None:
            session.check_needs(method.at(1.0, num_steps=1))
    if options.probes:
        options.density_rule()
    if options.probes or options.max_density < 1:
        session.check_needs(options.growth_method())


def _search(session: Session, options: DiscoverOptions) -> Discovery:
    """Search with a single finisher."""
    trunk: GrowingTrunk | ShrinkingTrunk
    if options.prunes:
        trunk = ShrinkingTrunk(session, options)
    else:
        method = options.growth_method()
        trunk = GrowingTrunk(session, options, method if session.has_paths else without_paths(method))
    try:
        with interrupts.save_if_interrupted():
            if isinstance(trunk, GrowingTrunk):
                return _checked(StaticSearch(trunk, options).run())
            found = ShrinkSearch(trunk, options).run()
        session.warn(checks.improved_warning(found.options, found.curve))
        return dataclasses.replace(found, warnings=tuple(session.warnings))
    except BaseException:
        trunk.restore_()
        raise


def _checked(found: Discovery) -> Discovery:
    """The result with a comparison with a dense score, if there is one and its rule has not compared them."""
    answer = found.answer
    if found.check is not None or answer.status == "unlearned" or answer.reference is None:
        return found
    return found.compared_with(answer.reference, answer.delta)


# The command `pathgrow discover`


def run_discovery(
    config: DiscoverConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
    """Run a discovery in a run directory and return its report; for the parameters, see `run_in`."""
    return run_in(config, out, _discover, progress, comm, draw_figures)


def expected_epochs(config: DiscoverConfig, out: str | os.PathLike[str]) -> int:
    """Estimate how many epochs are left to train."""
    expected = sum(stage.count * stage.epochs for stage in expected_stages(DiscoverOptions(**config.search())))
    stages = RunDir(out).stages
    done = [stages.number(stage, "num_epochs") for stage in stages.names()]
    return max(0, expected - sum(done))


def _discover(config: DiscoverConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
    """Search, test, write; only rank 0 has a run directory."""
    options = DiscoverOptions(**config.search(), comm=comm)
    session, trainer = open_session(
        config,
        run_dir,
        progress,
        comm,
        num_epochs=None if run_dir is None else expected_epochs(config, run_dir.path),
        use_ema=options.eval_weights == "ema",
    )
    notes, num_val = [], len(trainer.data.val)
    is_accuracy = config.mode == "max"
    if is_accuracy and config.delta * num_val < 1.0:
        delta = f"{100 * config.delta:g}%" if config.delta_is_relative else f"{config.delta:g}"
        notes.append(
            f"delta ({delta}) is less than one of the {num_val} validation examples "
            f"({1 / num_val:.2g}), so the answer will be noise; use a larger --delta or more data"
        )
        if run_dir is not None:
            warnings.warn(notes[0], stacklevel=2)
    if is_accuracy:
        options, progress.scores = dataclasses.replace(options, metric="accuracy"), ScoreFormat(True, "accuracy")
    if is_accuracy and options.prunes:
        # Static masks: without it, since their rule was tuned without it, see docs/design/train_and_compare.md.
        options = dataclasses.replace(options, num_val=num_val)
    found = search(session, options)
    # Everything is decided: only now is the test split used, once.
    test, dense_test = found.examine(trainer.evaluate(trainer.data.test))
    report = found.report(test=test, dense_test=dense_test)
    found.write_to(
        run_dir, dataclasses.replace(report, config=config.as_dict(), notes=(*notes, *report.notes)), draws=False
    )
