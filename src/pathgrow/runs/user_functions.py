"""What a user's `fit` and `evaluate` do, as seen from outside: faults that still yield scores, and so an answer.

Each is found in the first calls, while little time is lost. What certainly ruins a run is an error; what somebody may
have intended is a warning.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pathgrow.errors import RunFailed, UserError, short
from pathgrow.report.formats import number, plural, stage_label
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.hooks import parse_evaluation
from pathgrow.sparse.tree import tensor_digest

# Training and evaluation mode


def modes_of(model: nn.Module) -> dict[str, bool]:
    """Whether each module trains or evaluates."""
    return {name: module.training for name, module in model.named_modules()}


def set_modes_(model: nn.Module, modes: Mapping[str, bool]) -> None:
    """Set the mode of every module, but for those that were added since."""
    for name, module in model.named_modules():
        module.training = modes.get(name, module.training)


class LayerModes:
    """A forward hook that notes which layers compute otherwise because they are in training mode.

    >>> model, modes = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), LayerModes()
    >>> _ = model.register_forward_pre_hook(modes)
    >>> _ = model(torch.zeros(1, 2))
    >>> modes.in_training
    ['Dropout']
    """

    def __init__(self) -> None:
        self.in_training: list[str] = []
        """Their classes, in the last forward pass: an earlier one may have updated statistics on purpose."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():  # a model that is compiled in place would keep this hook
            layers = [layer for layer in module.modules() if layer.training and _depends_on_mode(layer)]
            self.in_training = sorted({type(layer).__name__ for layer in layers})


def _depends_on_mode(layer: nn.Module) -> bool:
    if isinstance(layer, _NormBase):
        return layer.running_mean is not None  # without running statistics it uses those of the batch in both modes
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout)
    if isinstance(layer, nn.RNNBase):
        return bool(layer.dropout) and layer.num_layers > 1
    if type(layer).__name__ in ("DropPath", "StochasticDepth"):  # of timm and torchvision
        return bool(getattr(layer, "drop_prob", None) or getattr(layer, "p", None))
    return isinstance(layer, nn.RReLU)


# What `fit` does


class FirstFit:
    """A network before the first call of `fit`, to see afterwards what that did."""

    def __init__(self, attached: Attached) -> None:
        self._attached, self._step, self._digest = attached, attached.step, _digest(attached.model)
        self._trainable = [name for name in attached.scope if attached.model.get_parameter(name).requires_grad]

    def check(self, *, has_run: bool) -> None:
        """Refuse a `fit` that did not train the network, or that left it so that it cannot be trained again."""
        attached = self._attached
        check_first_fit(
            is_changed=self._digest != _digest(attached.model), has_stepped=attached.step > self._step, has_run=has_run
        )
        for name in self._trainable:
            if not attached.model.get_parameter(name).requires_grad:
                raise RunFailed(
                    f"fit(model, optimizer, epochs) left {name} frozen (requires_grad=False), but its next call has to "
                    "train it: set requires_grad back at the end of fit, or freeze it before the call of discover, to "
                    "leave it out of the scope"
                )


def _digest(model: nn.Module) -> str:
    return tensor_digest(dict(model.named_parameters()))


def check_first_fit(*, is_changed: bool, has_stepped: bool, has_run: bool) -> None:
    """Refuse a `fit` whose first call did not train its model with its optimizer."""
    if is_changed and has_stepped:
        return
    if is_changed:
        wrong, todo = "the weights of its model without its optimizer", "call step() of the optimizer it receives"
        todo += ", which also keeps pruned weights at zero"
    elif has_run:
        wrong, todo = "no weight of its model, which it ran", "call step() of the optimizer it receives"
        todo += ", and check the learning rate"
    else:
        wrong, todo = "no weight of its model, nor did it run it", "train the model it receives, which may be a copy"
        todo += ", and not another one"
    raise RunFailed(f"fit(model, optimizer, epochs) changed {wrong}: {todo}")


REFIT = (
    "fit returned weights other than those of its last step (the best ones so far, or an average), or made fewer steps "
    "than before. Networks that are pruned during fit are therefore trained a second time, with their final masks."
)
UNTRAINED_MASKS = (
    "at the end of stage {!r} pruned weights were not zero and were removed: fit made fewer steps than before, or "
    "loaded weights of an earlier call, such as the best ones of all calls. The network was not trained with its final "
    "masks, which makes its score lower"
)
UNCOUNTED = (
    "fit does not call the model itself, as model(batch), so its samples cannot be counted: every step counts as one "
    "sample, and FLOPs are those of batches of one (costs relative to dense are right)"
)


# Several calls

_MIN_LENGTH_RATIO = 1.5
"""Ratio of two lengths from which on as much training in both cannot be rounding."""
_EQUAL = 0.02


class _Trained(NamedTuple):
    """What one call of `fit` did."""

    epochs: int
    num: float
    unit: str


class CallMonitor:
    """Watches the first calls of `fit` and `evaluate` for faults that still yield scores."""

    def __init__(self) -> None:
        self._modes = LayerModes()
        self._evaluated: set[bool] = set()
        """Whether the first evaluation before training, and the one after it, has been watched."""
        self._is_warned = self._is_compared = False
        self._trained: list[_Trained] = []

    @contextmanager
    def watch_evaluation(self, model: nn.Module, is_trained: bool) -> Iterator[None]:
        """Watch the modes of layers in the first evaluation, and in the first one after `fit` may have changed them.

        An `evaluate` that changes weights is refused.
        """
        if is_trained in self._evaluated:
            yield
            return
        self._evaluated.add(is_trained)
        # Not on the layers: attention and encoders take another path, with other bits, if there are hooks below them.
        handle, before = model.register_forward_pre_hook(self._modes), _digest(model)
        try:
            yield
        finally:
            handle.remove()
        if _digest(model) != before:
            raise UserError(
                "evaluate(model) changes the weights of the model that it scores: let it change a copy "
                "(copy.deepcopy(model)), or restore them before it returns"
            )

    def mode_warning(self) -> str | None:
        """A warning, once, if `evaluate` runs the model in training mode, although that changes what it computes."""
        if self._is_warned or not self._modes.in_training:
            return None
        self._is_warned = True
        return (
            f"evaluate runs the model with {', '.join(self._modes.in_training)} in training mode, so that scores "
            "depend on chance or on how samples are batched, and running statistics change: call model.eval() in "
            "evaluate before it runs the model"
        )

    def length_warning(self, epochs: int, num_samples: float, num_steps: float) -> str | None:
        """A warning, once, if `fit` trained as much for another length, by the first two lengths that differ enough.

        >>> monitor = CallMonitor()
        >>> monitor.length_warning(20, 2700, 43), monitor.length_warning(16, 2700, 43)
        (None, None)
        >>> monitor.length_warning(5, 2700, 43)
        'fit(model, optimizer, 20) trained on 2,700 samples and fit(model, optimizer, 5) trained on 2,700: ...'
        """
        now = _Trained(epochs, num_samples or num_steps, "sample" if num_samples else "step")
        if self._is_compared or now.num <= 0:
            return None
        for call in self._trained:
            if now.unit == call.unit and max(now.epochs, call.epochs) >= _MIN_LENGTH_RATIO * min(
                now.epochs, call.epochs
            ):
                self._is_compared = True
                return _same_length_warning(now, call)
        self._trained.append(now)
        return None


def _same_length_warning(now: _Trained, before: _Trained) -> str | None:
    if abs(now.num - before.num) > _EQUAL * max(now.num, before.num):
        return None
    first, second = (f"fit(model, optimizer, {call.epochs})" for call in (before, now))
    did = "trained on" if now.unit == "sample" else "made"
    return (
        f"{first} {did} {plural(round(before.num), now.unit)} and {second} {did} {round(now.num):,}: unless it stops "
        "early by itself, it ignores its third argument; train for as long as that says, since costs and the "
        "comparison with dense follow from it"
    )


# Scores

UNTRAINED = "untrained"
"""The stage that scores networks before any training."""


def parsed_evaluation(value: Any, stage: str) -> tuple[float, float | None]:
    """The result of an evaluation as (score, loss); before any training, no learning rate is to blame for NaN."""
    try:
        return parse_evaluation(value, f"evaluate ({stage_label(stage)})")
    except RunFailed as error:
        if stage != UNTRAINED:
            raise
        found = f"evaluate returned {short(value)} before any training"
        raise UserError(f"{found}: check evaluate, the data that it uses and the initial weights") from error


_MAX_FRACTION_WITH_ROUNDING = 1.001
"""Highest accuracy or error rate."""


def check_fraction(score: float) -> None:
    """Refuse a score that cannot be an accuracy or an error rate, as `num_val` says that it is."""
    if not 1 - _MAX_FRACTION_WITH_ROUNDING <= score <= _MAX_FRACTION_WITH_ROUNDING:
        raise UserError(
            f"evaluate returned {number(score)}, but num_val, the number of validation examples, says that scores are "
            "accuracies or error rates in [0, 1]: divide them by 100 if they are percentages, use mode='min' "
            "instead of a minus sign, or else leave num_val out (finished stages are kept if there is a store)"
        )
