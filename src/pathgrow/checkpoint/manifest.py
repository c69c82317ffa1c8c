"""The files of a run directory: which there may be, and the manifest with the SHA-256 of each, written last.

`manifest.sha256` has the format of `sha256sum`, so `sha256sum --check manifest.sha256` in the run directory verifies it
without pathgrow. Loading a network refuses files that do not match.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pathgrow import atomic
from pathgrow.checkpoint import strict_json
from pathgrow.errors import UserError

if TYPE_CHECKING:  # torch takes seconds to import, which verifying hashes should not
    from torch import nn

    from pathgrow.masks import Masks

MANIFEST = "manifest.sha256"
FILES = (
    "config.json", "env.json", "metrics.jsonl", "curve.csv", "curve.png", "network.safetensors",
    "network_masks.safetensors", "report.html", "report.json",
)  # fmt: skip
"""Files that a run may write, apart from the lock and the manifest."""
FOLDERS = ("masks", "stages")
_LINE = re.compile(r"([0-9a-f]{64})  ((?:[\w-]+/)?[\w-]+(?:\.[\w-]+)+)", re.ASCII)


def check_entries(root: Path) -> None:
    """Refuse a directory of other files, and one in which a name of ours is a link, a pipe or a device."""
    if root.exists() and not root.is_dir():
        raise UserError(
            f"{root} is a file, not a directory: choose another directory (--out or store=), or move the file"
        )
    names = _names(root)
    for name in {*FILES, *FOLDERS, MANIFEST, ".lock"} & set(names):
        _check_entry(root / name)
    for folder in FOLDERS:
        for name in _names(root / folder):
            _check_entry(root / folder / name)
    visible = [name for name in names if not name.startswith(".")]
    if visible and "config.json" not in visible:
        raise UserError(
            f"{root} holds {visible[0]!r} but no config.json, so it is not a run directory: "
            "choose a new or empty directory (--out or store=)"
        )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):  # or removed at this moment, by another run that was refused
        return []


def _check_entry(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:  # a temporary file of the process that works here
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
        raise UserError(
            f"{path} is {kind}, and a run writes regular files only: remove it, or choose another directory "
            "(--out or store=)"
        )


def write_manifest(root: Path) -> None:
    """Write the hash of every file of a finished run.

    If there is a manifest, it stays in force for all files but those of stages, which may be trained again, and their
    metrics: hashing a damaged file once more would declare it valid.
    """
    before = read_manifest(root) or {}
    hashes = {name: _sha256(root, name) for name in _present(root)} | {
        name: digest for name, digest in before.items() if not name.startswith(("stages/", "metrics.jsonl"))
    }
    atomic.write_text(root / MANIFEST, "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items())))


def read_manifest(root: Path) -> dict[str, str] | None:
    """Return the hash of each file by name, or None without a manifest; a damaged manifest is a `UserError`."""
    path = root / MANIFEST
    try:
        lines = atomic.read_bytes(path).decode("ascii", "replace").split("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise strict_json.unreadable(path, error) from error
    found = {}
    for number, line in enumerate(lines[:-1], 1):
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise UserError(f"{path} is damaged: line {number} is not a SHA-256 and the name of a file")
        found[parts[2]] = parts[1]
    if lines[-1] or not found:
        raise UserError(f"{path} is damaged: its last line is incomplete")
    return found


def damaged_files(root: Path) -> dict[str, str]:
    """Return what is wrong with each file that does not match the manifest; without a manifest nothing is known."""
    if (listed := read_manifest(root)) is None:
        return {}
    # A manifest that was cut between two lines looks complete.
    found = {name: f"is not listed in {MANIFEST}" for name in _present(root) if name not in listed}
    for name, digest in listed.items():
        try:
            if _sha256(root, name) != digest:
                found[name] = f"does not match its SHA-256 in {MANIFEST}"
        except FileNotFoundError:
            found[name] = "is missing"
        except OSError as error:
            found[name] = f"cannot be read: {error.strerror or error}"
    return found


def check_hash(root: Path, *names: str) -> None:
    """Refuse files that do not match the manifest of their run, if there is one."""
    if (listed := read_manifest(root)) is None:
        return
    for name in names:
        try:
            is_intact = _sha256(root, name) == listed.get(name)
        except OSError as error:
            raise strict_json.unreadable(root / name, error) from error
        if not is_intact:
            raise UserError(
                f"{root / name} does not match its SHA-256 in {MANIFEST}: restore it, or delete report.json and rerun "
                "the command of this run"
            )


def load_network(path: str | os.PathLike[str], model: nn.Module) -> Masks:
    """Load the network that a finished run returned.

    Parameters
    ----------
    path
        The run directory of `pathgrow discover`, `pathgrow train` or `pathgrow.discover`.
    model
        A model of the same architecture, whose parameters and buffers are overwritten.

    Returns
    -------
    Masks
        The masks of the network, for example for `pathgrow.methods.fixed`.

    Raises
    ------
    UserError
        If the run is unfinished, a file does not match its hash in the manifest, or the model is another one.
    """
    import safetensors.torch
    from torch import Tensor

    from pathgrow.masks.masks import Masks, require_module

    root = atomic.checked_path(path)
    require_module(model)
    weights, masks = root / "network.safetensors", root / "network_masks.safetensors"
    if not (root / MANIFEST).is_file():
        raise UserError(f"{root} has no {MANIFEST}, so it is not a finished run; rerun its command to finish it")
    check_hash(root, weights.name, masks.name)
    state, stored = model.state_dict(), dict[str, Tensor]()
    try:
        stored = safetensors.torch.load_file(weights)
        model.load_state_dict(stored | {name: value for name, value in state.items() if not isinstance(value, Tensor)})
    except (RuntimeError, safetensors.SafetensorError) as error:
        there = {name: tuple(value.shape) for name, value in stored.items()}
        here = {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}
        if stored and (change := architecture_difference(there, here)):
            raise UserError(f"{weights} was saved from another architecture: {change}") from error
        reason = " ".join(str(error).split())
        raise UserError(f"{weights} does not fit {type(model).__name__}: {reason}") from error
    return Masks.load(masks)


def architecture_difference(there: Mapping[str, tuple[int, ...]], here: Mapping[str, tuple[int, ...]]) -> str | None:
    """The first difference between the tensors of two models, by name and shape, and how many more there are.

    >>> architecture_difference({"0.weight": (64, 8), "0.bias": (64,)}, {"0.weight": (32, 8), "1.bias": (64,)})
    '0.weight is 64x8 there and 32x8 here (and 2 more)'
    """
    names = [name for name in dict.fromkeys((*here, *there)) if there.get(name) != here.get(name)]
    if not names:
        return None
    first, second = (_shape(shapes.get(names[0])) for shapes in (there, here))
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]} is {first} there and {second} here{more}"


def _shape(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "missing"
    return "x".join(map(str, shape)) if shape else "a single number"


def _present(root: Path) -> list[str]:
    """The files of a run that a manifest lists."""
    inside = [f"{path.parent.name}/{path.name}" for folder in FOLDERS for path in (root / folder).glob("[!.]*.*")]
    return [name for name in FILES if (root / name).is_file()] + [
        name for name in inside if name.endswith((".json", ".safetensors"))
    ]


def _sha256(root: Path, name: str) -> str:
    path = root / name
    if path.parent != root and path.parent.is_symlink():
        raise OSError(f"{path.parent.name} is a symbolic link")
    with open(path, "rb", opener=atomic.plain) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
