"""The public names of the package, imported on first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.optim import SGD

import pathgrow
from pathgrow import Masks, UserError, data, methods, models
from pathgrow.sparse.ema import EMA
from tests.support.sparse_mlp import mlp, sparse_mlp


def test_every_public_name_can_be_imported() -> None:
    for name in pathgrow.__all__:
        assert getattr(pathgrow, name) is not None
    assert set(pathgrow.__all__) <= set(dir(pathgrow))
    with pytest.raises(AttributeError, match="no attribute 'discovr'"):
        _ = pathgrow.discovr


@pytest.mark.parametrize(
    "line", ["--help", "--version", "methods", "train --help", "discover --help", "compare --help", "data get --help"]
)
def test_help_does_not_wait_for_torch(line: str) -> None:
    modules = {"torch", "scipy", "matplotlib", "rich", *([] if "train" in line or "discover" in line else ["numpy"])}
    program = (
        "import sys\nfrom pathgrow.cli.main import main\n"
        f"try: main({line.split()!r})\nexcept SystemExit as end: assert end.code == 0\n"
        f"assert not {modules!r} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class _NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


_INPUT = torch.zeros(1, 6)
_JUNK = [
    object(), [None], np.zeros(3), torch.zeros(3), 10**5000, 1j, {"a": 1}, {1}, b"x", _NoRepr(), int, torch,
    "a\x1b[31mb\0", 1e308 * 10,
]  # fmt: skip


def _attach(**given: object) -> object:
    model = mlp()
    named = {"model": model, "optimizer": SGD(model.parameters(), lr=0.1), "method": "random", **given}
    return pathgrow.attach(**named)  # type: ignore[arg-type]


def _discover(**given: object) -> object:
    """A call that ends at its first training."""

    def fit(*_: object) -> None:
        raise InterruptedError

    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    return pathgrow.discover(model, optimizer, fit, lambda _: 0.5, _INPUT, **{"progress": False, **given})


def _load_state(**given: object) -> None:
    _, _, sparse = sparse_mlp()
    sparse.load_state_dict({**sparse.state_dict(), **given})


_ARGUMENTS: dict[str, Callable[[object], object]] = {
    "scope(model)": pathgrow.scope,
    "scope(preset)": lambda x: pathgrow.scope(mlp(), _INPUT, x),
    "scope(only)": lambda x: pathgrow.scope(mlp(), _INPUT, only=[x]),
    "phew(model)": lambda x: pathgrow.phew(x, _INPUT, 0.2),
    "phew(density)": lambda x: pathgrow.phew(mlp(), _INPUT, x),
    "phew(scope)": lambda x: pathgrow.phew(mlp(), _INPUT, 0.2, x),
    "phew(seed)": lambda x: pathgrow.phew(mlp(), _INPUT, 0.2, seed=x),
    "phew(identity_shortcuts)": lambda x: pathgrow.phew(mlp(), _INPUT, 0.2, identity_shortcuts=x),
    "path_scores(model)": pathgrow.path_scores,
    "path_scores(masks)": lambda x: pathgrow.path_scores(mlp(), _INPUT, {"0.weight": x}),
    "tau_core(masks)": lambda x: pathgrow.tau_core(mlp(), _INPUT, x),
    "tau_core(tau)": lambda x: pathgrow.tau_core(mlp(), _INPUT, None, x),
    "training_flops(masks)": lambda x: pathgrow.training_flops(mlp(), _INPUT, x),
    "fit_saturation(densities)": lambda x: pathgrow.fit_saturation([x, 0.2, 0.4], [0.1, 0.2, 0.3]),
    "sample_proportional(scores)": lambda x: pathgrow.sample_proportional(
        {"a": x}, Masks({"a": torch.zeros(4, dtype=torch.bool)}).missing(), 1, torch.Generator()
    ),
    "load_network(path)": lambda x: pathgrow.load_network(x, mlp()),
    "Masks": Masks,
    "Masks.full(model)": Masks.full,
    "Masks.full(scope)": lambda x: Masks.full(mlp(), {"0.weight": x}),
    "Masks.load": Masks.load,
    "data.load(name)": data.load,
    "data.load(root)": lambda x: data.load("folder", x),
    "data.load(seed)": lambda x: data.load("digits", seed=x),
    "models.create(name)": lambda x: models.create(x, 10),
    "models.create(seed)": lambda x: models.create("mlp", 10, seed=x),
    "models.create(inputs)": lambda x: models.create("mlp", 10, inputs=x),
    "methods.create(name)": methods.create,
    "methods.create(allocation)": lambda x: methods.create("chts", allocation=x),
    "methods.create(start_density)": lambda x: methods.create("gts", start_density=x),
    "methods.create(peak_density)": lambda x: methods.create("gts", peak_density=x),
    "methods.create(s_decay)": lambda x: methods.create("str", s_decay=x),
    "EMA(decay)": lambda x: EMA(decay=x),
    "attach(model)": lambda x: _attach(model=x),
    "attach(scope)": lambda x: _attach(scope=x),
    "attach(stop)": lambda x: _attach(stop=x),
    "attach(ema)": lambda x: _attach(ema=x),
    "attach(seed)": lambda x: _attach(seed=x),
    "attach(comm)": lambda x: _attach(comm=x),
    "observe": lambda x: sparse_mlp()[2].observe((x, 0.5, 0.5)),
    "grow_": lambda x: sparse_mlp()[2].grow_(x),
    "prune_": lambda x: sparse_mlp()[2].prune_(x),
    **{
        f"load_state_dict({key})": lambda x, key=key: _load_state(**{key: x})
        for key in ("format", "method", "seed", "scope", "masks", "round", "step", "points", "stopped", "ema")
    },
    "discover(scope)": lambda x: _discover(scope={"0.weight": x}),
    "discover(seed)": lambda x: _discover(seed=x),
    "discover(progress)": lambda x: _discover(progress=x),
    "discover(comm)": lambda x: _discover(comm=x),
    "discover(preset)": lambda x: _discover(preset=x),
    "discover(mode)": lambda x: _discover(mode=x),
    "discover(store)": lambda x: _discover(store=x),
    "plan(seed)": lambda x: pathgrow.plan(mlp(), SGD(mlp().parameters()), lambda *_: None, lambda _: 0, _INPUT, seed=x),
}


@pytest.mark.parametrize("argument", _ARGUMENTS)
def test_a_bad_argument_is_a_sentence(argument: str) -> None:
    """Neither an exception from somewhere inside, nor accepted."""
    for value in _JUNK:
        with pytest.raises(UserError) as error:
            _ARGUMENTS[argument](value)
        sentence = str(error.value)
        assert sentence.isprintable()
        assert 10 < len(sentence) < 600


@pytest.mark.parametrize("name", ["loss", "batches", "on_mask_update"])
@pytest.mark.parametrize("value", [3.5, "loader", object(), torch])
def test_functions_that_cannot_be_called(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^{name} must be a"):
        _attach(**{name: value})
    if name != "on_mask_update":
        with pytest.raises(UserError, match=f"^{name} must be a"):
            _discover(**{name: value})
