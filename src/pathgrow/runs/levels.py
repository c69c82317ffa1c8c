"""Trainings between changes of masks: one for most methods, one after each pruning for iterative ones.

A level is a stage: it is stored with the whole state of its network, so that the next level can begin there, in this
process or in another. How a level is trained depends on its name and on the stage before it, never on the process. The
same holds for its length where a budget is matched: it is chosen by what the levels before have spent and left.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import count

from pathgrow.checkpoint.store import Stage
from pathgrow.density.types import Point
from pathgrow.errors import RunFailed, UserError
from pathgrow.graph.flops import start_flops
from pathgrow.graph.scope import whole_model_density
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.methods.method import Method
from pathgrow.runs.bench import Bench, moves
from pathgrow.runs.forecast import Standing, cost_by_epochs, nearest, price_of, updates_are_due
from pathgrow.runs.meter import Meter, metered
from pathgrow.runs.pace import Pace, PacedTrainer, paced
from pathgrow.runs.phases import Phases
from pathgrow.runs.plan import Plan
from pathgrow.runs.records import Record
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.snapshot import digest, put_back_, take

_START = "start"


class Levels:
    """Trains a network level by level until the method's schedule has nothing more to change."""

    def __init__(self, bench: Bench, plan: Plan) -> None:
        self._bench = bench
        self._plan = plan
        method = bench.make_method(plan.epochs)
        self._pace = Pace(plan.epochs) if plan.match == "flops" and moves(method) else None
        if self._pace is not None:
            method = paced(bench.make_method, self._pace)
        num_steps = plan.epochs * bench.steps_per_epoch
        if method.after_update == "rewind" and method.rewind_step >= num_steps:
            raise UserError(
                f"method {method.name!r} sets weights back to step {method.rewind_step} of trainings that have "
                f"{num_steps} steps: give the option rewind_step={num_steps // 10}, or train longer"
            )
        self._meter = Meter(
            cost=method.cost, dense_macs=bench.dense_macs, batch_size=bench.batch_size, num=bench.scope.num
        )
        self.phases = Phases(
            bench.trainer if self._pace is None else PacedTrainer(bench.trainer, self._pace, self._how_long),
            bench.trainer.evaluate(bench.dataset.val),
            bench.optimizer,
            seed=bench.config.seed,
            average=False,
            store=bench.store,
            comm=bench.comm,
        )
        self.attached, self.start_flops, self._start_seconds = self._attach(metered(method, bench.graph))

    def epochs_times(self, match: str) -> float:
        """What has been spent so far, in epochs times "parameters" or "switchable" weights."""
        num_steps, bench = self.attached.step, self._bench
        weight_steps = self._meter.weight_steps(self.attached.method_state, num_steps)
        return (weight_steps + num_steps * bench.num_counted_always(match)) / bench.steps_per_epoch

    def run(self) -> list[Record]:
        """Train what is not stored yet; returns the records of all levels. The model holds the network of the last."""
        done = self._stored()
        records = [Record.from_facts(_stage(level), stage.metadata) for level, stage in enumerate(done)]
        for record in records:
            self._bench.callback.on_stage_end(record, resumed=True)
        if done:
            put_back_(self.attached, done[-1].tensors, done[-1].metadata["state"])
        for level in count(len(done)):
            began, step = time.perf_counter(), self.attached.step
            if level > 0 and not self.attached.advance_():
                return records
            records.append(self._train_(level, records, step, began))
        raise AssertionError("counting ended")

    def _attach(self, method: Method) -> tuple[Attached, int, float]:
        """Put masks on the model; returns what choosing them cost, in FLOPs and in seconds.

        A resumed run takes all of it from its store.
        """
        bench, trainer = self._bench, self._bench.trainer
        fingerprint = digest(bench.model.state_dict())
        found = bench.store.load(_START)
        if found is not None:
            if found.metadata["weights"] != fingerprint:
                raise RunFailed(
                    "the stored stages began from other initial weights than this version of the model has: "
                    "resume with the version that began the run, or choose another --out"
                )
            start = fixed(Masks.restored(found.tensors, bench.scope))
            method = dataclasses.replace(method, start=start.start, start_density=start.start_density)
        began = time.perf_counter()
        attached = attach(
            bench.model,
            bench.optimizer,
            method,
            bench.example_input,
            scope=bench.scope,
            loss=trainer.loss,
            batches=trainer.batches,
            seed=bench.config.seed,
            comm=bench.comm,
        )
        if found is not None:
            # Neither is there in a run that an older version began.
            return attached, int(found.metadata.get("start_flops", 0)), float(found.metadata.get("seconds", 0.0))
        seconds = time.perf_counter() - began
        price = start_flops(bench.graph, **dataclasses.asdict(attached.last_scoring_cost))
        metadata = {"weights": fingerprint, "start_flops": price, "seconds": seconds}
        bench.store.save(_START, metadata, dict(attached.masks))
        return attached, price, seconds

    def _stored(self) -> Sequence[Stage]:
        """The levels that need not be trained again, up to the last one that still has its tensors."""
        done: list[Stage] = []
        for level in count():
            found = self._bench.store.load(_stage(level))
            if found is None:
                break
            done.append(found)
        while done and not done[-1].tensors:
            done.pop()
        return done

    def _train_(self, level: int, before: Sequence[Record], step: int, began: float) -> Record:
        attached, bench, stage = self.attached, self._bench, _stage(level)
        rewound = level > 0 and attached.method.after_update == "rewind"
        first_step = attached.method.rewind_step if rewound else 0
        epochs = self._level_epochs(level, before, first_step)
        bench.callback.on_stage_start(stage, epochs=epochs, density=attached.density)
        trained = self.phases.train_(attached, stage, epochs, first_step)
        if self._pace is not None:
            trained = dataclasses.replace(trained, num_epochs=self._pace.epochs)
        flops = self._meter.training_flops(attached.method_state, step, attached.step)
        seconds = time.perf_counter() - began
        if level == 0:
            flops, seconds = flops + self.start_flops, seconds + self._start_seconds
        # The mean over the level and the remainder of the division, which together are exact.
        mean, rest = divmod(flops, trained.num_samples)
        record = Record(
            stage=stage,
            point=Point(
                round=level,
                density=attached.density,
                epochs=sum(record.num_epochs for record in before) + trained.num_epochs,
                score=trained.score.score,
                loss=trained.score.loss,
            ),
            density_model=whole_model_density(attached.model, attached.masks),
            num_on=attached.masks.num_on,
            num_epochs=trained.num_epochs,
            num_samples=trained.num_samples,
            sample_flops=mean,
            growth_flops=rest,
            seconds=seconds,
        )
        tensors, metadata = take(attached)
        bench.callback.on_stage_end(record, resumed=False)
        bench.store.save(stage, {**record.metadata(), "state": metadata}, tensors)
        self.phases.forget_partials(stage)
        if level > 0:
            bench.store.delete_tensors(_stage(level - 1))
        return record

    def _level_epochs(self, level: int, before: Sequence[Record], first_step: int) -> int:
        """As planned; where a budget is matched, the remaining levels share what is left of it."""
        bench, plan, attached = self._bench, self._plan, self.attached
        if plan.match == "none" or level == 0:
            return plan.epochs
        if plan.match == "flops":
            spent = float(sum(record.num_samples * record.sample_flops + record.growth_flops for record in before))
        else:
            spent = self.epochs_times(plan.match)
        at = Standing(
            num_on=attached.masks.num_on,
            macs=self._meter.macs_now(attached.method_state),
            spent=spent,
            round=level,
            rewind_step=first_step,
        )
        return self._nearest(at, least=first_step // bench.steps_per_epoch + 1, guess=before[-1].num_epochs)

    def _how_long(self, attached: Attached, before: int) -> int:
        """The length of the training that spends the budget, judged from where it stands; `before`: the last guess."""
        bench = self._bench
        spent = self.start_flops + self._meter.training_flops(attached.method_state, 0, attached.step)
        macs = self._meter.macs_now(attached.method_state)
        at = Standing(num_on=attached.masks.num_on, macs=macs, spent=float(spent), step=attached.step)
        done = attached.step // bench.steps_per_epoch
        return self._nearest(at, least=done + updates_are_due(bench, at), guess=before)

    def _nearest(self, at: Standing, *, least: int, guess: int) -> int:
        """The length of each training, judged from here, that spends the budget."""
        assert self._plan.budget is not None
        cost = cost_by_epochs(self._bench, at, price_of(self._bench, at))
        return nearest(cost, self._plan.budget, least=least, guess=guess)


def _stage(level: int) -> str:
    return f"level-{level:03d}"
