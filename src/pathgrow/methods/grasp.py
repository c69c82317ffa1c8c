"""GraSP: keep the weights that preserve gradient flow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pathgrow.errors import UserError, require
from pathgrow.graph.running import uncompiled
from pathgrow.graph.sample_counter import counting
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.gradients import checked_loss, first_batches, probing
from pathgrow.methods.method import Method, NetworkView
from pathgrow.rng import derive


def grasp(*, density: float = 0.1, temperature: float = 200.0, num_batches: int = 1) -> Method:
    """GraSP (Wang, Zhang & Grosse, Picking Winning Tickets Before Training by Preserving Gradient Flow, 2020).

    Rule: with g the loss gradient and H the Hessian at initialization, removing a weight lowers |g|^2 by about
    2 weight x (Hg); keep the largest weight x (Hg), signed, over all layers. `attach` needs `loss` and `batches`.

    Differences: the loss is the one passed to `attach`, where the authors' code has cross-entropy and new weights in
    every linear layer of the copy that is scored. g and H are those of the tensors in scope, where the authors take all
    convolution and linear weights (`--scope all` of `pathgrow train`). The batches are ordinary training batches, not
    ten samples of each class. The published numbers are for a "ResNet-32" of twice the usual width (`resnet32x2` here).

    Parameters
    ----------
    density : float
        Fraction of the prunable weights, exact to one weight.
    temperature : float
        Divides the model's output while gradients are computed, which evens out the predictions of an untrained
        network; the output must be a tensor unless this is 1.
    num_batches : int
        Number of training batches for g and H.
    """
    require(0 < temperature < float("inf"), "temperature", temperature, "> 0", 200)
    require(num_batches >= 1, "num_batches", num_batches, ">= 1", 1)
    start = ByGradientFlow(temperature, num_batches)
    return Method(name="grasp", start=start, start_density=density, needs=frozenset({"data"}))


@dataclass(frozen=True)
class ByGradientFlow:
    """The start pick of GraSP."""

    temperature: float
    num_batches: int

    def __call__(self, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        return top_k(self.scores(net, draw.initial_seed()), candidates, count, draw)

    def scores(self, net: NetworkView, seed: int) -> dict[str, Tensor]:
        """weight x (Hg) of every position."""
        assert net.loss is not None and net.batches is not None, "checked by `attach`"
        parameters = dict(net.model.named_parameters())
        scored = [parameters[name] for name in net.masks]
        with probing(net.model, seed):
            batches = first_batches(net.batches, self.num_batches)

        def batch_gradients(number: int, *, create_graph: bool) -> list[Tensor]:
            assert net.loss is not None
            return _gradients(checked_loss(net.loss(net.model, batches[number])), scored, create_graph=create_graph)

        gradients = [torch.zeros_like(parameter) for parameter in scored]
        products = [torch.zeros_like(parameter) for parameter in scored]
        # Two passes per batch with the same dropout: only one double-backward graph is in memory at a time.
        with _tempered(net.model, self.temperature), _twice_derived(), counting(net.model) as counter:
            for number in range(self.num_batches):
                with probing(net.model, derive(seed, "batch", number)):
                    _add_(gradients, batch_gradients(number, create_graph=False))
            num_samples = counter.samples
            for number in range(self.num_batches):
                with probing(net.model, derive(seed, "batch", number)):
                    found = batch_gradients(number, create_graph=True)
                    flow = sum((a * b).sum() for a, b in zip(gradients, found, strict=True))
                    assert isinstance(flow, Tensor)
                    _add_(products, _gradients(flow, scored))
        net.charge(gradient_samples=counter.samples, hessian_samples=counter.samples - num_samples)
        return {
            name: parameter.detach().double() * product
            for name, parameter, product in zip(net.masks, scored, products, strict=True)
        }


def _gradients(value: Tensor, parameters: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor]:
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained or not value.requires_grad:  # e.g. if the loss is linear in all of them
        return [torch.zeros_like(parameter) for parameter in parameters]
    found = iter(torch.autograd.grad(value, trained, create_graph=create_graph, allow_unused=True))
    each = [next(found) if parameter.requires_grad else None for parameter in parameters]
    return [torch.zeros_like(p) if gradient is None else gradient for p, gradient in zip(parameters, each, strict=True)]


@contextmanager
def _twice_derived() -> Iterator[None]:
    """Replace operations that torch can differentiate only once, where an equivalent is known."""
    try:
        with uncompiled(), sdpa_kernel(SDPBackend.MATH), _PlainActivations():
            yield
    except (NotImplementedError, RuntimeError) as error:
        if "derivative for" not in str(error):
            raise
        operation = str(error).partition("derivative for ")[2].split()[0].strip("'")
        raise UserError(
            f"GraSP needs second derivatives, which torch does not provide for {operation} in this model; "
            "replace that operation, or use snip or synflow"
        ) from error


class _PlainActivations(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.hardsigmoid:
            return functional.relu6(args[0] + 3) / 6
        return func(*args, **(kwargs or {}))


def _add_(sums: list[Tensor], terms: list[Tensor]) -> None:
    for total, term in zip(sums, terms, strict=True):
        total += term.detach()


@contextmanager
def _tempered(model: nn.Module, temperature: float) -> Iterator[None]:
    """Divide the model's output by `temperature` inside the block."""

    def divide(module: nn.Module, inputs: Any, output: Any) -> Any:
        if temperature == 1:
            return output
        if not isinstance(output, Tensor):
            raise UserError(
                f"GraSP divides the model's output by a temperature, but {type(model).__name__} returned a "
                f"{type(output).__name__}; use temperature=1"
            )
        return output / temperature

    handle = model.register_forward_hook(divide)
    try:
        yield
    finally:
        handle.remove()
