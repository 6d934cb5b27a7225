"""All ranks of a run begin from the same weights: hosts may have others of that name, and a folder may be exchanged
while its ranks read it. Replicas that begin apart stay apart, as each adds the same updates to its own values."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint.manifest import CheckpointError


def require_same(store: dist.Store | None, rank: int, path: Path) -> None:
    """Compares, after they were loaded, what this rank finds at `path` with what rank 0 does. `store` None: there is
    one rank. Raises CheckpointError where they differ."""
    if store is None:
        return
    mine = llama_weights.fingerprint(llama_weights.open_all(path))
    if rank == 0:
        store.set("weights", mine)
    elif store.get("weights").decode() != mine:
        raise CheckpointError(
            f"The weights {path.name} of rank {rank} are others than those of rank 0: the hosts of a run must have the "
            "same files, and these must not change while it begins."
        )
