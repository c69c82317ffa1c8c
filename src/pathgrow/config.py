"""Typed configs and reports: one declaration per field gives its default, check, help text, flag and JSON form.

A config is a frozen dataclass whose fields are declared with `option`. From that one declaration come

- the check of its value (`check`), with messages such as "gamma must be > 0, got -1",
- strict loading from JSON (`from_json`), which refuses unknown keys and wrong types,
- the help text and the command-line flag (`pathgrow.cli.flags`).
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pathgrow.errors import UserError, is_int, is_number, require, short, unknown_name

_KEY = "pathgrow.option"
_TOO_LARGE = 2**128
"""No count or seed of a run is this large; beyond the range of floats, arithmetic would fail."""

MAX_EPOCHS = 100_000
"""Longest training that a config accepts: years, for any network that needs a density."""

T = TypeVar("T")

_hints = functools.cache(get_type_hints)
"""Resolving annotations takes longer than checking the values of a whole report, and a comparison reads thousands."""


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
    below: float | None = None
    """The value must be < this."""
    limit: float | None = None
    """Like `at_most`, but mentioned only to those who exceed it: a number that can only be a mistake."""
    valid: Callable[[Any], bool] | None = None
    """A further check of a value that has the right type."""
    expected: str = ""
    """What the value must be, in words; empty: derived from its type and bounds."""
    example: str | None = None
    """A valid value, for error messages."""
    flags: tuple[str, ...] = ()
    """Names on the command line; empty: derived from the field name."""
    is_flag: bool = True
    """Whether the command line offers it at all."""
    flag_fields: tuple[str, ...] | None = None
    """Fields of a nested config that the command line offers; None: all."""

    @property
    def bounds(self) -> str:
        """The allowed range in words.

        >>> Option(above=0, at_most=1).bounds
        'in (0, 1]'
        >>> Option(at_least=1).bounds
        '>= 1'
        """
        low = self.above if self.above is not None else self.at_least
        high = self.below if self.below is not None else self.at_most
        if low is not None and high is not None:
            left, right = "[("[self.above is not None], "])"[self.below is not None]
            return f"in {left}{low:g}, {high:g}{right}"
        signs = {">": self.above, ">=": self.at_least, "<": self.below, "<=": self.at_most}
        return next((f"{sign} {bound:g}" for sign, bound in signs.items() if bound is not None), "")

    def allows(self, value: float) -> bool:
        """Whether a number lies within the bounds."""
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and (self.limit is None or value <= self.limit)
        )


_UNCONSTRAINED = Option(is_flag=False)


def option(default: Any = MISSING, help: str = "", *, factory: Any = MISSING, **spec: Any) -> Any:
    """Declare a dataclass field with an `Option`.

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
    """Return the `Option` of a field; a plain field has one without constraints."""
    found = field.metadata.get(_KEY)
    return found if isinstance(found, Option) else _UNCONSTRAINED


def check(config: Any) -> None:
    """Refuse a config with wrong types or values out of bounds in fields declared with `option`."""
    cls: Any = type(config)  # mypy does not see that classes are hashable
    hints = _hints(cls)
    for field in dataclasses.fields(config):
        if _KEY in field.metadata:
            check_value(getattr(config, field.name), hints[field.name], option_of(field), field.name)


def check_value(value: Any, hint: Any, spec: Option, name: str) -> Any:
    """Return `value` as the type `hint`: JSON has no tuples and writes 1.0 as 1. Refuse wrong types and bounds.

    >>> check_value(1.5, int | None, Option(at_least=1, example="20"), "epochs")
    Traceback (most recent call last):
    pathgrow.errors.UserError: epochs must be an integer >= 1, got 1.5 (e.g. 20)
    """
    origin, parts = _origin_and_parts(hint)
    members = parts if origin in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in members:
        return value
    if Any in members:
        return _plain(value, name)
    for member in members:
        if (result := _as_member(value, member, spec, name)) is not MISSING and (not spec.valid or spec.valid(result)):
            return result
    require(False, name, value, spec.expected or _expected(members, spec, value), spec.example)


def from_json(cls: type[T], values: Any, *, where: str = "") -> T:
    """Build a dataclass from JSON values; unknown keys, missing values and wrong types are refused.

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
    given = _known_values(cls, values, where)
    required = _required(cls)  # type: ignore[arg-type]
    if missing := [name for name in required if name not in given]:
        raise UserError(f"{_join(where, missing[0])} is missing")
    return cls(**given)


def override(config: T, values: Any, *, where: str = "") -> T:
    """Return a copy of a dataclass with some values replaced by JSON values, checked as in `from_json`.

    A nested dataclass is overridden in turn: what its table leaves out stays as it is.

    >>> @dataclass(frozen=True)
    ... class Recipe:
    ...     lr: float = 0.1
    ...     epochs: int = 160
    >>> override(Recipe(epochs=80), {"lr": 1})
    Recipe(lr=1.0, epochs=80)
    """
    nested = {
        name: override(inner, value, where=_join(where, name))
        for name, value in (values.items() if isinstance(values, Mapping) else ())
        if dataclasses.is_dataclass(inner := getattr(config, str(name), None)) and not isinstance(inner, type)
        if not isinstance(value, type(inner))
    }
    plain = {**values, **nested} if nested else values
    return dataclasses.replace(config, **_known_values(type(config), plain, where))  # type: ignore[type-var]


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


def _known_values(cls: type, values: Any, where: str) -> dict[str, Any]:
    """The values of a JSON object as the types of the fields they name."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where or 'the value'} must be a JSON object, got {short(values)}")
    fields = _fields(cls)
    given = {}
    for name, value in values.items():
        if name not in fields:
            raise unknown_name(f"{where} key" if where else "key", str(name), fields)
        hint, spec = fields[name]
        # Most values of a report are these, and a comparison reads a thousand reports.
        is_valid = (
            spec is _UNCONSTRAINED and type(value) is hint and (hint is str or (hint is float and math.isfinite(value)))
        )
        given[name] = value if is_valid else check_value(value, hint, spec, _join(where, name))
    return given


@functools.cache
def _origin_and_parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


@functools.cache
def _required(cls: Any) -> list[str]:
    """The fields without a default."""
    return [f.name for f in dataclasses.fields(cls) if f.default is MISSING and f.default_factory is MISSING]


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[Any, Option]]:
    """Type and `Option` of each field."""
    hints = _hints(cls)
    return {field.name: (hints[field.name], option_of(field)) for field in dataclasses.fields(cls)}


def _join(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _as_member(value: Any, member: Any, spec: Option, at: str) -> Any:
    """`value` as one member of a union; MISSING if it does not fit."""
    if member is int:
        return value if is_int(value) and abs(value) < _TOO_LARGE and spec.allows(value) else MISSING
    if member is float:
        return float(value) if is_number(value) and spec.allows(value) else MISSING
    origin, parts = _origin_and_parts(member)
    if origin is Literal:
        return value if any(type(value) is type(choice) and value == choice for choice in parts) else MISSING
    if dataclasses.is_dataclass(member) and isinstance(value, Mapping):
        return from_json(typing.cast(type, member), value, where=at)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            return MISSING
        if origin is tuple and parts[-1] is not Ellipsis and len(parts) != len(value):
            return MISSING
        if parts[0] is float and len({*parts, ...}) == 2 and _are_floats(value, spec):
            return origin(value)
        kinds = parts if origin is tuple and parts[-1] is not Ellipsis else [parts[0]] * len(value)
        items = zip(value, kinds, strict=True)
        return origin(check_value(item, kind, spec, f"{at}[{i}]") for i, (item, kind) in enumerate(items))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return MISSING
        if parts[1] is float and _are_floats(value.values(), spec):
            return dict(value)
        return {key: check_value(item, parts[1], spec, f"{at}.{key}") for key, item in value.items()}
    if origin is Callable:
        return value if callable(value) else MISSING
    if not isinstance(member, type) or getattr(member, "_is_protocol", False):
        return value  # cannot be checked
    return value if isinstance(value, member) else MISSING


def _are_floats(values: Collection[Any], spec: Option) -> bool:
    """Whether all values are valid as they are; a report has columns of hundreds."""
    return (
        set(map(type, values)) == {float}
        and not spec.bounds
        and spec.limit is None
        and not spec.valid
        and all(map(math.isfinite, values))
    )


def _plain(value: Any, at: str) -> Any:
    """`value` as JSON would return it, so that a config that is written and read back equals itself."""
    if isinstance(value, float):
        require(is_number(value), at, value, "finite")
    if isinstance(value, list | tuple):
        return [_plain(item, f"{at}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{at}.{key}") for key, item in value.items()}
    return value


def _expected(members: tuple[Any, ...], spec: Option, value: Any) -> str:
    """What the value must be, in words; for a number out of bounds, just the bounds."""
    if spec.limit is not None and is_number(value) and value > spec.limit:
        return f"<= {int(spec.limit)}"
    if spec.bounds and is_number(value) and (float in members or (int in members and is_int(value))):
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
