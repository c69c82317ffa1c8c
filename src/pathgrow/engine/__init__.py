"""The engine: training at the speed of the hardware, one network or several side by side."""

from __future__ import annotations

from pathgrow.engine.mode import EngineOptions, Mode
from pathgrow.engine.trainer import Trainer

__all__ = ["EngineOptions", "Mode", "Trainer"]
