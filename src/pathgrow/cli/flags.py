"""Command-line flags, generated from the fields of configs."""

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field
from functools import partial
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from pathgrow.config import Option, option_of
from pathgrow.errors import UserError, nearest_names
from pathgrow.registry import as_number, parse_pair
from pathgrow.runs.named_method import NamedMethod


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UserError` for wrong arguments and suggests the nearest flags."""

    def __init__(self, prog: str, description: str | None) -> None:
        first, _, rest = inspect.cleandoc(description or "").partition("\n\n")
        super().__init__(
            prog=prog,
            description=first,
            epilog=rest,
            allow_abbrev=False,
            formatter_class=partial(argparse.HelpFormatter, max_help_position=32),
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')} (see `{self.prog} --help`)")

    def values(self, arguments: list[str], removed: Mapping[str, str]) -> dict[str, Any]:
        """Parse arguments into the values that were given; those of nested configs form nested dicts.

        `removed` says what to use instead of flags that no longer exist.
        """
        found, unknown = self.parse_known_args(arguments)
        for word in unknown:
            flag = word.partition("=")[0]
            if flag in removed:
                raise UserError(f"{flag} is not an option of `{self.prog}`: {removed[flag]}")
            is_flag = word.startswith("-")
            near = nearest_names(flag, self._option_string_actions, most=2) if is_flag else []
            hint = f", did you mean {' or '.join(near)}?" if near else ""
            self.error(f"unknown {'option' if is_flag else 'argument'} {word if not is_flag else flag}{hint}")
        values: dict[str, Any] = {}
        for path, value in vars(found).items():
            *outer, name = path.split(".")
            table = values
            for part in outer:
                table = table.setdefault(part, {})
            table[name] = value
        return values


@dataclass(frozen=True)
class Subcommand:
    """A subcommand: `run` is called with the values of `flags` as keyword arguments."""

    run: Callable[..., None]
    """Its docstring is the help text."""
    flags: Callable[[Parser], None] = lambda parser: None
    """Adds the flags to a parser; called only when the command is used."""
    removed: Mapping[str, str] = field(default_factory=dict)
    takes_name: bool = False
    """Whether a word after it that is not one of its subcommands is an argument."""

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.run) or "").partition("\n")[0]

    def parser(self, prog: str) -> Parser:
        """The parser of this command."""
        parser = Parser(prog, self.run.__doc__)
        self.flags(parser)
        return parser


def import_named(method: object, *finishers: str) -> None:
    """Import methods that the command line names as `module:function`, if need be from the working directory.

    Nothing else is imported from there: it may hold files of somebody else.
    """
    for name in (method, *(NamedMethod.parse(finisher).name for finisher in finishers)):
        if isinstance(name, str) and ":" in name:
            from pathgrow import methods

            if "" not in sys.path:
                sys.path.append("")
            methods.entry(name)


def add_flags(group: argparse._ArgumentGroup, config: type, *, without: Collection[str] = ()) -> None:
    """Add a flag for every field that a config class itself declares with `option`, and for those of nested configs."""
    _add_fields(group, config, [name for name in vars(config)["__annotations__"] if name not in without], "", without)


def _add_fields(group: Any, config: Any, names: Collection[str], prefix: str, without: Collection[str]) -> None:
    hints = get_type_hints(config)
    for declared in dataclasses.fields(config):
        spec, hint = option_of(declared), hints[declared.name]
        if declared.name not in names or declared.name in without or not spec.is_flag:
            continue
        path = f"{prefix}{declared.name}"
        if dataclasses.is_dataclass(hint):
            inner = spec.flag_fields or [each.name for each in dataclasses.fields(hint)]
            _add_fields(group, hint, inner, f"{path}.", without)
        else:
            _add_flag(group, declared, spec, hint, path)


def _add_flag(group: Any, declared: dataclasses.Field[Any], spec: Option, hint: Any, path: str) -> None:
    flag, *aliases = spec.flags or (f"--{declared.name.replace('_', '-')}",)
    text = spec.help
    if declared.default not in (MISSING, None) and hint is not bool and "default:" not in text:
        text = f"{text.removesuffix('.')} (default: {declared.default})."
    if aliases:
        text = f"{text} Alias: {', '.join(aliases)}."
    kind: dict[str, Any]
    if hint is bool:
        kind = {"action": "store_const", "const": not declared.default}
    elif get_origin(hint) is Mapping:
        kind = {"action": _AddPair, "metavar": spec.metavar}
    elif tuple[str, ...] in get_args(hint):
        kind = {"action": _AddName, "metavar": spec.metavar}
    else:
        choices = "|".join(get_args(hint)) if get_origin(hint) is Literal else None
        kind = {"type": partial(parse_value, hint=hint), "metavar": spec.metavar or choices}
    for name, help in [(flag, text.replace("%", "%%")), *((alias, argparse.SUPPRESS) for alias in aliases)]:
        group.add_argument(name, dest=path, default=argparse.SUPPRESS, help=help, **kind)


def parse_value(text: str, hint: Any) -> Any:
    """A word of the command line as a value of a field; what fits no number stays text, for the config to refuse.

    >>> parse_value("3", int | float | str), parse_value("0.5", float | None), parse_value("many", int)
    (3, 0.5, 'many')
    """
    members = get_args(hint) if get_args(hint) and get_origin(hint) is not Literal else (hint,)
    return as_number(text, [kind for kind in (int, float) if kind in members])


class _AddPair(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, text: Any, flag: str | None = None) -> None:
        name, value = parse_pair(text, str(flag))
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), name: value})


class _AddName(argparse.Action):
    """A name, or a list of names if the flag is repeated."""

    def __call__(self, parser: Any, namespace: Any, text: Any, flag: str | None = None) -> None:
        before = getattr(namespace, self.dest, [])
        setattr(namespace, self.dest, [*([before] if isinstance(before, str) else before), text] if before else text)
