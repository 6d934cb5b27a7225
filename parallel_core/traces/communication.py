"""Communication in the host events of a trace: calls, the library's operations for them, and norms within updates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import Kind
from parallel_core.traces import names
from parallel_core.traces.collect import Collected
from parallel_core.traces.nesting import NONE, innermost, parents


def communication_names(trace: Collected) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns, by name index, (names of collectives and messages as the library executes them, all names of
    communication).

    Where no operations of the library are recorded, the first is the same as the second.
    """
    every = np.array([names.communication(name) is not None for name in trace.names], np.bool_)
    done = carried(trace) & every
    return done if done.any() else every, every


def carried(trace: Collected) -> NDArray[np.bool_]:
    """Returns, by name index, which names are operations that a communication library executes."""
    return np.array([name.startswith(("gloo:", "nccl:", "mpi:", "ucc:")) for name in trace.names], np.bool_)


def from_their_call(
    host: NDArray[np.void], keep: NDArray[np.bool_], done: NDArray[np.bool_], asked: NDArray[np.bool_]
) -> NDArray[np.void]:
    """Returns the kept events; an operation of a library begins with the call that requests it, which may wait, too."""
    out = host.copy()
    for thread in np.unique(host["thread"][keep & done[host["name"]]]):
        calls = host[(host["thread"] == thread) & asked[host["name"]]]
        mine = np.flatnonzero(keep & done[host["name"]] & (host["thread"] == thread))
        found = innermost(calls["start"], calls["end"], parents(calls["start"], calls["end"]), host["start"][mine])
        inside = found != NONE
        out["start"][mine[inside]] = calls["start"][found[inside]]
    out = out[keep]
    return out[np.lexsort((-out["end"], out["start"]))]


def after_norms(trace: Collected) -> NDArray[np.void]:
    """Returns the host's events, with updates beginning only after the norm, in which all ranks meet."""
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
