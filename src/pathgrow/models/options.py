"""Checks of what models are built from; each failure is one sentence."""

from __future__ import annotations

from pathgrow.errors import UserError, is_int, is_number


def check_option(key: str, value: object, like: object) -> None:
    """Sizes must be whole and positive, and the other options of the kind of their default."""
    wanted, fits = {
        bool: ("true or false", isinstance(value, bool)),
        int: ("a whole number of at least 1", _is_size(value)),
        float: ("a finite number", is_number(value)),
        str: ("a text", isinstance(value, str)),
        tuple: ("a list of whole numbers of at least 1", _is_sizes(value)),
    }[type(like)]
    if not fits:
        raise UserError(f"{key} is {value!r}: give {wanted}")


def check_probability(key: str, value: float) -> None:
    """Of dropping something: never all of it."""
    if not 0 <= value < 1:
        raise UserError(f"{key} is {value}: give a probability from 0 up to, not including, 1")


def check_patch(image_size: int, patch: int) -> None:
    """Patches tile the image."""
    if image_size % patch:
        raise UserError(f"image_size {image_size} is no multiple of patch {patch}: choose a patch size that divides it")


def check_heads(dim: int, heads: int) -> None:
    """Every head gets the same number of units."""
    if dim % heads:
        raise UserError(f"dim {dim} is no multiple of heads {heads}: choose a number of heads that divides it")


def hidden_units(dim: int, mlp_ratio: float) -> int:
    """Hidden units of a transformer block's MLP."""
    hidden = round(mlp_ratio * dim)
    if hidden < 1:
        raise UserError(f"mlp_ratio is {mlp_ratio}: give a positive number that leaves at least one hidden unit")
    return hidden


def _is_size(value: object) -> bool:
    return is_int(value) and value >= 1


def _is_sizes(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_size(item) for item in value)
