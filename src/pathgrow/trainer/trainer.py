"""The engine as `discover` uses it: a `fit` that can also train several networks side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from pathgrow.data.dataset import Dataset, Split, StreamedSplit, normalised
from pathgrow.data.streaming import StreamLoader
from pathgrow.distributed.comm import Communicator
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.sparse.attach import attach
from pathgrow.trainer.device import EngineOptions
from pathgrow.trainer.feed import Feed, ResidentFeed, Residents, StreamedFeed, batches_of
from pathgrow.trainer.interface import Job
from pathgrow.trainer.loop import OnEpoch, Training
from pathgrow.trainer.process_group import check_batch_split, current_communicator, plan_for, wrapped
from pathgrow.trainer.recipes import Recipe, make_optimizer
from pathgrow.trainer.step import CudaGraphStep, EagerStep, enough_rows

_EVALUATION_BATCH = 2500
_STREAMED_BATCH = 256
_PAUSE = 1e-4
"""Seconds between two looks at a device that has enough to do."""


class Trainer:
    """Trains networks on one data set by one recipe.

    Parameters
    ----------
    data
        Its train split is trained on.
    recipe
        Optimizer, schedule, augmentation.
    options
        Device, precision, captured or eager.
    num_epochs
        About how many epochs all trainings together will take, which decides whether compiling pays; None: each
        training decides for itself.
    workers
        Processes that decode images, where the data stream in from files.
    on_epoch
        Told of every finished epoch; where several processes train together, in the first of them.
    team
        The processes that train together, each its rows of every batch; None: those of the default process group of
        torch.distributed, if it is initialised.
    """

    def __init__(
        self,
        data: Dataset,
        recipe: Recipe,
        options: EngineOptions | None = None,
        *,
        num_epochs: int | None = None,
        on_epoch: OnEpoch | None = None,
        workers: int = 4,
        comm: Communicator | None = None,
    ) -> None:
        self.data = data
        self.recipe = recipe
        self.comm = comm if comm is not None else current_communicator()
        self.plan = plan_for(options or EngineOptions(), self.comm)
        self._num_epochs = num_epochs
        self._workers = workers
        self._on_epoch = on_epoch if on_epoch is not None and self.comm.rank == 0 else _tell_nobody
        self._residents = Residents(self.plan.device)

    def place(self, model: nn.Module) -> tuple[nn.Module, Optimizer]:
        """The model where and how it is trained, with the recipe's optimizer."""
        model = self.plan.place(model)
        return model, make_optimizer(model, self.recipe)

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        """Train a network that is not attached, dense, as any `fit` does; the global torch seed decides the order."""
        seed = self.comm.broadcast_from_rank0(lambda: int(torch.randint(2**62, ()).item()))
        attached = attach(model, optimizer, fixed(Masks.full(model)), scope=Masks.full(model), comm=self.comm)
        try:
            self.train([Job(attached=attached, epochs=epochs, seed=seed)])
        finally:
            attached.detach()

    def train(self, jobs: Sequence[Job], on_done: Callable[[int], None] | None = None) -> list[int]:
        """Train every job to its end; the samples that each took.

        On a GPU several run side by side, each captured step on a stream of its own; every network gets the bits
        that it would get alone. Elsewhere they run one after the other. `on_done` is told the number of a job that is
        over while others go on.
        """
        samples = [0] * len(jobs)
        waiting = iter(enumerate(jobs))
        running: _Running = {}
        places = self.plan.max_concurrent if self.plan.cuda_graphs else 1
        with self.plan.training_flags(), _seeds_kept(self.plan.device):
            while True:
                for number, job in islice(waiting, places - len(running)):
                    training = self._training(job)
                    running[number] = (training, training.steps())
                if not running:
                    return samples
                for number, (training, steps) in _that_need_not_wait(running):
                    if next(steps, _OVER) is _OVER:
                        samples[number] = training.num_samples
                        del running[number]
                        if on_done is not None:
                            on_done(number)

    def evaluate(self, split: Split | StreamedSplit) -> Callable[[nn.Module], tuple[float, float]]:
        """An `evaluate(model)` that gives (accuracy, mean cross-entropy) on a split.

        Processes that train together score a part each, with the buffers of the first, and add up: all get one score.
        """
        comm, device = self.comm, self.plan.device

        def evaluate(model: nn.Module) -> tuple[float, float]:
            comm.broadcast_(model.buffers())
            num_right = torch.zeros((), dtype=torch.int64, device=device)
            loss = torch.zeros((), dtype=torch.float64, device=device)
            with self.plan.training_flags(), _evaluating(model):
                for images, truth in self._scored(split):
                    logits = model(images)
                    num_right += (logits.argmax(dim=1) == truth).sum()
                    loss += functional.cross_entropy(logits.double(), truth, reduction="sum")
            comm.all_reduce_([num_right, loss])
            return int(num_right) / len(split), float(loss) / len(split)

        return evaluate

    def _scored(self, split: Split | StreamedSplit) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels of this process's part of a split, in its order."""
        rank, size = self.comm.rank, self.comm.size
        if isinstance(split, Split):
            resident = self._residents.of(split)
            start, end = len(split) * rank // size, len(split) * (rank + 1) // size
            for first in range(start, end, _EVALUATION_BATCH):
                last = min(first + _EVALUATION_BATCH, end)
                yield resident.normalised(first, last), resident.labels[first:last]
            return
        loader = StreamLoader(
            split, _STREAMED_BATCH * size, train=False, seed=0, workers=self._workers, shard=(rank, size)
        )
        for images, labels in loader.epoch(0):
            if len(labels):
                yield normalised(images.to(self.plan.device), split.mean, split.std), labels.to(self.plan.device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch, for growth methods that read gradients."""
        images, labels = (part.to(self.plan.device) for part in batch)
        with enough_rows(len(labels)):
            logits = model(images)
        return functional.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches as they are, not augmented, in an order that the global torch seed decides.

        Where the recipe computes a batch in parts, to save memory, each is as large as such a part. Processes that
        train together get equally many rows of each.
        """
        split, rank, size = self.data.train, self.comm.rank, self.comm.size
        num = batches_of(len(split), self.recipe, size)[0] // self.recipe.accumulate
        if isinstance(split, StreamedSplit):
            seed = int(torch.randint(2**62, ()).item())
            loader = StreamLoader(split, num, train=True, seed=seed, workers=0, shard=(rank, size))
            for images, labels in loader.epoch(0):
                yield normalised(images.to(self.plan.device), split.mean, split.std), labels.to(self.plan.device)
            return
        resident = self._residents.of(split)
        for rows in torch.split(torch.randperm(len(split)), num):
            if len(rows) % size:
                return  # the last, of which some would get more than others, or nothing
            rows = rows[rank::size].to(resident.device)
            yield normalised(resident.images[rows], split.mean, split.std), resident.labels[rows]

    def _training(self, job: Job) -> Training:
        attached = job.attached
        found = job.progress.load(attached) if job.progress is not None else None
        kept: Companion | None = attached.engine_cache.get(_COMPANION)
        if kept is None or kept.trainer is not self:
            check_batch_split(self.recipe.batch_size, self.recipe.accumulate, self.comm.size)
            kept = Companion(self, self._feed(job))
        kept.feed.retarget_(seed=job.seed, num_epochs=job.epochs)
        # Processes make their steps together: where a restored network lies differs from one to the next.
        if any(self.comm.gather(kept.step is None or not kept.step.is_current)):
            kept.step = self._step(job, kept.feed)
        assert kept.step is not None
        attached.engine_cache[_COMPANION] = kept
        return Training(job, kept.feed, self.plan, kept.step, self._on_epoch, found, self.comm)

    def _step(self, job: Job, feed: Feed) -> EagerStep | CudaGraphStep:
        attached = job.attached
        if not self.plan.cuda_graphs:
            return EagerStep(attached, feed, self.recipe, self.plan, wrapped(attached.model, self.comm))
        feed.fill_(0)
        attached.model.train()
        num_epochs = self._num_epochs if self._num_epochs is not None else job.epochs
        # All begin with the weights of the first, as by the wrapper of an eager step they do.
        self.comm.broadcast_([*attached.model.parameters(), *attached.model.buffers()])
        return CudaGraphStep(attached, feed, self.recipe, self.plan, num_epochs * feed.num_steps, self.comm)

    def _feed(self, job: Job) -> Feed:
        split, recipe, classes = self.data.train, self.recipe, self.data.classes
        training = {"seed": job.seed, "num_epochs": job.epochs, "shard": (self.comm.rank, self.comm.size)}
        if isinstance(split, StreamedSplit):
            return StreamedFeed(split, self.plan.device, recipe, classes, self._workers, **training)
        return ResidentFeed(self._residents.of(split), recipe, classes, **training)


@dataclass
class Companion:
    """What the engine made for a network: from phase to phase nothing is captured again."""

    trainer: Trainer
    """Who made it, for its own data, recipe and plan."""
    feed: Feed
    step: EagerStep | CudaGraphStep | None = None


_COMPANION = "engine"


_OVER = object()
_Running = dict[int, tuple[Training, Iterator[None]]]


def _that_need_not_wait(running: _Running) -> list[tuple[int, tuple[Training, Iterator[None]]]]:
    """The trainings to go on with: while one changes its masks, the device has to have work of the others left."""
    if len(running) == 1:
        return list(running.items())
    ready = [(number, pair) for number, pair in running.items() if not pair[0].would_wait]
    if not ready:
        time.sleep(_PAUSE)
    return ready


def _tell_nobody(done: int, of: int, loss: float) -> None:
    pass


@contextmanager
def _seeds_kept(device: torch.device) -> Iterator[None]:
    """Trainings seed the global generators for dropout; the caller's are as before afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]  # parts may stay in eval on purpose
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in before:
            module.training = was_training
