"""What all stages of a discovery share, and how each of them is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow.checkpoint import Store
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import Point
from pathgrow.distributed.comm import SINGLE_PROCESS
from pathgrow.graph import trace
from pathgrow.graph.flops import step_flops
from pathgrow.graph.scope import trained_scope, whole_model_density
from pathgrow.masks import Masks
from pathgrow.methods.method import Method
from pathgrow.runs.config import DiscoverOptions
from pathgrow.runs.phases import Phases, Trained
from pathgrow.runs.records import Record, Stages
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from pathgrow.sparse.networks import copy_pair
from pathgrow.sparse.optimizer_state import weights_and_buffers
from pathgrow.trainer.interface import Evaluate, Fit


class Site:
    """The untrained model, its wiring, the user's functions and the options: the same in all stages."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        fit: Fit,
        evaluate: Evaluate,
        example_input: Any,
        *,
        scope: Masks | None,
        seed: int,
        options: DiscoverOptions,
        store: Store,
    ) -> None:
        self.options = options
        self.store = store
        self.seed = seed
        self.example_input = example_input
        self.method = options.growth_method()
        self.rule = options.density_rule()
        average = options.observe == "average"
        self.comm = options.comm or SINGLE_PROCESS
        self.phases = Phases(fit, evaluate, optimizer, seed=seed, average=average, store=store, comm=self.comm)
        self.stages = Stages(store, options.callback, on_stored=self.phases.forget_partials)
        self.comm.broadcast_([*model.parameters(), *model.buffers()])
        # Copied before anything is trained, so that whatever users keep on their model is untrained too.
        self._pristine = copy_pair(model, optimizer)
        self.graph = trace(model, example_input)
        self.dense_flops = step_flops(self.graph)
        self.scope = trained_scope(model, example_input) if scope is None else scope

    @property
    def initial(self) -> Mapping[str, Tensor]:
        """All parameters and buffers of the user's model as it came."""
        return {name: tensor.detach() for name, tensor in weights_and_buffers(self._pristine[0])}

    def copy(self) -> tuple[nn.Module, Optimizer]:
        """The user's model and optimizer as they came."""
        return copy_pair(*self._pristine)

    def attach(self, model: nn.Module, optimizer: Optimizer, method: Method) -> Attached:
        """Put masks on a model, by the options of this discovery."""
        return attach(
            model,
            optimizer,
            method,
            self.example_input,
            scope=self.scope,
            stop=self.rule,
            loss=self.options.loss,
            batches=self.options.batches,
            seed=self.seed,
            ema=EMA() if self.options.observe == "average" else None,
            comm=self.comm,
        )

    def masks_of(self, record: Record) -> Masks:
        """The masks that the stage of a round left behind."""
        found = self.stages.tensors(record.stage)
        assert found is not None
        return Masks.restored(found[0], self.scope)

    def train_(self, attached: Attached, stage: str, epochs: int | None) -> Trained:
        """One phase of training; with `epochs` None, for as long as the validation loss falls."""
        self.options.callback.on_stage_start(stage, epochs=epochs, density=attached.density)
        return self.phases.train_(attached, stage, epochs)

    def train_together_(self, networks: Sequence[tuple[Attached, str]], epochs: Sequence[int]) -> list[Trained]:
        """Phases of several networks, side by side where that is possible."""
        for (attached, stage), num in zip(networks, epochs, strict=True):
            self.options.callback.on_stage_start(stage, epochs=num, density=attached.density)
        return self.phases.train_together_(networks, epochs)

    def train_seed_(self, attached: Attached, stage: str) -> Trained:
        """Train the seed network; to its plateau where a rule reads the trajectory itself.

        That is until half of its training again gains less than half of delta: points recorded earlier would rise
        because the network is trained longer, not because it is denser. Probes are all trained alike, so the probe rule
        does not need this.
        """
        epochs = self.options.num_seed_epochs
        if self.options.seed_epochs is not None or isinstance(self.rule, ProbeRule):
            return self.train_(attached, stage, epochs)
        self.options.callback.on_stage_start(stage, epochs=epochs, density=attached.density)
        return self.phases.train_to_plateau_(attached, stage, epochs, max(1, epochs // 2), self.options.delta / 2)

    def record(
        self,
        stage: str,
        attached: Attached,
        trained: Trained,
        *,
        round: int,
        epochs_before: int,
        seconds: float,
        growth_flops: int = 0,
        topology: Mapping[str, Any] | None = None,
    ) -> Record:
        """The record of a network that was just trained."""
        masks = attached.masks
        point = Point(
            round=round,
            density=masks.density,
            epochs=epochs_before + trained.num_epochs,
            score=trained.score.score,
            loss=trained.score.loss,
        )
        return Record(
            stage=stage,
            point=point,
            density_model=whole_model_density(attached.model, masks),
            num_on=masks.num_on,
            num_epochs=trained.num_epochs,
            num_samples=trained.num_samples,
            sample_flops=step_flops(self.graph, masks),
            growth_flops=growth_flops,
            topology=topology,
            seconds=seconds,
        )
