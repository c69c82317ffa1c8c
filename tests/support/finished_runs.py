"""Directories of finished runs for tests that read them; nothing is trained."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from pathgrow.report.schema import MatchReport, PhaseReport, Score
from tests.support.sample_report import training_report


def finished(
    path: Path, *, method: str = "rigl", seed: int = 0, val: float = 0.9, test: float | None = 0.88, **other: Any
) -> Path:
    """Write a finished training; dense training costs 100 FLOPs per epoch."""
    epochs, density, match = other.get("epochs", 10), other.get("density", 0.2), other.get("match", "none")
    flops, trained = other.get("flops", 250), float(other.get("trained", epochs))
    report = training_report(
        data=other.get("data", "digits"),
        data_root=other.get("data_root"),
        fold=0,
        model_options=other.get("model_options", {"widths": [8]}),
        recipe_name=other.get("recipe_name", "digits"),
        recipe={"lr": 0.1, **other.get("recipe", {})},
        engine={"device": "auto"},
        threads=other.get("threads", 1),
        ranks=1,
        seed=seed,
        method=method,
        density=density,
        method_options=other.get("method_options", {}),
        scope=other.get("scope", "auto"),
        epochs=epochs,
        match=match,
        match_run=other.get("match_run"),
        match_budget=other.get("match_budget"),
        match_like=other.get("match_like"),
    )
    phase = PhaseReport(phase="training", epochs=epochs, samples=7, density=density, training_flops=flops)
    report = dataclasses.replace(
        report,
        network=dataclasses.replace(
            report.network, density=density, val=Score(score=val), test=None if test is None else Score(score=test)
        ),
        ledger=dataclasses.replace(
            report.ledger,
            phases=(phase,),
            training_flops=flops,
            dense_training_flops=100 * epochs,
            relative=flops / (100 * epochs),
            epochs_trained=trained,
            match=MatchReport(kind=match, epochs=epochs, budget=1e9, relative_error=other.get("off"))
            if match != "none"
            else None,
        ),
        timing=dataclasses.replace(report.timing, seconds=other.get("seconds", 5.0)),
    )
    path.mkdir(parents=True)
    device_name = other.get("device_name")
    environment = {"device": "cuda:0" if device_name else "cpu", "device_name": device_name}
    for name, values in (("env", environment), ("config", report.config), ("report", report.as_json())):
        (path / f"{name}.json").write_text(json.dumps(values))
    return path
