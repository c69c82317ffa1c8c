"""The walk-through of docs/add_a_method.md, run as it stands on the page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pathgrow import methods
from tests.contract import contract

PAGE = Path(__file__).parents[2] / "docs" / "add_a_method.md"
METHOD, USE, CHECKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
NAME = "churn:churn"


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module where Python finds it, as a reader would."""

    def save(code: str) -> None:
        (tmp_path / "churn.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "churn", raising=False)

    yield save
    sys.modules.pop("churn", None)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_file_is_as_short_as_promised() -> None:
    assert len(METHOD.splitlines()) < 60


def test_the_method_trains_as_shown(save: Any) -> None:
    save(METHOD)
    torch.manual_seed(0)
    names = run(USE)
    sparse = names["sparse"]
    num = 20 * 100 + 100 * 50
    assert sparse.masks.num == num  # the last layer is dense, as by default
    assert sparse.masks.num_on == round(0.05 * num)
    # At step 10 two thirds, at step 20 one third of 0.3 of them go; those that came last are small and may go again.
    first, second = round(0.3 * 350 * 2 / 3), round(0.3 * 350 / 3)
    assert 0.9 * first < names["num_moved"] <= first + second


def test_the_method_keeps_the_contract(save: Any) -> None:
    save(METHOD)
    assert run(CHECKS)["num_new"] > 0
    assert methods.create(NAME) == methods.create(NAME) != methods.create(NAME, drop_fraction=0.2)


@pytest.mark.parametrize(
    ("right", "wrong", "check"),
    [
        ("start_density=density", "start_density=density / 2", lambda: contract.check_counts(NAME, 0, 0.2)),
        ("-weight.abs()", "torch.rand_like(weight)", lambda: contract.check_seed(NAME, 0)),
        ("-weight.abs()", "weight.zero_()", lambda: contract.check_change_on_a_step(NAME, 0)),
        (
            "progress.step % self.update_interval",
            "progress.step % (2 + next(COUNTER) // 9)",
            lambda: contract.check_resume(NAME, "adam", 0, 5),
        ),
    ],
)
def test_the_contract_notices_what_is_wrong(save: Any, right: str, wrong: str, check: Any) -> None:
    assert right in METHOD
    head = "\n\nimport itertools\nimport torch\nCOUNTER = itertools.count()\n"
    wrong_one = METHOD.replace(right, wrong)
    save(wrong_one.replace("from dataclasses import dataclass", f"from dataclasses import dataclass{head}"))
    with pytest.raises(AssertionError):
        check()
