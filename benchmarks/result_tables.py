"""Tables of docs/results.md from the JSON of the benchmarks: `python -m benchmarks.result_tables` prints them.

`benchmarks.results_page` puts them on the page.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from benchmarks import cifar, digits_ladder, interfaces, restarts, shrink, tasks, training_noise
from benchmarks.problems import TASKS, Task
from benchmarks.replayed_searches import triples
from benchmarks.unseen import UNSEEN
from pathgrow.checkpoint import strict_json

ROOT = Path(__file__).parents[1]
Line = dict[str, Any]


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def read_lines(path: Path) -> list[Line]:
    return [strict_json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def digits_truth() -> str:
    """Answers on digits against brute force."""
    found = _json("benchmarks/results/discovery_engine.json")
    dense = 100 * fmean(row["test"] for row in found["dense"])
    brute_force = _json("benchmarks/results/discovery.json")["settings"]["mlp"]["truth"]["fresh"]
    true, (low, high) = brute_force["density"], brute_force["interval"]
    rows = []
    for kind, name in (("given", "dense score as reference"), ("none", "no reference")):
        groups = _groups(found[kind], "seed")
        answers = " ".join(f"{median(row['delta_density'] for row in group):.3f}" for group in groups)
        covered = ", ".join(
            str(sum(row["interval"][0] <= true <= row["interval"][1] for row in group)) for group in groups
        )
        tests = [100 * fmean(row["test"] for row in group) for group in groups]
        most = max(row["relative_flops"] for row in found[kind])
        costs = [fmean(row["relative_flops"] for row in group) for group in groups]
        cost = f"{min(costs):.2f} - {max(costs):.2f}, mean {fmean(costs):.2f}, single runs up to {most:.1f}"
        test = f"{min(tests):.2f} - {max(tests):.2f}, mean {fmean(tests):.2f}"
        rows.append([f"{name}, {len(found[kind])} runs", answers, f"{covered} of 5", test, cost])
    headings = [
        "",
        "median answer per group",
        "90% intervals that cover it",
        f"test accuracy (dense {dense:.2f}%)",
        "FLOPs / dense",
    ]
    return f"True density: {true:.3f} (90% interval {low:.3f} - {high:.3f}).\n\n{table(headings, rows)}"


def interface_table() -> str:
    """One question through every interface."""
    return interfaces.table(read_lines(ROOT / "results" / "interfaces.jsonl"))


def task_table(of: Mapping[str, Task]) -> Callable[[], str]:
    """Discoveries in user-defined trainings, compared with brute force."""
    return lambda: tasks.summary(_lines("tasks"), of)


def cifar_ladder() -> str:
    """Dense networks, static grown masks and discoveries on CIFAR-10."""
    lines, rows = cifar.Lines(ROOT / "results" / "cifar10_resnet32.jsonl"), []
    searches = _discoveries(None)

    def row(name: str, epochs: int, own: Sequence[Line]) -> list[object]:
        return [name, epochs, *(_spread([each[part][0] for each in own]) for part in ("val", "test")), len(own)]

    for epochs in (160, 80):
        own = [each for each in lines.rows if each["kind"] == "dense" and each["epochs"] == epochs]
        rows.append(row("dense", epochs, own))
        if epochs == 160:
            densities = ", ".join(f"{each['density']:.0%}" for each in searches)
            rows.append(row(f"`discover --finish static`: {densities}", epochs, searches))
    for final, name in (("fresh", "grown mask, fresh initialization"), ("grown", "grown mask and weights")):
        ladder = [each for each in lines.rows if each["kind"] == "ladder" and each["final"] == final]
        for density in sorted({each["density"] for each in ladder}, reverse=True):
            own = [each for each in ladder if each["density"] == density]
            rows.append(row(f"{density:.0%}, {name}", 80, own))
    needs = {delta: cifar.truth(lines, "fresh", delta) for delta in (0.01, 0.005)}
    said = " and ".join(f"{found:.0%} to stay within {100 * delta:g} pp" for delta, found in needs.items() if found)
    return (
        f"{table(['network', 'epochs', 'val', 'test', 'seeds'], rows)}\n\nAt equal training (80 epochs, smoothed, val "
        f"and test pooled) a static grown mask needs {said} of dense."
    )


def cifar_discoveries() -> str:
    """Discoveries without a reference."""
    alone = next(row for row in _lines("cifar10_resnet32") if row["kind"] == "dense, alone")
    return _discovery_table(_discoveries(None), 160, alone["wall"])


def cifar_reference() -> str:
    """Discoveries with the dense score as reference."""
    return _discovery_table(_discoveries(0.9307), 80, None)


def _discoveries(reference: float | None) -> list[Line]:
    rows = [row for row in _lines("cifar10_resnet32") if row["kind"] == "discover" and row["reference"] == reference]
    return sorted(rows, key=lambda row: row["seed"])


def _discovery_table(found: Sequence[Line], budget: int, alone: float | None) -> str:
    dense = [row["test"][0] for row in _lines("cifar10_resnet32") if row["kind"] == "dense" and row["epochs"] == budget]
    rows = []
    for row in found:
        answer, (low, high) = row["answer"], row["answer"]["interval"]
        rows.append([
            row["seed"], f"{answer['operating_density']:.0%} ({low:.0%} - {high:.0%})", f"{answer['gain_density']:.0%}",
            len(row["probes"]), f"{row['density']:.0%}", _points(row["test"][0]), f"{row['ledger']['relative']:.2f}",
            *([] if alone is None else [f"{row['wall'] / alone:.2f}"]),
        ])  # fmt: skip
    tests = [row["test"][0] for row in found]
    error = 100 * (stdev(tests) ** 2 / len(tests) + stdev(dense) ** 2 / len(dense)) ** 0.5
    below = f"{_points(fmean(tests))}, {100 * (fmean(dense) - fmean(tests)):.2f} ± {error:.2f} below dense"
    rows.append([
        "mean", f"{fmean(row['answer']['operating_density'] for row in found):.0%}", "", "",
        f"{fmean(row['density'] for row in found):.0%}", below,
        f"{fmean(row['ledger']['relative'] for row in found):.2f}",
        *([] if alone is None else [f"{fmean(row['wall'] for row in found) / alone:.2f}"]),
    ])  # fmt: skip
    headings = ["seed", "answer (90% interval)", "gain answer", "probes", "returned", "test", "FLOPs / dense"]
    return table([*headings, *([] if alone is None else ["time / dense"])], rows)


def wrn() -> str:
    """WRN-22-2 with RigL's recipe, next to published accuracies."""
    published = {
        ("rigl", 0.2): (93.6, 93.1),
        ("rigl", 0.1): (92.9, ""),
        ("erk", 0.2): (92.9, ""),
        ("erk", 0.1): (91.5, ""),
        ("set", 0.2): ("", 92.9),
    }
    headings = ["method", "density", "RigL's authors", "reproduction", "ours", "seeds 0, 1"]
    return table(headings, _published("cifar10_wrn22_2", published))


def wrn_reproduction() -> str:
    """WRN-22-2 with the protocol of the reproduction."""
    published = {("set", 0.2): (92.9,), ("rigl", 0.2): (93.1,), ("random", 0.2): (91.2,)}
    headings = ["method", "density", "published", "ours", "seeds 0, 1, 2"]
    return table(headings, _published("cifar10_wrn22_2_as_reproduced", published))


def _published(name: str, figures: Mapping[tuple[str, float], Sequence[object]]) -> Iterator[list[object]]:
    names = {"rigl": "RigL", "set": "SET", "erk": "static mask, ERK", "random": "static mask, uniform layer densities"}
    for (kind, density), theirs in figures.items():
        rows = sorted(_lines(name), key=lambda row: row["seed"])
        own = [row["test"][0] for row in rows if (row["kind"], row["density"]) == (kind, density)]
        yield [names[kind], f"{density:.0%}", *theirs, _points(fmean(own)), ", ".join(map(_points, own))]


def engine() -> str:
    """Speed of the engine."""
    found = _json("benchmarks/results/engine.json")
    ours, eager = (found[f"ResNet-32 {name}, images/s"] for name in ("engine, compile on", "plain eager loop fp32"))
    return (
        f"{round(ours, -2):,.0f} images/s against {round(eager, -2):,.0f} of an eager PyTorch loop ({ours / eager:.1f} "
        f"times), eight concurrent networks {found['fleet of 8, compile on / eager fp32 loop']:.1f} times."
    )


DEFAULT_SEARCHES = ("abc9a01", "8955066", "43d2187")
"""The versions of the default search whose discoveries are shown."""

_SHRINK = {
    160: {
        "dense 40 40 >0.15/5:4@0.03 40": "dense 40 + 40 epochs, 5 rounds of 4 (peak lr 0.03), 40 more epochs",
        "dense 40 40 gmp>0.15:80": "dense 40 + 40 epochs, then gradual pruning over 80 epochs",
        "gcg:0.03 10 >1/12:1 18 40 >0.15/5:4@0.03 40": "grown 3% to 100%, 80 epochs, 5 rounds of 4, 40 more epochs",
        "dense gmp>0.15:160": "gradual magnitude pruning (GMP) from dense, one training of 160 epochs",
        "dense 80 >0.1/10x7:4@0.03": "dense 80 epochs, rounds of 4 (peak lr 0.03)",
        "dense 80 >0.1/10x8:4@0.03 40": "the same, 40 more epochs",
        "dense 80 >0.1/10:4@0.03 40": "the same, 40 more epochs",
        "erk:0.5 80 >0.1/7:4@0.03 40": "ERK 50% 80 epochs, rounds of 4, 40 more epochs",
        "erk:0.5 80 >0.1/7:8@0.05 40": "ERK 50% 80 epochs, rounds of 8 (peak lr 0.05), 40 more epochs",
        "gcg:0.03 10 >0.5/12:1 58 >0.1/7:4@0.03 40": "grown 3% to 50%, 80 epochs, rounds of 4, 40 more epochs",
        "gcg:0.03 10 >0.5/12:1 58 >0.1/7x5:4@0.03 40": "the same",
        "dense gmp>0.1:160": "GMP from dense, one training of 160 epochs",
    },
    80: {
        "gcg:0.03 4 >0.0445:1 >0.066:1 >0.098:1 >0.145:1 >0.215:1 >0.319:1 >0.473:1 >0.7:1 gmp>0.1:68,0.3,0.85":
            "grown 3% to 70% in 12 epochs, gradual pruning between 30% and 85% of the other 68",
        "gcg:0.03 4 >0.5/8:1 gmp>0.1:68": "grown 3% to 50% in 12 epochs, then gradual pruning over 68",
        "gcg:0.03 4 >1/8:1 gmp>0.1:68": "grown 3% to 100% in 12 epochs, then gradual pruning over 68",
        "dense gmp>0.1:80,0.1,0.6": "GMP from dense, pruning between 10% and 60% of the training",
        "erk:0.5 24 >0.1/7:4@0.1 28": "ERK 50%, 24 epochs, 7 rounds of 4, 28 epochs (best of the shrinking plans)",
    },
}  # fmt: skip
"""Plans of `benchmarks.shrink` in words, by the epochs of the dense training that their cost is relative to."""


def shrink_table(budget: int) -> Callable[[], str]:
    def block() -> str:
        """Networks that shrink while they train."""
        rows = []
        for plan, text in _SHRINK[budget].items():
            start, density, phases = shrink.parse(plan)
            full = f"{start}:{density:g} {' '.join(map(str, phases))}"
            own = sorted((r for r in _lines("cifar10_resnet32_shrink") if r["plan"] == full), key=lambda r: r["seed"])
            pooled = [(row["val"][0] + 2 * row["test"][0]) / 3 for row in own]
            singles = f" ({', '.join(map(_points, pooled))})" if len(own) > 1 else ""
            rows.append([
                text, f"{100 * own[0]['density']:.3g}%", f"{_points(fmean(pooled))}{singles}",
                _points(fmean(row["test"][0] for row in own)), f"{fmean(row[f'relative_{budget}'] for row in own):.2f}",
            ])  # fmt: skip
        return table(["network", "density", "pooled accuracy (seeds)", "test", "cost"], rows)

    return block


def gts_table() -> str:
    """The method `gts` beside gradual pruning, in one training of the same length."""
    rows = []
    lines = _lines("cifar10_resnet32_gts")
    for method in ("gts", "gmp"):
        own = [point for line in lines for point in line["points"] if point["method"] == method]
        pooled = [(point["val"] + 2 * point["test"]) / 3 for point in own]
        scores = f"{_points(fmean(pooled))} ({', '.join(map(_points, pooled))})"
        tested, cost = fmean(point["test"] for point in own), fmean(point["flops"] for point in own)
        rows.append([f"`{method}`", f"{own[0]['density']:.0%}", scores, _points(tested), f"{cost:.2f}"])
    return table(["method", "density", "pooled accuracy (seeds)", "test", "cost"], rows)


def _is_limited(row: dict[str, Any]) -> bool:
    """Whether a search had a limit of density."""
    return bool(row.get("max_density", 1.0) < 1)


def search_table() -> str:
    """Whole searches on CIFAR-10, by the length of their rounds."""
    rows = []
    for row in sorted(_lines("cifar10_resnet32_searches"), key=lambda row: row["seed"]):
        if _is_limited(row):
            continue
        if "stages" in row:
            kinds = ("train", "shrink", "final")
            parts = [[stage[1:] for stage in row["stages"] if stage[0].startswith(kind)] for kind in kinds]
        else:
            parts = [triples(row["curve"][name]) for name in ("rounds", "probes", "finished")]
        (*_, (_, _, trained)), pruned, finished = parts
        pruned = sorted(pruned, reverse=True)
        at = [
            ", ".join(f"{100 * d:.{3 if d == 1 else 2}g}% {_points(score)}" for d, _, score in part)
            for part in (pruned, finished)
        ]
        tested = _points(row["test"][0]) if "test" in row else "-"
        phases = {phase["phase"]: phase["epochs"] for phase in row.get("ledger", {}).get("phases", ())}
        length = phases.get("shrink-1", row.get("round_epochs", 16))
        rows.append([f"{length} epochs", row["seed"], _points(trained), *at, tested])
    return table(["rounds", "seed", "trained, val", "pruned, val", "finished, val", "test"], rows)


def default_discoveries() -> str:
    """What the default search answered and returned."""
    rows = []
    names = ("cifar10_resnet32", "cifar100_resnet56")
    for commit, name in itertools.product(DEFAULT_SEARCHES, names):
        if not (own := [row for row in _lines(f"{name}_searches") if row.get("commit") == commit]):
            continue
        own = sorted(own, key=lambda row: (_is_limited(row), row["seed"]))
        for row in own:
            answer, check = row["answer"], row["answer"]["check"]
            found = "open"
            if answer["interval"] is not None:
                low, high = answer["interval"]
                found = f"{answer['operating_density']:.1%} ({low:.0%} - {high:.0%})"
            limit = f", --max-density {row['max_density']:g}" if _is_limited(row) else ""
            rows.append([
                commit, f"{row['data']}, {row['model']}{limit}", row["seed"],
                found, f"{row['density']:.1%}",
                _points(row["val"][0]), _points(row["test"][0]), check["outcome"], f"{row['ledger']['relative']:.2f}",
                f"{row['ledger']['epochs_trained'] / row['budget']:.2f}",
            ])  # fmt: skip
        plain = [row for row in own if not _is_limited(row)]
        means = [fmean(value(row) for row in plain) for value in (
            lambda row: row["density"], lambda row: row["val"][0], lambda row: row["test"][0],
            lambda row: row["ledger"]["relative"], lambda row: row["ledger"]["epochs_trained"] / row["budget"],
        )]  # fmt: skip
        density, val, test, flops, epochs = means
        rows.append(
            ["", "mean", "", "", f"{density:.1%}", _points(val), _points(test), "", f"{flops:.2f}", f"{epochs:.2f}"]
        )
    head = (
        "rule",
        "task",
        "seed",
        "answer (90% interval)",
        "returned",
        "val",
        "test",
        "check",
        "FLOPs / dense",
        "epochs / dense",
    )
    return table(head, rows)


def digits_rounds() -> str:
    """Default discoveries on digits, by the version of the search."""
    rows = []
    lines = _lines("digits_mlp_discoveries")
    for commit in dict.fromkeys(line.get("commit") for line in lines):
        own = {
            kind: [x for x in lines if (x["kind"], x.get("commit")) == (kind, commit)] for kind in ("discover", "dense")
        }
        lost = [100 * (b["test"] - a["test"]) for a, b in zip(own["discover"], own["dense"], strict=True)]
        densities, costs = ([line[name] for line in own["discover"]] for name in ("density", "relative"))
        density = f"{fmean(densities):.1%} (median {median(densities):.1%})"
        rows.append(
            [
                commit or "later, without one",
                len(lost),
                density,
                f"{fmean(lost):.2f} ± {stdev(lost) / len(lost) ** 0.5:.2f}",
                f"{fmean(costs):.2f}",
            ]
        )
    return table(["commit", "discoveries", "density", "points below dense", "cost"], rows)


def _spread(values: Sequence[float]) -> str:
    error = f" ± {100 * stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{_points(fmean(values))}{error}"


def digits_ladder_table() -> str:
    """What finished networks lose on digits, by density and by how they were pruned."""
    now, before = (
        sorted(_lines(f"digits_mlp_ladder{suffix}"), key=lambda line: (line["seed"], line["fold"]))
        for suffix in ("", "_at_once")
    )
    rows, densities = [], []
    for name, lines in {"pruned at once": before, "gradually": now}.items():
        cells, density = digits_ladder.summary(lines)
        rows.append([name, *(values for _, values in cells)])
        densities.append(density)
    gains = [  # of the same split and seed, averaged over both accuracies and all networks that were pruned a lot
        fmean(after[k] - first[k] for first, after in zip(*networks, strict=True) if first[0] <= SPARSE for k in (1, 2))
        for networks in zip(*([line["finished"] for line in lines] for lines in (before, now)), strict=True)
    ]
    return table(["points lost, test", *(f"{density}%" for density, _ in cells)], rows) + (
        f"\n\nOne point is lost at {densities[0]:.1%} and {densities[1]:.1%} of the weights. Networks at 21% or less "
        f"gain {_spread(gains)} points (val and test, {len(gains)} pairs)."
    )


def _points(score: float) -> str:
    return f"{100 * score:.2f}"


def _groups(rows: Sequence[Line], key: str) -> list[list[Line]]:
    return [[row for row in rows if row[key] == value] for value in dict.fromkeys(row[key] for row in rows)]


def _json(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def _lines(name: str) -> list[Line]:
    return read_lines(ROOT / "results" / f"{name}.jsonl")


SPARSE = 0.22
"""Networks up to this density are compared by how they were pruned."""
TABLES: dict[str, Callable[[], str]] = {
    "digits-truth": digits_truth, "tasks": task_table(TASKS),
    "unseen": task_table(UNSEEN), "interfaces": interface_table, "cifar-ladder": cifar_ladder,
    "cifar-discoveries": cifar_discoveries, "cifar-reference": cifar_reference, "wrn": wrn,
    "wrn-reproduction": wrn_reproduction, "engine": engine, "shrink": shrink_table(160), "shrink-80": shrink_table(80),
    "searches": search_table, "gts": gts_table, "default-discoveries": default_discoveries,
    "digits-rounds": digits_rounds, "digits-ladder": digits_ladder_table,
    "restarts": lambda: restarts.table(_lines("restarts")),
    "training-noise": lambda: training_noise.table(_lines("training_noise")),
}  # fmt: skip


def main() -> None:
    print("\n\n".join(f"{name}\n\n{block()}" for name, block in TABLES.items()))


if __name__ == "__main__":
    main()
