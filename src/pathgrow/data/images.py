"""Images from files by Pillow: whole or cropped, one at a time or a whole directory with a decoded copy on disk.

Images are uint8 arrays (C, H, W). A file that cannot be decoded raises a `UserError` of one sentence.
"""

import hashlib
import importlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pathgrow import atomic
from pathgrow.data.dataset import Paths
from pathgrow.distributed.cpus import available_cpus
from pathgrow.errors import UserError, torchvision_mismatch

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
"""File name extensions of images, in lower case."""
FILE_ADVICE = "replace the file, or delete it to exclude it"

# An explicit list keeps files from choosing decoders that start programs (EPS) or follow links.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_CHUNK = 128
"""Images per task of the thread pool, enough to make its overhead negligible."""

CACHE_FILE = ".pathgrow-images.safetensors"
_CACHE_LOCK = ".pathgrow-images.lock"
_MIN_CACHED = 5_000
"""Fewer images are decoded within seconds, which is not worth a file."""

_CROP_AREA = (0.08, 1.0)
"""Fraction of the image that a random crop covers, as in Inception and ImageNet training."""
_CROP_ASPECT = (3 / 4, 4 / 3)
"""Width divided by height of a random crop."""
_EVALUATION_MARGIN = 256 / 224
"""For evaluation, the shorter side is scaled to this multiple of the size of the center crop."""
_CROP_TRIES = 10


class WrongSize(UserError):
    """An image does not have the size of the others."""


class Box(NamedTuple):
    """A part of an image in pixels from the top left corner; fractions are allowed."""

    left: float
    top: float
    right: float
    bottom: float


ChooseBox = Callable[[int, int], Box]
"""Maps the height and width of an image to the part to read."""
Decoder = Callable[[Path], Tensor]
"""Maps a file to its image, uint8 (C, H, W)."""


# Whole images.


@contextmanager
def open_image(path: Path, advice: str = FILE_ADVICE) -> Iterator[Image.Image]:
    """Open an image of at most 8 bits per channel; errors inside the block become a sentence that ends in `advice`."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                # Pillow would clip all values above 255.
                raise UserError(f"{path} has more than 8 bits per channel (mode {image.mode}): convert it to 8 bits")
            yield image
    except UserError:
        raise
    except Exception as error:  # Pillow raises almost anything for a damaged file
        # On one line, without the path that Pillow repeats.
        reason = " ".join(str(error).replace(repr(str(path)), "it").split()) or type(error).__name__
        raise UserError(f"cannot decode {path} ({reason}): {advice}") from error


def image_size(path: Path) -> tuple[int, int]:
    """Return height and width from the header of an image."""
    with open_image(path) as image:
        return image.height, image.width


def read_exact(path: Path, size: tuple[int, int], advice: str = FILE_ADVICE) -> NDArray[np.uint8]:
    """Read an image (3, H, W) that must have this height and width; gray becomes RGB."""
    with open_image(path, advice) as image:
        if (image.height, image.width) != size:
            raise WrongSize(
                f"{path} must have {size[1]} x {size[0]} pixels, got {image.width} x {image.height}: {advice}"
            )
        pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))


# Many images of one size.


def read_images(paths: Paths, size: tuple[int, int], advice: str = FILE_ADVICE) -> Tensor:
    """Read images (N, 3, H, W) that all have this size, and keep a decoded copy in their directory.

    The copy is used only for exactly the same inputs: it contains a fingerprint of all names and file sizes and a
    SHA-256 of the pixels. Processes that start at the same time wait for the first one to write it; if the directory
    cannot be written or locked, each process decodes for itself.
    """
    if len(paths) < _MIN_CACHED:
        return decode_all(paths, size, advice)
    cache = paths.folder / CACHE_FILE
    fingerprint = _fingerprint(paths, size, advice)
    cached = _load_cache(cache, fingerprint)
    if cached is not None:
        return cached
    with lock_between_processes(paths.folder / _CACHE_LOCK) as is_locked:
        cached = _load_cache(cache, fingerprint) if is_locked else None  # another process may have been faster
        if cached is not None:
            return cached
        images = decode_all(paths, size, advice)
        if is_locked:
            _save_cache(cache, images, fingerprint)
    return images


def decode_all(paths: Sequence[Path], size: tuple[int, int], advice: str = FILE_ADVICE) -> Tensor:
    """Decode images (N, 3, H, W) of the same size on all available cores."""
    images = np.empty((len(paths), 3, *size), dtype=np.uint8)

    def fill(start: int) -> None:
        for index in range(start, min(start + _CHUNK, len(paths))):
            images[index] = read_exact(paths[index], size, advice)

    # Threads suffice: Pillow releases the GIL while it reads and decodes.
    pool = ThreadPoolExecutor(max_workers=available_cpus())
    try:
        for _ in pool.map(fill, range(0, len(paths), _CHUNK)):
            pass
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # stop early at the first bad file
    return torch.from_numpy(images)


@contextmanager
def lock_between_processes(path: Path) -> Iterator[bool]:
    """Hold an exclusive file lock; yield False if the file system does not allow one."""
    lock = FileLock(path)
    try:
        lock.acquire()
    except (OSError, NotImplementedError):  # a read-only directory, or a file system without locks
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _fingerprint(paths: Paths, size: tuple[int, int], advice: str) -> str:
    """Hash names and file sizes. Modification times are not included, so a copied directory keeps its cache."""
    digest = hashlib.sha256(repr(size).encode())
    folder = os.fsencode(paths.folder)
    for name in paths.encoded:  # bytes, because creating Path objects takes four times as long as stat
        try:
            num_bytes = os.stat(os.path.join(folder, name)).st_size
        except OSError as error:
            raise UserError(
                f"cannot read {os.fsdecode(name)} in {paths.folder} ({error.strerror}): {advice}"
            ) from error
        digest.update(b"%d %b\0" % (num_bytes, name))
    return digest.hexdigest()


def _load_cache(path: Path, fingerprint: str) -> Tensor | None:
    """Return the cached images if the file is intact and was made from the same inputs."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") != fingerprint:
                return None
            images: Tensor = file.get_tensor("images")
    except (OSError, SafetensorError):
        return None
    return images if metadata.get("sha256") == _sha256(images) else None


def _save_cache(path: Path, images: Tensor, fingerprint: str) -> None:
    # This process holds the lock, so other temporary files were left by killed processes.
    for left_over in path.parent.glob(f"{path.name}.*.tmp"):
        atomic.discard(left_over)
    metadata = {"fingerprint": fingerprint, "sha256": _sha256(images)}
    try:
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            save_file({"images": images}, temporary, metadata=metadata)
            os.chmod(temporary, 0o644)  # readable for everyone who can read the data
            atomic.install(temporary, path)
        finally:
            atomic.discard(temporary)
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"cannot save decoded images in {path} ({error}); they will be decoded again next time", stacklevel=2
        )


def _sha256(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().data).hexdigest()


# Crops.


def random_box(height: int, width: int, generator: torch.Generator) -> Box:
    """Draw a box of random area, aspect ratio and position; if ten tries do not fit, return the largest central one.

    >>> random_box(300, 400, torch.Generator().manual_seed(0))
    Box(left=32, top=4, right=268, bottom=260)
    """
    # All at once, so the state of the generator does not depend on the number of tries.
    area, aspect, down, right = torch.rand(4, _CROP_TRIES, dtype=torch.float64, generator=generator).tolist()
    low, high = map(math.log, _CROP_ASPECT)
    for number in range(_CROP_TRIES):
        pixels = height * width * (_CROP_AREA[0] + (_CROP_AREA[1] - _CROP_AREA[0]) * area[number])
        ratio = math.exp(low + (high - low) * aspect[number])
        wide, tall = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top, left = int(down[number] * (height - tall + 1)), int(right[number] * (width - wide + 1))
            return Box(left, top, left + wide, top + tall)
    wide = min(width, max(1, round(height * _CROP_ASPECT[1])))
    tall = min(height, max(1, round(width / _CROP_ASPECT[0])))
    left, top = (width - wide) // 2, (height - tall) // 2
    return Box(left, top, left + wide, top + tall)


def center_box(height: int, width: int, size: tuple[int, int]) -> Box:
    """Return the part of an image that remains after scaling its shorter side and cropping the center.

    >>> center_box(256, 512, (224, 224))
    Box(left=144.0, top=16.0, right=368.0, bottom=240.0)
    """
    scale = _EVALUATION_MARGIN * max(size[0] / height, size[1] / width)
    wide, tall = round(width * scale), round(height * scale)
    left, top = round((wide - size[1]) / 2), round((tall - size[0]) / 2)
    across, down = width / wide, height / tall
    return Box(left * across, top * down, (left + size[1]) * across, (top + size[0]) * down)


def read_crop(path: Path, choose: ChooseBox, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Read a part of an image, resized to `shape` (C, H, W), with Pillow."""
    channels, height, width = shape
    with open_image(path) as image:
        full = image.size
        box = choose(full[1], full[0])
        shrink = min((box.bottom - box.top) / height, (box.right - box.left) / width)
        if shrink >= 2:
            # JPEGs decode at 1/2, 1/4 or 1/8 of their size in a fraction of the time.
            image.draft(None, (math.ceil(full[0] / shrink), math.ceil(full[1] / shrink)))
            across, down = image.width / full[0], image.height / full[1]
            box = Box(box.left * across, box.top * down, box.right * across, box.bottom * down)
        plain = image.convert("L" if channels == 1 else "RGB")
        pixels = np.asarray(plain.resize((width, height), Image.Resampling.BILINEAR, box=box))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_crop(path: Path, choose: ChooseBox, shape: tuple[int, int, int], decoder: Decoder) -> NDArray[np.uint8]:
    """Read a part of an image, resized to `shape` (C, H, W), with a decoder that returns whole images."""
    channels, height, width = shape
    try:
        image = decoder(path)
    except (RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot decode {path} ({reason}): {FILE_ADVICE}") from error
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, channels):
        raise UserError(
            f"the decoder must return torch.uint8 of shape ({channels}, height, width), got {image.dtype} of shape "
            f"{tuple(image.shape)} for {path}"
        )
    box = choose(image.shape[1], image.shape[2])
    left, top, right, bottom = math.floor(box.left), math.floor(box.top), math.ceil(box.right), math.ceil(box.bottom)
    part = image[None, :, top:bottom, left:right]
    scaled = F.interpolate(part, (height, width), mode="bilinear", antialias=True)[0].expand(shape)
    pixels: NDArray[np.uint8] = scaled.numpy()
    return pixels


def torchvision_decoder() -> Decoder:
    """Return the decoder of torchvision (requires the `torchvision` extra)."""
    try:
        importlib.import_module("torchvision.io")
    except ImportError as error:
        raise UserError(
            "decoder 'torchvision' requires torchvision: pip install 'pathgrow[torchvision]', or use 'pillow'"
        ) from error
    except RuntimeError as error:
        raise torchvision_mismatch(torch.__version__, error) from error
    return _decode_by_torchvision


def _decode_by_torchvision(path: Path) -> Tensor:
    io = importlib.import_module("torchvision.io")  # imported by name, because modules cannot be sent to workers
    image: Tensor = io.decode_image(io.read_file(str(path)), mode=io.ImageReadMode.RGB)
    return image
