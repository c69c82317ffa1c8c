"""Pickled image batches, read without running them.

A pickle is a program: Python's own reader imports what the file names and calls it. CIFAR is published as pickles, so
they are read here by a small machine of our own. It knows the instructions that build numbers, texts, lists,
dictionaries and byte arrays, as Python 2 (the official files) and Python 3 (copies saved again) write them. The few
functions of NumPy that such files name become marks that this module interprets; nothing is imported or called, and
no byte of the file reaches NumPy other than as pixels. Everything else is refused.

>>> import pickle
>>> parse(pickle.dumps({"labels": [3, 5], "data": np.zeros((2, 4), np.uint8)}))["labels"]
[3, 5]
"""

from __future__ import annotations

import enum
import math
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pathgrow.errors import UserError

MAX_BYTES = 512 * 2**20
"""The largest official file has 148 MiB."""
MAX_STEPS = 4_000_000
"""The longest official file has 250,000 instructions; each may take some dozen bytes of memory."""


class Damaged(Exception):
    """The file breaks off, or holds something that no writer of batches would leave."""


class Refused(Exception):
    """The file asks for something that reading images does not need."""


def read(path: Path, advice: str) -> dict[str, Any]:
    """What a batch file holds, by key; its arrays are uint8."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Damaged(f"{size:,} bytes are more than any batch has")
        return parse(path.read_bytes())
    except Refused as error:
        raise UserError(f"{path} {error}, which no image batch needs: nothing in it was run; {advice}") from error
    except Damaged as error:
        raise UserError(f"{path} is damaged ({error}): {advice}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {advice}") from error


def parse(data: bytes) -> dict[str, Any]:
    """The dictionary that a pickle describes; `Damaged` or `Refused` where it describes anything else."""
    machine = _Machine(data)
    try:
        value = machine.run()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        # Taken from an empty stack, a place that was never filled, beyond the end: all the same to the reader.
        raise Damaged(f"it breaks off or is garbled at byte {machine.position:,} of {len(data):,}") from error
    if not isinstance(value, dict):
        raise Damaged("it holds no dictionary")
    return {key: item.content if isinstance(item, _Array) else item for key, item in value.items()}


class _Known(enum.Enum):
    """The only names that a file may mention, and what they stand for."""

    RECONSTRUCT = enum.auto()
    FROM_BUFFER = enum.auto()
    NDARRAY = enum.auto()
    DTYPE = enum.auto()
    ENCODE = enum.auto()


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Known.RECONSTRUCT,  # written by NumPy 1
    ("numpy._core.multiarray", "_reconstruct"): _Known.RECONSTRUCT,  # by NumPy 2
    ("numpy.core.numeric", "_frombuffer"): _Known.FROM_BUFFER,  # both, in protocol 5
    ("numpy._core.numeric", "_frombuffer"): _Known.FROM_BUFFER,
    ("numpy", "ndarray"): _Known.NDARRAY,
    ("numpy", "dtype"): _Known.DTYPE,
    ("_codecs", "encode"): _Known.ENCODE,  # bytes, as Python 3 writes them in protocol 2
}


class _ByteType:
    """The element type uint8."""


class _Array:
    """An array; its content may come later, with BUILD, when others already refer to it."""

    def __init__(self, content: np.ndarray | None = None) -> None:
        self.content = content


class _Machine:
    """Interprets one file; `position` is where it stands."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        """What lay on the stack when a mark was set, mark by mark."""
        # A dictionary: the list that Python's reader keeps can be made to take gigabytes by one large index.
        self.memo: dict[int, Any] = {}
        self.bytes_encoded = 0

    def run(self) -> Any:
        data, actions = self.data, _ACTIONS
        for _ in range(MAX_STEPS):
            code = data[self.position]
            self.position += 1
            if code == _STOP:
                return self.stack.pop()
            action = actions.get(code)
            if action is None:
                raise self._unknown(code)
            action(self)
        raise Refused(f"has more than {MAX_STEPS:,} instructions")

    def _unknown(self, code: int) -> Exception:
        name = _INSTRUCTIONS.get(code)
        return Refused(f"uses the pickle instruction {name}") if name else Damaged(f"byte {code} is no instruction")

    # Raw material.

    def take(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > len(self.data):
            raise Damaged(f"it ends at byte {len(self.data):,}, {self.position:,} are announced")
        return self.data[start : self.position]

    def byte(self) -> int:
        value = self.data[self.position]
        self.position += 1
        return value

    def number(self, kind: struct.Struct) -> int:
        value: int = kind.unpack_from(self.data, self.position)[0]
        self.position += kind.size
        return value

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + 256)
        if end < 0:
            raise Damaged("a name does not end")
        text = self.data[self.position : end]
        self.position = end + 1
        return text.decode("utf-8")

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    # Instructions that need more than one expression.

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def skip_frame(self) -> None:
        self.take(8)

    def protocol(self) -> None:
        if self.byte() > 5:
            raise Damaged("its pickle protocol is newer than 5")

    def name_in_text(self) -> None:
        self.name(self.line(), self.line())

    def name_on_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.name(module, name)

    def name(self, module: Any, name: Any) -> None:
        known = _NAMES.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            raise Refused(f"asks for {_shown(module)}.{_shown(name)}")
        self.stack.append(known)

    def append(self) -> None:
        item = self.stack.pop()
        self.extend([item])

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise Damaged("it appends to something that is no list")
        target.extend(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise Damaged("it fills something that is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_text(key)] = value

    def tuple_since_mark(self) -> None:
        items = self.since_mark()  # first: it changes which stack is the current one
        self.stack.append(tuple(items))

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        self.stack[len(self.stack) - count :] = [tuple(self.stack[len(self.stack) - count :])]

    def call(self) -> None:
        arguments, known = self.stack.pop(), self.stack.pop()
        if not isinstance(known, _Known) or not isinstance(arguments, tuple):
            raise Refused("calls something that is no function of NumPy")
        self.stack.append(self._called(known, arguments))

    def _called(self, known: _Known, arguments: tuple[Any, ...]) -> Any:
        match known, arguments:
            case _Known.RECONSTRUCT, (_Known.NDARRAY, (0,), b"b" | "b"):
                return _Array()
            case _Known.DTYPE, (b"u1" | "u1" | b"|u1" | "|u1", *_):
                return _ByteType()
            case _Known.DTYPE, (kind, *_):
                raise Damaged(f"its arrays hold elements of type {_shown(kind)}, bytes (u1) are wanted")
            case _Known.ENCODE, (str(text), "latin1" | "latin-1" | b"latin1"):
                return self._encoded(text)
            case _Known.FROM_BUFFER, (bytes(content), _ByteType(), tuple(shape), "C" | b"C"):
                return _Array(_shaped(content, shape))
            case _:
                raise Refused(f"calls {known.name.lower()} with unusual arguments")

    def _encoded(self, text: str) -> bytes:
        # A text is stored once but may be encoded over and over: the sum is bounded, not each.
        self.bytes_encoded += len(text)
        if self.bytes_encoded > len(self.data):
            raise Refused("unfolds to more bytes than it has")
        try:
            return text.encode("latin1")
        except UnicodeEncodeError as error:
            raise Damaged("its bytes are not written as latin1") from error

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        match target, state:
            case _ByteType(), (int(), b"|" | "|" | b"<" | "<" | b"=" | "=", None, None, None, *_):
                pass  # byte order and the like, of no meaning to bytes
            case _Array(), (int(), tuple(shape), _ByteType(), False | 0, bytes(content)):
                target.content = _shaped(content, shape)
            case _:
                raise Refused("sets the inner state of something that is no array of bytes")

    def init_state(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


def _shaped(content: bytes, shape: tuple[Any, ...]) -> np.ndarray:
    if not all(type(size) is int and 0 <= size <= len(content) for size in shape) or len(shape) > 4:
        raise Damaged("an array has an impossible shape")
    if math.prod(shape) != len(content):
        raise Damaged(f"an array of shape {shape} comes with {len(content):,} bytes")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _text(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("latin1")
    if not isinstance(key, str):
        raise Damaged("a key is no text")
    return key


def _shown(name: Any) -> str:
    """A name from a foreign file, fit for one line of a terminal."""
    text = name.decode("latin1") if isinstance(name, bytes) else name if isinstance(name, str) else type(name).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:60])


_U2, _U4, _U8, _I4 = (struct.Struct(layout) for layout in ("<H", "<I", "<Q", "<i"))
_INSTRUCTIONS = {ord(instruction.code): instruction.name for instruction in pickletools.opcodes}
_CODES = {name: code for code, name in _INSTRUCTIONS.items()}
_STOP = _CODES["STOP"]

_Action = Callable[[_Machine], None]


def _constant(value: Any) -> _Action:
    return lambda machine: machine.stack.append(value)


_Number = Callable[[_Machine], int]


def _reading(kind: struct.Struct) -> _Number:
    return lambda machine: machine.number(kind)


_u1, _u2, _u4, _u8 = _Machine.byte, _reading(_U2), _reading(_U4), _reading(_U8)


def _integer(number: _Number) -> _Action:
    return lambda machine: machine.stack.append(number(machine))


def _bytes(length: _Number) -> _Action:
    return lambda machine: machine.stack.append(machine.take(length(machine)))


def _unicode(length: _Number) -> _Action:
    return lambda machine: machine.stack.append(machine.take(length(machine)).decode("utf-8", "surrogatepass"))


def _put(index: _Number) -> _Action:
    return lambda machine: machine.init_state(index(machine))


def _get(index: _Number) -> _Action:
    return lambda machine: machine.stack.append(machine.memo[index(machine)])


_ACTIONS: dict[int, _Action] = {
    _CODES[name]: action
    for name, action in {
        "PROTO": _Machine.protocol,
        "FRAME": _Machine.skip_frame,
        "MARK": _Machine.mark,
        "NONE": _constant(None),
        "NEWTRUE": _constant(True),
        "NEWFALSE": _constant(False),
        "BININT": _integer(_reading(_I4)),
        "BININT1": _integer(_u1),
        "BININT2": _integer(_u2),
        "SHORT_BINSTRING": _bytes(_u1),  # a text of Python 2 is bytes
        "BINSTRING": _bytes(_u4),
        "SHORT_BINBYTES": _bytes(_u1),
        "BINBYTES": _bytes(_u4),
        "BINBYTES8": _bytes(_u8),
        "BYTEARRAY8": _bytes(_u8),
        "SHORT_BINUNICODE": _unicode(_u1),
        "BINUNICODE": _unicode(_u4),
        "BINUNICODE8": _unicode(_u8),
        "EMPTY_LIST": lambda machine: machine.stack.append([]),
        "EMPTY_DICT": lambda machine: machine.stack.append({}),
        "EMPTY_TUPLE": _constant(()),
        "TUPLE": _Machine.tuple_since_mark,
        "TUPLE1": lambda machine: machine.tuple_of(1),
        "TUPLE2": lambda machine: machine.tuple_of(2),
        "TUPLE3": lambda machine: machine.tuple_of(3),
        "APPEND": _Machine.append,
        "APPENDS": lambda machine: machine.extend(machine.since_mark()),
        "SETITEM": _Machine.set_item,
        "SETITEMS": lambda machine: machine.set_items(machine.since_mark()),
        "BINPUT": _put(_u1),
        "LONG_BINPUT": _put(_u4),
        "MEMOIZE": lambda machine: machine.init_state(len(machine.memo)),
        "BINGET": _get(_u1),
        "LONG_BINGET": _get(_u4),
        "GLOBAL": _Machine.name_in_text,
        "STACK_GLOBAL": _Machine.name_on_stack,
        "REDUCE": _Machine.call,
        "BUILD": _Machine.build,
    }.items()
}
