"""One network in training, advanced step by step: by itself, or in turn with others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import RunFailed
from pathgrow.rng import derive
from pathgrow.trainer.device import ExecutionPlan
from pathgrow.trainer.feed import Feed
from pathgrow.trainer.interface import Job
from pathgrow.trainer.step import CudaGraphStep, EagerStep

OnEpoch = Callable[[int, int, float], None]
"""Told of every finished epoch: its number from 1 on, the number of all, the loss of its last batch."""
_NOISE = "noise"


@dataclass
class _Told:
    """A loss on its way from the device."""

    epoch: int
    value: Tensor
    arrived: torch.cuda.Event | None


class Training:
    """A job at work.

    Order, augmentation and dropout of an epoch are a function of (seed, epoch), so a training that was broken off after
    any step goes on from there as if nothing had happened: see `Job.progress`.
    """

    def __init__(
        self,
        job: Job,
        feed: Feed,
        plan: ExecutionPlan,
        step: EagerStep | CudaGraphStep,
        on_epoch: OnEpoch,
        found: tuple[int, Tensor] | None = None,
        comm: Communicator = SINGLE_PROCESS,
    ) -> None:
        """`found`: the steps that the network has had already, and the noise that it goes on with."""
        self._job = job
        self._feed = feed
        self._plan = plan
        self._step = step
        self._captured = step if isinstance(step, CudaGraphStep) else None
        self._on_epoch = on_epoch
        self._comm = comm
        self._length = job.epochs
        self._losses: list[_Told] = []
        self._saves_next = False
        self._began = self._saved_at = time.monotonic()
        self._done = found[0] if found is not None else job.first_step
        self._noise_then = found[1] if found is not None else None

    @property
    def num_samples(self) -> int:
        """Of the job so far, those before a resumption included."""
        return (self._done - self._job.first_step) * self._feed.batch_size

    @property
    def would_wait(self) -> bool:
        """Whether going on would keep the process waiting until the device has done what was asked of it.

        An epoch's tables, a change of masks and a save come after everything before them; a replay is only queued, but
        enough of them are queued already.
        """
        if self._captured is None:
            return False
        begins_epoch = self._done % self._feed.num_steps == 0
        if begins_epoch or self._saves_next or self._job.attached.update_is_due:
            return not self._captured.stream.query()
        return self._captured.is_well_ahead

    def steps(self) -> Iterator[None]:
        """Train; stops after each step and before a save, with all that was asked of the device still under way."""
        self._job.attached.model.train()
        if self._captured is not None:
            # Growth, scoring and loading were asked of another stream, and may still be under way there.
            self._captured.stream.wait_stream(torch.cuda.current_stream(self._plan.device))
        peaks = [group["lr"] for group in self._job.attached.optimizer.param_groups]
        first_epoch, first_step = divmod(self._done, self._feed.num_steps)
        noise = self._noise_then if first_step else None
        for epoch in count(first_epoch):
            start = first_step if epoch == first_epoch else 0
            with self._stream():
                if self._job.length is not None:
                    self._length = self._job.length(epoch)
                if epoch >= self._length:
                    break
                self._feed.retarget_(seed=self._job.seed, num_epochs=self._length)
                self._feed.fill_(epoch)
                if self._captured is not None:
                    self._captured.rewind_(start)
            self._seed_noise(epoch, noise)
            noise = None
            for step in range(start, self._feed.num_steps):
                self._take(step)
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
        if self._job.progress is not None and self._job.progress.is_worth(time.monotonic() - self._began):
            self._save()  # what comes after the training (scoring, other parts) may be killed too
        for group, peak in zip(self._job.attached.optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak

    def wait(self) -> None:
        """Until the device has done all that was asked of it; a loss that is no number is found here at the latest."""
        if self._captured is not None:
            self._captured.stream.synchronize()
        self._hear_losses()

    def _take(self, step: int) -> None:
        with self._stream():
            self._feed.ready_(step)
            self._step(step)

    def _stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._captured is None else torch.cuda.stream(self._captured.stream)

    def _seed_noise(self, epoch: int, state: Tensor | None) -> None:
        """Dropout of this epoch; `state` where it goes on in the middle."""
        name = (_NOISE, epoch, self._comm.rank) if self._comm.rank else (_NOISE, epoch)
        if state is not None:
            self._put_noise(state)
        elif self._captured is not None:
            self._captured.noise.manual_seed(derive(self._job.seed, *name))
        else:
            torch.manual_seed(derive(self._job.seed, *name))

    def _noise(self) -> Tensor:
        if self._captured is not None:
            return self._captured.noise.get_state()
        return (
            torch.cuda.get_rng_state(self._plan.device) if self._plan.device.type == "cuda" else torch.get_rng_state()
        )

    def _put_noise(self, state: Tensor) -> None:
        if self._captured is not None:
            self._captured.noise.set_state(state)
        elif self._plan.device.type == "cuda":
            torch.cuda.set_rng_state(state, self._plan.device)
        else:
            torch.set_rng_state(state)

    def _save(self) -> None:
        assert self._job.progress is not None
        self.wait()
        self._job.progress.save(self._job.attached, self._done, self._noise())
        self._saved_at = time.monotonic()

    def _note_loss(self, epoch: int) -> None:
        """Ask for the loss without waiting for it, and look at those that have come."""
        if self._captured is None:
            self._losses.append(_Told(epoch, self._shared_loss(), None))
        else:
            with self._stream():
                host = torch.empty((), pin_memory=True)
                host.copy_(self._shared_loss(), non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record()
            self._losses.append(_Told(epoch, host, arrived))
        # Processes that train together look at the same time: one that ended before would leave the others waiting.
        self._hear_losses(only_arrived=self._captured is not None and self._comm.size == 1)

    def _shared_loss(self) -> Tensor:
        """The mean over all processes: a loss that is no number anywhere is none for all, who then end alike."""
        loss = self._step.loss.detach()
        if self._comm.size == 1:
            return loss
        mean = loss / self._comm.size
        self._comm.all_reduce_([mean])
        return mean

    def _hear_losses(self, *, only_arrived: bool = False) -> None:
        while self._losses:
            told = self._losses[0]
            if only_arrived and told.arrived is not None and not told.arrived.query():
                return
            self._losses.pop(0)
            if told.arrived is not None:
                told.arrived.synchronize()
            loss = float(told.value)
            if not math.isfinite(loss):
                rate = self._job.attached.optimizer.param_groups[0]["lr"]
                raise RunFailed(
                    f"the training loss became {loss} in epoch {told.epoch + 1} of {self._length}: "
                    f"lower the learning rate ({float(rate):g} was used)"
                )
            self._on_epoch(told.epoch + 1, self._length, loss)
