"""What a finished run has spent, read from its folder, as a budget for another run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.schema import RunReport, load_report

_SAME = ("data", "fold", "model", "model_options")
"""If two runs differ in these, neither their parameters nor their FLOPs can be compared."""


def spent(path: str, what: str, config: Mapping[str, Any]) -> float:
    """What the finished run in `path` spent, in the unit of `match`: "parameters", "prunable" or "flops".

    Its data and model must be those of `config`, the values of a config.
    """
    report = _report(path)
    for name in _SAME:
        # A value that is missing in `config` has its default, the same for both.
        if name in config and report.config.get(name) != config[name]:
            raise UserError(
                f"cannot match the budget of {path}: its {name} is {report.config.get(name)!r}, here it is "
                f"{config[name]!r}; use a run with the same data and model"
            )
    ledger = report.ledger
    amounts = {
        "flops": ledger.training_flops,
        "parameters": ledger.epochs_times_parameters,
        "prunable": ledger.epochs_times_prunable,
    }
    amount = amounts[what]
    if amount is None:
        raise UserError(f"{path} does not report epochs x {what}; use --match flops")
    return float(amount)


def like(path: str) -> str:
    """A hash of a run's config without its seed: equal for runs that differ only in their seed."""
    config = {name: value for name, value in _report(path).config.items() if name not in ("seed", "data_root")}
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]


def _report(path: str) -> RunReport:
    folder = RunDir(path)
    if not folder.finished:
        raise UserError(f"{path} is not a finished run; --match-run takes the directory of one")
    return load_report(folder.report(), str(folder.path / "report.json"))
