"""Tables of things made by name: lookup, option defaults, option checking, and `package.module:function` names."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from pathgrow.errors import UserError, check_name, is_int, is_number, is_real, nearest_names, require, short

T = TypeVar("T")

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
)
"""bool first: it is a subclass of int."""
_WORDS = {"true": True, "false": False, "none": None}
_MAX_NUMBER = 1e9


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a table, or an error with the nearest names.

    >>> lookup("model", "mpl", {"mlp": 1})
    Traceback (most recent call last):
    pathgrow.errors.UserError: unknown model 'mpl': did you mean mlp? (known: mlp)
    """
    check_name(kind, name, table)
    return table[name]


def option_defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """The named parameters of a function with their defaults (`inspect.Parameter.empty` without one).

    >>> option_defaults(lambda *, density=0.1, **others: None)
    {'density': 0.1}
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(make).parameters
    return {name: parameter.default for name, parameter in parameters.items() if parameter.kind not in variadic}


def check_option_names(what: str, options: Collection[str], known: Collection[str]) -> None:
    """Raise a `UserError` for an option that does not exist, with the nearest one that does.

    >>> check_option_names("method 'rigl'", ["updat_interval"], ["density", "update_interval"])
    Traceback (most recent call last):
    pathgrow.errors.UserError: method 'rigl' has no option 'updat_interval', did you mean update_interval? (options: ...
    """
    for option in options:
        if option in known:
            continue
        if not known:
            raise UserError(f"{what} has no option {option!r}; it takes no options")
        near = nearest_names(option, known, most=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UserError(f"{what} has no option {option!r}{hint} (options: {', '.join(sorted(known))})")


def converted_options(what: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the types of their defaults; integers may be written as 1e4, a default of None allows any type.

    >>> converted_options("method 'rigl'", {"num_steps": 1e4}, {"num_steps": 100})
    {'num_steps': 10000}
    >>> converted_options("method 'rigl'", {"num_steps": "many"}, {"num_steps": 10_000})
    Traceback (most recent call last):
    pathgrow.errors.UserError: option num_steps of method 'rigl' must be an integer, got 'many' (e.g. 10000)
    """
    converted = {}
    for name, value in options.items():
        default = defaults.get(name)
        if is_int(default) and isinstance(value, float) and value.is_integer():
            value = int(value)
        expected = next((words for kind, words in _KINDS if isinstance(default, kind)), None)
        if expected is not None and not _same_type(value, default):
            raise UserError(f"option {name} of {what} must be {expected}, got {short(value)} (e.g. {default})")
        about = f"option {name} of {what}"
        is_plain = value is None or isinstance(value, str | list | tuple) or is_real(value) or isinstance(value, bool)
        require(is_plain, about, value, "a number, text or a list", default)
        if is_int(value) or is_number(value):  # a step, a count or a fraction is never this large
            fits = abs(value) <= _MAX_NUMBER
            require(fits, about, value, f"in [-{_MAX_NUMBER:g}, {_MAX_NUMBER:g}]", default)
        converted[name] = value
    return converted


def parse_pair(text: str, flag: str) -> tuple[str, Any]:
    """A NAME=VALUE word; the value is a number, a comma-separated list of numbers, true, false, none, or text.

    >>> [parse_pair(text, "--model-option") for text in ("width=8", "widths=8,8", "by_sign=false", "allocation=erk")]
    [('width', 8), ('widths', [8, 8]), ('by_sign', False), ('allocation', 'erk')]
    """
    name, equals, value = text.partition("=")
    require(bool(name and equals and value), flag, text, "NAME=VALUE", "width=8")
    if value.lower() in _WORDS:
        return name, _WORDS[value.lower()]
    parts = [as_number(part, (int, float)) for part in value.split(",") if part]
    if not parts or any(isinstance(part, str) for part in parts):  # a lone comma has no parts
        return name, value
    return name, parts if "," in value else parts[0]


def as_number(text: str, kinds: Collection[type[int] | type[float]]) -> Any:
    """Text as the first kind of number that it is; other text stays as it is."""
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def import_function(kind: str, place: str) -> Callable[..., Any]:
    """The function of a name such as `package.module:function`.

    >>> import_function("method", "pathgrow.methods.rigl:rigl").__name__
    'rigl'
    """
    module_name, _, function_name = place.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"{kind} {place!r} does not name a module; expected 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as fault:  # the module is user code, which may raise anything
        raise UserError(f"{kind} {place!r} cannot be imported ({_import_fault(fault)})") from fault
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"{kind} {place!r}: module {module_name!r} has no function {function_name!r}")
    _IMPORTED.add(place)
    return function


_IMPORTED: set[str] = set()
"""Names that `import_function` was asked for."""


def is_location(name: object) -> bool:
    """Whether a name is of the form `package.module:function`."""
    return isinstance(name, str) and ":" in name


def require_imported(kind: str, name: object, flag: str = "--method") -> None:
    """Refuse `package.module:function` unless it was imported before: a config is data, and data must not run code.

    `flag` is the option of the command line that imports it.
    """
    if is_location(name) and name not in _IMPORTED:
        raise UserError(
            f"{kind} {name!r} is a function outside pathgrow, which reading a config does not import: pass it on the "
            f"command line ({flag}), or call pathgrow.{kind}s.entry({name!r}) first"
        )


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module `__getattr__` that imports names from their submodules on first use.

    torch takes seconds to import, which `pathgrow --help` should not; the home of a submodule itself is "".
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(f"{package}.{homes[name] or name}")
        found = getattr(home, name) if homes[name] else home
        setattr(sys.modules[package], name, found)
        return found

    return get


def _import_fault(fault: BaseException) -> str:
    """What went wrong in an import, and where unless it is the import itself that failed."""
    if isinstance(fault, SyntaxError):
        return f"{fault.msg} in {fault.filename}, line {fault.lineno}"
    frame = traceback.extract_tb(fault.__traceback__)[-1]
    said = f"{type(fault).__name__}: {fault}".removesuffix(": ").partition("\n")[0]
    return str(fault) if isinstance(fault, ModuleNotFoundError) else f"{said} in {frame.filename}, line {frame.lineno}"


def _same_type(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, int | float if isinstance(default, float) else type(default))
