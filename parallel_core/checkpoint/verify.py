"""Verifies every byte of a checkpoint before a run resumes from it. Does not import torch."""

from __future__ import annotations

import hashlib
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from parallel_core.checkpoint.manifest import CheckpointError, Manifest, changed, read

BLOCK = 1 << 20


def verified(folder: Path) -> Manifest:
    """Reads all pieces of a checkpoint and compares their SHA-256; returns its manifest.

    Ranks also detect a changed byte, but only when they load it, too late to begin from another checkpoint. Raises
    CheckpointError as `read` does, and if a piece was changed or cannot be read.
    """
    manifest = read(folder)
    pieces = [
        (piece.file, piece.start, name, piece, stored.item)
        for name, stored in manifest.tensors.items()
        for piece in stored.pieces
    ]
    for file, inside in groupby(sorted(pieces, key=itemgetter(0, 1)), key=itemgetter(0)):
        try:
            with (folder / file).open("rb") as source:
                for _, start, name, piece, item in inside:
                    source.seek(start)
                    if _sha256(source, piece.elements * item) != piece.sha256:
                        raise changed(folder, name, piece)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint {folder} is damaged: {file} cannot be read ({error.strerror})."
            ) from error
    return manifest


def _sha256(source: BinaryIO, size: int) -> str:
    """The SHA-256 of the next `size` bytes."""
    digest = hashlib.sha256()
    while size > 0 and (block := source.read(min(size, BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
