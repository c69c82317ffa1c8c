"""Default searches on CIFAR, and brute force for them: networks of other densities, finished from the same rounds.

    python -m benchmarks.cifar_searches --data-root DIR --seeds 12 13 --results FILE \\
        [--ladder 0.26 0.18 0.125 0.085 0.06] [--max-density 0.5] [--data cifar100 --model resnet56]

Each seed is the search of `pathgrow discover --data cifar10 --model resnet32 --budget 160 --delta 0.01 --seed N`, and
appends one line of JSON; a seed with a line is not run again. With `--ladder` networks of these densities are finished
as well, after the search has decided everything: pruned from the same rounds and trained as long as the candidates of
the search. Of the line only `ladder` tells of them. With `--kept DIR` interrupted searches resume, and so do ladders.
`--table` prints where the mean ladder is delta below the dense networks of as many epochs that have a line in
results/DATA_MODEL.jsonl (from `python -m benchmarks.cifar dense dense-long`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cifar import Lines, named
from benchmarks.discovery import crossing, smoothed
from pathgrow.checkpoint import RunDir
from pathgrow.density.shrink import NextRound
from pathgrow.distributed.comm import Communicator
from pathgrow.errors import UserError
from pathgrow.report.progress import ProgressBar
from pathgrow.runs.command import open_session, run_in
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.discovery import expected_epochs
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record
from pathgrow.runs.shrinking import ShrinkingTrunk, ShrinkSearch
from pathgrow.runs.trunk import Trunk
from pathgrow.trainer.interface import Evaluate

RESULTS = Path("results")
NUM_VAL, NUM_TEST = 5_000, 10_000
DECIDED, LADDER = "decided", "ladder"
"""Stages of this benchmark: when the search had ended and the densities of its ladder, and the finished ladder."""


class LadderSearch(ShrinkSearch):
    """A search that also finishes networks of given densities, once it has decided what it returns."""

    def __init__(
        self,
        trunk: ShrinkingTrunk,
        options: DiscoverOptions,
        densities: Sequence[float],
        test: Evaluate,
        run_dir: RunDir,
    ) -> None:
        super().__init__(trunk, options)
        self._densities, self._test, self._run_dir = list(densities), test, run_dir

    def _load(self, network: Record) -> Trunk:
        trunk, stages, num = self._trunk, self._run_dir.stages, len(self._trunk.records)
        if stages.metadata(DECIDED) is None:
            stages.save(DECIDED, {"wall": self._run_dir.seconds, "asked": self._densities})
            print("decided", flush=True)
        if stages.metadata(LADDER) is None:
            stages.save(LADDER, {"rungs": self._finish_ladder_() if self._densities else []})
        for number in range(num, num + len(self._densities)):
            trunk.forget_weights(number)
        del trunk.records[num:]  # whatever is here would be a network before pruning in the report
        return super()._load(network)

    def _finish_ladder_(self) -> list[dict[str, float]]:
        trunk = self._trunk
        visited = sorted((trunk.records[trunk.num_trained - 1], *self._pruned), key=lambda one: one.point.density)

        def pruned_from(density: float) -> NextRound:
            start = next((one for one in visited if one.point.density >= density), visited[-1])
            return NextRound(start=start.point.round, density=density)

        rungs = []
        for record in trunk.train_candidates_([pruned_from(density) for density in self._densities]):
            trunk.go_to_(record.point.round)
            test, point = self._session.score(trunk.attached, "test", evaluate=self._test), record.point
            rungs.append({"density": point.density, "val": point.score, "test": test.score, "epochs": point.epochs})
        return rungs


def search(config: DiscoverConfig, folder: str | Path, densities: Sequence[float]) -> dict[str, Any]:
    """Run one search in a directory, or resume or read the one there; what it found, and the ladder."""
    held = RunDir(folder)
    decided = held.stages.metadata(DECIDED)
    if held.finished if decided is None else decided["asked"] != list(densities):
        raise UserError(f"{folder} holds a search with another ladder: ask for that one, or choose another directory")

    def work(config: DiscoverConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
        assert run_dir is not None, "a single process"
        num_epochs = expected_epochs(config, run_dir.path)
        session, trainer = open_session(config, run_dir, progress, comm, num_epochs=num_epochs)
        options = DiscoverOptions(**config.search())
        options = dataclasses.replace(options, metric="accuracy", num_val=len(trainer.data.val))
        test = trainer.evaluate(trainer.data.test)
        result = LadderSearch(ShrinkingTrunk(session, options), options, densities, test, run_dir).run()
        decided = run_dir.stages.metadata(DECIDED)
        assert decided is not None, "saved before the ladder"
        result = dataclasses.replace(result, run_seconds=decided["wall"])
        report = dataclasses.replace(result.report(test=result.examine(test)[0]), config=config.as_dict())
        result.write_to(run_dir, report, draws=False)

    report = run_in(config, folder, work).as_json()
    network, ladder = report["network"], RunDir(folder).stages.metadata(LADDER)
    assert ladder is not None, "saved before the report"
    return {
        "answer": report["answer"], "density": network["density"], "epochs": network["epochs"],
        "val": [network["val"]["score"], network["val"]["loss"]],
        "test": [network["test"]["score"], network["test"]["loss"]],
        "curve": report["curve"], "ledger": report["ledger"], "timing": report["timing"], "ladder": ladder["rungs"],
        "wall": report["timing"]["run_seconds"], "check": report["answer"]["check"],
    }  # fmt: skip


def has_searched(row: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether a line is of such a search; those before the first ladder are left out."""
    given = {"max_density": 1.0, **row}
    return row["kind"] == "discover" and "ladder" in row and all(given.get(name) == settings[name] for name in settings)


def dense_file(data: str, model: str) -> Path:
    """Where the dense networks are, of other seeds. Its lines do not say of which data and model they are."""
    return RESULTS / f"{data}_{model}.jsonl"


def dense_scores(file: Path, epochs: int) -> list[float]:
    """Accuracies of dense networks that were trained for so many epochs."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [
        pooled(row["val"][0], row["test"][0]) for row in rows if (row["kind"], row.get("epochs")) == ("dense", epochs)
    ]


def pooled(val: float, test: float) -> float:
    """Accuracy over all held-out images."""
    return float(np.average([val, test], weights=[NUM_VAL, NUM_TEST]))


def truth(rows: Sequence[dict[str, Any]], dense: float, delta: float) -> float:
    """The density at which finished networks are on average delta below dense, smoothed and made monotone."""
    rungs = [rung for row in rows for rung in row["ladder"]]
    scores = [pooled(rung["val"], rung["test"]) for rung in rungs]
    run = {"density": [round(rung["density"], 4) for rung in rungs], "score": scores, "dense": dense}
    return crossing(*smoothed([run]), delta)


def table(rows: Sequence[dict[str, Any]], dense_scores: Sequence[float], delta: float) -> str:
    """Each search, the mean ladder, and the density that brute force finds; of several lines of a seed the last."""
    rows = list({row["seed"]: row for row in rows}.values())
    lines = [
        f"seed {row['seed']}: answer {row['answer']['operating_density']}, interval {row['answer']['interval']}, "
        f"returned {row['density']:.3f}, val {row['val'][0]:.4f}, test {row['test'][0]:.4f}, "
        f"FLOPs {row['ledger']['relative']:.3f}, wall {row['wall']:.0f} s"
        for row in rows
    ]
    with_ladder = [row for row in rows if row["ladder"]]
    if with_ladder and not dense_scores:
        lines.append("no dense network of as many epochs has a line to compare the ladder with")
    elif with_ladder:
        dense = float(np.mean(dense_scores))
        scores: dict[float, list[float]] = {}
        for rung in (rung for row in with_ladder for rung in row["ladder"]):
            scores.setdefault(round(rung["density"], 4), []).append(pooled(rung["val"], rung["test"]))
        for density, found in sorted(scores.items()):
            lines.append(
                f"{density:.1%}: {100 * (dense - np.mean(found)):.2f} points below dense ({len(found)} networks)"
            )
        crosses = truth(with_ladder, dense, delta)
        shown = f"{crosses:.1%}{' or less' if crosses <= min(scores) else ''}" if math.isfinite(crosses) else "none"
        lines.append(f"within {100 * delta:g} points of dense: {shown}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["cifar10", "cifar100"], default="cifar10")
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--results", type=Path, default=None, help="default: results/DATA_MODEL_searches.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[12])
    parser.add_argument("--budget", type=int, default=160)
    parser.add_argument("--delta", type=float, default=0.01)
    parser.add_argument("--max-density", type=float, default=1.0)
    parser.add_argument("--ladder", type=float, nargs="*", default=[], help="densities of further networks")
    parser.add_argument("--kept", type=Path, default=None, help="directory for runs, which resume there")
    parser.add_argument("--note", default=None, help="what else ran on the GPU")
    parser.add_argument("--commit", default=None, help="commit of the code, if this is not a git checkout")
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if any(not 0 < density <= chosen.max_density for density in chosen.ladder):
        parser.error(f"densities of the ladder must be above 0 and at most {chosen.max_density:g}")
    lines = Lines(chosen.results or RESULTS / f"{chosen.data}_{chosen.model}_searches.jsonl", chosen.commit)
    lines.path.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(chosen, name) for name in ("data", "model", "budget", "delta", "max_density")}
    for seed in [] if chosen.table else chosen.seeds:
        if any(has_searched(row, {**settings, "seed": seed}) for row in lines.rows):
            print(f"seed {seed} has a line in {lines.path}", flush=True)
            continue
        config = DiscoverConfig.from_dict({**settings, "data_root": chosen.data_root, "seed": seed})
        key = {"kind": "discover", **settings, "reference": None, "seed": seed}
        with tempfile.TemporaryDirectory() as away:
            folder = chosen.kept / named("run", **key) if chosen.kept is not None else Path(away) / "run"
            found = search(config, folder, chosen.ladder)
        lines.add(**key, **found, **({"note": chosen.note} if chosen.note else {}))
    own = [row for row in lines.rows if has_searched(row, settings)]
    print(table(own, dense_scores(dense_file(chosen.data, chosen.model), chosen.budget), chosen.delta))


if __name__ == "__main__":
    main()
