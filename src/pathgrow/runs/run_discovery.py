"""Run an experiment in a folder: begin it, go on with it, or find that it is done."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Sequence

from pathgrow.checkpoint import MemoryStore, RunDir
from pathgrow.density import words
from pathgrow.distributed.comm import Communicator
from pathgrow.masks import Masks
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import RunReport, Score
from pathgrow.runs.callback import Callback
from pathgrow.runs.carry_out import carry_out, finished_report
from pathgrow.runs.config import DiscoverConfig, DiscoverOptions
from pathgrow.runs.diary import MetricsLogger, announce_resumption
from pathgrow.runs.discovery import discover, draw, write_findings
from pathgrow.runs.phases import Phases
from pathgrow.runs.result import Discovery
from pathgrow.trainer import Trainer
from pathgrow.trainer.feed import batches_of

_USUAL_PROBES = {"with a reference": 8, "without": 5}


def run(
    config: DiscoverConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
    """The report of this experiment.

    A finished folder is read, not run again; an unfinished one goes on where it was killed and ends with the same bits.

    Parameters
    ----------
    out
        The run folder. Where several processes work together it is on the machine of the first, which alone writes.
    progress
        Shows how the run goes, in the first process.
    team
        The processes that work together; None: those that `torchrun` started, else this one.
    """
    return carry_out(
        config, out, lambda folder, comm: _work(config, folder, progress or ProgressBar(), comm), _shown_report, comm
    )


def _shown_report(folder: RunDir) -> RunReport:
    """The report of a finished run, with its figure and page drawn."""
    draw(folder)
    return finished_report(folder)


def expected_epochs(config: DiscoverConfig, out: str | os.PathLike[str]) -> int:
    """About how many epochs are left to train in a folder; how many a rule will ask for cannot be known."""
    options = DiscoverOptions(**config.discovery())
    span = (config.target_density or 1.0) / (config.start_density or 0.05)
    num_rounds = math.ceil(math.log(max(span, 1.0)) / math.log1p(config.gamma))
    expected = options.num_seed_epochs + num_rounds * (options.num_rough_epochs or Phases.longest)
    if config.target_density is None:
        usual = _USUAL_PROBES["without" if config.reference is None else "with a reference"]
        expected += usual * options.num_probe_epochs
    if config.target_density is not None or options.num_probe_epochs < config.budget:
        expected += config.budget
    if config.reference == "dense":
        expected += config.budget
    stages = RunDir(out).stages
    done = [int((stages.metadata(stage) or {}).get("num_epochs", 0)) for stage in stages.names()]
    return max(0, expected - sum(done))


def _work(config: DiscoverConfig, folder: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
    """Discover, examine, write; only the first process has a folder."""
    dataset = config.load_data()
    if folder is not None and config.delta * len(dataset.val) < 1.0:
        warnings.warn(
            f"one of {words.counted(len(dataset.val), 'validation image')} is a step of {1 / len(dataset.val):.2g} in "
            f"the score, more than delta ({config.delta:g}): the answer will be noise, so give a larger --delta, or "
            "data with more images",
            stacklevel=2,
        )
    if folder is not None:
        announce_resumption(folder, progress, batches_of(len(dataset.train), config.recipe, config.ranks)[1])
    trainer = Trainer(
        dataset,
        config.recipe,
        config.engine,
        num_epochs=None if folder is None else expected_epochs(config, folder.path),
        on_epoch=progress.epoch,
        comm=comm,
    )
    model, optimizer = trainer.place(config.new_model(dataset.classes))
    # Without the number of validation examples (`num_val`), which would make answers more careful still: the rule was
    # tuned without it, and its intervals cover the truth without it, see docs/design/train_and_compare.md.
    found = discover(
        model,
        optimizer,
        trainer,
        trainer.evaluate(dataset.val),
        dataset.example_input().to(trainer.plan.device),
        seed=config.seed,
        store=MemoryStore() if folder is None else folder.stages,
        callback=MetricsLogger(folder, progress) if folder is not None else Callback(),
        loss=trainer.loss,
        batches=trainer.batches,
        **config.discovery(),
    )
    # Everything is decided: only now is the test split looked at, once.
    network, dense = found.examine(trainer.evaluate(dataset.test))
    masks = [found.masks_at(round) for round in range(len(found.rounds))]
    if folder is not None:
        _write(config, folder, found, masks, network, dense)


def _write(
    config: DiscoverConfig,
    folder: RunDir,
    found: Discovery,
    masks: Sequence[Masks],
    network: Score,
    dense: Score | None,
) -> None:
    """All files of a finished run; the report goes last, since its presence means that the others are there."""
    for round, grown in enumerate(masks):
        folder.save_masks(round, grown)
    weights_sha256 = folder.save_network(found.attached.model, found.masks)
    report = found.report(test=network, dense_test=dense)
    report = dataclasses.replace(report, config=config.as_dict(), weights_sha256=weights_sha256)
    write_findings(folder, found, report)
