"""One training by one method, under the data, recipe, scope and ledger that all methods share.

- `config`: what may be chosen, resolved in full;
- `bench`: data, model and trainer of one run, and the method made for it;
- `meter`: a method that notes the price of its masks as they change;
- `forecast`: what the rest of a training will cost;
- `plan`, `pace`: how long it may be for a given budget, decided beforehand and on the way;
- `levels`, `growth`: the trainings themselves, stage by stage;
- `report`, `run`: what is written, and the order of it all.
"""

from pathgrow.training.config import TrainRun
from pathgrow.training.run import train

__all__ = ["TrainRun", "train"]
