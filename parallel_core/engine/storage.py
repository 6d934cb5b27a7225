"""Storage for torch.distributed.checkpoint without pickle: DCP's planners, own files (see `parallel_core.checkpoint`).

DCP's file system writer pickles its metadata and gathers pickled plans; here each rank plans alone and writes raw
numbers with their sha256, and the manifest is JSON. Every byte is verified when it is read.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from parallel_core.checkpoint.folder import flush
from parallel_core.checkpoint.manifest import CheckpointError, Manifest, Piece, Stored, changed
from parallel_core.engine.shares import Share

_PLAIN: dict[str, Any] = {"flatten_state_dict": False, "flatten_sharded_tensors": False}


class _SavePlanner(default_planner.DefaultSavePlanner):
    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].__get_tensor_shard__(index)


class _LoadPlanner(default_planner.DefaultLoadPlanner):
    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Sets the attributes only: the default looks for tensors on the meta device, and rejects custom objects."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        found: Tensor = self.state_dict[index.fqn].__get_tensor_shard__(index)
        return found

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Refuses: the default would unpickle, and our checkpoints have no such items."""
        raise CheckpointError(f"{read_item.dest_index.fqn} is no tensor")


def no_progress() -> None:
    """The default progress callback: does nothing."""


FLUSH_BYTES = 64 * 2**20
"""Bytes after which a file that is being written is flushed to disk. Otherwise all would be, at the end and without
any progress: minutes with a slow disk."""
LEFT_FREE = 16 * 2**20
"""Bytes of the disk that a checkpoint leaves free: the records of every rank go there, too, and a rank that cannot
write them ends."""


def write(shares: Mapping[str, Share], file: Path, tell: Callable[[], None] = no_progress) -> dict[str, Any]:
    """Writes every box of `shares` to `file`, with fsync; returns this rank's part of the manifest (see
    checkpoint.parts).

    `tell` is called once per box, and whenever FLUSH_BYTES are on disk.
    """
    planner = _SavePlanner(**_PLAIN)
    planner.set_up_planner(dict(shares), is_coordinator=True)
    tensors: dict[str, dict[str, Any]] = {}
    at = 0
    with file.open("wb") as out:
        for item in planner.create_local_plan().items:
            tell()
            memory = planner.resolve_data(item)
            assert isinstance(memory, Tensor) and item.tensor_data is not None
            data = memory.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            digest = _append(out, at, data, tell)
            empty = {"dtype": str(memory.dtype).removeprefix("torch."), "shape": list(item.tensor_data.size)}
            entry = tensors.setdefault(item.index.fqn, {**empty, "pieces": []})
            box = {"offsets": list(item.index.offset or ()), "sizes": list(memory.shape)}
            entry["pieces"].append({"file": file.name, "start": at, **box, "sha256": digest})
            at += len(data)
    flush(file)
    if not at:
        file.unlink()
    return {"tensors": tensors, "bytes": at}


def _append(out: BinaryIO, at: int, data: memoryview, tell: Callable[[], None]) -> str:
    """Writes `data` at the end, byte `at`, of a file, which it flushes to disk every FLUSH_BYTES; returns the SHA-256
    of the data."""
    digest = hashlib.sha256()
    for first in range(0, len(data), FLUSH_BYTES):
        part = data[first : first + FLUSH_BYTES]
        digest.update(part)
        _require_room(out, len(part))
        out.write(part)
        at += len(part)
        if at // FLUSH_BYTES > (at - len(part)) // FLUSH_BYTES:
            out.flush()
            os.fsync(out.fileno())
            tell()
    return digest.hexdigest()


def _require_room(out: BinaryIO, more: int) -> None:
    """Raises OSError, as a full disk does, where so many bytes more would leave less than LEFT_FREE of it. A mount of
    unknown size, as some of object stores, says that it has no block at all."""
    disk = os.fstatvfs(out.fileno())
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < more + LEFT_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def load(shares: Mapping[str, Share], folder: Path, manifest: Manifest, tell: Callable[[], None] = no_progress) -> None:
    """Fills the memory of `shares` from the checkpoint in `folder`, under whatever layout it was written.

    `tell` is called once per saved piece. Raises CheckpointError where a tensor is missing, has another shape or type
    (values alone may become numbers of another type), or does not match its sha256.
    """
    converts = manifest.weights_only or all(name.startswith("value/") for name in shares)
    for name, share in shares.items():
        stored = require(manifest, name, share.size())
        if not converts:
            _require_type(name, share, stored)
    planner = _LoadPlanner(**_PLAIN)
    planner.set_up_planner(dict(shares), _metadata({name: manifest.tensors[name] for name in shares}))
    wanted: dict[tuple[str, torch.Size], list[ReadItem]] = defaultdict(list)
    for item in planner.create_local_plan().items:
        assert item.storage_index.offset is not None
        wanted[item.storage_index.fqn, item.storage_index.offset].append(item)
    for (name, offsets), items in wanted.items():
        tell()
        stored = manifest.tensors[name]
        piece = next(piece for piece in stored.pieces if piece.offsets == tuple(offsets))
        saved = _read(folder, name, stored, piece)
        for item in items:
            target = planner.resolve_tensor(item)
            ranges = zip(item.storage_offsets, item.lengths, strict=True)
            target.copy_(saved[tuple(slice(at, at + size) for at, size in ranges)])


def require(manifest: Manifest, name: str, shape: Sequence[int]) -> Stored:
    """Returns what is stored of a tensor. Raises CheckpointError where that is nothing, or has another shape."""
    stored = manifest.tensors.get(name)
    if stored is None:
        raise CheckpointError(f"The checkpoint has no {name}.")
    if stored.shape != tuple(shape):
        raise CheckpointError(f"The checkpoint's {name} has shape {stored.shape}; the model's has {tuple(shape)}.")
    return stored


def _require_type(name: str, share: Share, stored: Stored) -> None:
    types = {str(memory.dtype).removeprefix("torch.") for _, memory in share.parts()}
    if types - {stored.dtype}:
        raise CheckpointError(f"The checkpoint's {name} is of type {stored.dtype}; the model's of {types.pop()}.")


def _metadata(tensors: Mapping[str, Stored]) -> Metadata:
    """Returns tensors of a manifest as DCP metadata, for its planner."""
    return Metadata(
        {
            name: TensorStorageMetadata(
                TensorProperties(getattr(torch, stored.dtype)),
                torch.Size(stored.shape),
                [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in stored.pieces],
            )
            for name, stored in tensors.items()
        }
    )


def _read(folder: Path, name: str, stored: Stored, piece: Piece) -> Tensor:
    try:
        with (folder / piece.file).open("rb") as file:
            file.seek(piece.start)
            data = bytearray(file.read(piece.elements * stored.item))
    except OSError as error:
        why = f"{piece.file} cannot be read ({error.strerror})"
        raise CheckpointError(f"The checkpoint {folder} was removed or damaged meanwhile: {why}.") from error
    if hashlib.sha256(data).hexdigest() != piece.sha256:
        raise changed(folder, name, piece)
    return torch.frombuffer(data, dtype=getattr(torch, stored.dtype)).view(piece.sizes)
