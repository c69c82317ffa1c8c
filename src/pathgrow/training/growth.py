"""Growth to a given density: the discovery loop, which asks no question where the density is known."""

from __future__ import annotations

from typing import Any

from pathgrow.discovery import Discovery, Observer, Record, discover
from pathgrow.discovery.options import Options
from pathgrow.training.bench import Bench
from pathgrow.training.plan import Plan


def grow(bench: Bench, plan: Plan) -> Discovery:
    """Seed, rounds and the network trained out; `plan.epochs` is the budget that their lengths follow from.

    Where FLOPs are matched, the last training is as long as what growth has left of them: masks no longer change in it,
    so its price is known.
    """
    if plan.match != "flops":
        return _discovered(bench, plan, bench.observer, budget=plan.epochs)
    assert plan.budget is not None
    usual = Options(budget=plan.epochs)
    lengths = {"seed_epochs": usual.num_seed_epochs, "rough": usual.num_rough_epochs}
    watching = _UpToTheLast(bench.observer)
    try:
        return _discovered(bench, plan, watching, budget=plan.epochs, **lengths)  # the last training was stored
    except _Grown:
        # A discovery that was broken off goes on from its stages, and what is not there yet may be of another length.
        spent = sum(record.num_samples * record.sample_flops + record.growth_flops for record in watching.records)
        an_epoch = watching.records[-1].sample_flops * bench.batch_size * bench.steps_per_epoch
        epochs = max(1, round((plan.budget - spent) / an_epoch))
        return _discovered(bench, plan, bench.observer, budget=epochs, **lengths)


def _discovered(bench: Bench, plan: Plan, observer: Observer, **options: Any) -> Discovery:
    config, trainer = bench.config, bench.trainer
    return discover(
        bench.model,
        bench.optimizer,
        trainer,
        trainer.evaluate(bench.dataset.val),
        bench.example_input,
        scope=bench.scope,
        seed=config.seed,
        target_density=config.density,
        method=bench.make_method(plan.epochs),
        gamma=config.method_options.get("gamma", Options.gamma),
        store=bench.store,
        observer=observer,
        loss=trainer.loss,
        batches=trainer.batches,
        team=bench.team,
        **options,
    )


class _Grown(Exception):
    """The network has the density that was asked for."""


class _UpToTheLast(Observer):
    """Tells another observer, and breaks off before the network is trained out."""

    def __init__(self, other: Observer) -> None:
        self._other = other
        self.records: list[Record] = []

    def stage_begins(self, stage: str, *, epochs: int | None, density: float) -> None:
        if stage == "final":
            raise _Grown
        self._other.stage_begins(stage, epochs=epochs, density=density)

    def stage_ends(self, record: Record, *, resumed: bool) -> None:
        self.records.append(record)
        self._other.stage_ends(record, resumed=resumed)
