"""Two processes on one GPU, connected by gloo: CUDA-graph steps compute what eager steps do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pathgrow import attach, models
from pathgrow.distributed.process_group import join_process_group
from pathgrow.masks import Masks
from pathgrow.methods import create
from pathgrow.sparse.training_state import pack_training, unpack_training_
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import recipe
from tests.support.compared_steps import OPTIONS, made
from tests.support.ranks import together

pytestmark = pytest.mark.gpu

RECIPES: dict[str, dict[str, Any]] = {"erk": {"clip_norm": 1.0}, "snfs": {"accumulate": 2}}


def trained(name: str, step: str, epochs: int = 2, num_images: int = 320) -> dict[str, Any]:
    """Train, restore the state of this rank, and train as long again."""
    dist.init_process_group("gloo")  # by default each process would need its own GPU
    losses: list[float] = []
    with join_process_group("cuda") as comm:
        plan = recipe("cifar").override({"batch_size": 32, "lr": 0.05, **RECIPES.get(name, {})})
        options = EngineOptions(device="cuda", precision="fp32", compile="off", deterministic=True, step=step)
        trainer = Trainer(made(num_images, 16), plan, options, on_epoch=lambda done, of, loss: losses.append(loss))
        model, optimizer = trainer.place(models.create("resnet20", 10, seed=comm.rank, width=8, image_size=16))
        method = create(name, **OPTIONS[name])
        attached = attach(model, optimizer, method, scope=Masks.full(model), seed=1, comm=comm)
        trainer.train([Job(attached=attached, epochs=epochs, seed=7)])
        tensors, metadata = pack_training(attached)
        unpack_training_(
            attached, {key: tensor.clone() for key, tensor in tensors.items()}, metadata
        )  # the optimizer state has new addresses now
        optimizer.zero_grad()
        trainer.train([Job(attached=attached, epochs=epochs, seed=8)])
        score = trainer.evaluate(trainer.data.test)(model)
        weights = {key: tensor.cpu() for key, tensor in model.state_dict().items()}
        return {"masks": attached.masks.digest(), "weights": weights, "score": score, "losses": losses}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "erk"])
def test_graphs_on_two_ranks_are_bit_identical_to_eager_steps(name: str, tmp_path: Path) -> None:
    graphs, eager = (together(tmp_path / step, trained, name, step) for step in ("cuda_graph", "eager"))
    assert [rank.code for rank in graphs + eager] == [0] * 4, [rank.output for rank in graphs + eager]
    first = graphs[0].value
    for other in (graphs[1].value, eager[0].value, eager[1].value):
        assert other["masks"] == first["masks"]
        assert other["score"] == pytest.approx(first["score"], rel=1e-6)
        for key, tensor in other["weights"].items():
            assert torch.equal(tensor, first["weights"][key]), key
    assert first["losses"] == pytest.approx(eager[0].value["losses"], rel=1e-6)
    assert len(first["losses"]) == 4
    assert graphs[1].value["losses"] == []


def test_clipping_agrees_up_to_the_rounding_of_norms(tmp_path: Path) -> None:
    """Torch sums a norm in another order if a gradient is not aligned, as in the buckets of DDP.

    After two steps only: training magnifies the difference, to some percent of the loss after forty.
    """
    graphs, eager = (together(tmp_path / step, trained, "erk", step, 1, 32) for step in ("cuda_graph", "eager"))
    assert [rank.code for rank in graphs + eager] == [0] * 4, [rank.output for rank in graphs + eager]
    for key, tensor in graphs[0].value["weights"].items():
        assert torch.equal(tensor, graphs[1].value["weights"][key]), key
        assert torch.allclose(tensor.float(), eager[0].value["weights"][key].float(), rtol=1e-4, atol=1e-6), key
