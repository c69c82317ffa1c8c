"""The training engine: eager or CUDA-graph steps, one network or several concurrently."""

from pathgrow.trainer.device import EngineOptions, ExecutionPlan
from pathgrow.trainer.trainer import Trainer

__all__ = ["EngineOptions", "ExecutionPlan", "Trainer"]
