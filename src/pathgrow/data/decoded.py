"""Decoded images kept in one file beside the data: a folder of 100,000 JPEGs is decoded once, not at every start.

The file stands for exact inputs: it carries a fingerprint of the names and sizes of all images and a SHA-256 of the
pixels, so that a changed folder or a damaged file leads to decoding anew, never to wrong pixels. Processes that want
the same images at once wait for the first, which writes beside the final name and renames; where the folder cannot be
written or locked, each decodes for itself.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pathgrow import atomic
from pathgrow.data.dataset import Paths
from pathgrow.data.decode import read_many
from pathgrow.data.waiting import turn
from pathgrow.errors import UserError

FILE = ".pathgrow-images.safetensors"
_LOCK = ".pathgrow-images.lock"
MIN_IMAGES = 5_000
"""Fewer decode in a second or two, which is not worth a file."""


def images(paths: Paths, size: tuple[int, int], advice: str) -> Tensor:
    """The images (N, 3, H, W) at `paths`, all of this height and width, from the file in their folder where it fits."""
    if len(paths) < MIN_IMAGES:
        return torch.from_numpy(read_many(paths, size, advice))
    folder = paths.folder
    wanted = _fingerprint(paths, size, advice)
    found = _stored(folder / FILE, wanted)
    if found is not None:
        return found
    with turn(folder / _LOCK) as locked:
        if locked:
            found = _stored(folder / FILE, wanted)  # another process was faster
            if found is not None:
                return found
        decoded = torch.from_numpy(read_many(paths, size, advice))
        if locked:
            _store(folder / FILE, decoded, wanted)
    return decoded


def _fingerprint(paths: Paths, size: tuple[int, int], advice: str) -> str:
    """Of what is to be decoded. Without the times of the files: a copied folder keeps its decoded images."""
    digest = hashlib.sha256(repr(size).encode())
    folder = os.fsencode(paths.folder)
    for name in paths.encoded:  # no Path objects: they take four times as long as asking for the size
        try:
            num_bytes = os.stat(os.path.join(folder, name)).st_size
        except OSError as error:
            raise UserError(
                f"{os.fsdecode(name)} in {paths.folder} cannot be read ({error.strerror}): {advice}"
            ) from error
        digest.update(b"%d %b\0" % (num_bytes, name))
    return digest.hexdigest()


def _stored(path: Path, fingerprint: str) -> Tensor | None:
    """The images of the file, if it is whole and stands for these inputs."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") != fingerprint:
                return None
            pixels: Tensor = file.get_tensor("images")
    except (OSError, SafetensorError):
        return None
    return pixels if metadata.get("sha256") == _digest(pixels) else None


def _store(path: Path, pixels: Tensor, fingerprint: str) -> None:
    # Only the holder of the lock comes here: what other writers began was left by killed ones.
    for left_over in path.parent.glob(f"{path.name}.*.tmp"):
        atomic.discard(left_over)
    metadata = {"fingerprint": fingerprint, "sha256": _digest(pixels)}
    try:
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            save_file({"images": pixels}, temporary, metadata=metadata)
            os.chmod(temporary, 0o644)  # others who read the data may read this too
            atomic.install(temporary, path)
        finally:
            atomic.discard(temporary)
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"decoded images could not be kept in {path} ({error}): the next start decodes again", stacklevel=2
        )


def _digest(pixels: Tensor) -> str:
    return hashlib.sha256(pixels.numpy().data).hexdigest()
