"""Sets of positions along one axis of a map, by number.

Thousands of walkers stand on few different sets. With sets numbered as they turn up, a walker holds one integer, and
what a step makes of a set is computed once instead of once per walker.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pathgrow.graph.graph import Flags, Units

Numbers = npt.NDArray[np.int32]

EMPTY = 0
"""The number of every set without a position, however long its axis."""
_UNKNOWN = -1


class Catalogue:
    """All sets met so far. `Flags` of sets are `[sets, size of the axis]`."""

    def __init__(self) -> None:
        self._flags: list[Flags] = [np.zeros(0, dtype=bool)]
        self._number: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._flags)

    def number(self, sets: Flags) -> Numbers:
        """The number of each set; new sets get the next ones."""
        numbers = np.full(len(sets), EMPTY, dtype=np.int32)
        for place in np.flatnonzero(sets.any(axis=1)):
            number = self._number.setdefault(sets[place].tobytes(), len(self))
            if number == len(self):
                self._flags.append(sets[place])
            numbers[place] = number
        return numbers

    def flags(self, numbers: Numbers, size: int) -> Flags:
        """The sets with these numbers, on an axis of this size."""
        sets = np.zeros((len(numbers), size), dtype=bool)
        for place in np.flatnonzero(numbers != EMPTY):
            sets[place] = self._flags[numbers[place]]
        return sets


class Moves:
    """What one kind of step makes of every set, by tap.

    Parameters
    ----------
    catalogue
        Numbers the sets on both sides.
    size, num_taps
        The size of the axis on the near side, and how many taps there are to choose from.
    step
        Takes sets and one tap for each of them; gives the sets on the far side.
    """

    def __init__(self, catalogue: Catalogue, size: int, num_taps: int, step: Callable[[Flags, Units], Flags]) -> None:
        self._catalogue, self._size, self._num_taps, self._step = catalogue, size, num_taps, step
        self._known = np.zeros(0, dtype=np.int32)

    def __call__(self, numbers: Numbers, taps: Units | None = None) -> Numbers:
        """The number of the far set for each near set and its tap; `taps` may be left out where there is only one."""
        asked = numbers if self._num_taps == 1 or taps is None else numbers * self._num_taps + taps
        num_unheard = len(self._catalogue) * self._num_taps - len(self._known)
        self._known = np.pad(self._known, (0, num_unheard), constant_values=_UNKNOWN) if num_unheard else self._known
        found: Numbers = self._known[asked]
        if (unknown := found == _UNKNOWN).any():
            new = np.unique(asked[unknown])
            sets = self._catalogue.flags(new // self._num_taps, self._size)
            self._known[new] = self._catalogue.number(self._step(sets, new % self._num_taps))
            found = self._known[asked]
        return found
