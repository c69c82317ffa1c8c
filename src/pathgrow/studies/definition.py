"""What a study is: TOML in, cells out. A cell is a run directory named by its config."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pathgrow.config import from_json
from pathgrow.errors import UserError, unknown_name
from pathgrow.report.schema import flat_config
from pathgrow.runs.config import DiscoverConfig, RunConfig, TrainConfig
from pathgrow.trainer import EngineOptions
from pathgrow.trainer.recipes import Recipe

Points = Literal["network", "rounds", "topology", "answer"]
_Values = Mapping[str, Any]
_Grid = Mapping[str, list[Any]]
_CONFIGS: dict[str, type[RunConfig]] = {"train": TrainConfig, "discover": DiscoverConfig}
_MAX_CELLS = 10_000
_NESTED = {
    f.name: outer for outer, cls in (("engine", EngineOptions), ("recipe", Recipe)) for f in dataclasses.fields(cls)
}
"""Fields that may be named without the config around them, as on the command line: `lr` is `recipe.lr`."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a scale changes, and what has to be said about its results."""

    set: _Values = field(default_factory=dict)
    grid: _Grid = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Cells of one kind."""

    command: Literal["train", "discover"] = "train"
    set: _Values = field(default_factory=dict)
    grid: _Grid = field(default_factory=dict)
    points: Points = "network"
    """What a finished run contributes: its network, the networks of all rounds or levels, their topology, or the answer
    of a discovery."""
    scales: tuple[str, ...] = ()
    """The scales that have these cells; empty: all."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Axes of the table and the figure."""

    x: str = "density"
    y: tuple[str, ...] = ("test",)
    series: tuple[str, ...] = ("method",)
    panel: str | None = None
    """Axis whose values get panels of their own."""
    truth: Mapping[str, str] = field(default_factory=dict)
    """Series of discoveries, and the series of networks (a density sweep) that the true density is computed from; there
    has to be a series "dense" too."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question and the grid of runs that answers it."""

    name: str
    question: str
    set: _Values = field(default_factory=dict)
    grid: _Grid = field(default_factory=dict)
    part: tuple[Part, ...] = (Part(),)
    scale: Mapping[str, Scale] = field(default_factory=dict)
    view: View = field(default_factory=View)

    def scaled(self, scale: str | None) -> Scale:
        """The scale of a name; None: the first one, or the study as it is if it has no scales."""
        if scale is None:
            return next(iter(self.scale.values()), Scale())
        if not self.scale:
            raise UserError(f"study {self.name!r} has no scales: omit --scale")
        if scale not in self.scale:
            raise unknown_name(f"scale of study {self.name!r}", scale, self.scale)
        return self.scale[scale]

    def cells(self, scale: str | None = None) -> list[Cell]:
        """All cells, in the order in which they are run; every config is checked."""
        chosen, cells = self.scaled(scale), []
        named = scale or next(iter(self.scale), "")
        for part in self.part:
            if unknown := next((name for name in part.scales if name not in self.scale), None):
                raise unknown_name(f"scale of a part of study {self.name!r}", unknown, self.scale)
            if part.scales and named not in part.scales:
                continue
            # A scale may replace any axis but those that a part drops.
            scaled = {name: values for name, values in chosen.grid.items() if part.grid.get(name) != []}
            grid = {**self.grid, **part.grid, **scaled}
            axes = {name: values for name, values in grid.items() if values}
            if (num := math.prod(map(len, axes.values()))) > _MAX_CELLS:
                raise UserError(f"study {self.name!r} has {num:,} cells, more than {_MAX_CELLS:,}: use shorter axes")
            for values in itertools.product(*axes.values()):
                cells.append(self._cell(part, chosen.set, dict(zip(axes, values, strict=True))))
        cells = [self._with_reference(cell, cells) for cell in cells]
        for name, equal in itertools.groupby(sorted(cells, key=lambda cell: cell.name), lambda cell: cell.name):
            if len(found := list(equal)) > 1:
                raise UserError(f"study {self.name!r} has the cell {name} twice ({found[0].axes} and {found[1].axes})")
        # The first seed of everything comes before the second of anything.
        return sorted(cells, key=lambda cell: int(cell.values.get("seed", 0)))

    def _cell(self, part: Part, scaled: _Values, at: _Values) -> Cell:
        values: dict[str, Any] = {}
        for layer in (self.set, scaled, part.set, *(_axis(name, value) for name, value in at.items())):
            values = _merged(values, {key: value for key, value in layer.items() if key != "label"})
        if part.command == "discover" and "epochs" in values:
            values["budget"] = values.pop("epochs")
        values = _nested(values, _CONFIGS[part.command])
        axes = {name: _label(value) for name, value in at.items()}
        name = "" if isinstance(values.get("match_run"), Mapping) else _checked(part.command, values, axes).name
        return Cell(name=name, command=part.command, values=values, axes=axes, points=part.points)

    def _with_reference(self, cell: Cell, cells: Sequence[Cell]) -> Cell:
        """A cell that matches the budget of another one, named by what is different about it."""
        wanted = cell.values.get("match_run")
        if not isinstance(wanted, Mapping):
            return cell
        axes = {**cell.axes, **wanted}
        found = [
            other for other in cells
            if other.name and all(other.axes.get(key, other.values.get(key)) == value for key, value in axes.items())
        ]  # fmt: skip
        if len(found) != 1:
            raise UserError(f"match_run of study {self.name!r} must name one cell, got {len(found)} with {axes}")
        values = {**cell.values, "match_run": found[0].name}
        name = _checked(cell.command, values, cell.axes).name
        return dataclasses.replace(cell, name=name, values=values, needs=found[0].name)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study; `name` is that of its run directory."""

    name: str
    command: str
    values: _Values
    axes: _Values
    """Its place in the grid."""
    points: Points = "network"
    needs: str | None = None
    """The cell that has to be finished first."""

    def config(self, out: Path | None = None) -> RunConfig:
        """The config; with the directory of the study, that of a run there."""
        values = dict(self.values)
        if out is not None and self.needs is not None:
            values["match_run"] = str(out / self.needs)
        return _CONFIGS[self.command].from_dict(values)


def load_study(name: str) -> Study:
    """Return a built-in study by name, or that of a TOML file."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise UserError(f"cannot read {name} (it is not a regular file)")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {name} ({getattr(error, 'strerror', None) or error})") from error
        return parse_study(path.stem, text)
    if name not in (known := study_names()):
        raise unknown_name("study", name, [*known, "FILE.toml"])
    return parse_study(name, (files("pathgrow.studies") / "definitions" / f"{name}.toml").read_text(encoding="utf-8"))


def study_names() -> list[str]:
    """The names of the built-in studies."""
    folder = files("pathgrow.studies") / "definitions"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def parse_study(name: str, text: str) -> Study:
    """Read a study; a mistake is a `UserError` that says where.

    >>> text = 'question = "Which?"\\nset.method = "set"\\ngrid.density = [0.1, 0.2]\\ngrid.lr = [0.1, 0.2]'
    >>> study = parse_study("mine", text)
    >>> [(cell.axes, cell.values["recipe"]) for cell in study.cells()][1]
    ({'density': 0.1, 'lr': 0.2}, {'lr': 0.2})
    """
    try:
        values = tomllib.loads(text)
        return from_json(Study, {"name": name, **values})
    except RecursionError as error:
        raise UserError(f"study {name!r} is nested too deeply") from error
    except ValueError as error:  # of TOML, of a field, or a number of thousands of digits
        raise UserError(f"study {name!r}: {error}") from error


def _checked(command: str, values: _Values, axes: _Values) -> RunConfig:
    try:
        return _CONFIGS[command].from_dict(values)
    except UserError as error:
        where = ", ".join(f"{name} {value}" for name, value in axes.items())
        raise UserError(f"cell {where or 'of the study'}: {error}") from error


def _axis(name: str, value: Any) -> dict[str, Any]:
    """The config values of one value of an axis."""
    if isinstance(value, Mapping):
        return dict(value)
    for part in reversed(name.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _label(value: Any) -> Any:
    """How one value of an axis is called."""
    if isinstance(value, Mapping):
        return value.get("label") or ", ".join(f"{key} {item}" for key, item in flat_config(value).items())
    return value


def _merged(one: _Values, other: _Values) -> dict[str, Any]:
    merged = dict(one)
    for key, value in other.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping) and key != "match_run"
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _nested(values: _Values, config: type[RunConfig]) -> dict[str, Any]:
    """Values with those of nested configs in their place."""
    own = {f.name for f in dataclasses.fields(config)}
    nested: dict[str, Any] = {}
    for name, value in values.items():
        inside = name not in own and name in _NESTED
        nested = _merged(nested, {_NESTED[name]: {name: value}} if inside else {name: value})
    return nested
