"""How long PHEW takes, and how long it would take one walk at a time.

    python -m benchmarks.phew                 # ResNet-50 at 2%
    python -m benchmarks.phew --model resnet20 --density 0.5

The plain loop below is the method as one would write it first: one walker, one `torch.multinomial` per step, on the
same wiring. It is timed for a few hundred walks and extrapolated to the number that the density takes; it neither
tracks positions nor fills up to an exact count, so the ratio flatters it.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from pathgrow import models
from pathgrow.masks import Masks
from pathgrow.phew import phew
from pathgrow.rng import generator
from pathgrow.scope import scope_of
from pathgrow.walks import Law, Walker, alive_units
from pathgrow.wiring import Hop, Wiring, read


class PlainLoop:
    """One forward or backward walk at a time on torch tensors."""

    def __init__(self, wiring: Wiring, model: nn.Module, scope: Masks, seed: int) -> None:
        self.wiring, self.scope, self.random = wiring, scope, generator(seed, "plain")
        parameters = dict(model.named_parameters())
        self.weights = {layer.index: layer.pick(parameters[layer.name]).detach().abs() for layer in wiring.layers}
        self.kernels = {index: weight.reshape(*weight.shape[:2], -1).sum(-1) for index, weight in self.weights.items()}
        self.alive = alive_units(wiring)
        self.marks = Masks.empty(scope)
        self.num_marked = 0

    def walk(self, turn: int) -> None:
        """The walk of one turn: forward from an input if it is even, backward from an output if it is odd."""
        forward, number = turn % 2 == 0, turn // 2
        if forward:
            space = next(space.id for space in self.wiring.spaces if space.input)
            unit = number % self.wiring.spaces[space].size
        else:
            space, units = self.wiring.outputs[0]
            unit = int(units[number % len(units)])
        layers = self.wiring.layer_from if forward else self.wiring.layer_into
        hops = self.wiring.hops_from if forward else self.wiring.hops_into
        while space in layers or hops[space]:
            if space in layers:
                layer = layers[space]
                row = self.kernels[layer.index][:, unit] if forward else self.kernels[layer.index][unit]
                other = self._draw(row)
                out, into = (other, unit) if forward else (unit, other)
                kernel = self.weights[layer.index][out, into]
                tap = self._draw(kernel.flatten()) if kernel.ndim else 0
                if layer.name in self.scope:
                    self._mark(self.marks[layer.name].view(-1), (out * layer.shape[1] + into) * kernel.numel() + tap)
                space, unit = (layer.target if forward else layer.source), other
            else:
                ways = [hop for hop in hops[space] if not hop.shortcut and self._leads(hop, unit, forward)]
                hop = ways[int(torch.randint(len(ways), (), generator=self.random))]
                space = hop.target if forward else hop.source

    def _leads(self, hop: Hop, unit: int, forward: bool) -> bool:
        assert hop.pairs is None, "the plain loop knows networks whose channels keep their numbers"
        return bool(self.alive[hop.target if forward else hop.source][unit])

    def _draw(self, shares: Tensor) -> int:
        return int(torch.multinomial(shares, 1, generator=self.random))

    def _mark(self, flat: Tensor, position: int) -> None:
        if not flat[position]:
            flat[position] = True
            self.num_marked += 1


def num_walks(wiring: Wiring, model: nn.Module, scope: Masks, target: int) -> int:
    """How many walks it takes until `target` weights are marked."""
    walker, turn, step = Walker(Law(wiring, model)), 0, 512
    masks = Masks.empty(scope)
    noise = generator(0, "count")
    while masks.num_on < target:
        walks = walker.walk(turn, step, noise)
        turn += step
        for layer in wiring.layers:
            if layer.name in scope:
                masks[layer.name].view(-1)[
                    torch.from_numpy(walks.weights[layer.index][walks.weights[layer.index] >= 0])
                ] = True
    return 2 * turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--density", type=float, default=0.02)
    parser.add_argument("--plain-walks", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = models.create(given.model, given.classes, seed=0)
    example = model.example_input()

    started = time.perf_counter()
    read(model, example)
    print(f"first reading of the process (loads parts of torch): {time.perf_counter() - started:.2f} s")
    timings = []
    for seed in range(3):
        started, used = time.perf_counter(), time.process_time()
        masks = phew(model, example, given.density, seed=seed)
        timings.append((time.perf_counter() - started, time.process_time() - used))
    seconds, busy = min(timings)
    print(f"phew, reading included, best of 3: {seconds:.2f} s ({busy:.2f} s of CPU time); {masks}")

    wiring = read(model, example)
    scope = scope_of(model, wiring)
    loop = PlainLoop(wiring, model, scope, seed=0)
    started = time.perf_counter()
    for turn in range(given.plain_walks):
        loop.walk(turn)
    per_walk = (time.perf_counter() - started) / given.plain_walks
    walks = num_walks(wiring, model, scope, masks.num_on)
    print(
        f"one walk at a time, extrapolated from {given.plain_walks} walks: {per_walk * walks:.0f} s "
        f"({per_walk * 1e3:.1f} ms a walk, {walks:,} walks); ratio {per_walk * walks / seconds:.0f}"
    )


if __name__ == "__main__":
    main()
