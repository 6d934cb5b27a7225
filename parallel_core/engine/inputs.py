"""What a run reads, known by its content: hosts may have other data or weights of one name, and a file may be exchanged
between two attempts, between a run and one that goes on from its checkpoint, or while the ranks read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist

from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.data.corpus import CorpusError
from parallel_core.data.dataset import Dataset
from parallel_core.spec import TrainSpec

MUST_BE_SAME = "the hosts of a run must have the same files, and these must not change while it begins."


def reads(dataset: Dataset, weights: Path | None) -> dict[str, str]:
    """Returns the digits of the content of what a run reads: `corpus`, and `weights` where it begins from these."""
    found = {"corpus": dataset.content()}
    if weights is not None:
        found["weights"] = llama_weights.fingerprint(llama_weights.open_all(weights))
    return found


def generates_from(weights: str, path: Path) -> dict[str, str]:
    """Returns the digits of the content of what text is generated from: the `weights` at `path` where that names any,
    else the `checkpoint` there. Raises CheckpointError where these cannot be read."""
    if weights:
        return {"weights": llama_weights.fingerprint(llama_weights.open_all(path))}
    return {"checkpoint": manifests.read(path).content}


def require_expected(
    train: TrainSpec, found: Mapping[str, str], expects: Mapping[str, str], *, generates: bool = False
) -> None:
    """Raises CorpusError or CheckpointError where what is `found` is not what the run `expects`: the same of its
    earlier attempts. What either lacks is not compared: a run that goes on from a checkpoint reads no weights.
    `generates`: it makes text of it."""
    again = (
        "run it again, or generate from this one in a new run"
        if generates
        else "resume the run from its last checkpoint, or submit a new run that reads this one throughout"
    )
    named = {what: f"train.{what}: {getattr(train, what)} on this host" for what in ("corpus", "weights")}
    for what, raised in (("corpus", CorpusError), ("weights", CheckpointError), ("checkpoint", CheckpointError)):
        now, before = found.get(what), expects.get(what)
        if now and before and now != before:
            remedy = f"Put the earlier one back and {again}" if what in named else "Generate from it in a new run"
            raise raised(
                f"{named.get(what, 'The checkpoint')} is not what this run began with: its content is {now}, and was "
                f"{before}. {remedy}."
            )


def require_saved(train: TrainSpec, found: Mapping[str, str], path: Path) -> None:
    """Raises CorpusError where the corpus `found` is not the one of that name which the checkpoint at `path` was
    trained on, unless `other_data` accepts it. Another name says that other data are meant. A checkpoint of an earlier
    version does not tell its content."""
    manifest = manifests.read(path)
    now, before = found.get("corpus"), manifest.reads.get("corpus")
    same_name = manifest.spec.get("train", {}).get("corpus") == train.corpus
    if train.other_data or not same_name or not (now and before) or now == before:
        return
    rename = "give this one another name, " if ":" in train.corpus else ""
    raise CorpusError(
        f"train.corpus: {train.corpus} is not what the checkpoint {path} was trained on: its content is {now}, and was "
        f"{before}. Put the earlier one back, {rename}or go on with this one on purpose: train.other_data=true."
    )


def require_same_corpus(store: dist.Store, rank: int, train: TrainSpec, found: Mapping[str, str]) -> None:
    """Compares the corpus of this rank with that of rank 0. Raises CorpusError where they differ."""
    if not _as_rank_0(store, rank, "corpus", found["corpus"]):
        raise CorpusError(f"train.corpus: {train.corpus} of rank {rank} is another than that of rank 0: {MUST_BE_SAME}")


def require_same_weights(store: dist.Store | None, rank: int, path: Path) -> None:
    """Compares, after they were loaded, the weights that this rank finds at `path` with what rank 0 does. Replicas that
    begin apart stay apart, as each adds the same updates to its own values.

    `store` None: there is one rank. Raises CheckpointError where they differ.
    """
    if store is None:
        return
    if not _as_rank_0(store, rank, "weights", llama_weights.fingerprint(llama_weights.open_all(path))):
        raise CheckpointError(f"The weights {path.name} of rank {rank} are others than those of rank 0: {MUST_BE_SAME}")


def _as_rank_0(store: dist.Store, rank: int, what: str, mine: str) -> bool:
    if rank == 0:
        store.set(what, mine)
    return rank == 0 or store.get(what).decode() == mine
