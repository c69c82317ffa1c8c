"""The catalogue of faults and attacks, and the pytest plugin that counts what a run survives.

`make test` makes a few attempts at every item, `make torture` all of them; see docs/design/reliability.md.
"""

from __future__ import annotations

import json
import platform
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

ITEMS = {
    1: ("SIGKILL at random points of a discovery, in saves and in mask updates", "same bits as the undisturbed run"),
    2: ("kill and resume five times an epoch", "same stream of samples"),
    3: ("kill and resume every method, eager and captured steps, loader workers", "same bits as the undisturbed run"),
    4: ("every field of a checkpoint deleted in turn", "refused by name, or trained again"),
    5: ("every part of the state changed before loading", "same bits after loading"),
    6: ("GPU, eager and compiled, repeated", "same bits"),
    7: ("2 and 4 processes, different seeds, tied scores", "same masks after every update"),
    8: ("density and pruned weights after a resume", "exact to one weight; pruned weights and their momentum are 0"),
    9: ("ENOSPC and EIO at every write", "the previous checkpoint loads"),
    10: ("files truncated at each 1%, flipped bits", "detected; the last valid checkpoint is used"),
    11: ("kill or power cut before a save is complete", "the previous checkpoint loads; nothing older is removed"),
    12: ("files of other format versions", "loaded, or refused in one sentence"),
    13: ("SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C in every phase", "state saved, exit 143 or 130"),
    14: ("NaN or Inf in a training", "one sentence; no checkpoint holds NaN"),
    15: ("out of memory", "one sentence; the next ten runs pass, memory returns"),
    16: ("500 runs started at once, 20% of them killed", "every result exactly once"),
    17: ("stale lock, clock off by a day", "recovered"),
    18: ("8 processes preparing one dataset", "one valid copy"),
    19: ("fuzzed configs", "typed error within 1 s; nothing imported or executed"),
    20: ("fuzzed checkpoints and datasets", "typed error; memory of about twice the file at most"),
    21: ("pickles that run code", "nothing is executed"),
    22: ("hostile archives", "nothing is written outside the root"),
    23: ("1,000 run directories, 50 of them corrupt", "compared within 3 s, corrupt ones named"),
    24: ("script injection in every name and text of a report", "no script, no unsafe policy"),
    25: ("path traversals, symbolic links, pipes", "nothing outside the run directory is read or changed"),
}
"""What is tried, and when an attempt survives, by number."""
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "results" / "reliability.json"
_MOST_FAILURES = 5
_KEY = pytest.StashKey[dict[int, list[dict[str, Any]]]]()
_LEFT = pytest.StashKey[dict[int, int]]()
_TRIALS = pytest.StashKey["Trials"]()
_MARK = "item"


class Trials:
    """The attempts of one test: how many, their random numbers, and those that failed."""

    def __init__(self, seed: int, name: str, *, full: bool) -> None:
        self.draw = random.Random(f"{seed} {name}")
        self.full = full
        self.tried = 0
        self.totals: dict[str, int] = {}
        self.peaks: dict[str, float] = {}
        self.failures: list[str] = []

    def count(self, *, quick: int, full: int) -> int:
        """How many attempts to make."""
        return full if self.full else quick

    @contextmanager
    def one(self, what: object = "") -> Iterator[None]:
        """Make one attempt; an error inside the block is recorded, and the test fails at its end."""
        self.tried += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}".partition("\n")[0][:300])

    def add(self, what: str, num: int = 1) -> None:
        """Add to a number of the table, which is summed over the tests of an item ("SIGKILLs in a save")."""
        self.totals[what] = self.totals.get(what, 0) + num

    def peak(self, what: str, value: float) -> None:
        """Report a measured value, of which the table shows the largest ("seconds at most")."""
        self.peaks[what] = max(value, self.peaks.get(what, value))


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Trials:
    """The attempts of this test; it fails at its end if one of them did."""
    config = request.config
    full = config.getoption("--torture") is not None
    made = Trials(config.getoption("--attack-seed"), request.node.nodeid, full=full)
    request.node.stash[_TRIALS] = made
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    made = item.stash.get(_TRIALS, None)
    if made is not None and (made.failures or not made.tried):
        text = "\n".join([f"{len(made.failures)} of {made.tried} attempts failed", *made.failures[:20]])
        pytest.fail(text, pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("reliability")
    group.addoption("--torture", metavar="JSON", type=Path, help="Run the catalogue at its full counts, write them.")
    group.addoption("--item", metavar="N,...", default="", help="Items of the catalogue to run.")
    group.addoption("--attack-seed", metavar="N", type=int, default=0, help="Seed of random kills and damage.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_MARK}(number): item of the catalogue in tests/support/catalogue.py")


def _number(item: pytest.Item) -> int | None:
    mark = item.get_closest_marker(_MARK)
    return None if mark is None else mark.args[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--torture") is None and not config.getoption("--item"):
        return
    chosen = {int(part) for part in config.getoption("--item").split(",") if part} or set(ITEMS)
    kept = sorted((item for item in items if _number(item) in chosen), key=lambda item: _number(item) or 0)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
    config.stash[_KEY], config.stash[_LEFT] = defaultdict(list), defaultdict(int)
    for item in kept:
        config.stash[_LEFT][_number(item) or 0] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    start = time.monotonic()
    result = yield
    path, number = item.config.getoption("--torture"), _number(item)
    if path is None or number is None or _LEFT not in item.config.stash:
        return result
    done = item.config.stash[_KEY][number]
    done[-1]["seconds"] = time.monotonic() - start
    item.config.stash[_LEFT][number] -= 1
    if item.config.stash[_LEFT][number] == 0:
        _store(path, number, _summary(done), item.config.getoption("--attack-seed"))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    number = _number(item)
    if number is None or _KEY not in item.config.stash:
        return report
    done = item.config.stash[_KEY][number]
    if report.when == "setup":
        done.append({"tried": 1, "failures": [], "totals": {}, "peaks": {}, "skipped": ""})
    row = done[-1]
    found = item.stash.get(_TRIALS, None)
    if found is not None and report.when == "call":
        row.update(tried=max(found.tried, 1), failures=list(found.failures), totals=found.totals, peaks=found.peaks)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        row.update(tried=0, skipped=reason.removeprefix("Skipped: "))
    elif report.failed and not row["failures"]:
        row["failures"] = [f"{item.name}: {call.excinfo and call.excinfo.exconly()}".partition("\n")[0][:300]]
    return report


def _summary(tests: list[dict[str, Any]]) -> dict[str, Any]:
    tried = sum(test["tried"] for test in tests)
    failures = [failure for test in tests for failure in test["failures"]]
    skipped = list(dict.fromkeys(test["skipped"] for test in tests if test["skipped"]))
    figures: dict[str, float] = {}
    for test in tests:
        for what, num in test["totals"].items():
            figures[what] = figures.get(what, 0) + num
        for what, value in test["peaks"].items():
            figures[what] = max(value, figures.get(what, value))
    return {
        "tried": tried,
        "survived": tried - len(failures),
        "figure": ", ".join(
            f"{num:,} {what}" if isinstance(num, int) else f"{num:.2g} {what}" for what, num in figures.items()
        ),
        "skipped": "; ".join(skipped),
        "failures": failures[:_MOST_FAILURES],
        "seconds": round(sum(test.get("seconds", 0.0) for test in tests), 1),
    }


def read_results(path: Path = RESULTS) -> dict[int, dict[str, Any]]:
    """The stored lines, by item."""
    if not path.exists():
        return {}
    return {row["item"]: row for row in json.loads(path.read_text())["items"]}


def _store(path: Path, number: int, row: dict[str, Any], seed: int) -> None:
    """Replace the line of one item."""
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "machine": machine}
    merge(path, {number: {"item": number, "name": ITEMS[number][0], **row, "seed": seed, **versions}})


def merge(path: Path, new: dict[int, dict[str, Any]]) -> None:
    """Replace the lines of some items, and the table of the page."""
    rows = {**read_results(path), **new}
    lines = ",\n".join(json.dumps(rows[item]) for item in sorted(rows))
    path.write_text(f'{{"items": [\n{lines}\n]}}\n')
    if path.resolve() == RESULTS:
        PAGE.write_text(with_table(PAGE.read_text(), rows))


def table(rows: dict[int, dict[str, Any]]) -> str:
    """The results in Markdown, one line per item of the catalogue."""
    lines = ["| # | tried | survives if | attempts | survived | figure | time |", "|---|---|---|---|---|---|---|"]
    for number, (name, passes) in ITEMS.items():
        row = rows.get(number)
        if row is None:
            lines.append(f"| {number} | {name} | {passes} | not run | | | |")
            continue
        skipped = f"not run: {row['skipped']}" if row["skipped"] else ""
        figure = "; ".join(part for part in (row["figure"], skipped) if part)
        counts = f"{row['tried']:,} | {row['survived']:,}"
        lines.append(f"| {number} | {name} | {passes} | {counts} | {figure} | {row['seconds']:.0f} s |")
    passed = [row for row in rows.values() if is_passed(row)]
    total = sum(row["seconds"] for row in rows.values())
    tried, survived = (sum(row[key] for row in rows.values()) for key in ("tried", "survived"))
    lines.append("")
    lines.append(
        f"{len(passed)} of {len(ITEMS)} items passed completely: {survived:,} of {tried:,} attempts survived, in "
        f"{total / 60:.0f} minutes."
    )
    return "\n".join(lines)


def is_passed(row: dict[str, Any]) -> bool:
    """Whether every attempt at an item survived and no test of it was skipped."""
    return row["tried"] > 0 and row["survived"] == row["tried"] and not row["skipped"]


def with_table(page: str, rows: dict[int, dict[str, Any]]) -> str:
    """The page with its table replaced."""
    begin, end = "<!-- results -->\n", "\n<!-- end of results -->"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}{table(rows)}{end}", page, flags=re.DOTALL)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    path = config.getoption("--torture")
    if path is None or not path.exists():
        return
    terminalreporter.section("reliability")
    terminalreporter.write_line(f"{'item':<72}{'tried':>8}{'survived':>10}  figure")
    for number, row in sorted(read_results(path).items()):
        ran = number in config.stash.get(_KEY, {})
        note = "; ".join(part for part in (row["figure"], row["skipped"] and f"not run: {row['skipped']}") if part)
        name = f"{number:>2} {row['name']}"[:71]
        terminalreporter.write_line(f"{name:<72}{row['tried']:>8,}{row['survived']:>10,}  {note}{'' if ran else ' *'}")
    seconds = sum(row["seconds"] for row in read_results(path).values())
    terminalreporter.write_line(f"total {seconds / 60:.1f} minutes; * from an earlier run")


if __name__ == "__main__":  # adds the lines of other machines to the results
    for name in sys.argv[1:]:
        merge(RESULTS, read_results(Path(name)))
