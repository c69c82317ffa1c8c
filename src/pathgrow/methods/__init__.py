"""Sparse-training methods by name.

Nothing registers itself: a method is a file that returns a `Method` and a line in the table below, which also enrols it
in the contract that all methods are tested against (`tests/property/test_methods_contract.py`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from pathgrow.errors import UserError, unknown_name
from pathgrow.methods.dense import dense
from pathgrow.methods.dpai import dpai
from pathgrow.methods.dsr import dsr
from pathgrow.methods.edge_popup import edge_popup
from pathgrow.methods.entry import Entry
from pathgrow.methods.erk import erk
from pathgrow.methods.fixed import fixed
from pathgrow.methods.gcg import gcg
from pathgrow.methods.gmp import gmp
from pathgrow.methods.gradient_growth import gradient_growth
from pathgrow.methods.granet import granet
from pathgrow.methods.grasp import grasp
from pathgrow.methods.gse import gse
from pathgrow.methods.imp import imp, imp_c, lth
from pathgrow.methods.itop import itop
from pathgrow.methods.magnitude import magnitude
from pathgrow.methods.method import Method, require_density
from pathgrow.methods.options import cannot_be_made, of_their_kinds, parameters, unknown_option
from pathgrow.methods.pathgrow_d import pathgrow_d
from pathgrow.methods.phew import phew
from pathgrow.methods.random import random
from pathgrow.methods.random_growth import random_growth
from pathgrow.methods.rigl import rigl
from pathgrow.methods.set import sparse_evolution
from pathgrow.methods.snfs import snfs
from pathgrow.methods.snip import snip
from pathgrow.methods.str import soft_threshold
from pathgrow.methods.synflow import synflow
from pathgrow.methods.trace_growth import trace_growth

_YAO = "Yao & Dovrolis, Gradual Capacity Growth for Sparse Network Discovery"

_METHODS: dict[str, Entry] = {
    "gcg": Entry(gcg, "growth", paper=_YAO),
    "pathgrow_d": Entry(pathgrow_d, "growth", paper=_YAO),
    "random_growth": Entry(random_growth, "growth", paper=_YAO),
    "gradient_growth": Entry(gradient_growth, "growth", paper=_YAO),
    "trace_growth": Entry(trace_growth, "growth", paper=f"none of its own; motivated in {_YAO}"),
    "imp": Entry(
        imp, "pruning", paper="Frankle et al. 2020, Linear Mode Connectivity and the Lottery Ticket Hypothesis"
    ),
    "imp_c": Entry(imp_c, "pruning", paper=_YAO),
    "lth": Entry(lth, "pruning", paper="Frankle & Carbin 2019, The Lottery Ticket Hypothesis"),
    "gmp": Entry(gmp, "pruning", paper="Zhu & Gupta 2017, To Prune, or Not to Prune"),
    "granet": Entry(granet, "pruning", paper="Liu et al. 2021, Sparse Training via Boosting Pruning Plasticity"),
    "set": Entry(sparse_evolution, "rewiring", paper="Mocanu et al. 2018, Sparse Evolutionary Training"),
    "rigl": Entry(rigl, "rewiring", paper="Evci et al. 2020, Rigging the Lottery"),
    "itop": Entry(itop, "rewiring", paper="Liu et al. 2021, In-Time Over-Parameterization"),
    "snfs": Entry(snfs, "rewiring", paper="Dettmers & Zettlemoyer 2019, Sparse Networks from Scratch"),
    "dsr": Entry(dsr, "rewiring", paper="Mostafa & Wang 2019, Dynamic Sparse Reparameterization"),
    "gse": Entry(gse, "rewiring", paper="Heddes et al. 2024, Always-Sparse Training by Guided Stochastic Exploration"),
    "random": Entry(random, "one shot", paper="every paper's baseline"),
    "erk": Entry(erk, "one shot", paper="Evci et al. 2020, Rigging the Lottery (static ERK)"),
    "magnitude": Entry(
        magnitude, "one shot", paper="Frankle et al. 2021, Pruning Neural Networks at Initialization (baseline)"
    ),
    "snip": Entry(snip, "one shot", paper="Lee, Ajanthan & Torr 2019, SNIP"),
    "grasp": Entry(grasp, "one shot", paper="Wang, Zhang & Grosse 2020, GraSP"),
    "synflow": Entry(synflow, "one shot", paper="Tanaka et al. 2020, SynFlow"),
    "phew": Entry(phew, "one shot", paper="Patil & Dovrolis 2021, PHEW"),
    "dpai": Entry(
        dpai, "one shot", paper="Xiang et al. 2025, Differentiable Pruning at Initialization with Node-Path Balance"
    ),
    "str": Entry(
        soft_threshold,
        "learned sparsity",
        paper="Kusupati et al. 2020, Soft Threshold Weight Reparameterization for Learnable Sparsity",
        exceptions={
            "exact_count": "thresholds are learned, so the density emerges",
            "off_is_zero": "the optimizer moves hidden weights, which are zero nowhere",
        },
    ),
    "edge_popup": Entry(
        edge_popup,
        "learned sparsity",
        paper="Ramanujan et al. 2020, What's Hidden in a Randomly Weighted Neural Network?",
        exceptions={"off_is_zero": "the optimizer moves scores, also those of weights that are off"},
    ),
    "dense": Entry(dense, "reference", paper="every paper's reference"),
}


def names() -> list[str]:
    """Every method that `create` knows by name.

    >>> names()[0]
    'gcg'
    """
    return list(_METHODS)


def entry(name: str) -> Entry:
    """The table line of a method: how it is made, its family, its paper, and what it cannot promise.

    >>> entry("gcg").exceptions
    mappingproxy({})
    """
    if ":" in name:
        return Entry(_maker(name), "your own", paper="none: a method of your own")
    if name not in _METHODS:
        raise unknown_name("method", name, _METHODS)
    return _METHODS[name]


def defaults(name: str) -> dict[str, Any]:
    """The options that a method takes, with their defaults.

    >>> defaults("gcg")
    {'gamma': 0.25, 'start_density': None, 'target_density': None}
    """
    known = parameters(_maker(name), name)
    return {option: parameter.default for option, parameter in known.items() if not _takes_any_number(parameter)}


def create(name: str, **options: Any) -> Method:
    """A method by name, or by the place of a function that returns one: `"package.module:function"`.

    >>> create("gcg", gamma=0.5, start_density=0.1).start_density
    0.1
    """
    make = _maker(name)
    known = parameters(make, name)
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        for option in options:
            if option not in known:
                raise unknown_option(name, option, known)
    if wanting := [key for key, p in known.items() if key not in options and _is_required(p)]:
        raise UserError(
            f"method {name!r} wants a value for {wanting[0]!r}, a function that returns a pathgrow.Method without "
            "being told anything is wanted: give its parameters defaults"
        )
    if name in _METHODS:  # a function of somebody else may take what is no like of its default
        options = of_their_kinds(name, options, defaults(name))
        if "density" in options:  # under its own name: most methods take it for the density that they start with
            require_density("density", options["density"])
    try:
        method: Any = make(**options)
    except TypeError as fault:
        if not options:
            raise
        of_their_kinds(name, options, defaults(name))
        raise cannot_be_made(name, options, defaults(name), fault) from fault
    if not isinstance(method, Method):
        raise UserError(
            f"{name!r} gave a {type(method).__name__}, a pathgrow.Method is wanted: return one from that function"
        )
    return method


def _maker(name: str) -> Callable[..., Any]:
    return _imported(name) if ":" in name else entry(name).make


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty and not _takes_any_number(parameter)


def _takes_any_number(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _imported(place: str) -> Callable[..., Any]:
    module_name, _, function_name = place.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"method {place!r} was given, which names no module: give 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as fault:
        raise UserError(f"method {place!r} could not be imported ({fault}): give 'package.module:function'") from fault
    make: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(make):
        raise UserError(
            f"method {place!r} was asked for, but {module_name!r} has no function {function_name!r}: check the name"
        )
    return make


__all__ = [
    "Entry",
    "create",
    "defaults",
    "entry",
    "fixed",
    "gcg",
    "gradient_growth",
    "names",
    "pathgrow_d",
    "random_growth",
    "trace_growth",
]
