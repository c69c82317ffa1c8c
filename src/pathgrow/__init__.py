"""How dense must my network be, and can I have that sparse network for the price of training it once?

>>> import pathgrow
>>> net = pathgrow.models.create("mlp", classes=10)
>>> masks = pathgrow.phew(net, net.example_input(), density=0.05)
>>> masks.num_on, masks.num
(410, 8192)
"""

# ruff: noqa: E402
import os
import sys

_argv = getattr(sys, "argv", [""])
_is_module = _argv[:1] == ["-m"] and sys.orig_argv[-len(_argv)] == "pathgrow"
if _is_module and sys.path[:1] in ([""], [os.getcwd()]) and not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the working directory first, which may hold modules of somebody else

import signal

_is_command = _is_module or os.path.basename("".join(_argv[:1])) == "pathgrow"
if _is_command:
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # so would `python -c`, which starts servers of worker processes
if _is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports that follow without a traceback

from typing import TYPE_CHECKING

from pathgrow.errors import RunFailed, UserError
from pathgrow.registry import lazy_attributes
from pathgrow.version import __version__

if TYPE_CHECKING:
    from pathgrow import data, methods, models
    from pathgrow.checkpoint.manifest import load_network
    from pathgrow.density.saturation import fit_saturation
    from pathgrow.graph.flops import training_flops
    from pathgrow.graph.paths import path_scores
    from pathgrow.graph.scope import scope
    from pathgrow.graph.topology import tau_core
    from pathgrow.masks import Masks
    from pathgrow.masks.sampling import sample_proportional
    from pathgrow.methods.method import Method
    from pathgrow.report.text import explain
    from pathgrow.runs.api import discover, plan
    from pathgrow.runs.records import Callback, LoggingCallback
    from pathgrow.runs.result import Discovery
    from pathgrow.sparse.attach import Attached, attach
    from pathgrow.walks.phew import phew

__all__ = [
    "Attached",
    "Callback",
    "Discovery",
    "LoggingCallback",
    "Masks",
    "Method",
    "RunFailed",
    "UserError",
    "__version__",
    "attach",
    "data",
    "discover",
    "explain",
    "fit_saturation",
    "load_network",
    "methods",
    "models",
    "path_scores",
    "phew",
    "plan",
    "sample_proportional",
    "scope",
    "tau_core",
    "training_flops",
]


def __dir__() -> list[str]:
    return __all__


__getattr__ = lazy_attributes(
    __name__,
    {
        "Attached": "sparse.attach",
        "Callback": "runs.records",
        "Discovery": "runs.result",
        "LoggingCallback": "runs.records",
        "Masks": "masks",
        "Method": "methods.method",
        "attach": "sparse.attach",
        "data": "",
        "discover": "runs.api",
        "explain": "report.text",
        "fit_saturation": "density.saturation",
        "load_network": "checkpoint.manifest",
        "methods": "",
        "models": "",
        "path_scores": "graph.paths",
        "phew": "walks.phew",
        "plan": "runs.api",
        "sample_proportional": "masks.sampling",
        "scope": "graph.scope",
        "tau_core": "graph.topology",
        "training_flops": "graph.flops",
    },
)
