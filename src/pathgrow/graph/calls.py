"""Which layers one forward pass calls, and how often: scope and FLOPs of models that cannot be traced."""

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathgrow.errors import UserError, frames_to_the_caller
from pathgrow.graph.faults import Untraceable, not_accepted
from pathgrow.graph.graph import Graph, Layer, Window
from pathgrow.graph.inputs import guess_example_input
from pathgrow.graph.running import MISFITS, call_arguments, check_initialized, num_samples, tensors_in, undisturbed
from pathgrow.graph.scope import input_layers, output_layers, projection_shortcuts
from pathgrow.masks import Masks

_CONV = nn.modules.conv._ConvNd
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def called_layers(model: nn.Module, example_input: Any = None) -> Graph:
    """Return the conv, linear and recurrent weights that a forward pass uses, as a graph without links.

    The MACs of a weight are what the whole batch costs divided by the number of its samples; every time step of a
    recurrent layer counts.

    >>> graph = called_layers(nn.LSTM(3, 4, batch_first=True), torch.zeros(2, 5, 3))
    >>> [(layer.name, layer.shape, layer.positions) for layer in graph.layers]
    [('weight_ih_l0', (16, 3), 5), ('weight_hh_l0', (16, 4), 5)]
    """
    check_initialized(model)
    example_input = guess_example_input(model) if example_input is None else example_input
    batch = num_samples(example_input)
    if not batch:
        raise UserError(f"example_input must hold at least one sample, got {type(example_input).__name__}")
    calls: list[Layer] = []

    def record(prefix: str, module: nn.Module, inputs: Any, output: Any) -> None:
        x = next(tensors_in(inputs))
        is_usual_conv = isinstance(module, _CONV) and not module.transposed
        rows = output.numel() // module.out_channels if is_usual_conv else x.numel() // _width(module)
        for name, weight in _matrices(prefix, module):
            positions = max(1, round(rows / batch))
            calls.append(Layer(len(calls), name, 0, 0, tuple(weight.shape), 1, Window(), positions))

    hooks = [
        module.register_forward_hook(
            lambda module, args, kwargs, output, prefix=prefix: record(
                prefix, module, [*args, *kwargs.values()], output
            ),
            with_kwargs=True,
        )
        for prefix, module in model.named_modules()
        if _matrices(prefix, module)
    ]
    try:
        with undisturbed(model):
            run_on(model, example_input)
    finally:
        for hook in hooks:
            hook.remove()
    return Graph((), (), tuple(calls), (), 0, False, False, ())


def calls_instead(model: nn.Module, example_input: Any, reason: UserError) -> tuple[Graph, str]:
    """Return the `called_layers` of a model that cannot be traced, for the given reason, and a warning about them.

    If the model cannot be run either, that is an error.
    """
    try:
        graph = called_layers(model, example_input)
    except MISFITS as fault:
        if isinstance(reason, Untraceable):
            raise not_accepted(model, example_input, fault) from fault
        raise reason from reason.__cause__
    place = reason.place if isinstance(reason, Untraceable) else None
    return graph, (
        f"{type(model).__name__} cannot be traced ({place or reason}). All conv, linear and recurrent weights that "
        "example_input reaches, except those of the last layer, are prunable, and FLOPs count these layers only."
    )


def run_on(model: nn.Module, example_input: Any) -> Any:
    """Call a model with one batch, see `call_arguments`."""
    args, kwargs = call_arguments(model, example_input)
    return model(*args, **kwargs)


def left_out(
    model: nn.Module, graph: Graph, scope: Masks, *, uncalled: Collection[str] = (), is_given: bool = False
) -> dict[str, tuple[int, str]]:
    """Return the weights of conv, linear and recurrent layers outside a scope: how many, and why.

    `uncalled` are those of `uncalled_layers`, `is_given` means that the user passed the scope.

    >>> from pathgrow.graph.scope import scope_of, trace
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> graph = trace(net, torch.zeros(1, 4))
    >>> left_out(net, graph, scope_of(net, graph))
    {'2.weight': (16, 'output layer')}
    """
    named, parameters = [layer.name for layer in graph.layers], dict(model.named_parameters())
    outputs = output_layers(graph) if graph.channels else [len(named) - 1]  # without links: the last one called
    kinds = {
        "output layer": outputs,
        "projection shortcut": projection_shortcuts(graph),
        "reads the raw input": input_layers(graph) if graph.channels else [],
    }
    reasons = {named[index]: reason for reason, indices in reversed(kinds.items()) for index in indices}
    modules = [name for prefix, module in model.named_modules() for name, _ in _matrices(prefix, module)]
    found = {}
    for name in dict.fromkeys([*modules, *(name for name in named if name is not None)]):
        weight = parameters.get(name)
        inside = int(scope[name].count_nonzero()) if name in scope else 0
        if weight is None or inside == weight.numel():
            continue
        if not weight.requires_grad:
            reason = "frozen"
        elif name in uncalled:
            reason = "not reached by example_input"
        elif is_given:
            reason = "outside the scope that was passed"
        else:
            reason = reasons.get(name, "on no path from input to output (query, key or gate)")
        found[name] = (weight.numel() - inside, reason)
    return found


def called_scope(model: nn.Module, graph: Graph, accepts: Callable[[str], bool] = lambda name: True) -> Masks:
    """Return the trained weights of `called_layers` as masks, without the layer that is called last."""
    parameters = dict(model.named_parameters())
    names = list(dict.fromkeys(layer.name for layer in graph.layers if layer.name is not None))
    last = graph.layers[-1].name if graph.layers else None
    if last is not None and not isinstance(model.get_submodule(last.rpartition(".")[0]), _RECURRENT):
        names.remove(last)
    trained = {name: parameters[name] for name in names if parameters[name].requires_grad and accepts(name)}
    full = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in trained.items()}
    if not full:
        raise UserError(
            f"nothing to sparsify in {type(model).__name__}: example_input reaches no conv, linear or recurrent layer "
            "before the last one; pass a scope (Masks with True for each weight that may be pruned)"
        )
    return Masks.select(full, full)


def uncalled_layers(model: nn.Module, example_input: Any, graph: Graph | None = None) -> list[str]:
    """Return the weights of layers that a forward pass uses neither in evaluation mode nor in training mode.

    A weight is used if its layer is called, if it is passed to a torch function, as by `F.linear(x, layer.weight)`, or
    if the graph, where there is one, contains it.
    If a forward pass fails, no layer is returned, since it cannot tell.
    """
    weights = {name: weight for prefix, module in model.named_modules() for name, weight in _matrices(prefix, module)}
    traced = set() if graph is None else {layer.name for layer in graph.layers}
    unused = {name: weight for name, weight in weights.items() if name not in traced}
    for training in (False, True):
        if unused:
            try:
                used = _used_tensors(model, example_input, training=training)
            except MISFITS:  # a model that runs only as a graph, or that is trained on other arguments
                return []
            unused = {name: weight for name, weight in unused.items() if id(weight) not in used}
    return list(unused)


def warn_of_unreached(model: nn.Module, names: Collection[str], *, in_scope: bool = False) -> None:
    """Warn of layers that example_input does not reach (`uncalled_layers`), if there are any.

    `in_scope` means that the user passed a scope with them.
    """
    if names:
        warnings.warn(unreached_sentence(model, names, in_scope=in_scope), stacklevel=frames_to_the_caller())


def unreached_sentence(model: nn.Module, names: Collection[str], *, in_scope: bool = False) -> str:
    """The warning about such layers."""
    kind = type(model).__name__
    if in_scope:
        return (
            f"A forward pass on example_input does not use these weights of {kind}: {', '.join(names)}. They are in "
            "the scope, where unused weights count toward the density and are pruned first. Remove them from the scope."
        )
    return (
        f"A forward pass on example_input does not use these weights of {kind}, so they are not pruned: "
        f"{', '.join(names)}"
    )


def _used_tensors(model: nn.Module, example_input: Any, *, training: bool) -> set[int]:
    """The ids of parameters whose modules a forward pass calls, or which it passes to torch functions."""
    example_input = guess_example_input(model) if example_input is None else example_input
    # Every process of a distributed training calls the module itself, and none waits for the others.
    model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    uses = _Uses()
    hooks = [module.register_forward_pre_hook(lambda module, args: uses.add(module)) for module in model.modules()]
    try:
        with undisturbed(model), uses:
            if training:
                model.train()
                for module in model.modules():
                    if isinstance(module, nn.modules.batchnorm._NormBase):
                        module.eval()  # batch norm refuses a single sample
            run_on(model, example_input)
    finally:
        for hook in hooks:
            hook.remove()
    return uses.ids


class _Uses(TorchFunctionMode):
    """Notes the tensors that are passed to torch functions."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()

    def add(self, module: nn.Module) -> None:
        self.ids.update(id(weight) for weight in module._parameters.values())

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func not in _PROPERTIES:
            self.ids.update(map(id, tensors_in((tuple(args), kwargs or {}))))
        return func(*args, **(kwargs or {}))


_PROPERTIES = (Tensor.dtype.__get__, Tensor.device.__get__)  # type: ignore[attr-defined]
"""Asked of any weight to create other tensors like it."""


def _matrices(prefix: str, module: nn.Module) -> list[tuple[str, Tensor]]:
    """The weights of a layer by their names in the model; none for other modules and for computed weights."""
    if not isinstance(module, (nn.Linear, _CONV, *_RECURRENT)):
        return []
    weights = [(name, weight) for name, weight in module._parameters.items() if weight is not None and weight.dim() > 1]
    return [(f"{prefix}.{name}" if prefix else name, weight) for name, weight in weights]


def _width(module: nn.Module) -> int:
    if isinstance(module, nn.Linear):
        return module.in_features
    width = module.in_channels if isinstance(module, _CONV) else module.input_size
    assert isinstance(width, int)
    return width
