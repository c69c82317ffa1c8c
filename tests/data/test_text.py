"""The text dataset: codes, splits and windows against plain Python, and files that it refuses."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch

from pathgrow import data
from pathgrow.data.dataset import TextSplit
from pathgrow.data.download import download
from pathgrow.data.official import OFFICIAL
from pathgrow.errors import UserError
from tests.support.text_data import write_text


def decoded(text: str, split: object) -> str:
    assert isinstance(split, TextSplit)
    return "".join(sorted(set(text))[code] for code in split.codes.tolist())


@pytest.mark.parametrize("fold", [0, 3, 9])
def test_one_tenth_is_held_out_and_everything_else_is_train(fold: int, tmp_path: Path) -> None:
    text = write_text(tmp_path, 3000)
    found = data.load("text", tmp_path, fold=fold, context=16)
    start = 2700 - 300 * fold
    assert decoded(text, found.val) == text[start : start + 150]
    assert decoded(text, found.test) == text[start + 150 : start + 300]
    assert decoded(text, found.train) == text[:start] + text[start + 300 :]
    assert (found.classes, found.shape, data.mode("text")) == (len(set(text)), (16,), "min")
    assert decoded(text, TextSplit(found.example_input()[0].to(torch.uint8), 8)) == decoded(text, found.train)[:16]


def test_the_target_of_a_character_is_the_next_one(tmp_path: Path) -> None:
    write_text(tmp_path, 3000)
    split = data.load("text", tmp_path, context=16).val
    assert isinstance(split, TextSplit)
    codes = split.codes.tolist()
    inputs, targets = split.windows(torch.tensor([0, 5, len(codes) - 17]))
    assert inputs.tolist() == [codes[start : start + 16] for start in (0, 5, len(codes) - 17)]
    assert targets.tolist() == [codes[start + 1 : start + 17] for start in (0, 5, len(codes) - 17)]
    assert 15 + 16 * len(split) + 1 <= len(codes), "windows fit at any offset"


def test_a_file_is_downloaded_into_the_folder_of_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_text(tmp_path)
    (tmp_path / "tinyshakespeare.txt").rename(tmp_path / "input.txt")
    official = dataclasses.replace(OFFICIAL["text"], sha256=hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setitem(OFFICIAL, "text", official)
    assert download("text", tmp_path, lambda line: None) == tmp_path / "tinyshakespeare"
    assert (tmp_path / "tinyshakespeare" / "tinyshakespeare.txt").read_text() == text
    assert decoded(text, data.load("text", tmp_path, context=16).test) == text[-150:]


@pytest.mark.parametrize(
    ("content", "context", "message"),
    [
        (None, None, "text not found: .* `pathgrow data get text"),
        ("".join(map(chr, range(300, 600))), None, "300 different characters, more than 256"),
        (b"\xff\xfe\xff", None, "cannot read .*tinyshakespeare.txt"),
        ("to be or not " * 40, None, "context must be at most half of a text of 468 characters, got 256"),
        ("to be or not " * 40, 14, "context must be at most half of a text of 26 characters, got 14"),
    ],
)  # fmt: skip
def test_unusable_files_are_refused(
    content: str | bytes | None, context: int | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        path = tmp_path / "tinyshakespeare.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        data.load("text", tmp_path, context=context)
