"""Tiny Shakespeare: 1.1 million characters of plays, 65 different ones, predicted one by one."""

from pathlib import Path

import numpy as np
import torch

from pathgrow.data.dataset import Dataset, TextSplit
from pathgrow.data.official import find_official, replace_advice
from pathgrow.errors import UserError, require

_NUM_PARTS = 10
_MAX_CHARACTERS = 256
"""Different characters, since their numbers are bytes."""


def tiny_shakespeare(root: Path, seed: int, fold: int) -> Dataset:
    """Load the text; the last tenth (fold 0, or the one `fold` tenths before it) is half val, half test.

    Characters are numbered in the order of their code points; nothing is shuffled, so `seed` has no effect.
    `Dataset.with_context` sets the length of the windows.
    """
    folder = find_official("text", root)
    path = folder / "tinyshakespeare.txt"
    require(0 <= fold < _NUM_PARTS, "fold of text", fold, f"in [0, {_NUM_PARTS - 1}]")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({error}): {replace_advice('text', folder)}") from error
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    characters, codes = np.unique(points, return_inverse=True)
    if len(characters) > _MAX_CHARACTERS:
        raise UserError(
            f"{path} has {len(characters):,} different characters, more than {_MAX_CHARACTERS}: "
            f"{replace_advice('text', folder)}"
        )
    whole = torch.from_numpy(codes.astype(np.uint8))
    start, end = ((_NUM_PARTS - fold - k) * len(whole) // _NUM_PARTS for k in (1, 0))
    middle = (start + end) // 2
    parts = {"train": torch.cat([whole[:start], whole[end:]]), "val": whole[start:middle], "test": whole[middle:end]}
    splits = {part: TextSplit(codes, 1) for part, codes in parts.items()}
    return Dataset("text", len(characters), **splits)
