"""Images from files, by Pillow: three channels, bytes, channel first; a file that is none is one sentence."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pathgrow.errors import UserError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
"""What counts as an image in a folder, in any case."""

# Named, so that no file can choose a decoder that starts programs (EPS) or follows links.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# What Pillow's decoders raise on damaged files; OSError covers "unidentified" and "truncated".
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    ArithmeticError,
    MemoryError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_CHUNK = 128
"""Images for one turn of a thread: enough that handing over costs nothing."""


class WrongSize(UserError):
    """An image has another size than the others."""


def read_exact(path: Path, size: tuple[int, int], advice: str) -> NDArray[np.uint8]:
    """An image (3, H, W) that must have this height and width; grey becomes RGB."""
    with opened(path, advice) as image:
        if (image.height, image.width) != size:
            raise WrongSize(
                f"{path} has {image.width} x {image.height} pixels, {size[1]} x {size[0]} are wanted: {advice}"
            )
        return _channels_first(image)


def read_fitted(path: Path, size: tuple[int, int]) -> NDArray[np.uint8]:
    """An image (3, H, W) of any size, scaled until it covers this height and width, then cropped at the centre."""
    height, width = size
    with opened(path, "replace it, or delete it to leave it out") as image:
        scale = max(height / image.height, width / image.width)
        wide, high = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        left, top = (wide - width) // 2, (high - height) // 2
        scaled = image.convert("RGB").resize((wide, high), Image.Resampling.BILINEAR)
        return _channels_first(scaled.crop((left, top, left + width, top + height)))


def size_of(path: Path, advice: str) -> tuple[int, int]:
    """Height and width, from the header alone."""
    with opened(path, advice) as image:
        return image.height, image.width


def read_many(paths: Sequence[Path], size: tuple[int, int], advice: str) -> NDArray[np.uint8]:
    """Images (N, 3, H, W) that all have this size, decoded on all cores."""
    images = np.empty((len(paths), 3, *size), dtype=np.uint8)

    def fill(start: int) -> None:
        for index in range(start, min(start + _CHUNK, len(paths))):
            images[index] = read_exact(paths[index], size, advice)

    # Threads: Pillow lets go of the interpreter while it reads and decodes, and nothing is copied between processes.
    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    try:
        for _ in pool.map(fill, range(0, len(paths), _CHUNK)):
            pass
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # the first bad file ends the others soon
    return images


@contextmanager
def opened(path: Path, advice: str) -> Iterator[Image.Image]:
    """An image of at most 8 bits per channel; what goes wrong with it inside is a sentence that ends with `advice`."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                # Pillow would cut every value above 255.
                raise UserError(f"{path} has more than 8 bits per channel (mode {image.mode}): convert it to 8 bits")
            yield image
    except UserError:
        raise
    except _DAMAGE as error:
        # The reason on one line, without Pillow's repetition of the name.
        reason = " ".join(str(error).replace(repr(str(path)), "it").split()) or type(error).__name__
        raise UserError(f"{path} cannot be read as an image ({reason}): {advice}") from error


def _channels_first(image: Image.Image) -> NDArray[np.uint8]:
    pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
