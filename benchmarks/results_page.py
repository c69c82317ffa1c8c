"""Rewrite the generated blocks of docs/results.md from the committed JSON: `make results`.

    python -m benchmarks.results_page                          # the blocks and figures
    python -m benchmarks.results_page runs/studies new.jsonl   # first merge cells of studies into results/studies

A directory holds the cells of any built-in studies; a file holds lines of `pathgrow study table --format jsonl`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks import networks
from benchmarks.result_tables import ROOT, TABLES, Line, read_lines, table
from benchmarks.verdicts import CLAIMS, NOT_OF_THE_PAPER, Finding, costs_beside_imp, findings, imp_at_accuracy
from pathgrow import atomic
from pathgrow.checkpoint import strict_json
from pathgrow.errors import UserError
from pathgrow.studies.definition import load_study, study_names
from pathgrow.studies.lines import load_lines
from pathgrow.studies.results import calibration_markdown, render_results, results_of, results_png

PAGE = ROOT / "docs" / "results.md"
STUDIES = ROOT / "results" / "studies"
FIGURES = ROOT / "docs" / "images"
_BLOCK = re.compile(r"(<!-- begin ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


# Cells of studies


def add(source: Path, only: Sequence[str] = ()) -> list[Path]:
    """Merge the cells of a directory, or the lines of a file, into the files of their studies; return these.

    Studies share cells. Of a directory, those with less than a tenth of their cells are left out unless `only` names
    them: they were not run, another study has some of their cells. A line replaces an earlier one of its cell, unless
    its run is unfinished and the earlier one says more.
    """
    lines = read_lines(source) if source.is_file() else list(_found(source, only))
    if not lines:
        raise UserError(f"{source} has no finished cells of built-in studies")
    changed = []
    for name in sorted({line["study"] for line in lines}):
        path = STUDIES / f"{name}.jsonl"
        kept = {_key(line): line for line in (read_lines(path) if path.exists() else [])}
        for line in (line for line in lines if line["study"] == name):
            if (before := kept.get(_key(line))) is None or not _says_more(before, line):
                kept[_key(line)] = line
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, "".join(f"{strict_json.dumps(kept[key])}\n" for key in sorted(kept)))
        changed.append(path)
    return changed


def _found(folder: Path, only: Sequence[str]) -> Iterator[Line]:
    for name in only or study_names():
        study = load_study(name)
        for scale in study.scale:
            found = load_lines(study, scale, folder) if scale != "smoke" else []
            num = len(study.cells(scale)) if found else 0
            if only or len(found) >= num / 10:
                yield from found
            else:
                print(f"left out: {len(found)} of {num} cells of {name} ({scale}); --only {name} adds them")


def _key(line: Line) -> tuple[str, str]:
    return line["scale"], line["cell"]


def _says_more(before: Line, line: Line) -> bool:
    if not line.get("unfinished"):
        return False
    return not before.get("unfinished") or len(before["points"]) > len(line["points"])


def cells() -> list[Line]:
    """All published cells."""
    return [line for path in sorted(STUDIES.glob("*.jsonl")) for line in read_lines(path)]


def by_study(lines: Iterable[Line]) -> dict[tuple[str, str], list[Line]]:
    """Published cells by study and scale, in the order in which the study runs them."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        found.setdefault((line["study"], line["scale"]), []).append(line)
    for (name, scale), own in found.items():
        order = {cell.name: number for number, cell in enumerate(load_study(name).cells(scale))}
        own.sort(key=lambda line: order.get(line["cell"], len(order)))
    return dict(sorted(found.items()))


# Blocks


def verdicts() -> str:
    """One line for each claim of the paper."""
    found, rows = findings(cells()), []
    for number, claim in enumerate(CLAIMS, 1):
        own = [finding for finding in found if finding.claim == claim.text]
        of_paper = [pair for pair in claim.pairs if pair not in NOT_OF_THE_PAPER]
        digits = [pair for pair in claim.pairs if pair in NOT_OF_THE_PAPER]
        rows.append([number, claim.text, claim.paper, _verdicts(of_paper, own, True), _verdicts(digits, own, False)])
    return table(
        ["", "claim", "figure of the paper", "the paper's pairs", "digits/MLP (small, not in the paper)"], rows
    )


def _verdicts(pairs: Sequence[str], found: Sequence[Finding], named: bool) -> str:
    shown = {pair: next((finding for finding in found if finding.pair == pair), None) for pair in pairs}
    if not any(shown.values()):
        return "not shown (no run)" if pairs else "does not apply"
    said = [
        f"{pair}: **{finding.verdict}**, n = {finding.num_seeds}, {finding.epochs} epochs ({finding.scale})"
        if named else f"**{finding.verdict}**, n = {finding.num_seeds}"
        for pair, finding in shown.items() if finding is not None
    ]  # fmt: skip
    missing = [pair for pair, finding in shown.items() if finding is None]
    return "; ".join([*said, *([f"not shown (no run): {', '.join(missing)}"] if missing else [])])


def evidence() -> str:
    """The numbers behind each verdict."""
    numbers = {claim.text: number for number, claim in enumerate(CLAIMS, 1)}
    rows = [
        [
            numbers[finding.claim], finding.pair, f"{finding.scale}, {finding.epochs} epochs", measured,
            measured.num_seeds, measured.verdict,
        ]
        for finding in findings(cells()) for measured in finding.measured
    ]  # fmt: skip
    return table(["claim", "pair", "scale", "measured: mean over seeds (90% interval)", "seeds", "verdict"], rows)


def discovery_costs() -> str:
    """What each search costs beside IMP-C."""
    rows = []
    for (name, scale), lines in by_study(cells()).items():
        points = [point for line in lines for point in line["points"]] if name == "cost" else []
        for pair, search in dict.fromkeys((point["pair"], point["search"]) for point in points):
            if search in ("IMP-C", "dense"):
                continue
            own = [point for point in points if point["pair"] == pair]
            if found := costs_beside_imp(own, search):
                mean = {key: fmean(each[key] for each in found) for key in found[0]}
                level = imp_at_accuracy(own, mean["val"])
                # A run of IMP-C that ends there might be as accurate at a lower density, for a higher cost.
                is_last = level is not None and level[0] <= 1.01 * min(
                    p["density"] for p in own if p["search"] == "IMP-C"
                )
                as_accurate = "-" if level is None else f"{mean['flops'] / level[1]:.2f} (at {level[0]:.1%})"
                as_accurate = f"at most {as_accurate}" if is_last else as_accurate
                rows.append([
                    pair, scale, search, f"{mean['density']:.1%}", f"{mean['val']:.2%}", f"{mean['flops']:.2f}",
                    f"{mean['relative']:.2f}", as_accurate, len(found),
                ])  # fmt: skip
    headings = ["pair", "scale", "search", "returned", "val", "FLOPs / dense", "/ IMP-C, same density"]
    return table([*headings, "/ IMP-C, same accuracy", "seeds"], rows)


def studies() -> str:
    """Table and figure of every study and scale with published cells."""
    parts = []
    for (name, scale), lines in by_study(cells()).items():
        text = render_results(results_of(load_study(name), scale, lines), "markdown")
        caption, _, rows = text.partition("\n\n")
        figure = f"![{name}, {scale}](images/results-{name}-{scale}.png)"
        source = f"[lines](../results/studies/{name}.jsonl), `pathgrow study {name} --scale {scale}`"
        folded = f"<details><summary>Table</summary>\n\n{rows.strip()}\n\n</details>"
        parts.append(f"### {name}, {scale}\n\n{caption} ({source})\n\n{figure}\n\n{folded}")
    return "\n\n".join(parts)


def calibration() -> str:
    """Answers of `discover` beside brute force."""
    parts = []
    for (name, scale), lines in by_study(cells()).items():
        results = results_of(load_study(name), scale, lines)
        parts += [calibration_markdown(results)] if results.calibrations else []
    return "\n\n".join(parts)


BLOCKS: dict[str, Callable[[], str]] = {
    "verdicts": verdicts, "evidence": evidence, "discovery-costs": discovery_costs, "studies": studies,
    "calibration": calibration,
    "networks": networks.overview, **TABLES,
}  # fmt: skip


# Pages


def rendered(page: str) -> str:
    """The page with all of its blocks generated again."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, help="directories of cells, or files of lines, to be added")
    parser.add_argument("--only", nargs="+", default=[], metavar="STUDY", help="studies to be added (default: all)")
    chosen = parser.parse_args()
    for source in chosen.sources:
        print("merged into", *(path.relative_to(ROOT) for path in add(source, chosen.only)))
    for path in (PAGE, networks.PAGE):
        atomic.write_text(path, rendered(path.read_text(encoding="utf-8")))
    for (name, scale), lines in by_study(cells()).items():
        picture = results_png(results_of(load_study(name), scale, lines), dpi=90)
        atomic.write_bytes(FIGURES / f"results-{name}-{scale}.png", picture)


if __name__ == "__main__":
    main()
