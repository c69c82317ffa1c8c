"""Why a model cannot be traced: the function and the line, or an example input that the model itself refuses."""

import os
import sys
import traceback

import torch
from torch import nn

from pathgrow.errors import UserError
from pathgrow.graph.running import MISFITS, call_arguments, like_parameters, spread_refusal, undisturbed

WITHOUT_PATHS = "choose a method that uses no paths, such as 'rigl', 'set', 'gmp' or 'magnitude'"
_INSIDE = tuple(f"{os.path.dirname(file or '')}{os.sep}" for file in (torch.__file__, __file__))


class Untraceable(UserError):
    """A model that works but whose paths cannot be traced; `place` says where, if that is known."""

    def __init__(self, message: str, place: str | None) -> None:
        super().__init__(message)
        self.place = place


def untraceable(function: str, advice: str = WITHOUT_PATHS) -> Untraceable:
    """Return the error for a function that is being called, with the line of the model that calls it."""
    place = f"{function} ({calling_line()})"
    return Untraceable(f"paths cannot be traced through {place}: {advice}", place)


def calling_line() -> str:
    """The line of the model that runs now: the innermost one outside of torch and this package."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def own_fault(model: nn.Module, fault: Exception) -> Untraceable:
    """Return the error for what only the tracer raises, with the line of the model that was running."""
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if not frame.filename.startswith(_INSIDE)]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    place = f"{type(model).__name__}{where}: {_reason(fault)}"
    return Untraceable(f"paths cannot be traced through {place}; {WITHOUT_PATHS}", place)


def check_accepted(model: nn.Module, example_input: object) -> None:
    """Raise a `UserError` with the reason of torch if a model refuses a batch.

    The batch is moved to the device and the precision of the model first: the tracer does not depend on them.
    """
    args, kwargs = call_arguments(model, like_parameters(model, example_input))
    try:
        with undisturbed(model):
            model(*args, **kwargs)
    except MISFITS as fault:
        raise not_accepted(model, example_input, fault) from fault


def not_accepted(model: nn.Module, example_input: object, fault: Exception) -> UserError:
    """Return the error for an example input that a model refuses."""
    refusal = spread_refusal(model, example_input)
    # The model got the whole batch, which may not have been meant.
    spread = "" if refusal is None else f" (and its parts as arguments: {refusal})"
    return UserError(
        f"the model could not be run on example_input: {_reason(fault)}{spread}; pass a batch that "
        f"{type(model).__name__} accepts"
    )


def _reason(fault: Exception) -> str:
    return str(fault).partition("\n")[0] or type(fault).__name__
