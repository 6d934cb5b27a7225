"""Communication in a trace of the host: calls, what the library carries out for them, and norms inside of updates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import Kind
from parallel_core.traces import names
from parallel_core.traces.collect import Collected
from parallel_core.traces.nesting import NONE, innermost, parents


def talk(trace: Collected) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(names of collectives and messages as the library carries them out, all names of the kind) by name index."""
    every = np.array([names.communication(name) is not None for name in trace.names], np.bool_)
    done = carried(trace) & every
    return done if done.any() else every, every


def carried(trace: Collected) -> NDArray[np.bool_]:
    """Names under which a library carries something out, by name index."""
    return np.array([name.startswith(("gloo:", "nccl:", "mpi:", "ucc:")) for name in trace.names], np.bool_)


def from_their_call(
    host: NDArray[np.void], keep: NDArray[np.bool_], done: NDArray[np.bool_], asked: NDArray[np.bool_]
) -> NDArray[np.void]:
    """The kept events. What a library carries out begins with the call that asks for it: that may wait, too."""
    out = host.copy()
    for thread in np.unique(host["thread"][keep & done[host["name"]]]):
        calls = host[(host["thread"] == thread) & asked[host["name"]]]
        mine = np.flatnonzero(keep & done[host["name"]] & (host["thread"] == thread))
        found = innermost(calls["start"], calls["end"], parents(calls["start"], calls["end"]), host["start"][mine])
        inside = found != NONE
        out["start"][mine[inside]] = calls["start"][found[inside]]
    out = out[keep]
    return out[np.lexsort((-out["end"], out["start"]))]


def behind_norms(trace: Collected) -> NDArray[np.void]:
    """The host's events; updates begin behind the norm that all ranks met in."""
    host = trace.host.copy()
    if names.NORM not in trace.names:
        return host
    norms = host[host["name"] == trace.names.index(names.NORM)]
    means = [names.marker(name) for name in trace.names]
    updates = [i for i, meaning in enumerate(means) if meaning and meaning.kind is Kind.OPT_STEP]
    for i in np.flatnonzero(np.isin(host["name"], updates)).tolist():
        held = (norms["thread"] == host["thread"][i]) & (norms["start"] >= host["start"][i])
        ends = norms["end"][held & (norms["end"] <= host["end"][i])]
        host["start"][i] = max([int(host["start"][i]), *ends.tolist()])
    return host[np.lexsort((-host["end"], host["start"]))]
