"""What a user's functions are, in a few strings: a resumed run notices that `fit` or `evaluate` has changed."""

import dis
import functools
import hashlib
import inspect
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from pathgrow.checkpoint import Metadata
from pathgrow.config import Option, check_value
from pathgrow.runs.session import Session
from pathgrow.trainer.interface import JobTrainer

STAGE = "functions"
_SAMPLED = 1000
"""Elements of a tensor that count; all of them would take seconds for a large dataset."""
_MOST_SHOWN, _MOST_CHARACTERS = 3, 200


def warn_of_changed_functions(session: Session, **functions: Any) -> None:
    """Store what the functions of a discovery are, or warn if the stored stages were trained by others.

    A warning and not an error, since the change may be harmless: a comment is not noticed, but a print is. What other
    objects hold, such as datasets, is not compared.
    """
    now = {name: fingerprint(function) for name, function in functions.items()}
    before = session.stored(STAGE, lambda stage: _read(stage.metadata))
    if before is None:
        session.store.save(STAGE, {"python": _python(), "functions": now})
        return
    python, stored = before
    if python != _python():  # compiles to other code
        return
    for name, parts in now.items():
        if changes := _changes(stored.get(name, {}), parts):
            more = len(changes) - _MOST_SHOWN
            listed = ", ".join([*changes[:_MOST_SHOWN], *([f"{more} more"] if more > 0 else [])])
            session.warnings.append(  # issued when the search starts
                f"{name} has changed since the stored stages were trained ({listed}), and these are not trained again: "
                "use a new store if the change matters"
            )


def fingerprint(function: Any) -> dict[str, str]:
    """Return the code of a function and the simple values it uses: constants, defaults, tensors, its own functions.

    >>> rate = 0.1
    >>> def fit(model, optimizer, epochs): return rate
    >>> fingerprint(fit)["rate"]
    '0.1'
    """
    found: dict[str, str] = {}
    if isinstance(function, JobTrainer):
        return {"recipe": repr(getattr(function, "recipe", None))}
    if isinstance(function, MethodType):
        _add_attributes(found, "self.", function.__self__)
        function = function.__func__
    elif not isinstance(function, FunctionType | functools.partial):
        _add_attributes(found, "self.", function)
        function = type(function).__call__
    _add(found, "", function, set())
    return found


def _add(found: dict[str, str], name: str, value: Any, seen: set[int]) -> None:
    """Describe a value under a name; values of other kinds than these have no description."""
    if _is_simple(value):
        found[name] = repr(value)[:_MOST_CHARACTERS]
    elif isinstance(value, Tensor | np.ndarray):
        found[name] = _array(value)
    elif isinstance(value, DataLoader):
        dataset = f" of {len(value.dataset)}" if hasattr(value.dataset, "__len__") else ""
        found[name] = f"batches of {value.batch_size}{dataset}"
    elif isinstance(value, Namespace | SimpleNamespace) or (is_dataclass(value) and not isinstance(value, type)):
        _add_attributes(found, f"{name}.", value)
    elif isinstance(value, functools.partial):
        _add(found, name, value.func, seen)
        arguments = {**{f"argument {n}": part for n, part in enumerate(value.args)}, **value.keywords}
        for part, argument in arguments.items():
            _add(found, f"{name}.{part}" if name else part, argument, seen)
    elif isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        _add_function(found, f"{name}." if name else "", inspect.unwrap(value), seen)


def _add_attributes(found: dict[str, str], prefix: str, value: Any) -> None:
    for name, part in getattr(value, "__dict__", {}).items():
        if _is_simple(part):
            found[f"{prefix}{name}"] = repr(part)[:_MOST_CHARACTERS]


def _add_function(found: dict[str, str], prefix: str, function: FunctionType, seen: set[int]) -> None:
    code, names, written = _described(function.__code__)
    found[f"{prefix}code"] = _digest(code)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in cells:
        with suppress(ValueError):  # not assigned yet
            used[name] = cell.cell_contents
    used |= {f"default of argument {n}": value for n, value in enumerate(function.__defaults__ or ())}
    used |= function.__kwdefaults__ or {}
    for name, value in used.items():
        # Functions of libraries are those of their versions, and counters are not settings.
        is_own = not isinstance(value, FunctionType) or value.__module__ == function.__module__
        if is_own and name not in written:
            _add(found, f"{prefix}{name}", value, seen)


def _described(code: CodeType) -> tuple[str, list[str], set[str]]:
    """What a function does, without the lines it stands on; the names it reads, and the outer ones it assigns."""
    names, constants = list(code.co_names), []
    written = {at.argval for at in dis.get_instructions(code) if at.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            text, inner, assigned = _described(part)
            constants.append(text)
            names, written = names + inner, written | assigned
        else:  # the order of a set differs between processes
            constants.append(repr(sorted(map(repr, part))) if isinstance(part, frozenset) else repr(part))
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants)), names, written


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_simple, value))
    if isinstance(value, dict):
        return all(map(_is_simple, value.values()))
    return isinstance(value, bool | int | float | str | bytes | None)


def _array(value: Tensor | np.ndarray) -> str:
    flat = value.detach().reshape(-1) if isinstance(value, Tensor) else value.reshape(-1)
    sample = flat[:: max(1, len(flat) // _SAMPLED)]
    content = sample.tolist() if len(flat) else []
    return f"{type(value).__name__} {tuple(value.shape)} {value.dtype} {_digest(repr(content))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    found = []
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        is_short = old is not None and new is not None and max(len(old), len(new)) <= 20 and "code" not in name
        found.append(f"{name}: {old} before, {new} now" if is_short else name)
    return found


def _read(metadata: Metadata) -> tuple[str, dict[str, dict[str, str]]]:
    python: str = check_value(metadata.get("python"), str, Option(), "python")
    functions: dict[str, dict[str, str]] = check_value(
        metadata.get("functions"), dict[str, dict[str, str]], Option(), "functions"
    )
    return python, functions
