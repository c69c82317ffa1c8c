"""Growth to a given density: the discovery loop, which asks no question where the density is known."""

from __future__ import annotations

from pathgrow.discovery import Discovery, discover
from pathgrow.discovery.options import Options
from pathgrow.training.bench import Bench


def grow(bench: Bench, epochs: int) -> Discovery:
    """Seed, rounds and the network trained out; `epochs` is the budget that the lengths of all of them follow from."""
    config, trainer = bench.config, bench.trainer
    return discover(
        bench.model,
        bench.optimizer,
        trainer,
        trainer.evaluate(bench.dataset.val),
        bench.example_input,
        scope=bench.scope,
        seed=config.seed,
        budget=epochs,
        target_density=config.density,
        method=bench.make_method(epochs),
        gamma=config.method_options.get("gamma", Options.gamma),
        store=bench.store,
        observer=bench.observer,
        loss=trainer.loss,
        batches=trainer.batches,
        team=bench.team,
    )
