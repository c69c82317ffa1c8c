"""The brute-force truth and the discoveries of `benchmarks.tasks`, on trainings of a second."""

from __future__ import annotations

import copy
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import tasks
from benchmarks.problems import LADDER, Problem, mlp, squared_error
from benchmarks.tasks import TASKS, Place, Pruned, summary, table, truth


def test_tiny_tasks_leave_their_lines_and_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "digits_5", replace(TASKS["digits_5"], budget=2, delta=0.5))
    place = Place(tmp_path / "tasks.jsonl", "abc", "cpu", None)
    for part in ("truth", "discover"):
        tasks.run_job(part, "digits_5", 0, place)
    rows = [json.loads(line) for line in place.results.read_text().splitlines()]
    assert [row["rung"] for row in rows[:-1]] == list(LADDER)
    assert all(row["rung"] == pytest.approx(row["density"], abs=1e-3) for row in rows[:-1])
    assert rows[-1]["kind"] == "discover"
    assert "| digits_5 | 0 | 0.5 |" in table(rows)
    assert "| digits_5 | 0.5 | " in summary(rows)
    monkeypatch.setattr(Problem, "fit", None)
    for part in ("truth", "discover"):
        tasks.run_job(part, "digits_5", 0, place)


def test_discoveries_run_again_if_asked_for_and_the_table_shows_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = SimpleNamespace(density=0.5, score=0.9, epochs=1)
    found = SimpleNamespace(
        answer=SimpleNamespace(status="found"), operating_density=0.5, interval=(0.4, 0.6), density=0.5, score=0.9,
        check=None, reference=None, ledger=SimpleNamespace(relative=0.8), rounds=(SimpleNamespace(point=point),),
        probes=(), finished=(), report=lambda: None,
    )  # fmt: skip
    monkeypatch.setattr(tasks.pathgrow, "discover", lambda *_, **__: found)
    monkeypatch.setattr(tasks, "closing", lambda _: ["found"])
    monkeypatch.setattr(tasks, "expected_seconds", lambda *_: {"discover": 0.0})
    monkeypatch.setattr(tasks, "ProcessPoolExecutor", lambda num, _: ThreadPoolExecutor(num))  # keeps what is patched
    monkeypatch.setitem(TASKS, "digits_5", replace(TASKS["digits_5"], budget=1))
    results = tmp_path / "tasks.jsonl"

    def run(density: float, *more: str) -> list[float]:
        found.density = point.density = density
        given = ["digits_5", "table", "--seeds", "0", "--part", "discover", "--results", str(results), *more]
        monkeypatch.setattr("sys.argv", ["tasks", *given])
        tasks.main()
        return [json.loads(line)["density"] for line in results.read_text().splitlines()]

    assert run(0.5) == [0.5]
    assert run(0.3) == [0.5]
    capsys.readouterr()
    assert run(0.2, "--again") == [0.5, 0.2]
    [shown] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| digits_5 | 0 |")]
    assert shown.split(" | ")[7] == "20%"


@pytest.mark.parametrize("name", ["regression", "two_inputs", "lstm", "gru", "autoencoder"])
def test_every_problem_can_be_discovered(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, name, replace(TASKS[name], budget=1))
    place = Place(tmp_path / "tasks.jsonl", "abc", "cpu", None)
    make = TASKS[name].make

    def few(*given: object) -> Problem:
        found = make(*given)
        return replace(found, parts={part: tuple(x[:96] for x in columns) for part, columns in found.parts.items()})

    monkeypatch.setitem(TASKS, name, replace(TASKS[name], make=few))
    tasks.run_job("discover", name, 0, place)
    [row] = place.lines().rows
    assert row["task"] == name
    assert row["cost"] > 0


def test_pruned_weights_stay_zero_and_the_largest_are_kept() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    problem = Problem(mlp(6, 8, 8, 1), {"train": (x, x[:, 0]), "val": (x, x[:, 0])}, squared_error, squared_error)
    network = Pruned(problem, 0)
    before = torch.cat([network.model[k].weight.detach().abs().flatten() for k in (0, 2)])
    network.prune_(0.25)
    kept = before[torch.cat([network.model[k].weight.flatten() for k in (0, 2)]) != 0]
    assert sorted(kept.tolist()) == sorted(before.tolist())[-len(kept) :]
    trained = copy.deepcopy(network)
    trained.fit_(2, 0.25)
    assert trained.density == network.density == 28 / 112
    for k in (0, 2):
        assert bool((trained.model[k].weight[network.model[k].weight == 0] == 0).all())
    assert not torch.equal(trained.model[0].weight, network.model[0].weight)


@pytest.mark.parametrize(("begin", "first"), [(0.2, 3), (0.0, 1)])
def test_untrained_networks_are_pruned_from_a_fifth_of_the_training_on(begin: float, first: int) -> None:
    x, seen = torch.randn(64, 6), list[float]()
    problem = Problem(
        mlp(6, 8, 8, 1), {"train": (x, x[:, 0]), "val": (x, x[:, 0])}, squared_error, squared_error, batch_size=32
    )
    network = Pruned(problem, 0)
    network.model.register_forward_pre_hook(lambda *_: seen.append(network.density))
    network.fit_(5, 0.25, first=begin)  # ten steps
    assert [density < 1 for density in seen] == [step > first - 1 for step in range(10)]
    assert seen[7:] == [0.25] * 3


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_truth_of_a_known_curve(exponent: float) -> None:
    """Gaps fall as a power of density with noise: the crossing is where the formula puts it."""
    draw = torch.Generator().manual_seed(0)
    rows = [
        {
            "task": "digits_60",
            "seed": seed,
            "rung": rung,
            "delta": 0.01,
            "is_last": False,
            "epochs": 60,
            "below": 0.002 * rung**-exponent + 0.0003 * float(torch.randn((), generator=draw)),
        }
        for seed in range(8)
        for rung in LADDER
    ]
    true, found = 5 ** (-1 / exponent), truth(rows)
    assert found is not None
    assert math.isclose(found.density, true, rel_tol=0.15)
    assert found.low <= found.density <= found.high
    assert found.covered_by((true / 2, 2 * true)) == "yes"
    assert found.covered_by((0.9, 1.0)) == "no"
    flat = truth([row | {"below": 0.0} for row in rows])
    assert str(flat) == "1.58% or less"
    assert flat.covered_by((0.0, 0.008)) == "yes", "the truth may be as low"
    assert flat.covered_by((0.02, 0.05)) == "no"


def test_the_error_of_a_difference_is_that_of_repeated_samples() -> None:
    """Standard errors of paired RMSE differences, against the spread over 2,000 samples of 400 examples."""
    draw = torch.Generator().manual_seed(0)
    problem = Problem(mlp(2, 2, 1), {}, squared_error, squared_error, is_root=True)
    noise = torch.randn(2000, 400, generator=draw)
    a, b = (noise + 0.5 * torch.randn(2000, 400, generator=draw)) ** 2, noise**2
    found = torch.tensor([problem.difference(*pair) for pair in zip(a.double(), b.double(), strict=True)])
    assert float(found[:, 1].mean()) == pytest.approx(float(found[:, 0].std()), rel=0.1)
