"""The command `pathgrow discover`: a discovery with a built-in dataset, model and trainer in a run directory."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings

from pathgrow.checkpoint import RunDir
from pathgrow.distributed.comm import Communicator
from pathgrow.methods.method import GrowEachRound
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import RunReport
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.discovery import draw, search, write_results
from pathgrow.runs.launch import open_session, run_in
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.session import MAX_ADAPTIVE_EPOCHS

_USUAL_PROBES = {"reference": 8, "no reference": 5}


def run(
    config: DiscoverConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
    """Run a discovery in a run directory and return its report.

    A finished run is not repeated; an interrupted one resumes and ends with the same bits.

    Parameters
    ----------
    out
        The run directory. In distributed training only rank 0 writes to it.
    progress
        Progress display, used by rank 0.
    comm
        The ranks of the run; None: those that `torchrun` started, or a single process.
    """
    return run_in(
        config,
        out,
        lambda config, run_dir, comm: _discover(config, run_dir, progress or ProgressBar(), comm),
        comm,
        draw,
    )


def expected_epochs(config: DiscoverConfig, out: str | os.PathLike[str]) -> int:
    """Estimate how many epochs are left to train; the number of probes is up to the rule."""
    options = DiscoverOptions(**config.search())
    schedule = options.growth_method().schedule
    gamma = schedule.gamma if isinstance(schedule, GrowEachRound) else GrowEachRound.gamma
    num_rounds = math.ceil(-math.log(config.start_density or 0.05) / math.log1p(gamma))
    expected = options.num_seed_epochs + num_rounds * (options.num_rough_epochs or MAX_ADAPTIVE_EPOCHS)
    expected += _USUAL_PROBES["no reference" if config.reference is None else "reference"] * options.num_probe_epochs
    if options.num_probe_epochs < config.budget:
        expected += config.budget
    if config.reference == "dense":
        expected += config.budget
    stages = RunDir(out).stages
    done = [int((stages.metadata(stage) or {}).get("num_epochs", 0)) for stage in stages.names()]
    return max(0, expected - sum(done))


def _discover(config: DiscoverConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
    """Search, test, write; only rank 0 has a run directory."""
    # Without the number of validation examples (`num_val`), which would make answers more cautious still: the rule was
    # tuned without it, and its intervals cover the truth without it, see docs/design/train_and_compare.md.
    options = DiscoverOptions(**config.search(), comm=comm)
    session, trainer = open_session(
        config,
        run_dir,
        progress,
        comm,
        num_epochs=None if run_dir is None else expected_epochs(config, run_dir.path),
        use_ema=options.eval_weights == "ema",
    )
    num_val = len(trainer.data.val)
    if run_dir is not None and config.delta * num_val < 1.0:
        warnings.warn(
            f"delta ({config.delta:g}) is less than one of the {num_val} validation examples "
            f"({1 / num_val:.2g}), so the answer will be noise; use a larger --delta or more data",
            stacklevel=2,
        )
    found = search(session, options)
    # Everything is decided: only now is the test split used, once.
    test, dense_test = found.examine(trainer.evaluate(trainer.data.test))
    masks = [found.masks_at(round) for round in range(len(found.rounds))]
    if run_dir is None:
        return
    for round, grown in enumerate(masks):
        run_dir.save_masks(round, grown)
    weights_sha256 = run_dir.save_network(found.attached.model, found.masks)
    report = found.report(test=test, dense_test=dense_test)
    report = dataclasses.replace(report, config=config.as_dict(), weights_sha256=weights_sha256)
    write_results(run_dir, found, report)
