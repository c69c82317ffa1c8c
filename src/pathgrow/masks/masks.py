"""Masks: bool tensors beside plain weights, and the scope of prunable positions.

A weight stays a plain parameter; its mask is stored beside it under the parameter's name. Masks are never inferred from
zeros. They are edited in place (`masks[name].copy_(...)`, `masks |= picks`), never rebound, so that every holder of one
of the tensors (an optimizer hook, a CUDA graph) sees every update.

The *scope* says which positions are prunable. One class serves two meanings of True, which differ outside the scope:

- `Masks(...)`: True = the weight is active. Outside the scope weights stay dense, so those positions are True.
- `Masks.select(...)`: True = the position is selected (candidates, picks, a scope). Outside the scope none is: False.

Boolean algebra keeps the two apart: a mask plus (`|`) or minus (`-`) a selection is a mask; the intersection (`&`) of a
mask and a selection is a selection.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from pathgrow import atomic
from pathgrow.errors import RunFailed, UserError, require, short


class Masks(Mapping[str, Tensor]):
    """Bool tensors by parameter name, with the scope of prunable positions.

    Parameters
    ----------
    tensors : mapping of parameter name to bool tensor
        True where a weight is active. The tensors are referenced, not copied.
    scope : mapping of parameter name to bool tensor, optional
        True where a weight is prunable; by default everywhere. Outside it `tensors` must be True.

    Examples
    --------
    >>> masks = Masks({"fc.weight": torch.tensor([[True, False], [False, False]])})
    >>> masks.num_on, masks.num, masks.density
    (1, 4, 0.25)
    >>> masks |= Masks.select({"fc.weight": torch.tensor([[False, True], [False, False]])})
    >>> masks.density
    0.5
    """

    __slots__ = ("_partial", "_tensors")

    def __init__(self, tensors: Mapping[str, Tensor], scope: Mapping[str, Tensor] | None = None) -> None:
        self._tensors = _bool_tensors(tensors, "a mask")
        self._partial = _partial_scope(self._tensors, scope)
        for name, inside in self._partial.items():
            if not bool((self._tensors[name] | inside).all()):
                raise UserError(
                    f"the mask of {name!r} is False outside its scope, where weights are always active; "
                    "use Masks.select for a selection of positions"
                )

    @classmethod
    def select(cls, tensors: Mapping[str, Tensor], scope: Mapping[str, Tensor] | None = None) -> Masks:
        """A selection of positions inside `scope`: candidates, picks, or (with `scope=tensors`) a scope itself."""
        chosen = _bool_tensors(tensors, "a selection")
        partial = _partial_scope(chosen, scope)
        for name, inside in partial.items():
            _require_inside(name, chosen[name], inside)
        return cls._unchecked(chosen, partial)

    @classmethod
    def full(cls, model: nn.Module, scope: Mapping[str, Tensor] | None = None) -> Masks:
        """Every weight active: those of `scope`, by default the weights of all linear and convolution layers."""
        if scope is None:
            parameters = _layer_weights(model)
            return cls({name: torch.ones_like(p, dtype=torch.bool) for name, p in parameters.items()})
        inside = _bool_tensors(scope, "a scope")
        masks = cls({name: torch.ones_like(flags) for name, flags in inside.items()}, inside)
        masks.check(model)
        return masks

    @classmethod
    def empty(cls, scope: Mapping[str, Tensor]) -> Masks:
        """Every prunable weight pruned; those outside the scope stay."""
        return cls({name: ~inside for name, inside in _bool_tensors(scope, "a scope").items()}, scope)

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], scope: Mapping[str, Tensor]) -> Masks:
        """Masks from stored or received tensors, in the order of `scope` and on its devices."""
        if missing := [name for name in scope if name not in tensors]:
            raise UserError(f"the stored masks lack that of {missing[0]!r}")
        return cls({name: tensors[name].to(inside.device) for name, inside in scope.items()}, scope)

    @classmethod
    def _unchecked(cls, tensors: dict[str, Tensor], partial: dict[str, Tensor]) -> Masks:
        masks = cls.__new__(cls)
        masks._tensors = tensors
        masks._partial = partial
        return masks

    # A mapping whose tensors can be edited but not replaced.

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Masks({len(self)} tensors, {self.num_on:,} of {self.num:,} on)"

    @property
    def scope(self) -> dict[str, Tensor]:
        """The prunable positions, by name; read-only."""
        return {name: self._inside(name) for name in self._tensors}

    def _inside(self, name: str) -> Tensor:
        if name in self._partial:
            return self._partial[name]
        tensor = self._tensors[name]
        # A single True, expanded to the whole shape: a full scope costs no memory.
        return torch.ones((), dtype=torch.bool, device=tensor.device).expand(tensor.shape)

    # Counting.

    @property
    def num(self) -> int:
        """Number of prunable weights."""
        return sum(
            int(torch.count_nonzero(self._partial[name])) if name in self._partial else tensor.numel()
            for name, tensor in self._tensors.items()
        )

    @property
    def num_on(self) -> int:
        """Number of active prunable weights (or of selected positions)."""
        return sum(
            nums_true(
                [tensor & self._partial[name] if name in self._partial else tensor for name, tensor in self.items()]
            )
        )

    @property
    def density(self) -> float:
        """Fraction of the prunable weights that are active."""
        num = self.num
        if num == 0:
            raise UserError("density is undefined: the scope has no prunable weight")
        return self.num_on / num

    # Set algebra. Operands must share names, shapes and scope.

    def present(self) -> Masks:
        """The active prunable weights, as a selection."""
        return self._map(lambda tensor, inside: tensor & inside)

    def missing(self) -> Masks:
        """The pruned weights, as a selection: candidates for growth."""
        return self._map(lambda tensor, inside: inside & ~tensor)

    def with_active(self, chosen: Mapping[str, Tensor]) -> Masks:
        """Masks of the same scope in which exactly the chosen prunable weights are active."""
        selection = Masks._unchecked(_bool_tensors(chosen, "a selection"), self._partial)
        self._require_like(selection)
        tensors = {}
        for name in self._tensors:
            tensors[name], inside = selection[name], self._partial.get(name)
            if inside is not None:
                _require_inside(name, tensors[name], inside)
                tensors[name] = tensors[name] | ~inside
        return Masks._unchecked(tensors, self._partial)

    def __or__(self, other: Masks) -> Masks:
        return self._combine(other, torch.logical_or)

    def __and__(self, other: Masks) -> Masks:
        return self._combine(other, torch.logical_and)

    def __sub__(self, other: Masks) -> Masks:
        return self._combine(other, lambda mine, theirs: mine & ~theirs)

    # `masks |= picks` must edit the tensors: Python's default would silently rebind the name to a copy.

    def __ior__(self, other: Masks) -> Masks:
        return self.copy_(self | other)

    def __iand__(self, other: Masks) -> Masks:
        return self.copy_(self & other)

    def __isub__(self, other: Masks) -> Masks:
        return self.copy_(self - other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        return (
            self._difference(other) is None
            and self._same_scope(other)
            and all(torch.equal(tensor, other[name].to(tensor.device)) for name, tensor in self.items())
        )

    __hash__ = None  # type: ignore[assignment]  # tensors change in place

    def _map(self, function: Callable[[Tensor, Tensor], Tensor]) -> Masks:
        tensors = {name: function(tensor, self._inside(name)) for name, tensor in self._tensors.items()}
        return Masks._unchecked(tensors, self._partial)

    def _combine(self, other: Masks, function: Callable[[Tensor, Tensor], Tensor]) -> Masks:
        if not isinstance(other, Masks):
            return NotImplemented
        self._require_like(other)
        tensors = {name: function(tensor, other[name].to(tensor.device)) for name, tensor in self._tensors.items()}
        return Masks._unchecked(tensors, self._partial)

    def _require_like(self, other: Masks) -> None:
        if (difference := self._difference(other)) is not None:
            raise UserError(f"masks of different models cannot be combined: {difference}")
        if not self._same_scope(other):
            raise UserError("masks with different scopes cannot be combined")

    def _difference(self, other: Masks) -> str | None:
        if only := self._tensors.keys() ^ other._tensors.keys():
            return f"only one has {min(only)!r}"
        for name, tensor in self._tensors.items():
            if tensor.shape != other[name].shape:
                return f"{name!r} is {tuple(tensor.shape)} in one and {tuple(other[name].shape)} in the other"
        return None

    def _same_scope(self, other: Masks) -> bool:
        if self._partial is other._partial:
            return True
        return self._partial.keys() == other._partial.keys() and all(
            torch.equal(inside, other._partial[name].to(inside.device)) for name, inside in self._partial.items()
        )

    # Copies.

    def clone(self) -> Masks:
        """Independent tensors with the same values; the scope is shared."""
        return Masks._unchecked({name: tensor.clone() for name, tensor in self._tensors.items()}, self._partial)

    def to(self, device: torch.device | str | int) -> Masks:
        """The same masks on another device."""
        tensors, partial = (
            {name: tensor.to(device) for name, tensor in group.items()} for group in (self._tensors, self._partial)
        )
        return Masks._unchecked(tensors, partial)

    def copy_(self, other: Masks) -> Masks:
        """Copy the values of `other` in place; returns self."""
        require(isinstance(other, Masks), "other", other, "a pathgrow.Masks")
        self._require_like(other)
        for name, inside in self._partial.items():
            if not torch.equal(self._tensors[name] | inside, other[name].to(inside.device) | inside):
                raise UserError(
                    f"a mask and a selection of {name!r} cannot be copied onto each other; "
                    "use |= or -= to add a selection to a mask or remove it"
                )
        for name, tensor in self._tensors.items():
            tensor.copy_(other[name])
        return self

    # Models.

    def check(self, model: nn.Module) -> None:
        """Raise a `UserError` unless every mask has a parameter of its name and shape in `model`."""
        require_module(model)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, tensor in self._tensors.items():
            if name not in parameters:
                raise UserError(f"there is a mask for {name!r} but {type(model).__name__} has no such parameter")
            if parameters[name].shape != tensor.shape:
                raise UserError(
                    f"the mask of {name!r} has shape {tuple(tensor.shape)} but the parameter of "
                    f"{type(model).__name__} has shape {tuple(parameters[name].shape)}"
                )

    @torch.no_grad()
    def apply_(self, model: nn.Module) -> Masks:
        """Set the pruned weights of `model` to zero; returns self."""
        self.check(model)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, tensor in self._tensors.items():
            # Fill instead of multiply: NaN * 0 is NaN.
            parameters[name].masked_fill_(~tensor.to(parameters[name].device), 0)
        return self

    # Files.

    def digest(self) -> str:
        """SHA-256 of names, shapes, values and scope; equal masks have equal digests on every device."""
        return _digest(self._tensors, self._partial)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, eight positions per byte, atomically."""
        _write(atomic.checked_path(path), self._tensors, self._partial)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Masks:
        """Load a file of `save` onto the CPU; a damaged or other file raises a `UserError`."""
        tensors, partial = _read(atomic.checked_path(path))
        on_outside = any(bool((tensors[name] & ~inside).any()) for name, inside in partial.items())
        scope = {name: partial.get(name, torch.ones_like(tensor)) for name, tensor in tensors.items()}
        return cls(tensors, scope) if on_outside else cls.select(tensors, scope)


def require_module(model: object) -> None:
    """Raise a `UserError` unless a value is a module."""
    require(isinstance(model, nn.Module), "model", model, "a torch.nn.Module")


def check_masks(masks: Any, model: nn.Module, name: str = "masks") -> None:
    """Raise a `UserError` unless a value is masks of a model."""
    require(isinstance(masks, Masks), name, masks, "a pathgrow.Masks")
    masks.check(model)


def _bool_tensors(tensors: Mapping[str, object], what: str) -> dict[str, Tensor]:
    if not isinstance(tensors, Mapping):
        raise UserError(f"expected Masks or a mapping of parameter name to bool tensor, got {short(tensors)}")
    found = {
        name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor) and tensor.dtype == torch.bool
    }
    for name, tensor in tensors.items():
        if name not in found:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UserError(f"{what} must be a torch.bool tensor, got {got} for {name!r}")
    return found


def _partial_scope(tensors: Mapping[str, Tensor], scope: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Copies of the tensors of a scope that are not True everywhere."""
    if scope is None:
        return {}
    inside = _bool_tensors(scope, "a scope")
    if only := tensors.keys() ^ inside.keys():
        name = min(only)
        owner = "the masks have" if name in tensors else "the scope has"
        raise UserError(f"masks and scope must have the same names, but only {owner} {name!r}")
    for name, tensor in tensors.items():
        if inside[name].shape != tensor.shape:
            raise UserError(
                f"the mask of {name!r} has shape {tuple(tensor.shape)} but its scope has shape "
                f"{tuple(inside[name].shape)}"
            )
    return {
        name: flags.to(tensors[name].device, copy=True) for name, flags in inside.items() if not _true_everywhere(flags)
    }


def _true_everywhere(flags: Tensor) -> bool:
    single = flags.numel() > 0 and not any(flags.stride())  # one expanded element, as returned by `scope`
    return bool(flags[(0,) * flags.dim()] if single else flags.all())


def _require_inside(name: str, chosen: Tensor, inside: Tensor) -> None:
    if not bool((~chosen | inside).all()):
        raise UserError(
            f"the selection of {name!r} has positions outside its scope; only prunable weights can be selected"
        )


def nums_true(tensors: Sequence[Tensor]) -> list[int]:
    """Number of True entries of each tensor. Waits for each device once."""
    # Not `sum`, which first converts to int64.
    counts = [torch.count_nonzero(tensor) for tensor in tensors]
    if len({count.device for count in counts}) != 1:
        return [int(count) for count in counts]
    found: list[int] = torch.stack(counts).tolist()
    return found


def _layer_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of linear and convolution layers by name; tied weights once, as in `named_parameters`."""
    require_module(model)
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    weights = {id(module.weight) for module in model.modules() if isinstance(module, layers)}
    found = {name: parameter for name, parameter in model.named_parameters() if id(parameter) in weights}
    if not found:
        raise UserError(f"{type(model).__name__} has no linear or convolution weight to mask; pass a scope")
    return found


# Mask files: one safetensors file, eight positions per byte, verified by SHA-256 when read. A scope is stored only for
# the tensors that are partly outside it.

_KIND = "pathgrow.masks"
_VERSION = 1

_Flags = Mapping[str, Tensor]


def _digest(masks: _Flags, scope: _Flags) -> str:
    """SHA-256 of names, shapes and bits, sorted by name."""
    sha = hashlib.sha256()
    for name in sorted(masks):
        heading = [name, list(masks[name].shape), name in scope]
        sha.update(json.dumps(heading).encode() + b"\n")
        for group in (masks, scope):
            if name in group:
                sha.update(_packed(group[name]).tobytes())
    return sha.hexdigest()


def _write(path: Path, masks: _Flags, scope: _Flags) -> None:
    """Write a file atomically; `scope` holds only the tensors that are partly outside it."""
    payload = {f"mask/{name}": torch.from_numpy(_packed(flags)) for name, flags in masks.items()}
    payload |= {f"scope/{name}": torch.from_numpy(_packed(flags)) for name, flags in scope.items()}
    shapes = {name: list(flags.shape) for name, flags in masks.items()}
    about = {"version": _VERSION, "shapes": shapes, "sha256": _digest(masks, scope)}
    # A single metadata entry: safetensors writes several in random order, and equal masks should give equal files.
    content = to_safetensors(payload, metadata={_KIND: json.dumps(about)})
    try:
        atomic.replace(path, content)
    except OSError as error:
        # A wrong path is the caller's mistake; a full or failing disk is not.
        kind = RunFailed if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO} else UserError
        raise kind(f"cannot write masks to {str(path)!r} ({error.strerror or error})") from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read the masks and the scope of a file."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return _contents(file)
    except FileNotFoundError:
        raise UserError(f"no mask file at {str(path)!r}") from None
    except OSError as error:
        raise UserError(f"cannot read masks from {str(path)!r} ({error})") from error
    except (safetensors.SafetensorError, _NotMasks) as error:
        raise UserError(f"{str(path)!r} is not a valid mask file ({error})") from error


class _NotMasks(Exception):
    """Why a safetensors file cannot be read as masks."""


def _contents(file: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    about = _about(file.metadata())
    stored = set(file.keys())
    masks: dict[str, Tensor] = {}
    scope: dict[str, Tensor] = {}
    for name, shape in about["shapes"].items():
        masks[name] = _unpacked(file, stored, f"mask/{name}", shape)
        if f"scope/{name}" in stored:
            scope[name] = _unpacked(file, stored, f"scope/{name}", shape)
    if _digest(masks, scope) != about["sha256"]:
        raise _NotMasks("checksum mismatch")
    return masks, scope


def _about(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The metadata, checked field by field: files may come from anywhere."""
    if metadata is None or _KIND not in metadata:
        raise _NotMasks("no mask metadata")
    try:
        about = json.loads(metadata[_KIND])
    except (ValueError, RecursionError):
        raise _NotMasks("unreadable metadata") from None
    if not isinstance(about, dict) or about.keys() != {"version", "shapes", "sha256"}:
        raise _NotMasks("incomplete metadata")
    if about["version"] != _VERSION:
        raise _NotMasks(f"format {about['version']!r}, expected {_VERSION}")
    shapes = about["shapes"]
    if not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        raise _NotMasks("malformed shapes")
    return about


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _packed(flags: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.packbits(flags.detach().cpu().reshape(-1).numpy())


def _unpacked(file: Any, stored: set[str], key: str, shape: list[int]) -> Tensor:
    if key not in stored:
        raise _NotMasks(f"{key!r} is missing")
    num = math.prod(shape)
    piece = file.get_slice(key)
    # Checked before anything is allocated: a forged shape must not cost memory.
    if piece.get_dtype() != "U8" or piece.get_shape() != [-(-num // 8)]:
        raise _NotMasks(f"{key!r} does not have shape {shape}")
    return torch.from_numpy(np.unpackbits(file.get_tensor(key), count=num).view(np.bool_)).reshape(shape)
