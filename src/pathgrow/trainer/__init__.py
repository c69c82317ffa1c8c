"""The engine: training at the speed of the hardware, one network or several side by side."""

from __future__ import annotations

from pathgrow.trainer.device import EngineOptions, ExecutionPlan
from pathgrow.trainer.trainer import Trainer

__all__ = ["EngineOptions", "ExecutionPlan", "Trainer"]
