"""What every test process needs before the first test is imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from pathgrow.report.schema import RunReport
from tests.support.sample_report import discovery_report

pytest_plugins = ["tests.support.catalogue"]

# The same examples on every machine and every run: a red build must be repeatable, and a slow one is not a failure.
settings.register_profile(
    "pathgrow",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pathgrow")

# Test processes share few cores; with one thread each they do not fight, and sums have one order.
torch.set_num_threads(1)


def _declare_torchvision_operators() -> list[torch.library.Library]:
    """Let torchvision (hence timm) be imported where its compiled library does not fit this build of torch.

    The wheel from PyPI expects CUDA; beside a CPU torch its library does not load, and the import then fails because
    it decorates operators that nobody declared. Declaring them is enough: no test calls them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return []
    try:
        for path in Path(spec.origin).parent.glob("_C*.so"):  # _C.so, or _C_stable.so in newer releases
            torch.ops.load_library(str(path))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return [library]
    return []


# Kept: a library that is collected takes its operators along.
_OPERATORS = _declare_torchvision_operators()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def sample_report() -> RunReport:
    """The report of a discovery."""
    return discovery_report()
