"""Images from NumPy's files: an .npz with the arrays `images` and `labels`, or two .npy files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np

from parallel_core.data.corpus import CorpusError
from parallel_core.data.image_file import NO_SQUARE, SUFFIX, Shape, pack, require_labels, require_sizes
from parallel_core.data.npy import Stored, stored

Order = Literal["first", "last"]
MOST_CHANNELS = 4
"""Of what is taken for channels where the order is not given: more are pixels."""


def pack_arrays(images: Path, labels: Path | None, order: Order | None, name: str, folder: Path) -> Shape:
    """Writes `images:<name>` into a data folder.

    `images`: .npz with both arrays, or .npy, with `labels` another .npy. Images are [N, H, W], or [N, C, H, W] (`order`
    first) or [N, H, W, C] (last), of uint8 or float32. Raises CorpusError where they are not.
    """
    both = labels is None
    with ExitStack() as files:
        given = files.enter_context(stored(labels or images, "labels" if both else ""))
        require_labels(given.dtype, given.shape)
        told = given.whole()
        array = files.enter_context(stored(images, "images" if both else ""))
        if array.shape[0] != len(told):  # before a long conversion
            raise CorpusError(f"there are {array.shape[0]} images and {len(told)} labels; each needs one.")
        return pack(_channels_first(array, order), told, folder / f"{name}{SUFFIX}")


def _channels_first(array: Stored, order: Order | None) -> Iterator[np.ndarray]:
    """Returns parts [n, C, H, W] of the images. Raises CorpusError."""
    shape, dtype = array.shape, array.dtype
    if len(shape) not in (3, 4) or dtype not in (np.dtype("u1"), np.dtype("f4")) or min(shape[1:]) < 1:
        raise CorpusError(
            f"{array.what} is {dtype} {list(shape)}; images are uint8 or float32 [N, H, W], [N, C, H, W] or "
            "[N, H, W, C]."
        )
    if len(shape) == 3:
        _require_fit(array.what, 1, *shape[1:])
        return (part[:, None] for part in array.parts())
    if last := _is_last(array, order):
        shape = shape[0], shape[3], *shape[1:3]
    _require_fit(array.what, *shape[1:])
    return (part.transpose(0, 3, 1, 2) if last else part for part in array.parts())


def _require_fit(what: str, channels: int, height: int, width: int) -> None:
    """Raises CorpusError, before all pixels are read, where no model could be trained on such images."""
    require_sizes(what, channels, height, width)
    if height != width:
        raise CorpusError(f"{what} has images of {height} x {width} pixels; {NO_SQUARE}")


def _is_last(array: Stored, order: Order | None) -> bool:
    if order is not None:
        return order == "last"
    first, last = array.shape[1] <= MOST_CHANNELS, array.shape[3] <= MOST_CHANNELS
    if first == last:
        raise CorpusError(f"{array.what} is {list(array.shape)}: say which are channels with --channels first or last.")
    return last
