"""What a comparison takes from the folder of one finished run, whatever command it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.reading import checked, is_training, progress_of
from pathgrow.report.story import config_rows
from pathgrow.report.training import epochs_trained
from pathgrow.report.wanted import COMPARED_DISCOVERY
from pathgrow.report.wording import counted

_NO_DIFFERENCE = ("seed", "data_root", "threads", "ranks", "engine")
"""Two runs that differ only in these do the same, apart from the seed and from rounding."""
_SAME_TASK = ("data", "fold", "model", "model_options")
"""Two runs that differ in none of these are trained and tested on the same, and a dense network is the same in both.
Recipe and scope are no part of it: what they cost is measured in the same FLOPs, and rows name them where they differ.
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run."""

    path: str
    method: str
    match: str
    match_off: float | None
    """What was spent beyond the budget that was to be matched, as a share of it."""
    seed: int
    task: Mapping[str, str]
    """What it is trained and tested on, entry by entry, with dotted names."""
    group: str
    """Everything in the config that matters, as a key."""
    settings: Mapping[str, str]
    """The same, entry by entry, with dotted names."""
    subject: str
    """Data and model, for people."""
    epochs: int
    """As asked for: of a dense training, or of each level."""
    epochs_trained: float
    """By the samples of all its phases."""
    density: float
    density_model: float
    val: float
    test: float | None
    training_flops: int
    dense_flops: int | None
    """What training dense for `epochs` would take, which need not have taken place; None where nobody counted."""
    inference_relative: float | None
    seconds: float
    hardware: str | None
    """What its seconds were measured on; None where nobody knows."""


def read_run(path: str) -> Run:
    """The run in a folder; where there is none that is finished and whole, a `UserError` says why."""
    folder = RunDir(path)
    if not folder.path.is_dir():
        raise UserError("it is no folder")
    if folder.config is None:
        raise UserError("it holds no run of pathgrow")
    if not folder.finished:
        stages = counted(len(progress_of(folder).points), "stage")
        raise UserError(f"its run is not finished ({stages} so far)")
    report = checked(folder.report(), "its report")
    if not is_training(report) and (fault := COMPARED_DISCOVERY(report, "")) is not None:
        raise UserError(f"its report {fault}, by which runs are compared")
    return _run(path, report, folder.environment)


def _run(path: str, report: Mapping[str, Any], environment: Mapping[str, Any]) -> Run:
    config, network, ledger = report["config"], report["network"], report["ledger"]
    is_discovery = not is_training(report)
    settings = {"scope": "auto", **_settings(config)}  # a discovery knows no other
    test, task = network.get("test"), {name: config.get(name) for name in _SAME_TASK}
    if "data" not in config:
        # A call of `discover` knows no names; networks of other sizes are other tasks at any rate.
        task |= {"weights": network["num"], "dense_flops": ledger.get("dense_training_flops")}
    return Run(
        path=path,
        method=f"{config['method']} (discover)" if is_discovery else config["method"],
        match="none" if is_discovery else config["match"],
        match_off=ledger.get("match", {}).get("off"),
        seed=config["seed"],
        task=dict(config_rows(task)),
        group=json.dumps([is_discovery, task, settings], sort_keys=True),
        settings=dict(config_rows(settings)),
        subject=" ".join(str(config[name]) for name in ("data", "model") if name in config) or "a call of discover",
        epochs=config["budget"] if is_discovery else config["epochs"],
        epochs_trained=epochs_trained(ledger),
        density=network["density"],
        density_model=network["density_model"],
        val=network["val"]["score"],
        test=None if test is None else test["score"],
        training_flops=ledger["training_flops"],
        dense_flops=ledger.get("dense_training_flops"),
        inference_relative=_inference(report) if is_discovery else report["flops"]["inference_relative"],
        seconds=report["timing"]["seconds"],
        hardware=_hardware(config, environment),
    )


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in config.items() if name not in _NO_DIFFERENCE}
    if left.get("match_like") is not None:
        # Each seed is matched to the run of its own seed: what counts is that those runs are alike.
        left = {name: value for name, value in left.items() if name not in ("match_run", "match_budget")}
    return left


def _hardware(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str | None:
    device = environment.get("device_name") or environment.get("device")
    if not isinstance(device, str):
        return None
    threads, ranks = config.get("threads"), config.get("ranks")
    if environment.get("device") == "cpu" and isinstance(threads, int):
        device = f"{device} ({counted(threads, 'thread')})"
    return f"{ranks} x {device}" if isinstance(ranks, int) and ranks > 1 else device


def _inference(report: Mapping[str, Any]) -> float | None:
    """Relative inference FLOPs of a discovery, from the phase of its ledger that trained the network handed back."""
    ledger, network = report["ledger"], report["network"]
    names = ("final", "" if network.get("round") is None else f"probe-{network['round']:03d}")
    phases = {phase["phase"]: phase for phase in ledger["phases"]}
    phase = next((phases[name] for name in names if name in phases and phases[name]["samples"]), None)
    dense, num_samples = ledger.get("dense_training_flops"), ledger.get("samples")
    num_epochs = sum(phase["epochs"] for phase in ledger["phases"])
    if phase is None or not dense or not num_epochs or not num_samples:
        return None
    dense_sample = dense / max(1, round(report["config"]["budget"] * num_samples / num_epochs))
    return float(phase["training_flops"] / phase["samples"] / dense_sample)
