"""Named random generators: one seed, and a name for every use.

A generator depends on the seed and on its name alone, never on what was drawn before, so a resumed run draws the same
numbers as an undisturbed one. Generators are always on the CPU, so that masks are equal on every device.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from pathgrow.errors import checked_int


def derive(seed: int, *name: str | int) -> int:
    """A 63-bit seed for this use, stable over processes, platforms and Python versions."""
    text = "/".join([str(checked_int("seed", seed)), *map(str, name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *name: str | int) -> torch.Generator:
    """The generator for one named use.

    >>> a = torch.rand(3, generator=generator(0, "grow", 4))
    >>> b = torch.rand(3, generator=generator(0, "grow", 4))
    >>> bool((a == b).all())
    True
    """
    return torch.Generator().manual_seed(derive(seed, *name))


@contextmanager
def seeded_globals(seed: int, *name: str | int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python for one named use, then restore their states.

    User functions may draw from any of them; a call depends on its name only, not on what ran before.
    """
    derived = derive(seed, *name)
    python, arrays = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derived)
        random.seed(derived)
        np.random.seed(derived % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)
