"""What a report has to hold for us to show it: everything that is computed with, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pathgrow.report.shape import Shape, listing, nullable, number, table, text, whole

_SHARE, _DENSITY, _COST = number(0, 1), number(most=1, above=0), number(0)
_DENSITIES = nullable(listing(nullable(_COST), 2))
"""An interval; its ends may be open."""
_SCORED = table({"score": number()}, {"loss": nullable(number())})
_PHASE = table(
    {"phase": text, "epochs": whole(0), "samples": whole(0), "density": _SHARE, "training_flops": whole(0)},
    {"epochs_trained": _COST},
)


def _network(scores: Mapping[str, Shape]) -> Shape:
    parts = table(
        {
            "density": _SHARE,
            "density_model": _SHARE,
            "num_on": whole(0),
            "num": whole(1),
            "epochs": whole(0),
            **scores,
        },
        {"round": nullable(whole(-1)), "test": nullable(_SCORED)},
    )

    def check(network: Any, at: str) -> str | None:
        if (found := parts(network, at)) is not None:
            return found
        num_on, num = network["num_on"], network["num"]
        return f"has {num_on} of {num} weights as '{at}.num_on'" if num_on > num else None

    return check


def _fit(fit: Any, at: str) -> str | None:
    """The columns of the fitted curve, which have to be equally long."""
    column = listing(number())
    found = table({name: column for name in ("density", "score", "low", "high")}, {"cautious": column})(fit, at)
    lengths = {len(values) for values in fit.values()} if found is None else {2}
    return found if len(lengths) == 1 and min(lengths) > 1 else f"has columns of unequal lengths, or none, in '{at}'"


TRAINING = table(
    {
        "config": table({"method": text, "match": text, "epochs": whole(1), "seed": whole(0)}),
        "network": _network({"val": _SCORED, "test": nullable(_SCORED)}),
        "flops": table({"inference_relative": _COST}),
        "ledger": table(
            {"phases": listing(_PHASE), "training_flops": number(above=0), "relative": _COST},
            {
                "samples": whole(1),
                "epochs_trained": _COST,
                "dense_training_flops": number(above=0),
                "match": table({}, {"off": nullable(number())}),
            },
        ),
        "timing": table({"seconds": _COST}, {"run_seconds": nullable(_COST)}),
    },
    {"notes": listing(text)},
)
"""The report of one training at a chosen density."""

_ENTRIES_OF_POINTS = {"round": whole(-1), "density": _DENSITY, "score": number()}
_POINT = table({**_ENTRIES_OF_POINTS, "density_model": _SHARE, "epochs": whole(0)}, {"loss": nullable(number())})
_TOPOLOGY = table(
    {},
    {
        "log10_total": nullable(number()),
        "tau_core_size": nullable(whole(0)),
        "mean_tau_core_ratio": nullable(number()),
        "num_dead": nullable(whole(0)),
        "num_isolated": nullable(whole(0)),
    },
)

DISCOVERY = table(
    {
        "pathgrow": text,
        "masks_sha256": text,
        "weights_sha256": text,
        "answer": table(
            {
                "operating_density": nullable(_DENSITY),
                "interval": _DENSITIES,
                "gain_density": nullable(_DENSITY),
                "gain_interval": _DENSITIES,
                "delta": _COST,
                "status": text,
                "reason": nullable(text),
                "words": text,
            },
            {"notes": listing(text), "gain_level": number(), "allowed": nullable(_COST), "rule": nullable(text)},
        ),
        "network": _network({"val": _SCORED}),
        "curve": table({"rough": listing(_POINT), "probes": listing(_POINT)}, {"fit": nullable(_fit)}),
        "ledger": table(
            {"phases": listing(_PHASE), "training_flops": whole(0), "relative": nullable(_COST)},
            {"dense_training_flops": nullable(number(above=0)), "samples": whole(0)},
        ),
    },
    {
        "config": nullable(table({}, {"target_density": nullable(_DENSITY), "budget": whole(1)})),
        "reference": nullable(table({"score": number(), "kind": text}, {"epochs": nullable(whole(0))})),
        "dense": nullable(table({}, {"val": nullable(_SCORED), "test": nullable(_SCORED)})),
        "topology": nullable(listing(_TOPOLOGY)),
        "timing": nullable(
            table(
                {},
                {
                    "seconds": nullable(_COST),
                    "run_seconds": nullable(_COST),
                    "phases": listing(table({"phase": text, "seconds": _COST})),
                },
            )
        ),
    },
)
"""The report of a discovery."""

COMPARED_DISCOVERY = table(
    {
        "config": table({"method": text, "budget": whole(1), "seed": whole(0)}),
        "timing": table({"seconds": _COST}),
    }
)
"""What is needed beyond that to put a discovery beside other runs; our own trainer writes it."""
