"""From a typed config to a finished run folder: where data, model, recipe, loop and report meet."""

from pathgrow.experiment.config import Experiment
from pathgrow.experiment.run import run

__all__ = ["Experiment", "run"]
