"""Select exactly `count` of the candidates: in proportion to a score, the largest, or uniformly.

Scores are streamed: they are read in pieces and no sampler holds all keys at once, so 1e8 scores need little memory
beyond the result.

Noise is drawn on the CPU, for the candidates only, in the order of the mapping and of each tensor's logical index. So
the same generator gives the same masks on every device, for every memory layout and every piece size. A sampler draws
one seed from the caller's generator, so that it can repeat its noise in a second pass.

`top_k_in`, `uniform_in` and `sample_in` work on a single tensor, on its own device; for many tensors see `by_layer`.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathgrow.errors import UserError, checked_int, require
from pathgrow.masks import Masks

Array = np.ndarray[Any, Any]
Seed = list[int]

Piece = tuple[Array, Array, Array]
"""Writable flags of a part of the result, the indices of the candidates in them, and one value per candidate."""
Pass = Callable[[], Iterator[Piece]]
"""Starts a pass over all candidates."""

_PIECE = 1 << 17  # one MiB of float64, which stays in the cache
_NUMPY_DTYPES = {torch.bool, torch.float16, torch.float32, torch.float64}  # not bfloat16 and float8


class ZeroScores(UserWarning):
    """Warning: fewer candidates have a positive score than were to be drawn."""


def sample_proportional(
    scores: Mapping[str, Tensor], candidates: Masks, count: int, generator: torch.Generator
) -> Masks:
    """Draw `count` candidates sequentially without replacement, each in proportion to its score.

    The distribution is exactly that of sequential sampling (Plackett-Luce): the `count` candidates with the smallest
    `E / score` follow it if `E` is standard exponential noise. Scores may span the whole range of float64.

    Parameters
    ----------
    scores : mapping of name to float tensor
        Finite and >= 0, for every name in `candidates`; other scores are ignored. A candidate with score zero is drawn
        only when none with a positive score is left; such draws are uniform and give a warning.
    candidates : Masks
        The True positions inside its scope are the candidates, for example `masks.missing()`.
    count : int
        Number of candidates to draw.
    generator : torch.Generator
        Always advanced by two integers, whatever the other arguments.

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
            f"only {num_positive} of {count} positions to draw have a positive score; "
            f"the other {count - num_positive} are drawn uniformly from those with score zero",
            ZeroScores,
            stacklevel=2,
        )
    return _selection(result, candidates)


def uniform(candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Draw `count` candidates uniformly without replacement.

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
    """Select the `count` candidates with the largest scores; ties at the border are broken uniformly at random.

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
        for flags, indices, values in _pieces(result, candidates, scores):
            yield flags, indices, _ranks(values)

    border, num_border, tied = _kth_rank(ranked, count)
    for flags, indices, ranks in ranked():
        flags[indices[ranks < border]] = True
    _smallest_keys_(lambda: ((flags, indices, np.ones(indices.size)) for flags, indices, _ in tied()), num_border, seed)
    return _selection(result, candidates)


# Selection within one tensor, on its own device. Only ties and uniform draws use the CPU generator, over candidates in
# logical order, so that equal scores give equal results on every device.


def top_k_in(scores: Tensor, candidates: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """The `num` candidates of one tensor with the largest scores; ties at the border are broken at random.

    >>> scores, candidates = torch.tensor([3.0, 1.0, 2.0, 9.0]), torch.tensor([True, True, True, False])
    >>> top_k_in(scores, candidates, 2, torch.Generator()).tolist()
    [True, False, True, False]
    """
    indices = candidates.reshape(-1).nonzero().squeeze(1)
    assert 0 <= num <= len(indices), "more than there are candidates"
    if num == 0:
        return torch.zeros(candidates.shape, dtype=torch.bool, device=candidates.device)
    values = scores.detach().reshape(-1)[indices]
    if not bool(values.isfinite().all()):
        raise UserError("scores of weights are not finite; training diverged, lower the learning rate")
    border = torch.topk(values, num, sorted=False).values.min()
    chosen = values > border
    tied = (values == border).nonzero().squeeze(1)
    drawn = torch.randperm(len(tied), generator=generator)[: num - int(torch.count_nonzero(chosen))]
    chosen[tied[drawn.to(tied.device)]] = True
    return _flags(candidates, indices[chosen])


def uniform_in(candidates: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Draw `num` candidates of one tensor uniformly without replacement."""
    indices = candidates.reshape(-1).nonzero().squeeze(1)
    assert 0 <= num <= len(indices), "more than there are candidates"
    drawn = torch.randperm(len(indices), generator=generator)[:num]
    return _flags(candidates, indices[drawn.to(indices.device)])


def sample_in(scores: Tensor, candidates: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Draw `num` candidates of one tensor without replacement, each in proportion to its score; zeros come last."""
    indices = candidates.reshape(-1).nonzero().squeeze(1)
    noise = torch.empty(len(indices), dtype=torch.float64).exponential_(generator=generator).clamp_(min=_SMALLEST_NOISE)
    keys = torch.zeros(candidates.numel(), dtype=torch.float64, device=candidates.device)
    keys[indices] = scores.detach().reshape(-1)[indices].double() / noise.to(keys.device)
    return top_k_in(keys.view(candidates.shape), candidates, num, generator)


def _flags(like: Tensor, indices: Tensor) -> Tensor:
    flags = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    flags[indices] = True
    return flags.view(like.shape)


# Proportional sampling with exponential keys, never all at once.
#
# A key is the float64 quotient noise / score as an integer, exponent above mantissa, which orders like the number
# itself. The integer has room for larger exponents than float64, so that no score can make it overflow, and a score of
# zero gets its own exponent, smaller than that of any positive score by more than the noise can compensate.

_MANTISSA = 52
_ZERO_SCORE_EXPONENT = -1300  # float64 reaches down to 2**-1074
_EXPONENT_SHIFT = 600  # centers the exponents -1300 to 1024 in the 12 available bits
_SMALLEST_NOISE = 2.0**-64  # noise has steps of about 2**-53; this changes an exact zero only

# The top bits of a key are its bin number, 32 bins to a factor of two. The logarithm of exponential noise has a density
# of at most 1/e, so for any scores no bin is expected to hold more than ln(33/32)/e = 1.1% of the candidates.
_BIN_SHIFT = _MANTISSA - 5
_LOWEST_BIN = -700 << 5
_NUM_BINS = 2500 << 5
_ZERO_SCORE_BIN = (1023 - 64 - _ZERO_SCORE_EXPONENT - _EXPONENT_SHIFT) << 5  # 1023: the exponent field of the number 1


def _keys(scores: Array, noise: Array) -> Array:
    """Integers that order like noise / score. Overwrites the noise."""
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
    """Each piece with its noise, which a second thread draws while the previous piece is processed.

    Two buffers alternate, so an array of noise (and the keys made in its place) is valid for one step only.
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
    """Flag the `count` candidates with the smallest keys; return the number of candidates with a positive score.

    The first pass counts keys in bins. The second repeats the noise, flags whole bins and collects the keys of the
    border bin, among which the smallest are then selected exactly.
    """

    def keyed() -> Iterator[Piece]:
        for (flags, indices, values), noise in _with_noise(pieces(), seed):
            yield flags, indices, _keys(values, noise)

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
    for flags, indices, keys in keyed():
        flags[indices[keys < first_key]] = True
        here = np.flatnonzero((keys >= first_key) & (keys <= last_key))
        border_keys[num_seen : num_seen + here.size] = keys[here]
        border_parts.append((flags, indices[here].astype(np.int32)))
        num_seen += here.size

    smallest = np.zeros(num_seen, dtype=np.bool_)
    smallest[np.argpartition(border_keys, num_border - 1)[:num_border]] = True
    start = 0
    for flags, indices in border_parts:
        flags[indices[smallest[start : start + indices.size]]] = True
        start += indices.size
    return num_positive


# Top-k: scores as integers that order the same way, narrowed down by 16 bits per pass.

_FEW = 1 << 22  # up to so many candidates (64 MiB of indices and ranks) are kept instead of read again


def _ranks(values: Array) -> Array:
    """uint64 numbers that decrease as values increase; equal values, including the two zeros, have equal ranks."""
    bits = (values + 0.0).view(np.int64)
    ascending = bits ^ ((bits >> 63) & np.iinfo(np.int64).max)
    ranks: Array = (~ascending).view(np.uint64) ^ np.uint64(1 << 63)
    return ranks


def _kth_rank(ranked: Pass, count: int) -> tuple[np.uint64, int, Pass]:
    """The `count`-th smallest rank, how many candidates of that rank are needed, and a pass over these."""
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
    for flags, indices, ranks in ranked():
        here = np.flatnonzero(ranks >> np.uint64(shift) == np.uint64(prefix))
        if here.size:
            yield flags, indices[here], ranks[here]


def _count_in_(counts: Array, bins: Array, origin: int = 0) -> None:
    """Add a histogram of `bins` to `counts`, whose first entry is bin `origin`. Overwrites `bins`."""
    lowest = int(bins.min())
    bins -= lowest
    here = np.bincount(bins)
    counts[lowest - origin : lowest - origin + here.size] += here


def _border(counts: Array, count: int) -> tuple[int, int]:
    """The bin in which the cumulative count reaches `count`, and how many of that bin are needed."""
    total = np.cumsum(counts)
    assert 1 <= count <= total[-1], "at least one and at most all"
    border = int(np.searchsorted(total, count))
    return border, count - int(total[border] - counts[border])


# Reading scores and candidates piece by piece.


def _pieces(
    result: Mapping[str, Tensor],
    candidates: Masks,
    scores: Mapping[str, Tensor] | None,
    lowest: float = -float(np.finfo(np.float64).max),
) -> Iterator[Piece]:
    """All candidates with their checked scores (ones if `scores` is None)."""
    scope = candidates.scope
    for name, chosen in candidates.items():
        flags = result[name].view(-1).numpy()
        start = 0
        for parts in _split(chosen, scope[name], *([] if scores is None else [scores[name].detach()])):
            stop = start + parts[0].numel()
            indices = np.flatnonzero(_array(parts[0]) & _array(parts[1]))
            if indices.size:
                if scores is None:
                    values = np.ones(indices.size)
                else:
                    values = _array(parts[2])[indices].astype(np.float64)
                    _require_between(values, lowest, name)
                yield flags[start:stop], indices, values
            start = stop


def _split(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Flat pieces of tensors of the same shape, in logical order, without copying whole tensors."""
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
    # NumPy from here on: waking torch's threads for every piece would cost more than the work itself.
    part = part.cpu()
    array: Array = (part if part.dtype in _NUMPY_DTYPES else part.float()).numpy()
    return array


def _require_between(values: Array, lowest: float, name: str) -> None:
    # Written so that NaN fails too.
    if not (values.min() >= lowest and values.max() < np.inf):
        bad = values[~((values >= lowest) & (values < np.inf))][0]
        raise UserError(f"scores of {name!r} must be finite{' and >= 0' if lowest == 0 else ''}, got {bad}")


def _checked(scores: Mapping[str, Tensor] | None, candidates: Masks, count: int) -> int:
    require(isinstance(candidates, Masks), "candidates", candidates, "a pathgrow.Masks")
    count = checked_int("count", count)
    num = candidates.num_on
    if not 0 <= count <= num:
        raise UserError(f"count must be between 0 and the number of candidates, {num}, got {count}")
    if scores is None:
        return count
    require(isinstance(scores, Mapping), "scores", scores, "a mapping of name to float tensor")
    for name, chosen in candidates.items():
        if name not in scores:
            raise UserError(f"there are candidates in {name!r} but no scores for it")
        score = scores[name]
        require(isinstance(score, Tensor), f"scores of {name!r}", score, "a float tensor")
        if score.shape != chosen.shape:
            raise UserError(
                f"scores of {name!r} must have the shape of the candidates, {tuple(chosen.shape)}, "
                f"got {tuple(score.shape)}"
            )
        if not score.is_floating_point():
            raise UserError(f"scores of {name!r} must be floating point, got {score.dtype}")
    return count


def _seed(generator: torch.Generator) -> Seed:
    require(isinstance(generator, torch.Generator), "generator", generator, "a torch.Generator")
    drawn: Seed = torch.randint(1 << 62, (2,), generator=generator, device=generator.device).tolist()
    return drawn


def _nothing(candidates: Masks) -> dict[str, Tensor]:
    return {name: torch.zeros(chosen.shape, dtype=torch.bool) for name, chosen in candidates.items()}


def _selection(result: Mapping[str, Tensor], candidates: Masks) -> Masks:
    placed = {name: flags.to(candidates[name].device) for name, flags in result.items()}
    return Masks.select(placed, candidates.scope)
