"""Exactly `count` positions out of `candidates`: in proportion to a score, the largest, or any.

Everything streams: scores are read in pieces and no sampler ever holds all keys at once, so 1e8 scores need little
memory beyond the result.

Noise is drawn on the CPU, for the candidates alone, in the order of the mapping and of each tensor's logical index. So
the same generator gives the same masks on every device, for every memory layout and every size of the pieces. A sampler
takes one seed from the caller's generator, so that it can repeat its noise in a second pass.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.masks import Masks

Array = np.ndarray[Any, Any]
Seed = list[int]

Piece = tuple[Array, Array, Array]
"""Writable flags of a part of the result, the places of the candidates in them, and one value for each candidate."""
Pass = Callable[[], Iterator[Piece]]
"""Begins a pass over all candidates."""

_PIECE = 1 << 17  # one MiB of float64: the work of a pass stays in the cache
_NUMPY_DTYPES = {torch.bool, torch.float16, torch.float32, torch.float64}  # bfloat16 and the float8 kinds are not


class ZeroScores(UserWarning):
    """Fewer candidates have a positive score than were asked for."""


def sample_proportional(
    scores: Mapping[str, Tensor], candidates: Masks, count: int, generator: torch.Generator
) -> Masks:
    """Draw `count` candidates one after another without replacement, each in proportion to its score.

    The law is exactly that of sequential sampling (Plackett-Luce), which the `count` candidates with the smallest
    `E / score` follow if `E` is standard exponential noise. Scores may span all of float64.

    Parameters
    ----------
    scores : mapping of name to float tensor
        Finite and not negative, for every name in `candidates`; other scores are not looked at. A candidate with score
        zero is drawn only when none with a positive score is left; such draws are uniform and give a warning.
    candidates : Masks
        The True positions inside its scope are the candidates, for example `masks.missing()`.
    count : int
        How many to draw, exactly.
    generator : torch.Generator
        Always advanced by two integers, whatever the other arguments are.

    Examples
    --------
    >>> masks = Masks({"w": torch.tensor([True, False, False, False])})
    >>> scores = {"w": torch.tensor([9.0, 1e-30, 1.0, 1e-30])}
    >>> sample_proportional(scores, masks.missing(), 1, torch.Generator().manual_seed(0))["w"].tolist()
    [False, False, True, False]
    """
    count = _checked(scores, candidates, count)
    result = _nothing(candidates)
    num_positive = _smallest_keys_(lambda: _pieces(result, candidates, scores, lowest=0.0), count, _seed(generator))
    if num_positive < count:
        warnings.warn(
            f"{count} positions were asked for but only {num_positive} candidates have a positive score: "
            f"the other {count - num_positive} were drawn uniformly from those with score zero",
            ZeroScores,
            stacklevel=2,
        )
    return _selection(result, candidates)


def uniform(candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Draw `count` candidates, every set of them equally likely.

    Parameters are those of `sample_proportional`.

    Examples
    --------
    >>> masks = Masks({"w": torch.tensor([True, False, False, False])})
    >>> uniform(masks.missing(), 2, torch.Generator().manual_seed(0)).num_on
    2
    """
    count = _checked(None, candidates, count)
    result = _nothing(candidates)
    _smallest_keys_(lambda: _pieces(result, candidates, None), count, _seed(generator))
    return _selection(result, candidates)


def top_k(scores: Mapping[str, Tensor], candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Take the `count` candidates with the largest scores; ties at the border are broken at random, uniformly.

    Parameters are those of `sample_proportional`, except that scores may be negative.

    Examples
    --------
    >>> masks = Masks({"w": torch.tensor([True, False, False, False])})
    >>> scores = {"w": torch.tensor([9.0, -1.0, 1.0, -2.0])}
    >>> top_k(scores, masks.missing(), 2, torch.Generator().manual_seed(0))["w"].tolist()
    [False, True, True, False]
    """
    count = _checked(scores, candidates, count)
    result = _nothing(candidates)
    seed = _seed(generator)
    if count == 0:
        return _selection(result, candidates)

    def ranked() -> Iterator[Piece]:
        for flags, places, values in _pieces(result, candidates, scores):
            yield flags, places, _ranks(values)

    border, num_border, tied = _kth_rank(ranked, count)
    for flags, places, ranks in ranked():
        flags[places[ranks < border]] = True
    _smallest_keys_(lambda: ((flags, places, np.ones(places.size)) for flags, places, _ in tied()), num_border, seed)
    return _selection(result, candidates)


# Proportional sampling: exponential keys, never all at once.
#
# A key is the float64 quotient noise / score as an integer, exponent above mantissa, which orders like the number
# itself. The integer has room for larger exponents than float64, so that no score can make it overflow, and a score of
# zero gets an exponent of its own, smaller than that of any positive score by more than the noise can make up for.

_MANTISSA = 52
_ZERO_SCORE_EXPONENT = -1300  # float64 reaches down to 2**-1074
_EXPONENT_SHIFT = 600  # centers the exponents that occur, -1300 to 1024, in the 12 bits there are
_SMALLEST_NOISE = 2.0**-64  # noise has steps of about 2**-53; this lifts an exact zero and nothing else

# The top bits of a key number its bin, 32 bins to a factor of two. The logarithm of exponential noise has a density of
# at most 1/e, so whatever the scores are no bin is expected to hold more than ln(33/32)/e = 1.1% of the candidates.
_BIN_SHIFT = _MANTISSA - 5
_LOWEST_BIN = -700 << 5
_NUM_BINS = 2500 << 5
_ZERO_SCORE_BIN = (1023 - 64 - _ZERO_SCORE_EXPONENT - _EXPONENT_SHIFT) << 5  # 1023: the exponent field of the number 1


def _keys(scores: Array, noise: Array) -> Array:
    """Integers that order like noise / score. Writes over the noise."""
    mantissa, exponent = np.frexp(scores)
    if not mantissa.all():
        zero = mantissa == 0
        mantissa[zero] = 0.5
        exponent[zero] = _ZERO_SCORE_EXPONENT
    noise /= mantissa
    keys: Array = noise.view(np.int64)
    exponents = exponent.astype(np.int64)
    exponents += _EXPONENT_SHIFT
    exponents <<= _MANTISSA
    keys -= exponents
    return keys


def _with_noise(pieces: Iterator[Piece], seed: Seed) -> Iterator[tuple[Piece, Array]]:
    """Each piece with its noise, which a second thread draws while the piece before it is worked on.

    Two buffers take turns, so an array of noise (and the keys made in its place) is valid for one step only.
    """
    source = np.random.Generator(np.random.PCG64DXSM(seed))

    def draw(buffer: Array) -> Array:
        source.standard_exponential(out=buffer)
        return np.maximum(buffer, _SMALLEST_NOISE, out=buffer)

    buffers = itertools.cycle(np.empty((2, _PIECE)))
    with ThreadPoolExecutor(max_workers=1) as drawer:
        before: tuple[Piece, Future[Array]] | None = None
        for piece in pieces:
            drawn = drawer.submit(draw, next(buffers)[: piece[2].size])
            if before is not None:
                yield before[0], before[1].result()
            before = piece, drawn
        if before is not None:
            yield before[0], before[1].result()


def _smallest_keys_(pieces: Pass, count: int, seed: Seed) -> int:
    """Flag the `count` candidates with the smallest keys; return how many have a positive score.

    The first pass counts keys in bins. The second draws the same noise again, flags whole bins and collects the keys of
    the one bin on the border, among which the smallest are then selected exactly.
    """

    def keyed() -> Iterator[Piece]:
        for (flags, places, values), noise in _with_noise(pieces(), seed):
            yield flags, places, _keys(values, noise)

    counts = np.zeros(_NUM_BINS, dtype=np.int64)
    for _, _, keys in keyed():
        _count_in_(counts, keys >> _BIN_SHIFT, origin=_LOWEST_BIN)
    num_positive = int(counts[: _ZERO_SCORE_BIN - _LOWEST_BIN].sum())
    if count == 0:
        return num_positive

    border, num_border = _border(counts, count)
    first_key, last_key = ((border + _LOWEST_BIN) << _BIN_SHIFT), ((border + 1 + _LOWEST_BIN) << _BIN_SHIFT) - 1
    border_keys = np.empty(counts[border], dtype=np.int64)
    border_parts: list[tuple[Array, Array]] = []
    num_seen = 0
    for flags, places, keys in keyed():
        flags[places[keys < first_key]] = True
        here = np.flatnonzero((keys >= first_key) & (keys <= last_key))
        border_keys[num_seen : num_seen + here.size] = keys[here]
        border_parts.append((flags, places[here].astype(np.int32)))
        num_seen += here.size

    smallest = np.zeros(num_seen, dtype=np.bool_)
    smallest[np.argpartition(border_keys, num_border - 1)[:num_border]] = True
    start = 0
    for flags, places in border_parts:
        flags[places[smallest[start : start + places.size]]] = True
        start += places.size
    return num_positive


# The largest: scores as integers that order the same way, narrowed down 16 bits a pass.

_FEW = 1 << 22  # up to so many candidates (64 MiB of places and ranks) are kept instead of being read again


def _ranks(values: Array) -> Array:
    """uint64 numbers that fall as values rise; equal values, the two zeros among them, have equal ranks."""
    bits = (values + 0.0).view(np.int64)
    ascending = bits ^ ((bits >> 63) & np.iinfo(np.int64).max)
    ranks: Array = (~ascending).view(np.uint64) ^ np.uint64(1 << 63)
    return ranks


def _kth_rank(ranked: Pass, count: int) -> tuple[np.uint64, int, Pass]:
    """The `count`-th smallest rank, how many candidates that have it complete the `count`, and a pass over these."""
    rank, num_needed = 0, count
    for shift in (48, 32, 16, 0):
        counts = np.zeros(1 << 16, dtype=np.int64)
        for _, _, ranks in ranked():
            _count_in_(counts, ((ranks >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64))
        digit, num_needed = _border(counts, num_needed)
        rank = rank << 16 | digit
        ranked = partial(_beginning_with, ranked, rank, shift)
        if counts[digit] <= _FEW:
            ranked = partial(iter, list(ranked()))
    return np.uint64(rank), num_needed, ranked


def _beginning_with(ranked: Pass, prefix: int, shift: int) -> Iterator[Piece]:
    for flags, places, ranks in ranked():
        here = np.flatnonzero(ranks >> np.uint64(shift) == np.uint64(prefix))
        if here.size:
            yield flags, places[here], ranks[here]


def _count_in_(counts: Array, bins: Array, origin: int = 0) -> None:
    """Count the bins into `counts`, whose first entry is bin `origin`. Writes over `bins`."""
    lowest = int(bins.min())
    bins -= lowest
    here = np.bincount(bins)
    counts[lowest - origin : lowest - origin + here.size] += here


def _border(counts: Array, count: int) -> tuple[int, int]:
    """The bin in which a running total reaches `count`, and how many of that bin are needed."""
    total = np.cumsum(counts)
    assert 1 <= count <= total[-1], "callers ask for at least one and at most all"
    border = int(np.searchsorted(total, count))
    return border, count - int(total[border] - counts[border])


# Reading scores and candidates piece by piece.


def _pieces(
    result: Mapping[str, Tensor],
    candidates: Masks,
    scores: Mapping[str, Tensor] | None,
    lowest: float = -float(np.finfo(np.float64).max),
) -> Iterator[Piece]:
    """All candidates with their scores (one each where there are none), checked."""
    scope = candidates.scope
    for name, chosen in candidates.items():
        flags = result[name].view(-1).numpy()
        start = 0
        for parts in _split(chosen, scope[name], *([] if scores is None else [scores[name].detach()])):
            stop = start + parts[0].numel()
            places = np.flatnonzero(_array(parts[0]) & _array(parts[1]))
            if places.size:
                if scores is None:
                    values = np.ones(places.size)
                else:
                    values = _array(parts[2])[places].astype(np.float64)
                    _require_between(values, lowest, name)
                yield flags[start:stop], places, values
            start = stop


def _split(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Flat pieces of equally shaped tensors in logical order, for any strides without copying whole tensors."""
    shape, num = tensors[0].shape, tensors[0].numel()
    if num <= _PIECE:
        yield tuple(tensor.reshape(-1) for tensor in tensors)
    elif num // shape[0] <= _PIECE:
        rows = _PIECE // (num // shape[0])
        for first in range(0, shape[0], rows):
            yield tuple(tensor[first : first + rows].reshape(-1) for tensor in tensors)
    else:
        for parts in zip(*tensors, strict=True):
            yield from _split(*parts)


def _array(part: Tensor) -> Array:
    # numpy from here on: torch would wake its threads for every piece, which costs more than the work itself.
    part = part.cpu()
    array: Array = (part if part.dtype in _NUMPY_DTYPES else part.float()).numpy()
    return array


def _require_between(values: Array, lowest: float, name: str) -> None:
    # Written so that NaN fails too.
    if not (values.min() >= lowest and values.max() < np.inf):
        bad = values[~((values >= lowest) & (values < np.inf))][0]
        wanted = "finite and not negative" if lowest == 0 else "finite"
        raise UserError(f"the scores of {name!r} hold {bad} but must be {wanted}: look at how they were computed")


def _checked(scores: Mapping[str, Tensor] | None, candidates: Masks, count: int) -> int:
    try:
        count = operator.index(count)
    except TypeError:
        raise UserError(f"count is {count!r} but must be a whole number: round it first") from None
    num = candidates.num_on
    if not 0 <= count <= num:
        raise UserError(f"{count} positions were asked for out of {num} candidates: ask for 0 to {num}")
    if scores is None:
        return count
    for name, chosen in candidates.items():
        if name not in scores:
            raise UserError(f"there are candidates in {name!r} but no scores for it: give scores for every candidate")
        score = scores[name]
        if score.shape != chosen.shape:
            raise UserError(
                f"the scores of {name!r} are {tuple(score.shape)} but the candidates are {tuple(chosen.shape)}: "
                "both need the shape of the parameter"
            )
        if not score.is_floating_point():
            raise UserError(f"the scores of {name!r} are {score.dtype} but must be floating point: convert them")
    return count


def _seed(generator: torch.Generator) -> Seed:
    drawn: Seed = torch.randint(1 << 62, (2,), generator=generator, device=generator.device).tolist()
    return drawn


def _nothing(candidates: Masks) -> dict[str, Tensor]:
    return {name: torch.zeros(chosen.shape, dtype=torch.bool) for name, chosen in candidates.items()}


def _selection(result: Mapping[str, Tensor], candidates: Masks) -> Masks:
    placed = {name: flags.to(candidates[name].device) for name, flags in result.items()}
    return Masks.select(placed, candidates.scope)
