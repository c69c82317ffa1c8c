"""From a typed config to a finished run folder: where data, model, recipe, loop and report meet."""

from pathgrow.experiment.config import Experiment
from pathgrow.experiment.run import expected_epochs, run

__all__ = ["Experiment", "expected_epochs", "run"]
