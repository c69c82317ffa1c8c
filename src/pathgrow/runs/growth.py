"""Growth to a given density: the discovery loop with a target, so that no density has to be found."""

from __future__ import annotations

from collections.abc import Sequence

from pathgrow.runs.bench import Bench
from pathgrow.runs.config import DiscoverOptions
from pathgrow.runs.discovery import discover
from pathgrow.runs.plan import Plan
from pathgrow.runs.records import Record
from pathgrow.runs.result import Discovery


def grow(bench: Bench, plan: Plan) -> Discovery:
    """Train the seed, the rounds and the final network; their lengths follow from `plan.epochs`, the budget.

    Where FLOPs are matched, the last training spends what growth has left of them: masks no longer change in it, so its
    cost is known.
    """
    config, trainer = bench.config, bench.trainer

    def for_what_is_left(records: Sequence[Record]) -> int:
        assert plan.budget is not None
        spent = sum(record.num_samples * record.sample_flops + record.growth_flops for record in records)
        an_epoch = records[-1].sample_flops * bench.batch_size * bench.steps_per_epoch
        return max(1, round((plan.budget - spent) / an_epoch))

    return discover(
        bench.model,
        bench.optimizer,
        trainer,
        trainer.evaluate(bench.dataset.val),
        bench.example_input,
        scope=bench.scope,
        seed=config.seed,
        budget=plan.epochs,
        final_epochs=for_what_is_left if plan.match == "flops" else None,
        target_density=config.density,
        method=bench.make_method(plan.epochs),
        gamma=config.method_options.get("gamma", DiscoverOptions.gamma),
        store=bench.store,
        callback=bench.callback,
        loss=trainer.loss,
        batches=trainer.batches,
        comm=bench.comm,
    )
