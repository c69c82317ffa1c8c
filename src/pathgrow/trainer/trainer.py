"""The trainer: a `fit` function that can also train several networks concurrently."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from pathgrow.data.dataset import AnySplit, Dataset, StreamedSplit, TextSplit, normalize
from pathgrow.data.streaming import StreamLoader
from pathgrow.distributed import interrupts
from pathgrow.distributed.comm import Communicator
from pathgrow.distributed.process_group import current_communicator
from pathgrow.graph.running import preserved_modes
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.sparse.attach import Attached, attach
from pathgrow.trainer.cuda_graph_step import CudaGraphStep
from pathgrow.trainer.device import EngineOptions, plan_for
from pathgrow.trainer.eager_step import EagerStep, cross_entropy, explain_single_row, wrap_in_ddp
from pathgrow.trainer.feed import (
    DeviceSplits,
    DeviceText,
    Feed,
    ResidentFeed,
    StreamedFeed,
    TextFeed,
    epoch_batches,
)
from pathgrow.trainer.interface import Job
from pathgrow.trainer.loop import OnEpoch, Training
from pathgrow.trainer.recipes import Recipe, check_batch_split

_STREAMED_BATCH = 256
_MIN_DENSITY = 1e-3
"""Below this density of a tensor its learning rate rises no further."""
_POLL_SECONDS = 1e-4
"""Pause between two checks of a device that has enough work queued."""


class Trainer:
    """Trains networks on one dataset with one recipe.

    Parameters
    ----------
    data
        The dataset; networks are trained on its train split.
    recipe
        Optimizer, learning-rate schedule, augmentation.
    options
        Device, precision, CUDA graphs, compilation.
    num_epochs
        Expected number of epochs of all trainings together, which decides whether compiling pays off; None: each
        training decides for itself.
    on_epoch
        Callback after every epoch, called on rank 0 only.
    workers
        Number of processes that decode images, if the data are streamed from files; None: see `StreamLoader`.
    comm
        The ranks that train together, each on its rows of every batch; None: those of the default process group of
        torch.distributed, if it is initialized.
    """

    def __init__(
        self,
        data: Dataset,
        recipe: Recipe,
        options: EngineOptions | None = None,
        *,
        num_epochs: int | None = None,
        on_epoch: OnEpoch | None = None,
        workers: int | None = None,
        comm: Communicator | None = None,
    ) -> None:
        self.data = data
        self.recipe = recipe
        self.comm = comm if comm is not None else current_communicator()
        self.plan = plan_for(options or EngineOptions(), self.comm)
        self._num_epochs = num_epochs
        self._workers = workers
        self._on_epoch = on_epoch if on_epoch is not None and self.comm.rank == 0 else lambda done, of, loss: None
        self._splits = DeviceSplits(self.plan.device)

    def place(self, model: nn.Module) -> tuple[nn.Module, Optimizer]:
        """Move the model to the device in its training layout; return it with the optimizer of the recipe."""
        model = self.plan.place(model)
        return model, make_optimizer(model, self.recipe)

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        """Train a dense network, as any `fit` does; the global torch seed determines the sample order."""
        seed = self.comm.broadcast_from_rank0(lambda: int(torch.randint(2**62, ()).item()))
        attached = attach(model, optimizer, fixed(Masks.full(model)), scope=Masks.full(model), comm=self.comm)
        try:
            self.train([Job(attached=attached, epochs=epochs, seed=seed)])
        finally:
            attached.detach()

    @property
    def is_concurrent(self) -> bool:
        """Whether several jobs run at the same time."""
        return self.plan.cuda_graphs

    def train(self, jobs: Sequence[Job], on_done: Callable[[int], None] | None = None) -> list[int]:
        """Train every job to its end and return the number of samples each was trained on.

        With CUDA graphs several jobs run concurrently, each on its own stream; the result of each is bit-identical to
        training it alone. Otherwise they run one after the other. `on_done` is called with the index of each finished
        job while the others continue.
        """
        samples = [0] * len(jobs)
        waiting = iter(enumerate(jobs))
        running: _Running = {}
        max_running = self.plan.max_concurrent if self.is_concurrent else 1
        on_gpu, is_alone = self.plan.device.type == "cuda", self.comm.size == 1
        # Ranks agree on a signal where they agree on saves.
        notes_signals = is_alone or all(job.progress is not None for job in jobs)
        # The global generators are restored: trainings seed them for dropout.
        signals = interrupts.defer_signals(is_alone=is_alone) if notes_signals else nullcontext(lambda: False)
        with (
            self.plan.training_flags(),
            torch.random.fork_rng(devices=[self.plan.device] if on_gpu else []),
            signals as is_interrupted,
        ):
            while True:
                if is_interrupted():
                    for training, _ in running.values():
                        training.save_on_signal()
                    return samples  # raises `Interrupted`
                for number, job in islice(waiting, max_running - len(running)):
                    training = self._training(job)
                    running[number] = (training, training.steps())
                if not running:
                    return samples
                for number, (training, steps) in _ready(running):
                    if next(steps, _END) is _END:
                        samples[number] = training.num_samples
                        del running[number]
                        if on_done is not None:
                            on_done(number)

    def evaluate(self, split: AnySplit) -> Callable[[nn.Module], tuple[float, float]]:
        """Return a function `evaluate(model)` that computes (accuracy, mean cross-entropy) on a split.

        On a text both are the mean cross-entropy.

        Each rank evaluates a part of the split, with the buffers of rank 0, and all ranks get the same total.
        """
        comm, device = self.comm, self.plan.device

        def evaluate(model: nn.Module) -> tuple[float, float]:
            comm.broadcast_(model.buffers())
            num_correct = torch.zeros((), dtype=torch.int64, device=device)
            loss = torch.zeros((), dtype=torch.float64, device=device)
            with self.plan.training_flags(), preserved_modes(model), torch.no_grad():
                model.eval()
                for images, labels in self._evaluation_batches(split):
                    logits = model(images)
                    num_correct += (logits.argmax(dim=-1) == labels).sum()
                    loss += cross_entropy(logits.double(), labels, reduction="sum")
            comm.all_reduce_([num_correct, loss])
            if isinstance(split, TextSplit):
                mean = float(loss) / (len(split) * split.context)
                return mean, mean
            return int(num_correct) / len(split), float(loss) / len(split)

        return evaluate

    def _evaluation_batches(self, split: AnySplit) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of this rank's part of a split, in order."""
        rank, size = self.comm.rank, self.comm.size
        if not isinstance(split, StreamedSplit):
            start, end = len(split) * rank // size, len(split) * (rank + 1) // size
            yield from self._splits.of(split).evaluation_batches(start, end)
            return
        loader = StreamLoader(
            split, _STREAMED_BATCH * size, train=False, seed=0, workers=self._workers, shard=(rank, size)
        )
        for images, labels in loader.epoch(0):
            if len(labels):
                yield normalize(images.to(self.plan.device), split.mean, split.std), labels.to(self.plan.device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch, for growth methods that use gradients."""
        images, labels = (part.to(self.plan.device) for part in batch)
        with explain_single_row(len(labels)):
            logits = model(images)
        return cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield training batches without augmentation, in an order determined by the global torch seed.

        If the recipe accumulates gradients, each batch has the size of a microbatch. All ranks get the same number of
        rows of each.
        """
        split, rank, size = self.data.train, self.comm.rank, self.comm.size
        num = epoch_batches(len(split), self.recipe, size)[0] // self.recipe.accumulate
        if isinstance(split, StreamedSplit):
            seed = int(torch.randint(2**62, ()).item())
            loader = StreamLoader(split, num, train=True, seed=seed, workers=0, shard=(rank, size))
            for images, labels in loader.epoch(0):
                yield normalize(images.to(self.plan.device), split.mean, split.std), labels.to(self.plan.device)
            return
        resident = self._splits.of(split)
        for rows in torch.split(torch.randperm(len(split)), num):
            if len(rows) % size:
                return  # the last batch, which cannot be split evenly
            yield resident.batch(rows[rank::size].to(resident.device))

    def _training(self, job: Job) -> Training:
        attached = job.attached
        if self.recipe.density_scaling == "supar":
            scale_by_density_(attached, self.recipe)  # with the masks that the training starts with, also if resumed
        resume_from = job.progress.load(attached) if job.progress is not None else None
        prepared: Prepared | None = attached.engine_cache.get(_KEY)
        if prepared is None or prepared.trainer is not self:
            check_batch_split(self.recipe.batch_size, self.recipe.accumulate, self.comm.size)
            prepared = Prepared(self, self._feed(job))
        prepared.feed.retarget_(seed=job.seed, num_epochs=job.epochs)
        # All ranks create their steps together: the addresses of a restored network differ from rank to rank.
        if any(self.comm.gather(prepared.step is None or not prepared.step.is_current)):
            prepared.step = self._step(job, prepared.feed)
        assert prepared.step is not None
        attached.engine_cache[_KEY] = prepared
        on_epoch = job.on_epoch or self._on_epoch
        return Training(job, prepared.feed, self.plan, prepared.step, on_epoch, resume_from, self.comm)

    def _step(self, job: Job, feed: Feed) -> EagerStep | CudaGraphStep:
        attached = job.attached
        if not self.plan.cuda_graphs:
            return EagerStep(attached, feed, self.recipe, self.plan, wrap_in_ddp(attached.model, self.comm))
        feed.fill_(0)
        attached.model.train()
        num_epochs = self._num_epochs if self._num_epochs is not None else job.epochs
        # All ranks start with the weights of rank 0, as DistributedDataParallel ensures for eager steps.
        self.comm.broadcast_([*attached.model.parameters(), *attached.model.buffers()])
        return CudaGraphStep(attached, feed, self.recipe, self.plan, num_epochs * feed.num_steps, self.comm)

    def _feed(self, job: Job) -> Feed:
        split, recipe, classes = self.data.train, self.recipe, self.data.classes
        training = {"seed": job.seed, "num_epochs": job.epochs, "shard": (self.comm.rank, self.comm.size)}
        if isinstance(split, StreamedSplit):
            return StreamedFeed(split, self.plan.device, recipe, classes, self._workers, **training)
        resident = self._splits.of(split)
        if isinstance(resident, DeviceText):
            return TextFeed(resident, recipe, classes, **training)
        return ResidentFeed(resident, recipe, classes, **training)


@dataclass
class Prepared:
    """Feed and step of a network, reused from phase to phase so that CUDA graphs are recorded once."""

    trainer: Trainer
    """The trainer that created them, for its data, recipe and plan."""
    feed: Feed
    step: EagerStep | CudaGraphStep | None = None


_KEY = "engine"
_END = object()
_Running = dict[int, tuple[Training, Iterator[None]]]


def _ready(running: _Running) -> list[tuple[int, tuple[Training, Iterator[None]]]]:
    """Return the trainings that can advance without blocking, so that the device always has work queued.

    Replays come first. Work on the host is done for one training at a time, when all others have enough queued:
    networks that update their masks at the same step would otherwise leave the device without work until the last of
    these updates. They stay apart from then on.
    """
    if len(running) == 1:
        return list(running.items())
    ready = [(number, pair) for number, pair in running.items() if not pair[0].would_wait]
    if not ready:
        time.sleep(_POLL_SECONDS)
    return [(number, pair) for number, pair in ready if not pair[0].needs_idle_stream] or ready[:1]


def make_optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    """Return the optimizer of the recipe over all parameters; on a GPU one that CUDA graphs support."""
    parameters = list(model.named_parameters())
    on_gpu = any(parameter.is_cuda for _, parameter in parameters)
    groups: list[dict[str, Any]] = [{"params": [p for _, p in parameters]}]
    if not recipe.decay_all:
        decayed = [p for _, p in parameters if p.dim() > 1 and p.shape[0] > 1]
        others = [p for _, p in parameters if not (p.dim() > 1 and p.shape[0] > 1)]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    if recipe.density_scaling == "supar":  # a learning rate for each weight tensor
        groups = [{**group, "params": part} for group in groups for part in _by_tensor(group["params"])]
    if recipe.optimizer == "adamw":
        return AdamW(
            groups,
            lr=recipe.lr,
            betas=(recipe.momentum, recipe.second_beta),
            weight_decay=recipe.weight_decay,
            fused=on_gpu or None,
            capturable=on_gpu,
        )
    return SGD(
        groups,
        lr=recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        fused=on_gpu or None,
    )


def _by_tensor(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Each weight tensor by itself, and all other parameters."""
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    return [*([parameter] for parameter in parameters if parameter.dim() > 1), *([others] if others else [])]


def scale_by_density_(attached: Attached, recipe: Recipe) -> None:
    """Divide the learning rate of each prunable weight tensor by its density; its decay per step stays the same.

    From the recipe and not from the current values, since a resumed training has scaled ones.
    """
    names = {id(parameter): name for name, parameter in attached.model.named_parameters()}
    masks = attached.masks
    for group in attached.optimizer.param_groups:
        name = names[id(group["params"][0])]
        if name in masks and len(group["params"]) == 1:
            density = max(float(masks[name].sum() / masks.scope[name].sum()), _MIN_DENSITY)
            group["lr"], group["weight_decay"] = recipe.lr / density, recipe.weight_decay * density
