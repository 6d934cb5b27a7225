"""Inter-host point-to-point messages and collectives of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from parallel_core.schedule.ir import SENDS, Kind, Schedule
from parallel_core.simulate.host_costs import Joined, Sent
from parallel_core.simulate.link_contention import Flow
from parallel_core.simulate.network import Among, Network


def messages(network: Network, schedule: Schedule, bytes_of: Callable[[int, Kind], float]) -> dict[Sent, Flow]:
    """Flow of each SEND between two hosts. `bytes_of(stage, kind)`: bytes to each receiving rank, 0: no message."""
    if not network.homes:
        return {}
    out: dict[Sent, Flow] = {}
    for q, program in enumerate(schedule.programs):
        for stage, kind, peer in {(op.stage, op.kind, op.peer) for op in program if op.kind in SENDS}:
            size = bytes_of(stage, kind)
            if size and (flow := network.flow(q, peer, size)) is not None:
                out[q, stage, kind, peer] = flow
    return out


def collectives(
    network: Network, schedule: Schedule, moving: Mapping[tuple[int, Kind, Among], float]
) -> dict[Joined, tuple[Flow, ...]]:
    """Flows of inter-host collectives in each operation of each rank; `moving`: seconds with bytes on a link."""
    out: dict[Joined, tuple[Flow, ...]] = defaultdict(tuple)
    for (stage, kind, among), seconds in moving.items():
        for q in schedule.placement[stage] if seconds else ():
            if (flow := network.crossing(among, q, seconds)) is not None:
                out[q, stage, kind] += (flow,)
    return dict(out)
