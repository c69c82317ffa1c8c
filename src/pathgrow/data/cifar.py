"""CIFAR-10 and CIFAR-100 (fine labels): 32 x 32 color images in pickled batches.

Unpickling normally imports and calls whatever a file names. Here, the few NumPy names that batches contain become
`_Recorded` objects: calls are recorded as data and interpreted afterwards, so no code is executed on behalf of a file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pathgrow.data.dataset import Dataset, bytes_of, carve, in_memory
from pathgrow.data.official import OFFICIAL, find_official, replace_advice
from pathgrow.errors import UserError

_SHAPE = (3, 32, 32)
_MAX_BYTES = 256 * 2**20
"""The largest official file has 148 MiB; saved again by Python 3 in protocol 2 it grows by half."""
_MAX_OPCODES = 4_000_000
"""The official files have up to 250,000."""
_MAX_TUPLES = 1_000
"""The official files have 8. Hashing a deeply nested tuple would overflow the C stack."""
_GLOBALS = frozenset(
    {
        ("numpy.core.multiarray", "_reconstruct"),  # NumPy 1
        ("numpy._core.multiarray", "_reconstruct"),  # NumPy 2
        ("numpy.core.numeric", "_frombuffer"),  # protocol 5
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),  # bytes in protocol 2, written by Python 3
    }
)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    name: str
    classes: int
    label_key: str
    mean: tuple[float, ...]
    """Mean of the whole training set, in units of bytes."""
    std: tuple[float, ...]


def _load(kind: _Kind, root: Path, seed: int, fold: int) -> Dataset:
    folder = find_official(kind.name, root)
    batches = [_batch(kind, folder / file) for file in OFFICIAL[kind.name].md5]  # the last file is the test set
    images = torch.from_numpy(np.concatenate([images for images, _ in batches]).reshape(-1, *_SHAPE))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in batches]))
    num_train = len(labels) - len(batches[-1][1])
    rows = carve(kind.name, labels[:num_train], seed, fold, "val") | {"test": torch.arange(num_train, len(labels))}
    return in_memory(kind.name, kind.classes, images, labels, rows, kind.mean, kind.std)


cifar10 = partial(
    _load,
    _Kind(
        name="cifar10",
        classes=10,
        label_key="labels",
        mean=bytes_of(0.4914, 0.4822, 0.4465),
        std=bytes_of(0.2470, 0.2435, 0.2616),
    ),
)
"""Load 45,000 train, 5,000 val (fold 0-9 of the official training set) and the official 10,000 test images."""
cifar100 = partial(
    _load,
    _Kind(
        name="cifar100",
        classes=100,
        label_key="fine_labels",
        mean=bytes_of(0.5071, 0.4865, 0.4409),
        std=bytes_of(0.2673, 0.2564, 0.2762),
    ),
)
"""Load CIFAR-100, split like `cifar10`."""


def _batch(kind: _Kind, path: Path) -> tuple[np.ndarray, np.ndarray]:
    advice = replace_advice(kind.name, path.parent)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidBatch("larger than any official file")
        content = parse_pickle(path.read_bytes())
    except InvalidBatch as error:
        raise UserError(f"{path} is not an official CIFAR file ({error}): {advice}") from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error}): {advice}") from error
    fault = _fault(kind, content)
    if fault:
        raise UserError(f"{path} is not an official CIFAR file ({fault}): {advice}")
    return content["data"], np.array(content[kind.label_key], dtype=np.int64)


def _fault(kind: _Kind, content: Mapping[str, Any]) -> str | None:
    """Return why a dictionary is not a batch, or None if it is one."""
    images, labels = content.get("data"), content.get(kind.label_key)
    width = int(np.prod(_SHAPE))
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != width or len(images) == 0:
        return f"`data` is not an array of rows of {width:,} bytes"
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        return f"`{kind.label_key}` is not a list of integers"
    if len(labels) != len(images):
        return f"{len(images):,} images but {len(labels):,} labels"
    if not all(0 <= label < kind.classes for label in labels):
        return f"labels must be in [0, {kind.classes - 1}], got {min(labels)} to {max(labels)}"
    return None


class InvalidBatch(Exception):
    """A pickle is not a batch of CIFAR."""


class _Recorded:
    """A global that a pickle refers to, with the arguments of the call and the state to restore."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None

    def __call__(self, *arguments: Any) -> _Recorded:
        return _Recorded(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise InvalidBatch(f"refers to {_printable(module)}.{_printable(name)}; nothing was executed")
        return _Recorded(name)


def parse_pickle(content: bytes) -> dict[str, Any]:
    """Return the dictionary in a pickle; its arrays are uint8.

    A pickle that is damaged or refers to any other global raises `InvalidBatch`.

    >>> parse_pickle(pickle.dumps({"labels": [3, 5], "data": np.zeros((2, 4), np.uint8)}))["labels"]
    [3, 5]
    """
    try:
        _bound_memory(content)
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(value, dict):
            raise InvalidBatch("not a dictionary")
        return {_text(key): _array(item) if isinstance(item, _Recorded) else item for key, item in value.items()}
    except InvalidBatch:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise InvalidBatch(f"damaged: {_printable(str(error) or type(error).__name__)}") from error


def _bound_memory(content: bytes) -> None:
    """Refuse pickles whose objects would take much more memory than the file.

    The scan itself refuses strings that are longer than the file. The index of a memo entry must be bounded as well:
    the unpickler allocates 16 bytes for each entry below it.
    """
    num_tuples, max_index = 0, 1000 + len(content) // 16
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        num_tuples += opcode.name.startswith("TUPLE")
        memo_index = argument if opcode.name.endswith("PUT") and isinstance(argument, int) else 0
        if number > _MAX_OPCODES or memo_index > max_index or num_tuples > _MAX_TUPLES:
            raise InvalidBatch("more instructions than any official file has")


def _array(recorded: _Recorded) -> np.ndarray:
    """Interpret the recorded calls that create a NumPy array of bytes."""
    match recorded:
        case _Recorded(name="_reconstruct", state=(int(), tuple(shape), _Recorded() as dtype, False | 0, content)):
            pass
        case _Recorded(name="_frombuffer", arguments=(content, _Recorded() as dtype, tuple(shape), "C")):
            pass
        case _:
            raise InvalidBatch("not an array")
    if dtype.name != "dtype" or _text(dtype.arguments[0]) not in ("u1", "|u1"):
        raise InvalidBatch("not an array of bytes")
    if isinstance(content, _Recorded):
        text, encoding = content.arguments
        if content.name != "encode" or encoding != "latin1":
            raise InvalidBatch("not an array of bytes")
        content = text.encode("latin1")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _text(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _printable(text: str) -> str:
    """Make text from a file safe to print on one line of a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:100])
