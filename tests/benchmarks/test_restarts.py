"""Restarts of the learning rate, on trainings of a second."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import restarts
from benchmarks.tasks import TASKS, Pruned


def test_every_plan_has_the_budget_and_ends_on_its_density(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TASKS, "digits_5", replace(TASKS["digits_5"], budget=8))
    fit_, lengths = Pruned.fit_, list[int]()

    def noted(self: Pruned, epochs: int, *given: float, **options: float) -> None:
        lengths.append(epochs)
        fit_(self, epochs, *given, **options)

    monkeypatch.setattr(Pruned, "fit_", noted)
    results = tmp_path / "lines.jsonl"
    monkeypatch.setattr(sys, "argv", ["", "digits_5", "--seeds", "0", "--results", str(results)])
    restarts.main()
    assert lengths == [2, 2, 4, 2, 2, 4, 2, 6, 2, 6, 8, 8, 8, 8]
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["rung"] for row in rows] == [0.5, 0.2] * 4
    assert all(row["density"] == pytest.approx(row["rung"], abs=1e-3) for row in rows)
    assert f"{rows[0]['below']:.1f} ± nan" in capsys.readouterr().out
    restarts.main()
    assert len(results.read_text().splitlines()) == 8, "finished networks are not trained again"
