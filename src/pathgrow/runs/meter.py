"""The price of a training whose masks change on the way.

A method may change masks in the middle of a training, and how many multiply-adds a step then takes depends on where the
weights lie. So every change is noted, in the memory that is saved with the attachment: a training that is killed and
resumed has the same notes as an undisturbed one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pathgrow.graph import Graph
from pathgrow.graph.flops import forward_macs, sample_flops
from pathgrow.masks import Masks
from pathgrow.methods.method import Cost, MaskUpdate, Method, MethodState, NetworkView, Progress

_NOTES = "price"


def metered(method: Method, graph: Graph) -> Method:
    """The same method, which also notes, at every change, the size of its masks and what a pass through them takes."""
    if method.weights is not None:
        return method  # masks follow from hidden weights, and every step costs what a dense one does

    dense_macs = forward_macs(graph)

    def init_state(net: NetworkView) -> MethodState:
        own = method.init_state(net) if method.init_state is not None else {}
        return {**own, _NOTES: _noted({}, graph, net.masks, since=0, changed=-1, reading=0)}

    def update(net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        masks = method.next_masks(net, change, progress, draw)
        # On a step clock the masks change after the backward pass: this step's batch has seen the old ones.
        since = progress.step + (method.clock == "step")
        before, cost = net.method_state[_NOTES], net.scoring_cost
        macs = before["macs"][-1]
        # Samples that were looked at beside those of steps. In a step they only guide (GSE), the dense gradient is its
        # own; between trainings there is no other. Paths run through all weights.
        a_gradient = 6 * macs if method.clock == "step" else 2 * (2 * macs + dense_macs)
        reading = cost.num_gradient_samples * a_gradient + cost.num_path_passes * 6 * dense_macs
        net.method_state[_NOTES] = _noted(before, graph, masks, since=since, changed=progress.step, reading=reading)
        return masks

    # By what is due: with the `revise` above an empty change would mean that weights are to be moved.
    return dataclasses.replace(method, init_state=init_state, update=update, schedule=method.due)


def _noted(
    before: Mapping[str, list[int]], graph: Graph, masks: Masks, *, since: int, changed: int, reading: int
) -> dict[str, list[int]]:
    macs, num_on = forward_macs(graph, masks), masks.num_on
    line = {"steps": since, "changed": changed, "macs": macs, "num_on": num_on, "reading": reading}
    return {name: [*before.get(name, []), value] for name, value in line.items()}


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Computes costs from the notes of a metered method."""

    cost: Cost
    dense_macs: int
    batch_size: int
    num: int
    """Number of switchable weights."""

    def training_flops(self, method_state: MethodState, first_step: int, last_step: int) -> int:
        """FLOPs of the steps from `first_step` up to, but not including, `last_step`."""
        notes = self._notes(method_state)
        total = readings = 0
        for number, num_steps in enumerate(_spans(notes["steps"], first_step, last_step)):
            total += num_steps * sample_flops(self.cost, notes["macs"][number], self.dense_macs)
            if not first_step <= notes["changed"][number] < last_step:
                continue
            readings += notes["reading"][number]
            if self.cost == "dense_gradient_at_changes":
                # The last step before the new masks took weight gradients of all weights.
                total += 2 * (self.dense_macs - notes["macs"][number - 1])
        return total * self.batch_size + readings

    def weight_steps(self, method_state: MethodState, last_step: int) -> int:
        """Switchable weights that were on, summed over all steps."""
        notes = self._notes(method_state)
        spans = _spans(notes["steps"], 0, last_step)
        return sum(num_steps * num_on for num_steps, num_on in zip(spans, notes["num_on"], strict=True))

    def macs_now(self, method_state: MethodState) -> int:
        """Forward multiply-adds of the present masks."""
        return self._notes(method_state)["macs"][-1]

    def _notes(self, method_state: MethodState) -> dict[str, list[int]]:
        """The notes in a memory; without any, all weights are trained from the first step to the last."""
        dense = {"steps": [0], "changed": [-1], "macs": [self.dense_macs], "num_on": [self.num], "reading": [0]}
        notes: dict[str, list[int]] = method_state.get(_NOTES, dense)
        return notes


def _spans(since: Sequence[int], first_step: int, last_step: int) -> list[int]:
    """For each line of the notes, how many of its steps lie between two steps."""
    ends = [*since[1:], last_step]
    return [max(0, min(end, last_step) - max(begin, first_step)) for begin, end in zip(since, ends, strict=True)]
