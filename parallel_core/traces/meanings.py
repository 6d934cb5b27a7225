"""Determines what each kernel or operation of a trace belongs to: the innermost marker around its launch, or around
itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_COMPUTE, LANE_HOST, LANE_P2P
from parallel_core.schedule.ir import P2P, Kind
from parallel_core.traces import names
from parallel_core.traces.collect import OPERATION, RECORDED, Collected
from parallel_core.traces.communication import after_norms, carried, communication_names, from_their_call
from parallel_core.traces.nesting import NONE, holding, innermost, outermost_of, parents, within
from parallel_core.traces.pieces import BACKWARD

_FORWARD = names.Meaning(Kind.F, LANE_COMPUTE)
_UNMARKED = names.Meaning(Kind.STEP, LANE_HOST)
"""Of no marker: those never have this kind."""
_AGAIN = names.Meaning(Kind.R, LANE_COMPUTE)
MEANING = np.dtype(
    [
        *(("kind", "u1"), ("lane", "u1"), ("stage", "<i2"), ("micro_batch", "<i4")),
        *(("back_stage", "<i2"), ("back_micro_batch", "<i4")),
    ]
)
_PASSED = "autograd::engine::evaluate_function"


def _meanings(found: list[names.Meaning | None]) -> NDArray[np.void]:
    return np.array([tuple(meaning or _FORWARD) for meaning in found], MEANING)


def of_device(trace: Collected) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.void]]:
    """Returns kernels, the moments at which they were launched, and their meanings."""
    kernels, (launches, at, linked) = trace.device, _launches(trace)
    moments, threads = kernels["start"].copy(), np.full(len(kernels), NONE)
    moments[linked], threads[linked] = launches["start"][at[linked]], launches["thread"][at[linked]]
    meanings, told = around(trace, threads, moments)
    own = {i: meaning for i, name in enumerate(trace.names) if (meaning := names.of_kernel(name))}
    for i in np.flatnonzero(np.isin(kernels["name"], list(own))):
        meaning = own[int(kernels["name"][i])]
        told_by_call = meanings[i]["kind"] in (Kind.SEND_ACT, Kind.BUCKET) and meaning.kind is Kind.RECV_ACT
        if not told_by_call:  # SendRecv is one kernel for all: the launching operation determines what it does
            meanings[i]["kind"], meanings[i]["lane"] = meaning.kind, meaning.lane
    _messages(meanings, told, np.isin(kernels["name"], list(own)), (LANE_P2P,))
    return kernels, moments, meanings


def _launches(trace: Collected) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the launches, for each kernel the index of its own, and whether it has one."""
    kernels, launches = trace.device, trace.launches[np.argsort(trace.launches["link"], kind="stable")]
    links: NDArray[np.int64] = kernels["link"]
    at = np.clip(np.searchsorted(launches["link"], links), 0, max(len(launches) - 1, 0))
    linked = np.zeros(len(kernels), np.bool_)
    if len(launches):
        linked = (launches["link"][at] == links) & (links >= 0)
    return launches, at, linked


def of_graphs(trace: Collected, meanings: NDArray[np.void]) -> int:
    """Returns how many kernels count as a forward only because a CUDA graph launched them all at once, outside of any
    marker. `meanings`: those of `of_device`."""
    launches, at, linked = _launches(trace)
    unknown = np.array([names.GRAPH in name for name in trace.names], np.bool_)[launches["name"]]
    if not unknown.any():
        return 0
    host, said = _markers(trace, None)
    inside = _on_own_thread(host, said, launches["thread"][unknown], launches["start"][unknown], _UNMARKED)
    unknown[unknown] = inside["kind"] == _UNMARKED.kind
    return int((linked & (meanings["kind"] == Kind.F) & unknown[at]).sum())


def of_no_operation(trace: Collected, meanings: NDArray[np.void]) -> int:
    """Returns how many kernels count as a forward only because nothing of the host was recorded that tells a backward:
    no operation, and no annotation of a pass. `meanings`: those of `of_device`."""
    operations = (trace.host["link"] >= OPERATION).any()
    passes = any(own.lane == LANE_COMPUTE for name in trace.names if (own := names.marker(name)))
    return 0 if operations or passes else int((meanings["kind"] == Kind.F).sum())


def of_host(trace: Collected) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.void]]:
    """Outermost operations (batch reads and updates as one each) and collectives, their starts, and their meanings."""
    host, known = after_norms(trace), [names.marker(name) for name in trace.names]
    lane_host = [i for i, meaning in enumerate(known) if meaning and meaning.lane == LANE_HOST]
    said_by = communication_names(trace)
    done = [names.communication(name) for name, own in zip(trace.names, said_by[0], strict=True) if own]
    for lane in (LANE_P2P, LANE_COLLECTIVE):
        if not any(meaning.lane == lane for meaning in done if meaning):
            # The communication itself is not recorded (shared memory, for example): use the annotations around it.
            lane_host += [i for i, meaning in enumerate(known) if meaning and meaning.lane == lane]
    whole = np.isin(host["name"], lane_host)
    through = np.array(
        [bool(m) or bool(names.STEP.match(n)) for m, n in zip(known, trace.names, strict=True)], np.bool_
    )
    asked = said_by[1][host["name"]]
    plain = (host["link"] >= OPERATION) & ~through[host["name"]] & ~asked & ~_mixed(trace, host, asked)
    own = said_by[0][host["name"]]
    keep = own if carried(trace).any() else outermost_of(host, own)
    keep |= outermost_of(host, plain | whole)
    work = from_their_call(host, keep, said_by[0], said_by[1] & ~said_by[0])
    # Communication carried out by a library overlaps with other work of the thread that it is recorded under.
    meanings, told = around(trace, work["thread"], work["start"], beside=carried(trace))
    for i, meaning in enumerate(known):
        if i in lane_host or said_by[0][i]:
            said = names.communication(trace.names[i]) or meaning
            chosen = work["name"] == i
            meanings["kind"][chosen], meanings["lane"][chosen] = said.kind, said.lane  # type: ignore[union-attr]
    communicates = np.isin(work["name"], [*lane_host, *np.flatnonzero(said_by[0]).tolist()])
    _messages(meanings, told, communicates, (LANE_P2P, LANE_COLLECTIVE))
    return work, work["start"], meanings


def _messages(
    meanings: NDArray[np.void], told: NDArray[np.int64], communicates: NDArray[np.bool_], lanes: tuple[int, ...]
) -> None:
    """Gives messages the kind of the annotation around them; everything else inside a communication call is preparation
    (SETUP)."""
    named = communicates & (meanings["lane"] == LANE_P2P) & np.isin(told, [int(kind) for kind in P2P])
    meanings["kind"][named] = told[named]
    beside = ~communicates & np.isin(meanings["lane"], lanes)
    meanings["kind"][beside], meanings["lane"][beside] = Kind.SETUP, LANE_HOST


def _mixed(trace: Collected, host: NDArray[np.void], asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether operations are a mixture of kinds, so that their parts are used instead: they contain calls of a
    communication library, which wait, or they are backward nodes that first recompute."""
    again = _again(trace, host)
    return holding(host, asked) | (holding(host, again) & ~again)


def _again(trace: Collected, host: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether operations are a recomputation: recorded by autograd for a backward while a backward already runs (the
    only sign of non-reentrant checkpoints). Backward nodes of split tensors do so, too, but are not ATen operations."""
    passed = np.array([name.startswith(_PASSED) for name in trace.names], np.bool_)
    aten = np.array([name.startswith("aten::") for name in trace.names], np.bool_)
    recorded = (host["link"] == RECORDED) & aten[host["name"]]
    return recorded & within(host, passed[host["name"]])


def around(
    trace: Collected,
    threads: NDArray[np.int64],
    moments: NDArray[np.int64],
    beside: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Returns MEANING rows, and the kinds of the annotations around each moment (NONE without one).

    The meaning is that of the innermost marker around each moment on its thread; if that names no micro-batch, stage
    and micro-batch are those of the annotation around the moment on any thread, since a backward runs on its own
    thread while the caller waits. Names in `beside` (by index) are ignored as markers.
    """
    host, said = _markers(trace, beside)
    out = _on_own_thread(host, said, threads, moments)
    out["kind"][out["kind"] == Kind.PAIR] = Kind.F  # the backward half runs on another thread: see `_annotate`
    annotations = said["micro_batch"] >= 0
    named = host[annotations]
    found = innermost(named["start"], named["end"], parents(named["start"], named["end"]), moments)
    elsewhere = (found != NONE) & (threads != NONE)
    elsewhere[elsewhere] = named["thread"][found[elsewhere]] != threads[elsewhere]
    return out, _annotate(out, found, said[annotations], elsewhere)


def _markers(trace: Collected, beside: NDArray[np.bool_] | None) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Returns the markers among the host's operations, without names in `beside`, and their meanings."""
    known = [_around(name) for name in trace.names]
    if beside is not None:
        known = [None if beside[i] else meaning for i, meaning in enumerate(known)]
    again = _again(trace, trace.host)
    marks = np.array([meaning is not None for meaning in known], np.bool_)[trace.host["name"]] | again
    host, said = trace.host[marks], _meanings(known)[trace.host["name"][marks]]
    said[again[marks]] = np.array(tuple(_AGAIN), MEANING)
    return host, said


def _on_own_thread(
    host: NDArray[np.void],
    said: NDArray[np.void],
    threads: NDArray[np.int64],
    moments: NDArray[np.int64],
    default: names.Meaning = _FORWARD,
) -> NDArray[np.void]:
    """Returns the meaning `said` of the innermost of the markers `host` around each moment on its thread; `default`
    where there is none."""
    out = np.full(len(moments), np.array(tuple(default), MEANING))
    for thread in np.unique(threads[threads != NONE]):
        mine, here = np.flatnonzero(host["thread"] == thread), np.flatnonzero(threads == thread)
        starts, ends = host["start"][mine], host["end"][mine]
        found = innermost(starts, ends, parents(starts, ends), moments[here])
        inside = found != NONE
        out[here[inside]] = said[mine[found[inside]]]
    return out


def _around(name: str) -> names.Meaning | None:
    """Returns the meaning of the work in an event; None for an annotated collective, which includes computation."""
    own = names.marker(name)
    return names.communication(name) if own is None or own.lane == LANE_COLLECTIVE else own


def _annotate(
    out: NDArray[np.void], found: NDArray[np.int64], said: NDArray[np.void], elsewhere: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Sets stage and micro-batch from the annotations found; returns their kinds. `elsewhere`: on another thread than
    its annotation."""
    told = np.full(len(out), NONE, np.int64)
    inside = np.flatnonzero(found != NONE)
    annotation = said[found[inside]].copy()
    back = (annotation["kind"] == Kind.PAIR) & (np.isin(out["kind"][inside], BACKWARD) | elsewhere[inside])
    annotation["stage"][back], annotation["micro_batch"][back] = (
        annotation[name][back] for name in ("back_stage", "back_micro_batch")
    )
    annotation["kind"][back] = Kind.BW
    out["stage"][inside], out["micro_batch"][inside] = annotation["stage"], annotation["micro_batch"]
    halves = np.isin(annotation["kind"], (Kind.B, Kind.W)) & (out["kind"][inside] == Kind.BW)
    # Clean-up on the backward's thread, after its markers, is no forward.
    halves |= np.isin(annotation["kind"], (Kind.BW, Kind.B, Kind.W)) & (out["kind"][inside] == Kind.F)
    out["kind"][inside[halves]] = annotation["kind"][halves]
    told[inside] = annotation["kind"]
    return told
