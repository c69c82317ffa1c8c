"""A small text, some of which can be predicted."""

from __future__ import annotations

import random
from pathlib import Path

SMALL_GPT = {"context": 8, "dim": 8, "depth": 2, "heads": 2}
_WORDS = ("to be", "or not", "that is", "the question", "whether", "'tis nobler", "in the mind", "to suffer")


def write_text(root: Path, num: int = 3000) -> str:
    """Write `num` characters to the file of the dataset `text` in this root, and return them."""
    draw = random.Random(0)
    text = " ".join(draw.choice(_WORDS) for _ in range(num))[:num]
    (root / "tinyshakespeare.txt").write_text(text)
    return text
