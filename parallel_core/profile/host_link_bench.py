"""Measures messages between two hosts, with ranks on both of them connected as in any run over several hosts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import torch.distributed as dist

from parallel_core.analysis.quantities import plural_text
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, awaited, connect, joined
from parallel_core.engine.near_groups import common_torch_group
from parallel_core.layout import Layout
from parallel_core.observe.progress import CONNECTING, NO_STEPS, Progress
from parallel_core.observe.record_files import Sink
from parallel_core.profile import links
from parallel_core.profile.curves import Link
from parallel_core.profile.links import BOTH_WAYS, SIZES, Meeting
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)


def run_rank(
    spec: RunSpec, rank: int, sink: Sink, rendezvous: Rendezvous, progress: Progress, sizes: Sequence[int] = SIZES
) -> None:
    """Measures on one rank; rank 0 emits the results as a `links` record.

    The first half of the ranks must be on one host, the second half on the other.
    """
    with awaited(rendezvous, rank):
        device = open_device(spec.train.device, rendezvous.sharing)
    progress.at(-1, CONNECTING)
    groups = connect(rendezvous, rank, Layout.of(spec), device.backend)
    with joined():
        assert groups.store is not None
        at = Meeting(rank, spec.parallel.world, groups.store, device, progress.moved)
        found = measure(at, progress, sizes)
        if rank == 0:
            rows = [link.model_dump(mode="json") for link in found]
            sink.emit("links", software=f"torch {torch.__version__}", device=device.kind, links=rows)
            log.info("%d links measured", len(rows))


def measure(at: Meeting, progress: Progress, sizes: Sequence[int]) -> list[Link]:
    """Measures collectives and sends. Every rank calls it; rank 0 gets all links, others those they took part in."""
    each, found = at.world // 2, []
    for ranks in sorted({1, *links.group_sizes(each)}):
        members = [*range(ranks), *range(each, each + ranks)]
        progress.at(NO_STEPS, f"{2 * ranks} ranks over both hosts")
        group = common_torch_group(members)
        if at.rank in members:
            made = links.collectives(at, group, 2 * ranks, sizes)
            found += [link.model_copy(update={"hosts": 2}) for link in made]
        dist.barrier()
    for many in sorted({1, *links.group_sizes(each)}):
        progress.at(NO_STEPS, f"{plural_text(many, 'message')} at once between the hosts")
        made = _send(at, [(i, each + i) for i in range(many)], sizes)
        found += [link.model_copy(update={"ranks": 2 * many, "hosts": 2}) for link in made]
    if each > 1:
        progress.at(NO_STEPS, "messages inside a host")
        found += _send(at, [(0, 1)], sizes)
    return found


def _send(at: Meeting, pairs: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[Link]:
    """Measures the link of each of these pairs of ranks, while all of them send, over the transport between hosts;
    returns [] on other ranks."""
    both = [{kind: common_torch_group(pair) for kind in BOTH_WAYS} for pair in pairs]
    meeting = common_torch_group([rank for pair in pairs for rank in pair])
    mine = [(pair, own) for pair, own in zip(pairs, both, strict=True) if at.rank in pair]
    found = [links.send(at, pair, own, meeting, sizes) for pair, own in mine]
    dist.barrier()
    return found
