"""A training on the terminal: every number from its own place, by a report in which no two are alike."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pathgrow.report.training import findings

REPORT: dict[str, Any] = {
    "kind": "train",
    "config": {"method": "rigl", "match": "none", "epochs": 40, "seed": 3, "data": "digits", "model": "mlp"},
    "network": {
        "density": 0.1234,
        "density_model": 0.2345,
        "num_on": 1_234,
        "num": 10_000,
        "epochs": 57,
        "val": {"score": 0.9111, "loss": 0.3},
        "test": {"score": 0.8222, "loss": 0.4},
    },
    "flops": {"inference_relative": 0.345},
    "ledger": {
        "phases": [{"epochs": 57, "training_flops": 4_560_000_000, "samples": 1}],
        "training_flops": 4_560_000_000,
        "relative": 0.678,
    },
    "timing": {"seconds": 83.0, "run_seconds": 96.0},
}


def test_every_number_is_said_where_it_belongs() -> None:
    assert findings(REPORT) == [
        ("method", "rigl"),
        ("density", "12.3% of the switchable weights (1,234 of 10,000), 23.4% of all parameters"),
        ("accuracy", "82.22% test, 91.11% val"),
        ("trained", "57 epochs"),
        (
            "cost",
            "4.56 G training FLOPs, 0.678x those of training dense for 40 epochs; "
            "1 min 23 s of training and scoring, 1 min 36 s from beginning to end",
        ),
        ("inference", "0.345x the FLOPs of the dense network"),
    ]


@pytest.mark.parametrize(
    ("match", "off", "said"),
    [
        ("flops", 0.0216, ", as many as a budget of FLOPs allows (2.2% more than it, since epochs are whole)"),
        ("flops", -0.0216, ", as many as a budget of FLOPs allows (2.2% less than it, since epochs are whole)"),
        ("parameters", 0.0004, ", as many as a budget of epochs times parameters allows"),
        ("switchable", 0.0, ", as many as a budget of epochs times switchable weights allows"),
    ],
)
def test_what_was_matched_and_missed_is_said(match: str, off: float, said: str) -> None:
    report = copy.deepcopy(REPORT)
    report["config"]["match"] = match
    report["ledger"]["match"] = {"off": off}
    report["ledger"]["phases"] = [{"epochs": 20, "samples": 200}, {"epochs": 37, "samples": 370}]
    assert dict(findings(report))["trained"] == f"57 epochs in 2 phases{said}"


def test_epochs_are_those_of_the_samples_that_were_trained() -> None:
    """Twelve levels of 20 epochs, each after the first set back to epoch 17.86: 2.14 epochs of 896 samples."""
    report = copy.deepcopy(REPORT)
    report["ledger"]["phases"] = [{"epochs": 20, "samples": 17_920}, *[{"epochs": 20, "samples": 1_920}] * 11]
    assert dict(findings(report))["trained"] == "43.6 epochs in 12 phases", "39,040 / 896, in an older report"
    report["ledger"]["epochs_trained"] = 12.25
    assert dict(findings(report))["trained"] == "12.2 epochs in 12 phases", "as the report says itself"
    report["ledger"] |= {"epochs_trained": 1.0, "phases": [{"epochs": 1, "samples": 5}]}
    assert dict(findings(report))["trained"] == "1 epoch"


def test_a_training_that_was_never_tested_can_be_shown() -> None:
    report = copy.deepcopy(REPORT)
    report["network"]["test"] = None
    assert dict(findings(report))["accuracy"] == "91.11% val"


def test_doubts_about_a_training_are_shown_with_it() -> None:
    said = [
        sentence
        for label, sentence in findings({**REPORT, "notes": ["masks hardly change", "so\x1b"]})
        if label == "note"
    ]
    assert said == ["masks hardly change", "so?"]
