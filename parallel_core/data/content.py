"""Tells data from other data of the same name and shape."""

from __future__ import annotations

import hashlib

import numpy as np

BLOCK, BLOCKS = 4096, 64
"""Bytes that are read together, and how many times: 256 KiB of an array, however large it is."""


def fingerprint(*arrays: np.ndarray) -> str:
    """Returns 16 hexadecimal digits of the type, shape and content of contiguous arrays, which may be memory-mapped.

    Of an array above BLOCK x BLOCKS bytes it reads BLOCKS evenly spaced parts, the first and last bytes among them.
    Data that was made anew differs in all of them; a few changed elements in between are not seen.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        data = array.reshape(-1).view(np.uint8)
        if len(data) <= BLOCK * BLOCKS:
            digest.update(data.data)
            continue
        for first in np.linspace(0, len(data) - BLOCK, BLOCKS).astype(np.int64).tolist():
            digest.update(data[first : first + BLOCK].data)
    return digest.hexdigest()[:16]
