"""Run an experiment in a folder: begin it, go on with it, or find that it is done."""

from __future__ import annotations

import os
from typing import Any

from pathgrow import data as datasets
from pathgrow import models
from pathgrow.density.curve import Answer, Verdict
from pathgrow.discovery import Discovery, Observer, Record, discover
from pathgrow.discovery.phases import Score
from pathgrow.experiment.config import Experiment
from pathgrow.runs import RunFolder
from pathgrow.train import few_threads, make_batches, make_evaluate, make_fit, make_loss, make_optimizer


def run(config: Experiment, out: str | os.PathLike[str], observer: Observer | None = None) -> dict[str, Any]:
    """The report of this experiment.

    A finished folder is read, not run again; an unfinished one goes on where it was killed and ends with the same bits.
    """
    with few_threads(config.threads), RunFolder.open(out, config.as_dict()) as folder:
        if not folder.finished:
            _work(config, folder, observer or Observer())
        return folder.report()


def _work(config: Experiment, folder: RunFolder, observer: Observer) -> None:
    dataset = datasets.load(config.data, config.data_root, 0, config.fold)
    model = models.create(config.model, dataset.classes, seed=config.seed, **config.model_options)
    found = discover(
        model,
        make_optimizer(model, config.recipe),
        make_fit(dataset.train, config.recipe),
        make_evaluate(dataset.val),
        dataset.example_input(),
        seed=config.seed,
        store=folder,
        observer=_Diary(folder, observer),
        loss=make_loss(config.recipe),
        batches=make_batches(dataset.train, config.recipe),
        **config.discovery(),
    )
    # Everything is decided: only now is the test split looked at, once.
    network, dense = found.examine(make_evaluate(dataset.test))
    _write(config, folder, found, network, dense)


def _write(config: Experiment, folder: RunFolder, found: Discovery, network: Score, dense: Score | None) -> None:
    """All files of a finished run; the report goes last, since its presence means that the others are there."""
    for round in range(len(found.rounds)):
        folder.save_masks(round, found.masks_at(round))
    observed = [("rough", found.rounds), ("probe", found.probes)]
    folder.write_curve([{"kind": kind, **record.row()} for kind, records in observed for record in records])
    weights_sha256 = folder.save_network(found.attached.model, found.masks)
    report = found.report()
    report["config"] = config.as_dict()
    report["network"]["test"] = {"score": network.score, "loss": network.loss}
    if dense is not None:
        report["dense"]["test"] = {"score": dense.score, "loss": dense.loss}
    report["weights_sha256"] = weights_sha256
    folder.write_report(report)


class _Diary(Observer):
    """Writes every new stage into the folder's metrics, and tells the next observer."""

    def __init__(self, folder: RunFolder, next: Observer) -> None:
        self._folder = folder
        self._next = next

    def stage_begins(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._folder.log(stage, event="begin", epochs=epochs, density=density)
        self._next.stage_begins(stage, epochs=epochs, density=density)

    def stage_ends(self, record: Record, *, resumed: bool) -> None:
        if not resumed:
            self._folder.log(record.stage, event="end", **record.row(), time={"seconds": record.seconds})
        self._next.stage_ends(record, resumed=resumed)

    def decided(self, verdict: Verdict, answer: Answer) -> None:
        self._next.decided(verdict, answer)
