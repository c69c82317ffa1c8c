"""Default searches on CIFAR, and brute force for them: networks of other densities, finished from the same rounds.

    python -m benchmarks.cifar_searches --data-root DIR --seeds 12 13 --results FILE \\
        [--ladder 0.26 0.18 0.125 0.085 0.06] [--max-density 0.5] [--data cifar100 --model resnet56]

Each seed is the search of `pathgrow discover --data cifar10 --model resnet32 --budget 160 --delta 0.01 --seed N`, and
appends one line of JSON. With `--ladder` networks of these densities are finished as well, after the search has decided
everything: pruned from the same rounds and trained as long as the candidates of the search. `wall` and `ledger` leave
the ladder out. `python -m benchmarks.cifar_searches --table` prints where the mean ladder crosses delta.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cifar import Lines, named
from benchmarks.discovery import crossing, smoothed
from pathgrow.checkpoint import RunDir
from pathgrow.density.shrink import NextRound
from pathgrow.distributed.comm import Communicator
from pathgrow.report.progress import ProgressBar
from pathgrow.runs.command import open_session, run_in
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record
from pathgrow.runs.shrinking import ShrinkingTrunk, ShrinkSearch
from pathgrow.runs.trunk import Trunk
from pathgrow.trainer.interface import Evaluate

DENSE = Path("results/cifar10_resnet32.jsonl")
"""Dense baselines of 160 epochs, of other seeds."""
NUM_VAL, NUM_TEST = 5_000, 10_000


class LadderSearch(ShrinkSearch):
    """A search that also finishes networks of given densities, once it has decided what it returns."""

    def __init__(self, trunk: ShrinkingTrunk, options: DiscoverOptions, densities: Sequence[float], test: Evaluate):
        super().__init__(trunk, options)
        self._densities, self._test = densities, test
        self.ladder: list[dict[str, float]] = []
        self.decided_at = 0.0
        """Time at which the search itself had ended."""

    def _load(self, network: Record) -> Trunk:
        self.decided_at = time.perf_counter()
        print("decided", flush=True)
        if self._densities:
            self._finish_ladder_()
        return super()._load(network)

    def _finish_ladder_(self) -> None:
        trunk = self._trunk
        visited = [trunk.records[trunk.num_trained - 1], *self._pruned]

        def pruned_from(density: float) -> NextRound:
            enough = [one for one in visited if one.point.density >= density]
            start = min(enough, key=lambda one: one.point.density).point.round
            return NextRound(start=start, density=density)

        for record in trunk.train_candidates_([pruned_from(density) for density in self._densities]):
            trunk.go_to_(record.point.round)
            score = self._test(trunk.attached.model)
            test = score[0] if isinstance(score, tuple) else float(score)
            point = record.point
            self.ladder.append(
                {"density": point.density, "val": point.score, "test": float(test), "epochs": point.epochs}
            )


def search(config: DiscoverConfig, folder: str | Path, densities: Sequence[float]) -> dict[str, Any]:
    """Run one search in a directory; what it found, and the ladder."""
    found: dict[str, Any] = {}

    def work(config: DiscoverConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
        session, trainer = open_session(config, run_dir, progress, comm, num_epochs=None)
        options = DiscoverOptions(**config.search())
        options = dataclasses.replace(options, metric="accuracy", num_val=len(trainer.data.val))
        test = trainer.evaluate(trainer.data.test)
        searching = LadderSearch(ShrinkingTrunk(session, options), options, densities, test)
        result = searching.run()
        report = dataclasses.replace(result.report(test=result.examine(test)[0]), config=config.as_dict())
        result.write_to(run_dir, report, draws=False)
        found.update(ladder=searching.ladder, wall=searching.decided_at - began, check=vars(result.check or object))

    began = time.perf_counter()
    report = run_in(config, folder, work).as_json()
    network = report["network"]
    return {
        "answer": report["answer"], "density": network["density"], "epochs": network["epochs"],
        "val": [network["val"]["score"], network["val"]["loss"]],
        "test": [network["test"]["score"], network["test"]["loss"]],
        "curve": report["curve"], "ledger": report["ledger"], "timing": report["timing"], **found,
    }  # fmt: skip


def pooled(val: float, test: float) -> float:
    """Accuracy over all held-out images."""
    return float(np.average([val, test], weights=[NUM_VAL, NUM_TEST]))


def truth(rows: Sequence[dict[str, Any]], dense: float, delta: float) -> float:
    """The density at which finished networks are on average delta below dense, smoothed and made monotone."""
    rungs = [rung for row in rows for rung in row["ladder"]]
    scores = [pooled(rung["val"], rung["test"]) for rung in rungs]
    run = {"density": [round(rung["density"], 4) for rung in rungs], "score": scores, "dense": dense}
    return crossing(*smoothed([run]), delta)


def table(rows: Sequence[dict[str, Any]], dense_rows: Sequence[dict[str, Any]]) -> str:
    """Each search, the mean ladder, and the density that brute force finds."""
    lines = [
        f"seed {row['seed']}: answer {row['answer']['operating_density']}, interval {row['answer']['interval']}, "
        f"returned {row['density']:.3f}, val {row['val'][0]:.4f}, test {row['test'][0]:.4f}, "
        f"FLOPs {row['ledger']['relative']:.3f}, wall {row['wall']:.0f} s"
        for row in rows
    ]
    with_ladder = [row for row in rows if row.get("ladder")]
    own = [row for row in dense_rows if row["kind"] == "dense" and row["epochs"] == 160]
    if with_ladder and own:
        dense = float(np.mean([pooled(row["val"][0], row["test"][0]) for row in own]))
        for density in sorted({round(rung["density"], 4) for row in with_ladder for rung in row["ladder"]}):
            rungs = [rung for row in with_ladder for rung in row["ladder"] if round(rung["density"], 4) == density]
            mean = np.mean([pooled(rung["val"], rung["test"]) for rung in rungs])
            lines.append(f"{density:.1%}: {100 * (dense - mean):.2f} points below dense ({len(rungs)} networks)")
        lines.append(f"within a point of dense: {truth(with_ladder, dense, 0.01):.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--results", type=Path, default=Path("results/cifar10_resnet32_searches.jsonl"))
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
    lines = Lines(chosen.results, chosen.commit)
    asked = {
        "data": chosen.data, "model": chosen.model, "budget": chosen.budget, "delta": chosen.delta,
        **({"max_density": chosen.max_density} if chosen.max_density < 1 else {}),
    }  # fmt: skip
    for seed in [] if chosen.table else chosen.seeds:
        config = DiscoverConfig.from_dict({**asked, "data_root": chosen.data_root, "seed": seed})
        key = {"kind": "discover", **asked, "reference": None, "seed": seed}
        with tempfile.TemporaryDirectory() as away:
            folder = chosen.kept / named("run", **key) if chosen.kept is not None else Path(away) / "run"
            found = search(config, folder, chosen.ladder)
        lines.add(**key, **found, **({"note": chosen.note} if chosen.note else {}))
    own = [row for row in lines.rows if "ladder" in row and all(row.get(name) == asked[name] for name in asked)]
    print(table(own, Lines(DENSE).rows))


if __name__ == "__main__":
    main()
