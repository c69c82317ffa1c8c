"""What all stages of one training share: data, model, trainer, scope, store."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow.checkpoint import MemoryStore, RankZeroStore, RunDir, Store
from pathgrow.data.dataset import Dataset
from pathgrow.distributed.comm import Communicator
from pathgrow.graph import Graph, trace
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.scope import scope_of
from pathgrow.masks import Masks
from pathgrow.methods.method import Method
from pathgrow.report.progress import ProgressBar
from pathgrow.runs.callback import Callback
from pathgrow.runs.config import EVERYTHING, TrainConfig
from pathgrow.runs.diary import MetricsLogger, announce_resumption
from pathgrow.trainer import Trainer
from pathgrow.trainer.feed import batches_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """An untrained model, and everything that trains it."""

    config: TrainConfig
    dataset: Dataset
    trainer: Trainer
    model: nn.Module
    optimizer: Optimizer
    example_input: Tensor
    graph: Graph
    scope: Masks
    store: Store
    callback: Callback
    comm: Communicator
    batch_size: int
    steps_per_epoch: int

    @classmethod
    def made(cls, config: TrainConfig, folder: RunDir | None, progress: ProgressBar, comm: Communicator) -> Bench:
        """The bench of a config; only the first process of a team has a `folder`."""
        dataset = config.load_data()
        batch_size, steps_per_epoch = batches_of(len(dataset.train), config.recipe, config.ranks)
        if folder is not None:
            announce_resumption(folder, progress, steps_per_epoch)
        trainer = Trainer(
            dataset,
            config.recipe,
            config.engine,
            num_epochs=config.epochs,
            on_epoch=progress.epoch,
            comm=comm,
        )
        device = trainer.plan.device
        model, optimizer = trainer.place(config.new_model(dataset.classes))
        comm.broadcast_([*model.parameters(), *model.buffers()])
        example_input = dataset.example_input().to(device)
        graph = trace(model, example_input)
        scope = Masks.full(model) if config.scope == EVERYTHING else scope_of(model, graph, config.scope)
        store: Store = folder.stages if folder is not None else MemoryStore()
        return cls(
            config=config,
            dataset=dataset,
            trainer=trainer,
            model=model,
            optimizer=optimizer,
            example_input=example_input,
            graph=graph,
            scope=scope.to(device),
            store=store if comm.size == 1 else RankZeroStore(comm, store),
            callback=MetricsLogger(folder, progress) if folder is not None else Callback(),
            comm=comm,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
        )

    @property
    def dense_macs(self) -> int:
        """Multiply-adds of one sample forward through the dense network."""
        return forward_macs(self.graph)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def num_counted_always(self, match: str) -> int:
        """Parameters beside the switchable weights that a budget of epochs times parameters counts."""
        return 0 if match == "switchable" else self.num_parameters - self.scope.num

    @property
    def probe_size(self) -> int:
        """Samples in one of the trainer's `batches`, which each process takes for itself to look at the network."""
        return self.batch_size // (self.config.recipe.accumulate * self.comm.size)

    def make_method(self, epochs: int) -> Method:
        """The method for a training of this many epochs."""
        return self.config.make_method(epochs * self.steps_per_epoch)


def grows(method: Method) -> bool:
    """Whether a method adds weights round by round, as a discovery does."""
    return method.grow is not None and method.clock == "round"


def moves(method: Method) -> bool:
    """Whether masks, and so the cost of a step, change within a training; with hidden weights it is always dense."""
    return method.clock == "step" and method.weights is None
