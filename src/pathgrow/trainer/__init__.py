"""The training engine: eager or CUDA-graph steps, one network or several concurrently."""

from typing import TYPE_CHECKING

from pathgrow.registry import lazy_attributes
from pathgrow.trainer.device import EngineOptions, ExecutionPlan

if TYPE_CHECKING:
    from pathgrow.trainer.trainer import Trainer

__all__ = ["EngineOptions", "ExecutionPlan", "Trainer"]

__getattr__ = lazy_attributes(__name__, {"Trainer": "trainer"})
