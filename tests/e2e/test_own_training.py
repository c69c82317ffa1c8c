"""`pathgrow.discover` in trainings of other kinds: a recurrent network, a regression, one killed again and again."""

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pathgrow
from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from tests.support.toy import World, without_timing


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.unused, self.head = nn.LSTM(2, 16, batch_first=True), nn.Linear(3, 3), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])  # type: ignore[no-any-return]


class Task:
    """A model with data, trained by Adam."""

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        self.model, self.inputs, self.targets = model, inputs, targets
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        is_class = targets.dtype == torch.int64
        return nn.functional.cross_entropy(output, targets) if is_class else nn.functional.mse_loss(output, targets)

    def fit(self, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        model.train()
        for _ in range(epochs):
            for batch in torch.randperm(256).split(64):
                optimizer.zero_grad()
                self.loss(model(self.inputs[batch]), self.targets[batch]).backward()
                optimizer.step()

    def evaluate(self, model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            output = model(self.inputs[256:])
        if self.targets.dtype == torch.int64:
            return float((output.argmax(1) == self.targets[256:]).double().mean())
        return float(nn.functional.mse_loss(output, self.targets[256:]).sqrt())

    def discover(self, **options: object) -> pathgrow.Discovery:
        example = self.inputs[:2]
        return pathgrow.discover(self.model, self.optimizer, self.fit, self.evaluate, example, **options)


def sequences() -> Task:
    torch.manual_seed(0)
    inputs = torch.randn(512, 5, 2)
    return Task(Classifier(), inputs, (inputs[..., 0].sum(1) > 0).long())


def test_a_recurrent_network_is_pruned() -> None:
    task = sequences()
    with pytest.warns(UserWarning, match="does not use these weights") as caught:
        found = task.discover(budget=24, delta=0.03, num_val=256)
    assert found.score > 0.85
    assert set(found.masks) == {"cell.weight_ih_l0", "cell.weight_hh_l0"}
    assert found.density < 0.6
    for name, mask in found.masks.items():
        assert bool((task.model.get_parameter(name)[~mask] == 0).all())
    dense = 6 * (5 * 64 * (2 + 16) + 2 * 16)  # FLOPs of a training sample: five time steps and the head
    assert found.ledger.dense_training_flops == 24 * 256 * dense
    assert found.ledger.phases[0].training_flops == 6 * 256 * dense
    sentences = [str(warning.message) for warning in caught]
    assert any(text.startswith("Classifier cannot be traced (") for text in sentences)
    assert any(text.endswith("of Classifier, so they are not pruned: unused.weight") for text in sentences)
    assert set(found.report().notes) >= set(sentences[:2])


def test_a_recurrent_network_grows_at_random_or_says_how() -> None:
    for options, instead in (({"max_density": 0.5}, "max_density=1"), ({"finish": "static"}, "finish='gts'")):
        with pytest.raises(UserError, match=rf"cannot be traced.* method='random_growth', or {instead}"):
            sequences().discover(budget=8, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sequences().discover(budget=8, max_density=0.5, method="random_growth", delta=0.05)
    assert found.rounds[0].point.density == pytest.approx(0.1, abs=0.01)
    assert max(record.point.density for record in found.trained) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("finish", ["static", "set"])
def test_a_recurrent_network_is_trained_by_methods_that_use_no_paths(finish: str) -> None:
    task = sequences()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = task.discover(budget=8, finish=finish, method="random_growth", delta=0.05)
    assert set(found.masks) == {"cell.weight_ih_l0", "cell.weight_hh_l0"}
    assert found.rounds[0].point.density == pytest.approx(0.1, abs=0.01)
    assert found.score > 0.6


def test_every_training_starts_in_the_modes_of_the_given_model() -> None:
    """A loop that relies on the mode of a new model, beside an evaluation that calls `eval()`."""
    torch.manual_seed(0)
    inputs = torch.randn(512, 6)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
    )
    model[1].eval()  # statistics of batch norm may be frozen on purpose
    task, modes = Task(model, inputs, (inputs[:, 0] > 0).long()), set()

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        modes.add((model.training, model[1].training, model[0].training))
        for _ in range(epochs):
            optimizer.zero_grad()
            task.loss(model(task.inputs[:256]), task.targets[:256]).backward()
            optimizer.step()

    task.fit = fit  # type: ignore[method-assign]
    found = task.discover(budget=16, delta=0.05)
    assert modes == {(True, False, True)}
    assert found.ledger.samples == 256 * sum(record.num_epochs for record in found.trained)


def test_a_fit_whose_samples_cannot_be_counted_is_charged_by_its_steps() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(512, 6)
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)]
    counted, uncounted = (
        Task(nn.Sequential(*map(copy.deepcopy, layers)), inputs, (inputs[:, 0] > 0).long()) for _ in range(2)
    )
    forward = uncounted.fit

    class Unhooked:
        def __init__(self, model: nn.Module) -> None:
            self.train, self._model = model.train, model

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self._model.forward(x)

    uncounted.fit = lambda model, optimizer, epochs: forward(Unhooked(model), optimizer, epochs)  # type: ignore
    with pytest.warns(UserWarning, match=r"fit does not call the model itself.*costs relative to dense are right"):
        found = uncounted.discover(budget=16, delta=0.05)
    assert found.ledger.relative == pytest.approx(counted.discover(budget=16, delta=0.05).ledger.relative)


def test_a_regression_is_scored_by_its_error() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(512, 6)
    targets = torch.sin(2 * inputs[:, :1]) + inputs[:, 1:2] + 0.1 * torch.randn(512, 1)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    found = Task(model, inputs, targets).discover(budget=40, mode="min", delta="10%", reference="dense")
    assert 0.1 < found.score < 0.4
    assert found.answer.status in ("found", "flat")
    assert found.answer.delta == pytest.approx(0.1 * found.dense.score.score)
    assert found.score <= found.rounds[-1].point.score + 3 * found.answer.delta
    assert all(record.point.score > 0 for record in found.trained)


class Exiting(World):
    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        if self.fits:
            os._exit(9)
        return super().evaluate(model)


BUDGET = {"finish": "gts", "rule": "probe", "start_density": None, "seed_epochs": None, "budget": 4, "delta": 0.05}
PROCESSES = """
import os, sys
from tests.e2e.test_own_training import BUDGET, Exiting
from pathgrow.checkpoint import RunDir
from tests.support.toy import World

World().discover(**BUDGET)  # loads modules, once for all processes
code, number = 9, 0
while code == 9:
    if (child := os.fork()) == 0:
        with RunDir.open(sys.argv[1], {}) as run_dir:
            Exiting().discover(store=run_dir.stages, **BUDGET)
        os._exit(0)
    code, number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), number + 1
print(code, number)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:training improved no network")
def test_processes_that_exit_after_one_training_each_finish_the_run(tmp_path: Path) -> None:
    """One more than there are trainings: the last one finds all of them."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESSES, str(tmp_path / "run")],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", "."])},
    )  # fmt: skip
    world = World()
    expected = world.discover(**BUDGET)
    assert process.stdout.split() == ["0", str(len(world.fits) + 1)], process.stderr
    again = Exiting()
    with RunDir.open(tmp_path / "run", {}) as run_dir:
        found = again.discover(store=run_dir.stages, **BUDGET)
    assert again.fits == []
    assert without_timing(found) == without_timing(expected)
