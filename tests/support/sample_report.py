"""A finished run without a run: a report made by hand, for everything that only reads reports."""

from __future__ import annotations

import math
from typing import Any

_WIDTHS = {"layers.0.weight": (64, 128), "layers.1.weight": (128, 128), "layers.2.weight": (128, 128)}
_NUM = sum(a * b for a, b in _WIDTHS.values())
_OTHER = 128 * 10 + 3 * 128 + 10


def _score(density: float) -> float:
    return 0.976 - 0.11 * math.exp(-density / 0.035)


def _row(round: int, density: float, epochs: int, score: float) -> dict[str, Any]:
    of_model = (density * _NUM + _OTHER) / (_NUM + _OTHER)
    loss = round_to(2.6 * (1 - score) + 0.02)
    return {
        "round": round,
        "density": density,
        "density_model": of_model,
        "epochs": epochs,
        "score": score,
        "loss": loss,
    }


def round_to(value: float) -> float:
    return round(value, 4)


def _wobble(number: int) -> float:
    """Noise that is the same for ever."""
    return 0.0035 * math.sin(12.9898 * (number + 1)) * (1 if number % 2 else -1)


def _topology(round: int, density: float) -> dict[str, Any]:
    ratios = {name: min(1.0, density * factor) for name, factor in zip(_WIDTHS, (1.7, 0.8, 0.85), strict=True)}
    return {
        "round": round,
        "density": density,
        "num_on": int(density * _NUM),
        "total": 3e5,
        "log10_total": round_to(5.4 + 1.2 * math.log2(density / 0.02)),
        "tau": 0.9,
        "tau_core_size": int(30 + 200 * density) if round else None,
        "tau_core_sizes": {name: 50 for name in _WIDTHS},
        "tau_core_ratios": ratios,
        "mean_tau_core_ratio": round_to(0.25 + 0.4 * math.sqrt(density)),
        "num_dead": max(0, 9 - 2 * round),
        "dead": {name: 0 for name in _WIDTHS},
        "num_isolated": 0,
        "num_hidden": 384,
        "layer_densities": ratios,
    }


def build() -> dict[str, Any]:
    """Synthetic: a 64-128-128-128-10 perceptron grown from 2% to 38%, probed five times, answer near 8.5%."""
    densities = [0.02 * 1.25**round for round in range(14)]
    rough = [
        _row(round, density, 10 + 2 * round, _score(density) - 0.09 * math.exp(-round / 2.5) - 0.008 + _wobble(round))
        for round, density in enumerate(densities)
    ]
    probes = [
        _row(round, densities[round], 80, _score(densities[round]) + _wobble(round)) for round in (1, 4, 7, 9, 13)
    ]
    grid = [0.02 * (0.4 / 0.02) ** (i / 40) for i in range(41)]
    phases = [{"phase": "seed", "epochs": 10, "samples": 9000, "density": 0.02, "training_flops": 9000 * 13_000}]
    phases += [
        {
            "phase": f"round-{round:03d}",
            "epochs": 2,
            "samples": 1800,
            "density": densities[round],
            "training_flops": int(1800 * (7680 + 245_000 * densities[round])),
        }
        for round in range(1, 14)
    ]
    phases += [
        {
            "phase": f"probe-{row['round']:03d}",
            "epochs": 80,
            "samples": 72_000,
            "density": row["density"],
            "training_flops": int(72_000 * (7680 + 245_000 * row["density"])),
        }
        for row in probes
    ]
    total = sum(phase["training_flops"] for phase in phases)
    return {
        "format": 1,
        "pathgrow": "0.0.0-synthetic",
        "config": {
            "data": "digits",
            "model": "mlp",
            "model_options": {"widths": [128, 128, 128]},
            "recipe": {"lr": 0.1, "momentum": 0.9, "batch_size": 64},
            "seed": 0,
            "budget": 80,
            "delta": 0.01,
            "reference": None,
        },
        "answer": {
            "operating_density": 0.0848,
            "interval": [0.0671, 0.1042],
            "gain_density": 0.1049,
            "gain_interval": [0.081, 0.139],
            "delta": 0.01,
            "status": "found",
            "rule": "probe",
            "reason": "the answer lies between probed densities and its interval no longer shrinks",
            "words": "8.5% of the switchable weights are enough to score within 0.01 of the densest network grown.\n"
            "Five copies were trained out for 80 epochs each; the curve through them crosses the reference less one "
            "point between the probes at 4.9% and 9.5%.\n"
            "The gain answer is 1.2 times larger: it asks for 95% of the fitted gain, which here is a stricter wish "
            "than one point.",
        },
        "reference": {"score": probes[-1]["score"], "kind": "densest", "epochs": 80},
        "network": {
            **{key: rough[7][key] for key in ("round", "density", "density_model")},
            "num_on": int(densities[7] * _NUM),
            "num": _NUM,
            "epochs": 80,
            "final": "fresh",
            "val": {"score": probes[2]["score"], "loss": 0.131},
            "test": {"score": 0.9655, "loss": 0.142},
        },
        "dense": None,
        "curve": {
            "rough": rough,
            "probes": probes,
            "fit": {
                "density": grid,
                "score": [_score(density) for density in grid],
                "low": [_score(density) - 0.003 - 0.0002 / density for density in grid],
                "high": [_score(density) + 0.003 + 0.0002 / density for density in grid],
            },
        },
        "ledger": {
            "phases": phases,
            "training_flops": total,
            "dense_training_flops": 72_000 * 245_000,
            "relative": total / (72_000 * 245_000),
            "samples": sum(phase["samples"] for phase in phases),
        },
        "topology": [_topology(round, density) for round, density in enumerate(densities)],
        "masks_sha256": "0" * 64,
        "weights_sha256": "1" * 64,
        "timing": {
            "seconds": 48.2,
            "phases": [{"phase": phase["phase"], "seconds": 2.0} for phase in phases],
            "run_seconds": 75.0,
        },
    }
