"""The trunk: the user's own model, trained continuously while its masks grow round by round."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from pathgrow.errors import UserError
from pathgrow.graph.flops import growth_flops
from pathgrow.graph.topology import GLOBAL_LIMIT, Topology, measure
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.methods.method import GrowEachRound, Progress
from pathgrow.runs.phases import Trained
from pathgrow.runs.records import Record, Work
from pathgrow.runs.site import Site
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.networks import copy_pair, pack_pair, unpack_pair_
from pathgrow.sparse.optimizer_settings import changed_setting, settings_of
from pathgrow.sparse.snapshot import digest, put_back_, take

_ROUNDS_BETWEEN_CORES = 3
"""The global tau-core takes half as long as a short round of training. Measured at each doubling of density, it shows
as much as if it were measured every round."""


class Trunk:
    """Grows the network. Round 0 is the seed network.

    The stage of a round keeps its masks for good. Weights and optimizer state are kept in a separate stage: they are
    large, and where copies begin from a fresh initialisation only the latest are needed.
    """

    def __init__(self, site: Site, model: nn.Module, optimizer: Optimizer) -> None:
        self._site = site
        self._store = site.store
        self.rounds: list[Record] = []
        self.attached = self._plant(model, optimizer)
        self.num = self.attached.masks.num
        self._stands_at: int | None = -1
        """The round whose weights the model holds; -1: before the seed training; None: somewhere between rounds."""

    @property
    def is_full(self) -> bool:
        """Whether all weights are on, so that there is nothing left to grow."""
        return self.rounds[-1].num_on == self.num

    def next_size(self) -> int:
        """Weights that are on after one more full growth step."""
        num_on = self.rounds[-1].num_on
        progress = Progress(round=len(self.rounds), step=0, num_on=num_on, num=self.num)
        growth = GrowEachRound(gamma=self._site.options.gamma)(progress)
        return num_on + (growth.num_grow if growth is not None else 0)

    def advance_(self, num_on: int | None = None) -> Record:
        """Visit the next round, by a full growth step or at the given number of weights."""
        round = len(self.rounds)
        stage = "seed" if round == 0 else f"round-{round:03d}"
        if num_on is None:
            num_on = self.attached.masks.num_on if round == 0 else self.next_size()

        def work() -> Work:
            began = time.perf_counter()
            trained, cost = self._work_(round, stage, num_on)
            topology = self._site.comm.broadcast_from_rank0(lambda: self._topology(round).as_dict())
            record = self._site.record(
                stage,
                self.attached,
                trained,
                round=round,
                epochs_before=self.rounds[-1].point.epochs if round else 0,
                growth_flops=cost,
                topology=topology,
                seconds=time.perf_counter() - began,
            )
            return Work(record, dict(self.attached.masks))

        self.rounds.append(self._site.stages.once(stage, work))
        if round > 0 and self._site.options.final == "fresh":
            self._store.delete_tensors(_weights(round - 1))
        return self.rounds[-1]

    def masks(self, round: int) -> Masks:
        """The masks of a visited round."""
        return self._site.masks_of(self.rounds[round])

    def copy_at(self, round: int) -> tuple[nn.Module, Optimizer]:
        """A copy with the grown weights and the optimizer state of a visited round."""
        self._stand_at_(round)
        return copy_pair(self.attached.model, self.attached.optimizer)

    def hand_over_(self, masks: Masks, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Attached:
        """Put a finished network into the user's own model, its masks enforced; growth is over."""
        model, optimizer = self.attached.model, self.attached.optimizer
        self.attached.detach()
        self._stands_at = None
        self.attached = self._site.attach(model, optimizer, fixed(masks))
        put_back_(self.attached, tensors, metadata)  # settings of the optimizer too, stored as they came
        return self.attached

    def give_back_(self) -> None:
        """Bring the user's model and optimizer back to how they came, after a discovery that was broken off.

        Calling `discover` with them once more then begins again, or goes on with what is stored.
        """
        model, optimizer = self.attached.model, self.attached.optimizer
        self.attached.detach()
        unpack_pair_(model, optimizer, *pack_pair(*self._site.copy()))

    def _plant(self, model: nn.Module, optimizer: Optimizer) -> Attached:
        """Put the start masks on the user's model; refuses stored stages that began from something else."""
        site, fingerprint, settings = self._site, digest(self._site.initial), settings_of(optimizer)
        found = self._store.load("start")
        if found is None:
            attached = site.attach(model, optimizer, site.method)
            self._store.save("start", {"weights": fingerprint, "optimizer": settings}, dict(attached.masks))
            return attached
        if found.metadata["weights"] != fingerprint:
            raise UserError(
                "the stored stages belong to a discovery that began from other weights: "
                "begin from the same model and seed, or choose another store"
            )
        if change := changed_setting(found.metadata["optimizer"], settings):
            raise UserError(
                f"the stored stages belong to a discovery with another optimizer ({change}): "
                "begin with the same one, or choose another store"
            )
        start = fixed(Masks.restored(found.tensors, site.scope))
        # Without the target: masks of a whole number of weights may lie above it by a fraction of a weight.
        method = replace(site.method, start=start.start, start_density=start.start_density, target_density=None)
        return site.attach(model, optimizer, method)

    def _work_(self, round: int, stage: str, num_on: int) -> tuple[Trained, int]:
        """Grow from the round before and train; returns the outcome and the FLOPs of deciding where to grow."""
        self._stand_at_(round - 1)
        self._stands_at = None
        options, cost = self._site.options, 0
        if round > 0:
            before = self.attached.masks.clone()
            self.attached.grow_(num_on - before.num_on)
            charge = self.attached.last_scoring_cost
            cost = growth_flops(
                self._site.graph,
                before,
                num_path_passes=charge.num_path_passes,
                num_gradient_samples=charge.num_gradient_samples,
            )
        if round == 0:
            trained = self._site.train_seed_(self.attached, stage)
        else:
            trained = self._site.train_(self.attached, stage, options.num_rough_epochs)
        tensors, metadata = take(self.attached)
        self._store.save(_weights(round), metadata, tensors)
        self._stands_at = round
        return trained, cost

    def _topology(self, round: int) -> Topology:
        """Path measures of the trunk as it is, on the CPU: they are many small passes in float64, no work for a GPU."""
        model, example = self.attached.model, self._site.example_input
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            model = copy_pair(model, self.attached.optimizer)[0].cpu()
            example = tree_map(lambda part: part.cpu() if isinstance(part, Tensor) else part, example)
        limit = GLOBAL_LIMIT if round % _ROUNDS_BETWEEN_CORES == 0 else 0.0
        return measure(model, example, self.attached.masks.to("cpu"), global_limit=limit)

    def _stand_at_(self, round: int) -> None:
        """Bring the model to where a round left it; a round whose weights are gone is trained again."""
        if self._stands_at == round:
            return
        found = self._store.load(_weights(round)) if round >= 0 else None
        if found is not None and found.tensors:
            put_back_(self.attached, found.tensors, found.metadata)
            self._stands_at = round
        elif round >= 0:
            self._work_(round, self.rounds[round].stage, self.rounds[round].num_on)
        else:
            self._start_again_()

    def _start_again_(self) -> None:
        self.give_back_()
        self.attached = self._plant(self.attached.model, self.attached.optimizer)
        self._stands_at = -1


def _weights(round: int) -> str:
    """Name of the stage that keeps what training goes on from."""
    return f"weights-{round:03d}"
