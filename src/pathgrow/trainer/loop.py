"""The training loop of one network, advanced step by step so that several can take turns."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from pathgrow.distributed import interrupts
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import RunFailed
from pathgrow.rng import derive
from pathgrow.sparse.training_state import SavedTraining
from pathgrow.trainer.cuda_graph_step import CudaGraphStep
from pathgrow.trainer.device import ExecutionPlan
from pathgrow.trainer.eager_step import EagerStep
from pathgrow.trainer.feed import Feed
from pathgrow.trainer.interface import Job

OnEpoch = Callable[[int, int, float], None]
"""Callback after every epoch: its number starting at 1, the total number, the loss of its last batch."""
_DROPOUT = "noise"
"""Name of the generator of dropout: part of its seed."""


class Training:
    """A job in progress.

    Sample order, augmentation and dropout of an epoch are a function of (seed, epoch), so a training that is killed
    after any step resumes from its last checkpoint (`Job.progress`) with the same result.
    """

    def __init__(
        self,
        job: Job,
        feed: Feed,
        plan: ExecutionPlan,
        step: EagerStep | CudaGraphStep,
        on_epoch: OnEpoch,
        resume_from: SavedTraining | None = None,
        comm: Communicator = SINGLE_PROCESS,
    ) -> None:
        """Prepare a training, after the steps of the checkpoint `resume_from`, which has been loaded."""
        self._job = job
        self._feed = feed
        self._plan = plan
        self._step = step
        self._graph_step = step if isinstance(step, CudaGraphStep) else None
        self._on_epoch = on_epoch
        self._comm = comm
        self._losses: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        """Losses on their way from the device: epoch, value, and the event of its arrival."""
        self._saves_next = False
        self._started_at = self._saved_at = time.monotonic()
        self._done = resume_from.step if resume_from is not None else job.first_step
        self._resumed_rng = resume_from.rng_state if resume_from is not None else None

    @property
    def num_samples(self) -> int:
        """Number of samples of the job so far, including those before a resume."""
        return (self._done - self._job.first_step) * self._feed.batch_size

    @property
    def needs_idle_stream(self) -> bool:
        """Whether the next step works on the host, and needs everything before it to be finished.

        These are the tables of an epoch, a mask update, and a save.
        """
        begins_epoch = self._done % self._feed.num_steps == 0
        return begins_epoch or self._saves_next or self._job.attached.works_on_host

    @property
    def would_wait(self) -> bool:
        """Whether the next step would block until the device has caught up.

        A replay is only queued, but enough of them may be queued already.
        """
        if self._graph_step is None:
            return False
        return not self._graph_step.stream.query() if self.needs_idle_stream else self._graph_step.is_well_ahead

    def steps(self) -> Iterator[None]:
        """Train; yield after each step and before a save, with the work queued on the device still running."""
        self._job.attached.model.train()
        if self._graph_step is not None:
            # Growth, evaluation and loading were queued on another stream and may still be running.
            self._graph_step.stream.wait_stream(torch.cuda.current_stream(self._plan.device))
        base = [group["lr"] for group in self._job.attached.optimizer.param_groups]
        first_epoch, first_step = divmod(self._done, self._feed.num_steps)
        rng_state = self._resumed_rng if first_step else None
        for epoch in range(first_epoch, self._job.epochs):
            start = first_step if epoch == first_epoch else 0
            with self._stream():
                self._feed.fill_(epoch)
                if self._graph_step is not None:
                    self._graph_step.rewind_(start)
            self._seed_dropout(epoch, rng_state)
            rng_state = None
            for step in range(start, self._feed.num_steps):
                with self._stream():
                    self._feed.load_(step)
                    self._step(step)
                self._done += 1
                progress = self._job.progress
                if progress is not None and progress.is_due(self._done, time.monotonic() - self._saved_at):
                    self._saves_next = True
                    yield
                    self._saves_next = False
                    self._save()
                yield
            self._note_loss(epoch)
        self.wait()
        if self._job.progress is not None and self._job.progress.is_worth_saving(time.monotonic() - self._started_at):
            self._save()  # what follows the training (evaluation, other parts) may be killed too
        elif self._job.progress is not None and self._comm.size == 1:
            interrupts.save_later(self._job.progress.name, partial(self._save_unchanged, self._job.attached.step))
        for group, lr in zip(self._job.attached.optimizer.param_groups, base, strict=True):
            group["lr"] = lr

    def wait(self) -> None:
        """Wait until the device has finished; a non-finite loss is detected here at the latest."""
        if self._graph_step is not None:
            self._graph_step.stream.synchronize()
        self._report_losses()

    def _stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._graph_step is None else torch.cuda.stream(self._graph_step.stream)

    def _seed_dropout(self, epoch: int, state: Tensor | None) -> None:
        """Seed dropout for this epoch, or restore its `state` in the middle of one."""
        name = (_DROPOUT, epoch, self._comm.rank) if self._comm.rank else (_DROPOUT, epoch)
        if state is not None:
            self._dropout_rng.set_state(state)
        elif self._graph_step is not None:
            self._dropout_rng.manual_seed(derive(self._job.seed, *name))
        else:
            torch.manual_seed(derive(self._job.seed, *name))

    @property
    def _dropout_rng(self) -> torch.Generator:
        if self._graph_step is not None:
            return self._graph_step.dropout_rng
        device = self._plan.device
        return torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator

    def save_on_signal(self) -> None:
        """Save between two steps, unless there is nothing to save."""
        if self._job.progress is not None and self._done > self._job.first_step:
            self._save()

    def _save_unchanged(self, step: int) -> None:
        if self._job.attached.step == step:  # otherwise another part of its stage has trained it on
            self._save()

    def _save(self) -> None:
        assert self._job.progress is not None
        self.wait()
        self._job.progress.save(self._job.attached, self._done, self._dropout_rng.get_state())
        self._saved_at = time.monotonic()

    def _note_loss(self, epoch: int) -> None:
        """Copy the loss to the host without waiting for it, and report those that have arrived."""
        if self._graph_step is None:
            self._losses.append((epoch, self._mean_loss(), None))
        else:
            with self._stream():
                host = torch.empty((), pin_memory=True)
                host.copy_(self._mean_loss(), non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record()
            self._losses.append((epoch, host, arrived))
        # All ranks report at the same time: one that stopped earlier would leave the others waiting.
        self._report_losses(only_arrived=self._graph_step is not None and self._comm.size == 1)

    def _mean_loss(self) -> Tensor:
        """Return the mean loss over all ranks: if it is not finite on one rank, all ranks stop alike."""
        loss = self._step.loss.detach()
        if self._comm.size == 1:
            return loss
        mean = loss / self._comm.size
        self._comm.all_reduce_([mean])
        return mean

    def _report_losses(self, *, only_arrived: bool = False) -> None:
        while self._losses:
            epoch, value, arrived = self._losses[0]
            if only_arrived and arrived is not None and not arrived.query():
                return
            self._losses.popleft()
            if arrived is not None:
                arrived.synchronize()
            loss = float(value)
            if not math.isfinite(loss):
                lr = self._job.attached.optimizer.param_groups[0]["lr"]
                raise RunFailed(
                    f"the training loss became {loss} in epoch {epoch + 1} of {self._job.epochs}: "
                    f"lower the learning rate (now {float(lr):g})"
                )
            self._on_epoch(epoch + 1, self._job.epochs, loss)
