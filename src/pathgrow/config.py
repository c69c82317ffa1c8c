"""Typed configs and reports: one declaration per field gives its default, check, help text, flag and JSON form.

A config is a frozen dataclass whose fields are declared with `option`. From that one declaration come

- the check of its value (`check`), with messages such as "gamma must be > 0, got -1",
- strict loading from JSON (`from_json`), which refuses unknown keys and wrong types,
- the help text and the command-line flag (`pathgrow.cli.flags`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pathgrow.errors import UserError, is_int, is_number, require, short, unknown_name

_KEY = "pathgrow.option"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Option:
    """How one field of a config is documented, checked and set from the command line."""

    help: str = ""
    """One line for `--help`."""
    metavar: str | None = None
    """Placeholder of the value in `--help`."""
    above: float | None = None
    """The value must be > this."""
    at_least: float | None = None
    """The value must be >= this."""
    at_most: float | None = None
    """The value must be <= this."""
    example: str | None = None
    """A valid value, for error messages."""
    flags: tuple[str, ...] = ()
    """Names on the command line; empty: derived from the field name."""
    is_flag: bool = True
    """Whether the command line offers it at all."""

    @property
    def bounds(self) -> str:
        """The allowed range in words.

        >>> Option(above=0, at_most=1).bounds
        'in (0, 1]'
        >>> Option(at_least=1).bounds
        '>= 1'
        """
        if self.at_most is not None and (self.above is not None or self.at_least is not None):
            low = f"({self.above:g}" if self.above is not None else f"[{self.at_least:g}"
            return f"in {low}, {self.at_most:g}]"
        if self.above is not None:
            return f"> {self.above:g}"
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""

    def allows(self, value: float) -> bool:
        """Whether a number lies within the bounds."""
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
        )


def option(default: Any = MISSING, help: str = "", *, factory: Any = MISSING, **spec: Any) -> Any:
    """A dataclass field with an `Option`.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Growth:
    ...     gamma: float = option(0.25, "Fraction of weights added per round.", above=0)
    >>> check(Growth(gamma=-1.0))
    Traceback (most recent call last):
    pathgrow.errors.UserError: gamma must be > 0, got -1.0
    """
    metadata = {_KEY: Option(help=help, **spec)}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def option_of(field: dataclasses.Field[Any]) -> Option:
    """The `Option` of a field; one without any constraint if it was declared as a plain field."""
    found = field.metadata.get(_KEY)
    return found if isinstance(found, Option) else Option(is_flag=False)


def check(config: Any) -> None:
    """Refuse a config whose values have wrong types or lie outside their bounds; call it in `__post_init__`."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        check_value(getattr(config, field.name), hints[field.name], option_of(field), field.name)


def check_value(value: Any, hint: Any, spec: Option, name: str) -> None:
    """Refuse a value that does not have the type `hint` or lies outside the bounds of `spec`.

    >>> check_value(1.5, int | None, Option(at_least=1, example="20"), "epochs")
    Traceback (most recent call last):
    pathgrow.errors.UserError: epochs must be an integer >= 1, got 1.5 (e.g. 20)
    """
    members = _members(hint)
    if Any in members or (value is None and type(None) in members):
        return
    if not any(_fits(value, member, spec, name) for member in members):
        require(False, name, value, _expected(members, spec, value), spec.example)


def from_json(cls: type[T], values: Any, *, where: str = "") -> T:
    """A dataclass from JSON values; unknown keys, missing values and wrong types are refused.

    `where` is the path of the value inside its file, for messages.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Score:
    ...     score: float
    ...     loss: float | None = None
    >>> from_json(Score, {"score": 1})
    Score(score=1.0, loss=None)
    >>> from_json(Score, {"score": "high"}, where="network.val")
    Traceback (most recent call last):
    pathgrow.errors.UserError: network.val.score must be a number, got 'high'
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where or 'the value'} must be a JSON object, got {short(values)}")
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise unknown_name(f"key{f' in {where}' if where else ''}", str(key), fields)
    given = {}
    for name, field in fields.items():
        at = f"{where}.{name}" if where else name
        if name in values:
            given[name] = _converted(values[name], hints[name], option_of(field), at)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{at} is missing")
    return cls(**given)


def to_json(value: Any) -> Any:
    """Dataclasses, mappings and sequences as JSON values.

    >>> to_json({"interval": (0.1, 0.2)})
    {'interval': [0.1, 0.2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def _converted(value: Any, hint: Any, spec: Option, at: str) -> Any:
    """`value` as the type that `hint` names: JSON has no tuples, and writes 1.0 as 1."""
    check_value(value, hint, spec, at)
    return _shaped(value, hint, at)


def _shaped(value: Any, hint: Any, at: str) -> Any:
    members = _members(hint)
    if value is None and type(None) in members:
        return None
    for member in members:
        origin = get_origin(member)
        if dataclasses.is_dataclass(member) and isinstance(value, Mapping):
            return from_json(member, value, where=at)  # type: ignore[arg-type]
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(_shaped(item, part, f"{at}[{i}]") for i, (item, part) in enumerate(_items(value, member)))
        if origin is list and isinstance(value, list | tuple):
            return [_shaped(item, get_args(member)[0], f"{at}[{i}]") for i, item in enumerate(value)]
        if origin in (dict, Mapping) and isinstance(value, Mapping):
            return {key: _shaped(item, get_args(member)[1], f"{at}.{key}") for key, item in value.items()}
    if float in members and int not in members and is_int(value):
        return float(value)
    return value


def _fits(value: Any, member: Any, spec: Option, at: str) -> bool:
    origin = get_origin(member)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(member))
    if member is bool:
        return isinstance(value, bool)
    if member is int:
        return is_int(value) and spec.allows(value)
    if member is float:
        return is_number(value) and spec.allows(value)
    if dataclasses.is_dataclass(member):
        if isinstance(value, Mapping):
            from_json(member, value, where=at)  # type: ignore[arg-type]
            return True
        return isinstance(value, typing.cast(type, member))
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            return False
        pairs = _items(value, member)
        if pairs is None:
            return False
        for i, (item, part) in enumerate(pairs):
            check_value(item, part, spec, f"{at}[{i}]")
        return True
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return False
        for key, item in value.items():
            check_value(item, get_args(member)[1], spec, f"{at}.{key}")
        return True
    if isinstance(member, type):
        return isinstance(value, member)
    return True


def _items(value: Sequence[Any], hint: Any) -> Any:
    """Each item with its type; None where a tuple of fixed length has another length."""
    parts = get_args(hint)
    if get_origin(hint) is list or (len(parts) == 2 and parts[1] is Ellipsis):
        return [(item, parts[0]) for item in value]
    return None if len(parts) != len(value) else list(zip(value, parts, strict=True))


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _expected(members: tuple[Any, ...], spec: Option, value: Any) -> str:
    """What the value must be, in words; for a number out of bounds, just the bounds."""
    if spec.bounds and is_number(value) and (float in members or is_int(value)):
        return spec.bounds
    said = [text for member in members if (text := _kind(member, spec))]
    return f"{', '.join(said[:-1])} or {said[-1]}" if len(said) > 1 else said[0]


def _kind(member: Any, spec: Option) -> str:
    bounds = f" {spec.bounds}" if spec.bounds else ""
    origin = get_origin(member)
    if origin is Literal:
        choices = [repr(choice) for choice in get_args(member)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if origin in (tuple, list):
        parts = get_args(member)
        length = "" if origin is list or Ellipsis in parts else f" of {len(parts)} values"
        return f"a list{length}"
    if origin in (dict, Mapping) or dataclasses.is_dataclass(member):
        return "a JSON object"
    names = {bool: "true or false", int: f"an integer{bounds}", float: f"a number{bounds}", str: "a string"}
    return names.get(member, "" if member is type(None) else getattr(member, "__name__", str(member)))
