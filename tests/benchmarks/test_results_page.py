"""The results page: its numbers are those of the committed JSON, and cells are added once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import networks, results_page
from pathgrow.errors import UserError
from pathgrow.studies.definition import Study


@pytest.mark.parametrize("path", [results_page.PAGE, networks.PAGE], ids=lambda path: path.name)
def test_a_page_shows_the_numbers_of_the_json(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert page == results_page.rendered(page), "run `make results`"
    assert page.count("<!-- begin ") == len(results_page._BLOCK.findall(page))


def test_every_block_is_on_a_page() -> None:
    pages = results_page.PAGE.read_text(encoding="utf-8") + networks.PAGE.read_text(encoding="utf-8")
    assert sorted(found[1] for found in results_page._BLOCK.findall(pages)) == sorted(results_page.BLOCKS)


def test_a_changed_number_changes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "STUDIES", tmp_path)
    page = "text 1\n<!-- begin evidence -->\n| 99.99 |\n<!-- end evidence -->\ntext 2\n"
    assert "99.99" not in results_page.rendered(page)
    assert results_page.rendered(page).startswith("text 1\n<!-- begin evidence -->\n| claim |")
    assert results_page.rendered(page).endswith("|\n<!-- end evidence -->\ntext 2\n")


def test_cells_are_merged_by_scale_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "STUDIES", tmp_path / "studies")
    source = tmp_path / "new.jsonl"

    def write(*cells: tuple[str, str, int]) -> None:
        lines = [{"study": "cost", "scale": scale, "cell": cell, "points": [value]} for scale, cell, value in cells]
        source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    write(("short", "b", 1), ("short", "a", 2))
    [path] = results_page.add(source)
    write(("short", "b", 3), ("full", "b", 4))
    results_page.add(source)
    found = [(line["scale"], line["cell"], line["points"]) for line in results_page.read_lines(path)]
    assert found == [("full", "b", [4]), ("short", "a", [2]), ("short", "b", [3])]


def test_a_finished_run_is_not_replaced_by_its_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "STUDIES", tmp_path / "studies")
    source = tmp_path / "new.jsonl"

    def add(*points: int, **more: bool) -> object:
        line = {"study": "cost", "scale": "short", "cell": "a", "points": points, **more}
        source.write_text(f"{json.dumps(line)}\n")
        [path] = results_page.add(source)
        [kept] = results_page.read_lines(path)
        return kept["points"]

    assert add(1, unfinished=True) == [1]
    assert add(1, 2, 3, unfinished=True) == [1, 2, 3]
    assert add(1, 2, unfinished=True) == [1, 2, 3], "an older export"
    assert add(1, 2, 3, 4) == [1, 2, 3, 4]
    assert add(1, 2, 3, 4, unfinished=True) == [1, 2, 3, 4]
    assert add(5) == [5], "the cell was run again"


def test_cells_that_another_study_shares_are_left_out_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_lines(study: Study, scale: str, folder: Path) -> list[dict[str, object]]:
        num = {("topology", "digits"): 1, ("price", "digits"): 4, ("price", "smoke"): 14}.get((study.name, scale), 0)
        return [{"study": study.name, "scale": scale, "cell": str(number)} for number in range(num)]

    monkeypatch.setattr(results_page, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(results_page, "load_lines", load_lines)
    [path] = results_page.add(tmp_path)
    assert (path.stem, len(results_page.read_lines(path))) == ("price", 4)  # of 35; none of the scale smoke
    assert "1 of 20 cells of topology (digits)" in capsys.readouterr().out
    [path] = results_page.add(tmp_path, ["topology"])
    assert (path.stem, len(results_page.read_lines(path))) == ("topology", 1)


def test_a_directory_without_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished cells"):
        results_page.add(tmp_path, ["topology"])
