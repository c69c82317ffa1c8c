"""Pickled batches: read as Python reads them, and never run."""

from __future__ import annotations

import copyreg
import os
import pickle
import pickletools
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathgrow.data import pickles
from pathgrow.errors import UserError

BATCH = {
    "labels": [1, 2, 300, 70_000, -4],
    "data": np.arange(250, dtype=np.uint8).reshape(5, 50),
    "filenames": ["a.png", "é.png", "long" * 100],
    "nested": [[1, (2, None)], {"x": True}],
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_batches_read_as_python_reads_them(protocol: int) -> None:
    ours = pickles.parse(pickle.dumps(BATCH, protocol=protocol))
    assert {key: value for key, value in ours.items() if key != "data"} == {
        key: value for key, value in BATCH.items() if key != "data"
    }
    np.testing.assert_array_equal(ours["data"], BATCH["data"])
    assert ours["data"].dtype == np.uint8


def test_the_official_form_reads_as_python_reads_it(layouts: Any) -> None:
    layouts.cifar10()
    path = layouts.root / "cifar-10-batches-py" / "data_batch_2"
    pythons = pickle.loads(path.read_bytes(), encoding="latin1")
    ours = pickles.read(path, "do this")
    np.testing.assert_array_equal(ours["data"], pythons["data"])
    assert ours["labels"] == pythons["labels"]
    assert [name.decode() for name in ours["filenames"]] == pythons["filenames"]


@pytest.mark.parametrize("protocol", [2, 5])
def test_both_generations_of_numpy_are_known(protocol: int) -> None:
    written = pickle.dumps({"data": BATCH["data"]}, protocol=protocol, fix_imports=False)
    new, old = (b"numpy._core.", b"numpy.core.")
    if new not in written:
        new, old = old, new
    # In protocol 5 names carry their length and frames theirs; the reader takes lengths from the names alone.
    other = written.replace(new, old)
    if protocol == 5:
        for module in (b"numeric", b"multiarray"):
            name = old + module
            other = other.replace(bytes([len(new + module)]) + name, bytes([len(name)]) + name)
    assert other != written
    np.testing.assert_array_equal(pickles.parse(other)["data"], BATCH["data"])


# Hostile files. Each is first shown to be dangerous: Python's own reader runs it.


class Reduce:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


class SetState:
    """Harmless to make, harmful to fill."""

    def __setstate__(self, state: str) -> None:
        os.mkdir(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (SetState,), self.canary  # type: ignore[attr-defined]


def _set_state(canary: Path) -> SetState:
    made = SetState()
    made.canary = str(canary)  # type: ignore[attr-defined]
    return made


def _with_name(module: str, name: str) -> Callable[[Path], bytes]:
    def build(canary: Path) -> bytes:
        argument = str(canary).encode()
        return b"\x80\x02c%b\n%b\nX%b%b\x85R." % (
            module.encode(),
            name.encode(),
            struct.pack("<I", len(argument)),
            argument,
        )

    return build


def _instance(canary: Path) -> bytes:
    return b"(S'%b'\nios\nmkdir\n." % str(canary).encode()


def _object(canary: Path) -> bytes:
    return b"\x80\x02(cos\nmkdir\nX%b%bo." % (struct.pack("<I", len(str(canary))), str(canary).encode())


def _stack_global(canary: Path) -> bytes:
    path = str(canary).encode()
    return b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c%b%b\x85R." % (bytes([len(path)]), path)


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "reduce": lambda canary: pickle.dumps(Reduce(canary)),
    "reduce, protocol 0": lambda canary: pickle.dumps(Reduce(canary), protocol=0),
    "reduce, protocol 2": lambda canary: pickle.dumps(Reduce(canary), protocol=2),
    "nested": lambda canary: pickle.dumps({"labels": [1, [Reduce(canary)]], "data": BATCH["data"]}),
    "as a key": lambda canary: pickle.dumps({"data": {(1, Reduce(canary)): 3}}),
    "set state": lambda canary: pickle.dumps({"data": _set_state(canary)}, protocol=2),
    "set state, protocol 4": lambda canary: pickle.dumps([_set_state(canary)], protocol=4),
    "object array": lambda canary: pickle.dumps({"data": np.array([Reduce(canary)], dtype=object)}, protocol=2),
    "instance": _instance,
    "object": _object,
    "stack global": _stack_global,
    "posix": _with_name("posix", "mkdir"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_is_refused_and_not_run(kind: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    content = HOSTILE[kind](canary)
    pickle.loads(content)
    assert canary.is_dir()
    canary.rmdir()

    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"nothing in it was run|damaged") as caught:
        pickles.read(path, "get it anew")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("get it anew")
    assert not canary.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("copyreg", "_reconstructor"),
        ("copy_reg", "_reconstructor"),
        ("_codecs", "decode"),
        ("codecs", "encode"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "memmap"),
        ("os", "dtype"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "_reconstruct.__globals__"),
        ("numpy.core", "multiarray._reconstruct"),
        ("numpy.core.multiarray", "_reconstruct "),
        ("numpy.distutils.exec_command", "exec_command"),
        ("torch.storage", "_load_from_bytes"),
        ("os\x1b[31m", "system"),
    ],
)
def test_names_beyond_the_few_are_refused_in_words_fit_for_a_terminal(module: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "train"
    path.write_bytes(_with_name(module, name)(tmp_path))
    with pytest.raises(UserError, match="asks for") as caught:
        pickles.read(path, "get it anew")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "content",
    [
        # Known names with other arguments than an image batch has.
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x09\x00\x00\x00zip_codec\x86R.",
        b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",
        b"\x80\x02]K\x01b.",
        b"\x80\x02K\x01K\x02R.",
        b"\x80\x02cnumpy\nndarray\n}U\x01aK\x01sb.",
        # Instructions that no batch needs.
        b"\x80\x02P1\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x04cnumpy\nndarray\n)}\x92.",
        b"\x80\x05\x97.",
        b"I1\n.",
    ],
)
def test_unusual_programs_are_refused(content: bytes) -> None:
    with pytest.raises(pickles.Refused):
        pickles.parse(content)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"data": np.zeros((2, 3), np.float32)}, "type f4"),
        ({"data": np.zeros((2, 3), dtype=object)}, "type O8"),
        ([1, 2], "no dictionary"),
        ({1: 2}, "a key is no text"),
    ],
)
def test_other_content_is_told_from_hostility(value: object, words: str) -> None:
    with pytest.raises(pickles.Damaged, match=words):
        pickles.parse(pickle.dumps(value, protocol=2))


# Memory: what a few bytes can ask for.


def _peak(content: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises((pickles.Damaged, pickles.Refused)):
            pickles.parse(content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_small_files_cannot_ask_for_much_memory() -> None:
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000
    again = b"h\x01h\x00h\x02\x86R"  # encode the same text once more
    bombs = [
        b"\x80\x02K\x01r\xff\xff\xff\xff",  # a far place of the memo
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40),  # bytes that do not come
        b"\x80\x05\x96" + struct.pack("<Q", 2**63 - 1),
        b"\x80\x04\x8d" + struct.pack("<Q", 2**64 - 1),
        b"\x80\x02" + text + b"q\x00c_codecs\nencode\nq\x01X\x06\x00\x00\x00latin1q\x02" + again * 10_000,
    ]
    for bomb in bombs:
        assert _peak(bomb) < 2**20


def test_endless_programs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_STEPS", 1000)
    with pytest.raises(pickles.Refused, match="more than 1,000 instructions"):
        pickles.parse(b"\x80\x02" + b"(" * 2000)


def test_files_too_large_to_be_a_batch_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "train"
    with open(path, "wb") as file:
        file.truncate(pickles.MAX_BYTES + 1)
    with pytest.raises(UserError, match="more than any batch has"):
        pickles.read(path, "get it anew")


def test_every_cut_and_many_flips_are_sentences(layouts: Any, tmp_path: Path) -> None:
    layouts.cifar_batch(tmp_path / "good", 3, 10, "labels")
    good = (tmp_path / "good").read_bytes()
    positions = [place for _, _, place in pickletools.genops(good)]
    assert len(positions) > 50
    random = np.random.default_rng(1)
    for cut in {*positions, *random.integers(0, len(good), 100).tolist()}:
        with pytest.raises(pickles.Damaged):
            pickles.parse(good[:cut])
    # Flips aimed at the instructions; among 9,000 pixels most would hit a pixel and change nothing.
    sensitive = [place for place in range(len(good)) if not 400 < place < len(good) - 300]
    refused = 0
    for place in random.choice(sensitive, 3000):
        damaged = bytearray(good)
        damaged[place] ^= 1 << int(random.integers(8))
        try:
            pickles.parse(bytes(damaged))
        except (pickles.Damaged, pickles.Refused):
            refused += 1
    assert refused > 300
