"""Folders of finished trainings for tests of what is read from them; nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def finished(
    folder: Path, *, method: str = "rigl", seed: int = 0, val: float = 0.9, test: float | None = 0.88, **other: Any
) -> Path:
    """A run folder with a report of the kind that a training writes; a dense training of an epoch takes 100 FLOPs."""
    epochs = other.get("epochs", 10)
    config = {
        "data": other.get("data", "digits"),
        "data_root": other.get("data_root"),
        "fold": 0,
        "model": "mlp",
        "model_options": other.get("model_options", {"widths": [8]}),
        "recipe_name": other.get("recipe_name", "digits"),
        "recipe": {"lr": 0.1, **other.get("recipe", {})},
        "engine": {"device": "auto"},
        "threads": other.get("threads", 1),
        "ranks": 1,
        "seed": seed,
        "method": method,
        "density": other.get("density", 0.2),
        "method_options": other.get("method_options", {}),
        "scope": other.get("scope", "auto"),
        "epochs": epochs,
        "match": other.get("match", "none"),
        "match_run": other.get("match_run"),
        "match_budget": other.get("match_budget"),
        "match_like": other.get("match_like"),
    }
    flops, trained = other.get("flops", 250), other.get("trained", epochs)
    told = {
        "format": 1,
        "kind": "train",
        "config": config,
        "network": {
            "density": other.get("density", 0.2),
            "density_model": 0.21,
            "num_on": 20,
            "num": 100,
            "epochs": epochs,
            "val": {"score": val, "loss": 0.3},
            "test": None if test is None else {"score": test, "loss": 0.3},
        },
        "flops": {"inference_relative": 0.2},
        "ledger": {
            "training_flops": flops,
            "dense_training_flops": 100 * epochs,
            "relative": flops / (100 * epochs),
            "epochs_trained": trained,
            "phases": [{"phase": "level-000", "epochs": epochs, "samples": 7, "density": 0.2, "training_flops": flops}],
            "match": {"kind": other.get("match", "none"), "off": other.get("off")},
        },
        "timing": {"seconds": other.get("seconds", 5.0)},
    }
    folder.mkdir(parents=True)
    device_name = other.get("device_name")
    (folder / "env.json").write_text(
        json.dumps({"device": "cuda:0" if device_name else "cpu", "device_name": device_name})
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "report.json").write_text(json.dumps(told))
    return folder
