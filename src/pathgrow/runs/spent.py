"""What a finished run has spent, read from its folder, as a budget for another run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError

_SAME = ("data", "fold", "model", "model_options")
"""If two runs differ in these, neither their parameters nor their FLOPs can be compared."""


def spent(path: str, what: str, config: Mapping[str, Any]) -> float:
    """What the run in a folder has spent, in the unit of `match`: "parameters", "switchable" or "flops".

    The run has to be one of the same data and model as `config`, the values of a config.
    """
    report = _report(path)
    theirs = report["config"]
    for name in _SAME:
        # A value that was left out of `config` has its default, which is the same for both.
        if name in config and theirs.get(name) != config[name]:
            raise UserError(
                f"{path} is a run with {name} {theirs.get(name)!r} and this one has {config[name]!r}, but budgets "
                "can be matched for the same data and model only: choose another run"
            )
    ledger, network = report["ledger"], report["network"]
    if what == "flops":
        return float(ledger["training_flops"])
    if f"epochs_times_{what}" in ledger:
        return float(ledger[f"epochs_times_{what}"])
    if "epochs_times_parameters" in ledger:
        raise UserError(f"{path} was trained by a version that did not count {what} weights: match parameters or flops")
    # A discovery, whose masks stay within a phase.
    num_always = 0
    if what == "parameters":
        num_always = (network.get("num_parameters") or _num_parameters(network)) - network["num"]
    return float(
        sum(phase["epochs"] * (num_always + round(phase["density"] * network["num"])) for phase in ledger["phases"])
    )


def like(path: str) -> str:
    """A hash of a run's config without its seed, which is equal for runs that differ in nothing else."""
    config = {name: value for name, value in _report(path)["config"].items() if name not in ("seed", "data_root")}
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]


def _num_parameters(network: Mapping[str, Any]) -> int:
    """The number of parameters of a model, from the share that is kept and the number that is not."""
    num_off: int = network["num"] - network["num_on"]
    if num_off == 0:
        raise UserError("the run to match ended dense and tells no number of parameters: choose another run")
    return round(num_off / (1 - float(network["density_model"])))


def _report(path: str) -> dict[str, Any]:
    folder = RunDir(path)
    if not folder.finished:
        raise UserError(f"{path} holds no finished run whose budget could be matched: give the folder of one")
    report = folder.report()
    if not all(isinstance(report.get(part), dict) for part in ("config", "ledger", "network")):
        raise UserError(f"the report in {path} is none of a training of ours: give the folder of another run")
    return report
