"""Which ranks wait for which, from the operation that each was last seen in; and what that says where none moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parallel_core.analysis.quantities import listed_text
from parallel_core.layout import Layout
from parallel_core.observe.progress import CONNECTING
from parallel_core.schedule.ir import COMPUTE, P2P, RECVS, REPLICA_COLLECTIVES, Kind, Op, other_end
from parallel_core.schedule.text import parsed

MOST = 4
"""Most ranks of which the sentence says what they wait for, and most that one is said to wait for."""
Place = tuple[int, str]
"""The step of a rank and its operation, as `str(Op)` writes it, or what it does between operations."""


def sentence(places: Mapping[int, Place], layout: Layout, host: Callable[[int], str]) -> str:
    """Says which ranks wait for which, where none of them moves. If each of them waits for another, a schedule that was
    proven to have no deadlock is held up by what carries its messages: then it names the hosts between which these go;
    where it is not known of some ranks, that this is so if they wait, too. '' if no rank is known to wait for another
    host's.
    """
    met = {rank: _meets(rank, place, layout) for rank, place in places.items()}
    known = {rank: others for rank, others in met.items() if others is not None}
    if all(host(a) == host(b) for a, others in known.items() for b in others):
        return ""
    waits = {rank: _late(rank, others, places) for rank, others in known.items() if others}
    if busy := sorted(rank for rank, others in known.items() if not others):
        return f"{_listed(waits)}; {_named(busy)} {'computes' if len(busy) == 1 else 'compute'}."
    apart = {name for a, others in waits.items() for b in others if host(a) != host(b) for name in (host(a), host(b))}
    drops = f"the network between {listed_text(sorted(apart))} may drop packets."
    if unknown := sorted(set(range(layout.world)) - known.keys()):
        wait = "waits" if len(unknown) == 1 else "wait"
        return f"{_listed(waits)}. Whether {_named(unknown)} {wait}, too, is not known: if so, {drops}"
    return f"{_listed(waits)}: {drops}"


def holding_up(places: Mapping[int, Place], layout: Layout) -> list[int]:
    """Where no rank moves, those that the others may wait for: the ones that wait for no other in their operation;
    without any, the ones of which that is not known, if some are known to wait."""
    met = {rank: _meets(rank, place, layout) for rank, place in places.items()}
    busy = [rank for rank, others in met.items() if others == ()]
    unknown = [rank for rank, others in met.items() if others is None]
    return sorted(busy or (unknown if len(unknown) < len(met) else []))


def _meets(rank: int, place: Place, layout: Layout) -> tuple[int, ...] | None:
    """The other ranks that this one meets in its operation; () if none, None if that is not known."""
    found = parsed(place[1])
    if found is None:
        return tuple(one for one in range(layout.world) if one != rank) if place[1] == CONNECTING else None
    stage, kind = found
    if kind in P2P:
        place_there = layout.place(other_end(Op(kind, stage))[1])
        return layout.neighbours(rank, place_there)[0 if kind in RECVS else 1]
    if kind in REPLICA_COLLECTIVES:
        group: tuple[int, ...] = next(each for each in layout.data_groups() if rank in each)
    elif kind in COMPUTE:
        group = layout.tensor_group(layout.pipeline_rank(rank))
        if len(group) == 1 and layout.dp > 1:  # there may be a collective of the replicas inside
            return None
    elif kind is Kind.OPT_STEP:
        group = tuple(range(layout.world))  # with the norm of all gradients
    else:
        return None
    return tuple(one for one in group if one != rank)


def _late(rank: int, others: tuple[int, ...], places: Mapping[int, Place]) -> tuple[int, ...]:
    """Those that have not come to the rank's operation, of whatever stage; all of them if each has."""

    def come(one: int) -> tuple[int, object] | None:
        if one not in places:
            return None
        step, op = places[one]
        found = parsed(op)
        return step, found[1] if found else op

    return tuple(one for one in others if come(one) != come(rank)) or others


def _listed(waits: Mapping[int, tuple[int, ...]]) -> str:
    parts = [f"rank {rank} waits for {_named(others)}" for rank, others in sorted(waits.items())]
    more = [f"{len(parts) - MOST} more wait, too"] if len(parts) > MOST else []
    text = listed_text([*parts[:MOST], *more])
    return text[:1].upper() + text[1:]


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) > MOST:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {listed_text(list(map(str, ranks)))}"
