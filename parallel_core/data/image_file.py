"""Image files: images with their classes, memory-mapped from a worker's data folder.

    8 bytes   "TYIMAGES"
    u4        version, 1
    u4        bytes of a number of a pixel: 1 (unsigned) or 4 (float)
    u8        images in the file, N
    4 x u4    height H, width W, channels C, classes: every label is below them
    C x f8    mean of each channel over all images, in the units of the pixels
    C x f8    its deviation, 1 for a channel that is the same everywhere
    N x u4    labels
    the rest  pixels [N, C, H, W]; all numbers little-endian

A spec names one as `images:<name>`, which is `<name>.images` in the worker's folder of corpora: never by a path.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_core import limits
from parallel_core.atomic_file import whole_file
from parallel_core.data.content import fingerprint
from parallel_core.data.corpus import CorpusError
from parallel_core.data.file_listing import MOST_LISTED, Known, Listing, path_of
from parallel_core.data.file_listing import listing as listing_of
from parallel_core.data.held_out import HeldOut, last_samples
from parallel_core.data.images import enlarged, enlarging
from parallel_core.data.moments import Moments

_HEAD = struct.Struct("<8sIIQIIII")
MAGIC, VERSION, SUFFIX = b"TYIMAGES", 1, ".images"
TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 4: np.dtype("<f4")}
NO_SQUARE = "crop or pad them to a square and pack again."
_LABEL, _MOMENT = np.dtype("<u4"), np.dtype("<f8")


class ImageFile(NamedTuple):
    """`pixels` [N, C, H, W] and `labels` [N], memory-mapped; mean and deviation [C] f4 of the pixels of a channel."""

    pixels: np.ndarray
    labels: np.ndarray
    classes: int
    mean: np.ndarray
    deviation: np.ndarray

    def content(self) -> str:
        """Returns 16 hexadecimal digits of what is in it."""
        return fingerprint(self.labels, self.pixels)


class Shape(NamedTuple):
    """What the first bytes of a file say of the rest: images of height x width pixels with so many channels."""

    item: int
    images: int
    height: int
    width: int
    channels: int
    classes: int

    @property
    def pixels(self) -> tuple[int, int, int, int]:
        """Shape of the array of pixels."""
        return self.images, self.channels, self.height, self.width

    @property
    def labels_at(self) -> int:
        """Position of the first label."""
        return _HEAD.size + 2 * self.channels * _MOMENT.itemsize

    @property
    def pixels_at(self) -> int:
        """Position of the first pixel."""
        return self.labels_at + self.images * _LABEL.itemsize

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.pixels_at + math.prod(self.pixels) * self.item


def open(name: str, folder: Path | None) -> ImageFile:
    """Returns corpus `images:<name>`. Raises CorpusError where it is missing or damaged."""
    path = path_of("images", name, folder)
    shape = _shape(path)
    mean, deviation = _moments(path, shape)
    labels = np.memmap(path, _LABEL, "r", shape.labels_at, (shape.images,))
    pixels = np.memmap(path, TYPES[shape.item], "r", shape.pixels_at, shape.pixels)
    return ImageFile(pixels, labels, shape.classes, mean, deviation)


def _moments(path: Path, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Returns (mean, deviation) [C] f4, by which pixels are normalised. Raises CorpusError where f4 holds them not."""
    with np.errstate(over="ignore"):  # refused below
        both = np.fromfile(path, _MOMENT, 2 * shape.channels, offset=_HEAD.size).astype(np.float32)
    mean, deviation = both.reshape(2, -1)
    if not (np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation > 0).all()):
        raise CorpusError(f"{path.name} is damaged: its mean or deviation is no number; make it again.")
    return mean, deviation


def _shape(path: Path) -> Shape:
    """Reads the beginning of a file. Raises CorpusError where it is none, or has another size than that says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise CorpusError(f"{path.name} is no image file: it does not begin with {MAGIC.decode()}; use pack-images.")
    _, version, item, *counts = _HEAD.unpack(head)
    shape = Shape(item, *counts)
    if version != VERSION or item not in TYPES or min(shape[2:]) < 1:
        raise CorpusError(f"{path.name} is no image file of this version: version {version}, {item} bytes a number.")
    require_sizes(path.name, shape.channels, shape.height, shape.width)
    if size != shape.size:
        told = f"{shape.images} images of {shape.channels} x {shape.height} x {shape.width}"
        raise CorpusError(f"{path.name} is cut short or damaged: {size} bytes instead of {shape.size} for its {told}.")
    if not shape.images:
        raise CorpusError(f"{path.name} is empty; a corpus needs at least one image.")
    return shape


def require_sizes(what: str, channels: int, height: int, width: int) -> None:
    """Raises CorpusError where images are larger than those of any model."""
    side = limits.MAX_IMAGE
    if channels > limits.MAX_CHANNELS or max(height, width) > side:
        raise CorpusError(
            f"{what} is of images of {channels} x {height} x {width}, and the largest that a model takes are "
            f"{limits.MAX_CHANNELS} x {side} x {side}."
        )


def listing(folder: Path, known: Known) -> Listing:
    """Returns {name, images, height, width, channels, classes} of the image files of a data folder, at most
    MOST_LISTED: `file_listing.listing`."""
    return listing_of(folder, known, "images", _entry, MOST_LISTED)


def _entry(name: str, folder: Path) -> dict[str, Any]:
    found = open(name, folder)
    count, channels, height, width = found.pixels.shape
    sizes = {"images": count, "height": height, "width": width, "channels": channels}
    return {"name": name, **sizes, "classes": found.classes, "values": found.content()}


def pack(parts: Iterable[np.ndarray], labels: np.ndarray, target: Path) -> Shape:
    """Writes an image file of all `parts` [n, C, H, W], u1 or f4 of the same C, H and W, and their labels [N].

    Normalisation is over all images, those held out included, as it is made before a run chooses how many. Raises
    CorpusError where labels or pixels cannot be trained on, and where the file cannot be written.
    """
    shape, moments = None, Moments()
    classes = checked_classes(labels)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as out:
            for part in parts:
                if shape is None:
                    _, channels, height, width = part.shape
                    shape = Shape(part.dtype.itemsize, len(labels), height, width, channels, classes)
                    out.seek(shape.labels_at)
                    out.write(labels.astype(_LABEL).tobytes())
                _require_finite(part, moments.images)
                moments.add(part)
                out.write(part.astype(TYPES[shape.item]).tobytes())
            if shape is None or moments.images != len(labels):
                raise CorpusError(f"there are {moments.images} images and {len(labels)} labels; each needs one.")
            out.seek(0)
            out.write(_HEAD.pack(MAGIC, VERSION, *shape))
            out.write(np.stack([moments.mean, moments.deviation]).astype(_MOMENT).tobytes())
    except OSError as error:
        raise CorpusError(f"{target} cannot be written ({error.strerror}).") from error
    return shape


def _require_finite(part: np.ndarray, before: int) -> None:
    """Raises CorpusError where a pixel is infinite or no number; `before`: how many images come before these."""
    wrong = ~np.isfinite(part).all((1, 2, 3))
    if wrong.any():
        raise CorpusError(f"image {before + int(wrong.argmax())} has pixels that are infinite or no number.")


def require_labels(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raises CorpusError where an array is none of labels, one whole number an image."""
    if len(shape) != 1 or dtype.kind not in "iu":
        raise CorpusError(f"labels are whole numbers [images], and these are {dtype} {list(shape)}.")


def checked_classes(labels: np.ndarray) -> int:
    """Returns the number of classes: one more than the largest label. Raises CorpusError where a label is none."""
    require_labels(labels.dtype, labels.shape)
    if not len(labels):
        raise CorpusError("there are no labels; a corpus needs at least one image.")
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= limits.MAX_CLASSES:
        raise CorpusError(f"labels are from 0 to {limits.MAX_CLASSES - 1}, and these from {least} to {most}.")
    return most + 1


class FileImages:
    """Images of corpus `images:<name>` for a model with `classes`, of `channels` x `side` x `side` numbers.

    Pixels are normalised by channel to mean 0 and deviation 1 over the whole file. Smaller images are enlarged by
    linear interpolation, as the digits are. Raises CorpusError as `open` does, and where they do not suit the model.
    """

    def __init__(self, side: int, channels: int, classes: int, name: str, folder: Path | None) -> None:
        self._file, self._name = open(name, folder), name
        self.length, has, height, width = self._file.pixels.shape
        sizes = {"height": height, "width": width, "channels": has, "classes": self._file.classes}
        for said in unsuitable(sizes, side, channels, classes).values():
            raise CorpusError(f"{name} {said}")
        self._enlarge = None if height == side else enlarging(side, height)

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns images [n, channels, side, side] f4 and their classes [n] i8. Raises CorpusError where a label is
        damaged."""
        file = self._file
        labels = file.labels[numbers].astype(np.int64)
        if labels.size and labels.max() >= file.classes:
            raise CorpusError(f"{self._name} is damaged: it has label {labels.max()}, its classes are {file.classes}.")
        shown = (file.pixels[numbers].astype(np.float32) - file.mean[:, None, None]) / file.deviation[:, None, None]
        return shown if self._enlarge is None else enlarged(shown, self._enlarge), labels

    def count(self, numbers: np.ndarray) -> int:
        """Returns one target per image."""
        return len(numbers)

    def content(self) -> str:
        return self._file.content()

    def hold_out(self, samples: int) -> HeldOut:
        return last_samples(self.length, samples, "images")


def unsuitable(sizes: dict[str, Any], side: int, channels: int, classes: int) -> dict[str, str]:
    """Field of a spec -> why a file of such `sizes` (an entry of `listing`) does not suit a model for images of `side`,
    as the rest of a sentence about the file; {} where it does."""
    found = {}
    height, width, has, labels = (sizes[name] for name in ("height", "width", "channels", "classes"))
    if height != width:
        found["train.corpus"] = f"has images of {height} x {width} pixels; {NO_SQUARE}"
    elif height > side:
        found["model.image"] = (
            f"has images of {height} x {height} pixels, and the model takes {side}; use model.image={height} or more "
            "(a multiple of 32 for convolutions), as images are enlarged, not reduced."
        )
    if has != channels:
        found["model.channels"] = f"has images of {has} channels, and the model {channels}; use model.channels={has}."
    if labels > classes:
        found["model.classes"] = f"has {labels} classes, and the model {classes}; use model.classes={labels} or more."
    return found
