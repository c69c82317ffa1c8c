"""One training on the terminal: what came out and what it cost, in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pathgrow.report.wording import count, counted, percent, printable, timing

BUDGETS = {
    "parameters": "budget of epochs times parameters",
    "switchable": "budget of epochs times switchable weights",
    "flops": "budget of FLOPs",
}
"""What may be matched, by its name in a config."""


def training_summary(report: dict[str, Any]) -> RenderableType:
    """The report of a training as one renderable; every string in it is text, never markup."""
    config = report["config"]
    subject = " ".join(str(config[name]) for name in ("data", "model") if name in config)
    title = Text("pathgrow", "bold").append(f"  {printable(subject)}, seed {config['seed']}", "not bold dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, sentence in findings(report):
        table.add_row(Text(label), Text(sentence))
    return Padding(Group(title, Text(), table), (0, 1))


def findings(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and sentence of everything worth knowing."""
    network, ledger, config = report["network"], report["ledger"], report["config"]
    scores = [f"{100 * found['score']:.2f}% {split}" for split in ("test", "val") if (found := network[split])]
    num_phases = len(ledger["phases"])
    phases = f" in {num_phases} phases" if num_phases > 1 else ""
    budget = BUDGETS.get(config["match"])
    matched = f", as many as a {budget} allows{_off(ledger.get('match', {}).get('off'))}" if budget else ""
    return [
        ("method", printable(config["method"])),
        (
            "density",
            f"{percent(network['density'])} of the switchable weights ({network['num_on']:,} of {network['num']:,}), "
            f"{percent(network['density_model'])} of all parameters",
        ),
        ("accuracy", ", ".join(scores)),
        ("trained", f"{in_epochs(epochs_trained(ledger))}{phases}{matched}"),
        (
            "cost",
            f"{count(ledger['training_flops'])} training FLOPs, {ledger['relative']:.3g}x those of training dense for "
            f"{counted(config['epochs'], 'epoch')}; {timing(report)}",
        ),
        ("inference", f"{report['flops']['inference_relative']:.3g}x the FLOPs of the dense network"),
        *(("note", printable(note)) for note in report.get("notes", ())),
    ]


def epochs_trained(ledger: Mapping[str, Any]) -> float:
    """Epochs by the samples of all phases, from the ledger of a training or of a discovery.

    Levels that were set back to a step have fewer samples than epochs, so those of a whole epoch are read from the
    phase that has most for each of its own; the first phase begins at the first step.
    """
    if "epochs_trained" in ledger:
        return float(ledger["epochs_trained"])
    phases = [phase for phase in ledger["phases"] if phase["epochs"]]
    per_epoch = max((phase["samples"] / phase["epochs"] for phase in phases), default=0)
    if not per_epoch:  # a trainer of the user's own, which counts none
        return float(sum(phase["epochs"] for phase in phases))
    return float(sum(phase["samples"] for phase in phases) / per_epoch)


def in_epochs(number: float) -> str:
    """A number of epochs, which need not be whole.

    >>> in_epochs(1.0), in_epochs(43.571), in_epochs(1200.0)
    ('1 epoch', '43.6 epochs', '1,200 epochs')
    """
    rounded = round(number, 1)
    return counted(int(rounded), "epoch") if rounded == int(rounded) else f"{rounded:,} epochs"


def _off(share: float | None) -> str:
    """How far what was spent is from the budget, where a person would call it that."""
    if share is None or abs(share) < 0.0005:
        return ""
    return f" ({abs(share):.1%} {'more' if share > 0 else 'less'} than it, since epochs are whole)"
