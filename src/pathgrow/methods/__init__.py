"""Sparse-training methods by name.

Nothing registers itself: a method is a function that returns a `Method`, and a line in the table below, which also
enrolls it in the contract suite for all methods (`tests/contract`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pathgrow import registry
from pathgrow.errors import UserError, short
from pathgrow.methods.acdc import acdc
from pathgrow.methods.chts import chts
from pathgrow.methods.dpai import dpai
from pathgrow.methods.dsr import dsr
from pathgrow.methods.edge_popup import edge_popup
from pathgrow.methods.gmp import gmp
from pathgrow.methods.granet import granet
from pathgrow.methods.grasp import grasp
from pathgrow.methods.growth import gcg, gradient_growth, pathgrow_d, random_growth, trace_growth
from pathgrow.methods.gse import gse
from pathgrow.methods.gts import gts
from pathgrow.methods.imp import imp, imp_c, lth
from pathgrow.methods.itop import itop
from pathgrow.methods.mest import mest
from pathgrow.methods.method import Method, fixed, require_density
from pathgrow.methods.rigl import rigl
from pathgrow.methods.set import sparse_evolution
from pathgrow.methods.snfs import snfs
from pathgrow.methods.snip import snip
from pathgrow.methods.st3 import st3
from pathgrow.methods.static import dense, erk, magnitude, phew_masks, random
from pathgrow.methods.str import soft_threshold
from pathgrow.methods.synflow import synflow
from pathgrow.methods.topkast import topkast

Clause = Literal["exact_count", "off_is_zero"]
"""Clauses of the contract that a method may be exempt from.

"exact_count": the number of active weights is that of the given density. Instead: the masks are where the effective
weights are nonzero, and the density is reported.

"off_is_zero": pruned weights and their optimizer state are zero after every step. Instead: the network computes with
zeros outside the masks between steps, and holds plain weights after `detach`.
"""
Family = Literal["growth", "pruning", "dynamic", "static", "learned sparsity", "baseline", "custom"]
"""How the masks evolve: weights are added over time (growth), removed over time (pruning), exchanged at a constant
density (dynamic), chosen once before training (static), or learned; the baseline keeps all of them."""


@dataclass(frozen=True)
class Entry:
    """A line of the table of methods."""

    make: Callable[..., Method]
    """Returns the `Method`; all its options have defaults."""
    family: Family
    """The heading under which `pathgrow methods` lists it."""
    paper: str
    """Authors and year, as in docs/papers.md."""
    exceptions: Mapping[Clause, str] = field(default_factory=lambda: MappingProxyType({}))
    """Clauses of the contract that the method cannot satisfy by its nature, and why."""


_YAO = "Yao & Dovrolis, Gradual Capacity Growth for Sparse Network Discovery"

_METHODS: dict[str, Entry] = {
    "gcg": Entry(gcg, "growth", paper=_YAO),
    "pathgrow_d": Entry(pathgrow_d, "growth", paper=_YAO),
    "random_growth": Entry(random_growth, "growth", paper=_YAO),
    "gradient_growth": Entry(gradient_growth, "growth", paper=_YAO),
    "trace_growth": Entry(trace_growth, "growth", paper=f"none of its own; motivated in {_YAO}"),
    "gts": Entry(gts, "growth", paper=f"none of its own; growth of {_YAO}"),
    "imp": Entry(
        imp, "pruning", paper="Frankle et al. 2020, Linear Mode Connectivity and the Lottery Ticket Hypothesis"
    ),
    "imp_c": Entry(imp_c, "pruning", paper=_YAO),
    "lth": Entry(lth, "pruning", paper="Frankle & Carbin 2019, The Lottery Ticket Hypothesis"),
    "gmp": Entry(gmp, "pruning", paper="Zhu & Gupta 2017, To Prune, or Not to Prune"),
    "granet": Entry(granet, "pruning", paper="Liu et al. 2021, Sparse Training via Boosting Pruning Plasticity"),
    "acdc": Entry(acdc, "pruning", paper="Peste et al. 2021, Alternating Compressed/DeCompressed Training"),
    "st3": Entry(
        st3,
        "pruning",
        paper="Vanderschueren & De Vleeschouwer 2023, Are Straight-Through gradients and Soft-Thresholding all ...",
        exceptions={"off_is_zero": "the optimizer trains latent weights, also those of pruned weights"},
    ),
    "set": Entry(sparse_evolution, "dynamic", paper="Mocanu et al. 2018, Sparse Evolutionary Training"),
    "rigl": Entry(rigl, "dynamic", paper="Evci et al. 2020, Rigging the Lottery"),
    "itop": Entry(itop, "dynamic", paper="Liu et al. 2021, In-Time Over-Parameterization"),
    "snfs": Entry(snfs, "dynamic", paper="Dettmers & Zettlemoyer 2019, Sparse Networks from Scratch"),
    "dsr": Entry(dsr, "dynamic", paper="Mostafa & Wang 2019, Dynamic Sparse Reparameterization"),
    "gse": Entry(gse, "dynamic", paper="Heddes et al. 2024, Always-Sparse Training by Guided Stochastic Exploration"),
    "mest": Entry(mest, "dynamic", paper="Yuan et al. 2021, MEST: Memory-Economic Sparse Training"),
    "chts": Entry(chts, "dynamic", paper="Zhang et al. 2025, Brain network science modelling of sparse networks"),
    "topkast": Entry(
        topkast,
        "dynamic",
        paper="Jayakumar et al. 2020, Top-KAST: Top-K Always Sparse Training",
        exceptions={"off_is_zero": "the optimizer trains latent weights, also some of pruned weights"},
    ),
    "random": Entry(random, "static", paper="every paper's baseline"),
    "erk": Entry(erk, "static", paper="Evci et al. 2020, Rigging the Lottery (static ERK)"),
    "magnitude": Entry(
        magnitude, "static", paper="Frankle et al. 2021, Pruning Neural Networks at Initialization (baseline)"
    ),
    "snip": Entry(snip, "static", paper="Lee, Ajanthan & Torr 2019, SNIP"),
    "grasp": Entry(grasp, "static", paper="Wang, Zhang & Grosse 2020, GraSP"),
    "synflow": Entry(synflow, "static", paper="Tanaka et al. 2020, SynFlow"),
    "phew": Entry(phew_masks, "static", paper="Patil & Dovrolis 2021, PHEW"),
    "dpai": Entry(
        dpai, "static", paper="Xiang et al. 2025, Differentiable Pruning at Initialization with Node-Path Balance"
    ),
    "str": Entry(
        soft_threshold,
        "learned sparsity",
        paper="Kusupati et al. 2020, Soft Threshold Weight Reparameterization for Learnable Sparsity",
        exceptions={
            "exact_count": "thresholds are learned, so the density emerges",
            "off_is_zero": "the optimizer trains latent weights, which are not zero",
        },
    ),
    "edge_popup": Entry(
        edge_popup,
        "learned sparsity",
        paper="Ramanujan et al. 2020, What's Hidden in a Randomly Weighted Neural Network?",
        exceptions={"off_is_zero": "the optimizer trains scores, also those of pruned weights"},
    ),
    "dense": Entry(dense, "baseline", paper="every paper's baseline"),
}


def names() -> list[str]:
    """The names that `create` accepts, beside `package.module:function`.

    >>> names()[0]
    'gcg'
    """
    return list(_METHODS)


def entry(name: str) -> Entry:
    """The table entry of a method: how it is made, its family, its paper, and its exemptions.

    >>> entry("rigl").family
    'dynamic'
    """
    if registry.is_location(name):
        return Entry(registry.import_function("method", name), "custom", paper="none: a custom method")
    return registry.lookup("method", name, _METHODS)


def defaults(name: str) -> dict[str, Any]:
    """The options of a method and their defaults.

    >>> defaults("gcg")
    {'gamma': 0.25, 'start_density': None, 'target_density': None}
    """
    make = entry(name).make
    try:
        return registry.option_defaults(make)
    except ValueError as fault:  # some builtins have no signature
        raise UserError(f"{name!r} is not a function that returns a pathgrow.Method") from fault


def create(name: str, **options: Any) -> Method:
    """Create a method by name, or by the location of a function that returns one: `"package.module:function"`.

    >>> create("gcg", gamma=0.5, start_density=0.1).start_density
    0.1
    """
    make, known, what = entry(name).make, defaults(name), f"method {name!r}"
    if not _takes_any_option(make):
        registry.check_option_names(what, options, known)
    if missing := [key for key, default in known.items() if default is inspect.Parameter.empty and key not in options]:
        raise UserError(f"option {missing[0]!r} of {what} has no default; all options of a method need one")
    if name in _METHODS:  # a custom function may accept values of other types than its defaults
        options = registry.converted_options(what, options, known)
        if "density" in options:  # by its own name: most methods pass it on as the start density
            require_density("density", options["density"])
    try:
        method: Any = make(**options)
    except TypeError as fault:
        if not options:
            raise
        registry.converted_options(what, options, known)
        values = ", ".join(f"{key}={short(value)}" for key, value in options.items() if value != known.get(key))
        raise UserError(f"cannot create {what} with {values} ({fault})") from fault
    if not isinstance(method, Method):
        raise UserError(f"{name!r} must return a pathgrow.Method, got {type(method).__name__}")
    return method


def _takes_any_option(make: Callable[..., Any]) -> bool:
    parameters = inspect.signature(make).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


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
