"""Every interface leaves its answer, and contradictions between them are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import interfaces
from benchmarks.cifar import Lines
from benchmarks.tasks import Truth


def test_every_interface_leaves_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "TASK", replace(interfaces.TASK, budget=4))
    lines = Lines(tmp_path / "interfaces.jsonl", "abc")
    for interface in interfaces.INTERFACES:
        interfaces.run(interface, 0, lines)
    assert [row["door"] for row in lines.rows] == ["discover", "dense", "engine", "attach"]
    assert lines.rows[1]["reference"][0] == "dense"
    assert "The dense network was not trained" in lines.rows[3]["says"]
    assert "| attach | 0 | open | - |" in interfaces.table(lines.rows)


@pytest.mark.parametrize(
    ("discover", "dense", "attach", "expected"),
    [
        ((0.2, 0.5), (0.1, 0.3), (0.05, 0.1), []),  # attach answers another question, whose answer is smaller
        ((0.22, 0.5), (0.1, 0.21), None, ["seed 0: discover and dense are disjoint"]),
        ((0.25, 0.5), (0.1, 0.3), (0.26, 0.4), ["seed 0: attach does not cover brute force"]),
        ((0.1, 0.3), (0.1, 0.3), (0.4, 0.6), ["seed 0: discover and attach are disjoint",
                                              "seed 0: dense and attach are disjoint",
                                              "seed 0: attach does not cover brute force"]),
        ((0.1, 0.12), None, None, ["seed 0: discover does not cover brute force"]),
        (None, None, None, []),
    ],
)  # fmt: skip
def test_contradictions(discover: object, dense: object, attach: object, expected: list[str]) -> None:
    given = {"discover": discover, "dense": dense, "attach": attach}
    answers = {interface: {0: {"interval": interval}} for interface, interval in given.items()}
    assert interfaces.disagreements(answers, Truth(0.2, 0.15, 0.25, 3)) == expected
