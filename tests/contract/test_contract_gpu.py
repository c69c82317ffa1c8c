"""The part of the contract that needs a GPU: CUDA-graph steps equal eager ones, masks equal those of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pathgrow import methods, models
from pathgrow.data.dataset import Dataset, Split
from pathgrow.masks import Masks
from pathgrow.rng import generator
from pathgrow.sparse.attach import Attached, attach
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import recipe
from tests.contract.contract import AlwaysGrow, attached, same_state, small

pytestmark = pytest.mark.gpu

NAMES = methods.names()
PLAN = recipe("cifar").override({"batch_size": 32, "lr": 0.05})
NUM_STEPS = 10


@pytest.fixture(scope="module")
def data() -> Dataset:
    draw = generator(0, "contract on a GPU")
    labels = torch.arange(32 * NUM_STEPS // 2) % 10
    images = torch.randint(0, 128, (len(labels), 3, 16, 16), generator=draw) + 12 * labels.view(-1, 1, 1, 1)
    split = Split(images.to(torch.uint8), labels, (120.0,) * 3, (60.0,) * 3)
    return Dataset("made", 10, split, split, split)


def trained(name: str, data: Dataset, step: Any) -> Attached:
    """Two epochs, between which a method on the round clock updates its masks."""
    options = EngineOptions(device="cuda", precision="fp32", compile="off", deterministic=True, step=step)
    trainer = Trainer(data, PLAN, options)
    model, optimizer = trainer.place(models.create("resnet20", 10, seed=0, width=4, image_size=16))
    with trainer.plan.flags_between_trainings():
        sparse = attach(
            model, optimizer, small(name), torch.zeros(1, 3, 16, 16, device="cuda"),
            stop=AlwaysGrow(), loss=trainer.loss, batches=trainer.batches, seed=1,
        )  # fmt: skip
    trainer.train([Job(attached=sparse, epochs=1, seed=7)])
    sparse.advance_()
    trainer.train([Job(attached=sparse, epochs=1, seed=8)])
    return sparse


@pytest.mark.parametrize("name", NAMES)
def test_cuda_graph_training_equals_eager_training_bitwise(name: str, data: Dataset) -> None:
    ours, theirs = (trained(name, data, step) for step in ("cuda_graph", "eager"))
    assert same_state(ours.state_dict(), theirs.state_dict())
    assert same_state(ours.model.state_dict(), theirs.model.state_dict())
    for parameter, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        buffers, others = ours.optimizer.state[parameter], theirs.optimizer.state[other]
        assert torch.equal(buffers["momentum_buffer"], others["momentum_buffer"])


@pytest.mark.parametrize("name", NAMES)
def test_equal_scores_give_the_masks_of_the_cpu(name: str) -> None:
    """With given gradients and in double precision, scores agree far beyond what decides on masks."""

    def visited(device: str) -> list[str]:
        sparse = attached(small(name), seed=2, precisely_on=device)
        found = [sparse.masks.to("cpu").digest()]
        for step in range(NUM_STEPS):
            noise = torch.Generator().manual_seed(step)
            for parameter in sparse.model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=noise, dtype=torch.float64).to(device)
            sparse.optimizer.step()
            if step > 2:
                sparse.advance_()
            assert sparse.density > 0
            found.append(sparse.masks.to("cpu").digest())
        return found

    assert visited("cuda") == visited("cpu")


def test_masks_move_between_devices_without_changing_their_digest() -> None:
    masks = Masks({"weight": torch.arange(12).view(3, 4) % 5 > 1})
    assert masks.to("cuda").digest() == masks.digest()
