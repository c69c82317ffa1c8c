"""Errors with messages for users.

A `UserError` states what was expected, what was received and how to fix it; the command line exits with code 2.
A `RunFailed` is a run that started correctly and could not continue (NaN loss, full disk): exit code 1.
"""

import operator
import os
import re
import sys
import typing
from collections.abc import Collection, Iterable
from numbers import Real
from typing import Any, TypeGuard

OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory")
"""What torch says on a GPU and on a CPU."""


def printable(text: object) -> str:
    """Any value as one line without control characters.

    >>> printable("mlp\\x1b[31m")
    'mlp?[31m'
    """
    return "".join(character if character.isprintable() else "?" for character in str(text).replace("\n", " "))


class UserError(ValueError):
    """An error that the caller can fix; the message is one sentence."""

    def __str__(self) -> str:
        return printable(super().__str__())  # it may quote a file of somebody else


class RunFailed(RuntimeError):
    """A run that cannot continue; everything it has written stays valid."""

    def __str__(self) -> str:
        return printable(super().__str__())


class PeerFailed(RunFailed):
    """This process ends because another rank failed; that rank has printed the reason."""

    def __init__(self, message: str, *, rank: int, exit_code: int) -> None:
        super().__init__(f"rank {rank} failed: {message}")
        self.exit_code = exit_code


def nearest_names(got: str, known: Iterable[str], *, most: int) -> list[str]:
    """Return the known names closest to `got`, nearest first, ignoring case.

    >>> nearest_names("STR", ["set", "str"], most=1)
    ['str']
    """
    import difflib  # rarely needed

    by_lower: dict[str, list[str]] = {}
    for name in known:
        by_lower.setdefault(name.lower(), []).append(name)
    near = difflib.get_close_matches(got.lower(), by_lower, n=most, cutoff=0.65)  # two of three letters
    return [name for lower in near for name in by_lower[lower]][:most]


def unknown_name(kind: str, got: object, known: Iterable[str]) -> UserError:
    """Return the error for an unknown name, with the nearest known names as suggestions.

    >>> str(unknown_name("model", "resnet23", ["mlp", "resnet20", "resnet32"]))
    "unknown model 'resnet23': did you mean resnet32, resnet20? (known: mlp, resnet20, resnet32)"
    >>> str(unknown_name("dataset", "cifar10", ["digits"]))
    "unknown dataset 'cifar10' (known: digits)"
    """
    names = sorted(known)
    near = nearest_names(got, names, most=3) if isinstance(got, str) else []
    hint = f": did you mean {', '.join(near)}?" if near else ""
    return UserError(f"unknown {kind} {short(got)}{hint} (known: {', '.join(names)})")


def check_name(kind: str, name: object, known: Collection[str]) -> None:
    """Raise a `UserError` unless a value is one of the known names."""
    if not isinstance(name, str) or name not in known:
        raise unknown_name(kind, name, known)


def torchvision_mismatch(torch_version: str, reason: object) -> UserError:
    """Return the error for a torchvision that was built for another torch, with the commands that replace it.

    >>> print(torchvision_mismatch("2.9.0", "operator torchvision::nms does not exist"))
    torchvision does not work with torch 2.9.0 (operator torchvision::nms does not exist):
    run `pip uninstall -y torchvision && pip install torchvision torch==2.9.0`
    """
    todo = "install the torchvision that was built with it"
    if install := _pip_install(torch_version, "torchvision"):
        todo = f"run `pip uninstall -y torchvision && {install}`"
    return UserError(f"torchvision does not work with torch {torch_version} ({reason}): {todo}")


def timm_missing(torch_version: str) -> UserError:
    """Return the error for a missing timm, with the command that installs it and leaves torch as it is.

    >>> print(timm_missing("2.9.0+cpu"))
    timm:NAME requires the timm library:
    run `pip install timm torchvision torch==2.9.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu`
    """
    # Without the version of torch, pip would replace it by the one that the newest torchvision was built for.
    install = _pip_install(torch_version, "timm torchvision") or "pip install timm"
    return UserError(f"timm:NAME requires the timm library: run `{install}`")


def _pip_install(torch_version: str, packages: str) -> str | None:
    """The command that installs packages for the installed torch; None for a build without an index of its own."""
    build, command = torch_version.partition("+")[2], f"pip install {packages} torch=={torch_version}"
    if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", build):
        return f"{command} --extra-index-url https://download.pytorch.org/whl/{build}"
    return None if build else command


def require(ok: bool, name: str, value: object, expected: str, example: object = None) -> None:
    """Raise a `UserError` unless `ok`.

    >>> require(False, "gamma", -1, "> 0", 0.25)
    Traceback (most recent call last):
    pathgrow.errors.UserError: gamma must be > 0, got -1 (e.g. 0.25)
    """
    if not ok:
        raise UserError(f"{name} must be {expected}, got {short(value)}{f' (e.g. {example})' if example else ''}")


def short(value: object) -> str:
    """The repr of a value, cut to a length that fits into a message."""
    try:
        text = repr(value)
    except Exception:  # nested too deeply, an integer of thousands of digits, or a repr of the user's own
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an int but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def checked_int(name: str, value: Any) -> int:
    """A seed or index as an int, which may be given as a NumPy integer.

    >>> checked_int("seed", 0.5)
    Traceback (most recent call last):
    pathgrow.errors.UserError: seed must be an integer, got 0.5
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    require(number is not None, name, value, "an integer")
    found = typing.cast(int, number)
    require(abs(found) < 2**128, name, value, "below 2**128")
    return found


def is_real(value: object) -> bool:
    """Whether a value is a real number, NumPy's included, but not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite int or float but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def frames_to_the_caller() -> int:
    """Stack level of the code that called this package, for warnings."""
    package, frame, number = f"{os.path.dirname(__file__)}{os.sep}", sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(package) and frame.f_back is not None:
        frame, number = frame.f_back, number + 1
    return number
