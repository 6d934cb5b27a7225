"""Which runs may be spread over several hosts, and what prevents it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dashboard.control.finding import Wait
from dashboard.control.hosts import Host, Request
from dashboard.control.placement import Share, plan
from dashboard.fleet.models import Worker
from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot, idle_host
from dashboard.fleet.words import WORDS, apart_text, unable_text
from dashboard.runs.models import Attempt, Checkpoint, Run
from parallel_core.analysis.quantities import bytes_text, listed_text, plural_text
from parallel_core.known_fields import needs_later
from parallel_core.outline import FILE_CORPORA
from parallel_core.spec import RunSpec
from workers.contract import ResumeFrom

MOST_HOSTS = 64
FILE_WORDS = {"tokens": "token file", "images": "image file"}
"""What files of each kind of FILE_CORPORA are called."""
_TELLING = {"tokens": ("tokens", "vocab"), "images": ("images", "height", "width", "channels", "classes")}
SILENT = "silent"
"""The state of a worker that does not report."""
FITS_NOWHERE = "Cancel it and change it, or queue it although it is predicted not to fit."


class Holder(NamedTuple):
    """The worker that wrote a checkpoint, and whether it wrote into a folder shared with others."""

    worker: str
    shares: bool

    @classmethod
    def of(cls, worker: str, nodes: list[dict[str, Any]]) -> Holder:
        """From the `nodes` of the attempt that wrote it."""
        return cls(worker, any(node["worker"] == worker and node.get("shares") for node in nodes))


@dataclass(frozen=True)
class Files:
    """Names of the workers that have what a run reads, and of those where it can write."""

    sharing: tuple[str, ...]
    """Reporting workers that keep their checkpoints in a folder that others also have."""
    found: Mapping[str, tuple[str, ...]]
    """Corpus that is a file of tokens or images -> the workers that have it, or had it when last heard of."""
    unlisted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind of such files -> workers with more than they report: any of them may have one that is not in `found`."""
    weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Folder of Llama weights -> the workers that can begin from it, or could when last heard of."""
    _holders: dict[tuple[int, int], Holder | None] = field(default_factory=dict)
    """(run, step) -> who wrote that checkpoint, of those that `holder` has looked up."""

    @classmethod
    def now(cls) -> Files:
        """From the newest heartbeats."""
        return cls.of(FleetSnapshot.now())

    @classmethod
    def of(cls, fleet: FleetSnapshot) -> Files:
        """Of the whole fleet. Of files with the same name but different sizes, counts the one that most reporting
        workers have; so of weights with the same name but another model, or
        other values."""
        fleet = fleet.whole
        fresh, workers = {worker.name for worker in fleet.reporting}, fleet.every
        files: dict[str, list[tuple[Any, str]]] = {}
        weights: dict[str, list[tuple[Any, str]]] = {}
        for worker in workers:
            for kind, those in worker.data_files.items():
                for file in those:
                    files.setdefault(f"{kind}:{file['name']}", []).append((_sizes(kind, file), worker.name))
            for one in worker.weights:
                if "why" not in one:
                    same = (repr(sorted(one["model"].items())), one["dtype"], one["bytes"], one.get("values"))
                    weights.setdefault(one["name"], []).append((same, worker.name))
        unlisted = {kind: tuple(one.name for one in workers if one.leaves_out(kind)) for kind in FILE_CORPORA}
        sharing = tuple(worker.name for worker in workers if worker.shared_checkpoints and worker.name in fresh)
        return cls(sharing, _holders_of_usual(files, fresh), unlisted, _holders_of_usual(weights, fresh))

    def readers(self, spec: Mapping[str, Any], *, resumes: bool = False) -> tuple[str, ...]:
        """Workers that have, or where no worker lists it may have, the file that the spec trains on, and the weights
        named by it unless it `resumes` from a checkpoint; () if it names none. Of those with the weights alone if none
        has both."""
        corpus, kind = _corpus(spec)
        read = self.found.get(corpus, self.unlisted.get(kind, ())) if kind in FILE_CORPORA else ()
        weights = () if resumes else self.weights.get(spec.get("train", {}).get("weights", ""), ())
        return tuple(worker for worker in weights if worker in read) or weights or read

    def missing(self, spec: Mapping[str, Any], *, resumes: bool = False, trains: bool = True) -> str:
        """Which of what the spec reads no worker has, as a noun: `the token file wiki`; '' if one may have all. What
        does not train reads no corpus; one that `resumes` reads no weights."""
        corpus, kind = _corpus(spec)
        file = f"the {file_word(spec)} {corpus.partition(':')[2]}" if trains and kind in FILE_CORPORA else ""
        weights = "" if resumes else spec.get("train", {}).get("weights", "")
        read, able = self.found.get(corpus, self.unlisted.get(kind, ())), self.weights.get(weights, ())
        lacking = [f"the weights {weights}"] * bool(weights and not able) + [file] * bool(file and not read)
        if not lacking and file and weights and set(read).isdisjoint(able):
            return f"both the weights {weights} and {file}"
        return listed_text(lacking)

    def holder(self, begins: ResumeFrom) -> Holder | None:
        """Who wrote the checkpoint, of several the last one; None if it no longer exists."""
        key = begins["run"], begins["step"]
        if key not in self._holders:
            self.look_up([begins])
        return self._holders[key]

    def look_up(self, every: Sequence[ResumeFrom]) -> None:
        """Looks up who wrote these checkpoints, with one query, so that `holder` knows."""
        keys = {(begins["run"], begins["step"]) for begins in every} - self._holders.keys()
        runs, steps = {run for run, _ in keys}, {step for _, step in keys}
        self._holders.update(dict.fromkeys(keys))
        rows = Checkpoint.objects.filter(run__in=runs, step__in=steps).order_by("at")
        for run, step, *by in rows.values_list("run", "step", "worker", "attempt__devices") if keys else ():
            if (run, step) in keys:
                self._holders[run, step] = Holder.of(*by)

    def needed(self, spec: Mapping[str, Any], holder: Holder | None = None) -> tuple[str, ...]:
        """Workers that have what a run reads: its corpus's file, and the checkpoint of `holder`; () if any will do.

        A checkpoint in a shared folder is available to every worker that now shares it, even while its writer is away.
        """
        read = self.readers(spec, resumes=holder is not None)
        if holder is None:
            return read
        have: tuple[str, ...] = (holder.worker,)
        if holder.shares:
            have += tuple(name for name in self.sharing if name != holder.worker)
        return tuple(name for name in have if name in read) or have

    def reach(self, spec: Mapping[str, Any], *, resumes: bool = False) -> tuple[str, ...]:
        """Workers over which a run may be spread; () if any will do."""
        read = self.readers(spec, resumes=resumes)
        if not resumes and not spec.get("train", {}).get("checkpoint_every"):
            return read
        return tuple(name for name in self.sharing if name in read) if read else self.sharing


def _holders_of_usual(have: Mapping[str, list[tuple[Any, str]]], fresh: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Name -> the workers that have what most of the `fresh` ones have under it. `have`: name -> [(what, worker)]."""
    out = {}
    for name, found in have.items():
        counts = Counter(what for what, worker in found if worker in fresh) or Counter(what for what, _ in found)
        usual = counts.most_common(1)[0][0]
        out[name] = tuple(worker for what, worker in found if what == usual)
    return out


def _sizes(kind: str, file: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a file's entry tells it from others of its name."""
    return tuple(file[name] for name in _TELLING[kind])


def _corpus(spec: Mapping[str, Any]) -> tuple[str, str]:
    """(`train.corpus` of a spec, the word before its colon)."""
    corpus = str(spec.get("train", {}).get("corpus", ""))
    return corpus, corpus.partition(":")[0]


def file_word(spec: Mapping[str, Any]) -> str:
    """What the file of its corpus is called: `token file`, `image file`; '' if it trains on none."""
    return FILE_WORDS.get(_corpus(spec)[1], "")


def alone_because(
    spec: Mapping[str, Any],
    files: Files,
    *,
    resumes: bool = False,
    host_count: int = 0,
    holder: Holder | None = None,
    on: RunOn = ANYWHERE,
) -> str:
    """Why all ranks of a run must be on one host, as a clause; '' if they need not be. `holder`: who wrote the
    checkpoint it begins from, if that is known; `on`: the devices chosen for it."""
    train = spec.get("train", {})
    if on.worker:
        return f"{on.text} was chosen for it"
    if host_count == 1:
        return "one was asked for"
    if not resumes and train.get("weights") and len(files.readers(spec)) < 2:
        return "the weights it begins from lie on one"
    if (file := file_word(spec)) and len(files.readers(spec, resumes=resumes)) < 2:
        return f"its {file} lies on one"
    if (resumes or train.get("checkpoint_every")) and len(files.reach(spec, resumes=resumes)) < 2:
        return "its checkpoints lie on one (no two workers that can run it share a folder for them)"
    if holder is not None and len(set(files.reach(spec, resumes=True)).intersection(files.needed(spec, holder))) < 2:
        return "the checkpoint it begins from lies on one"
    return ""


def why_alone(run: Run, files: Files, holder: Holder | None = None) -> str:
    """`alone_because` for a run."""
    resumes = run.resume_run_id is not None
    on = RunOn.stored(run.run_on)
    return alone_because(run.spec, files, resumes=resumes, host_count=run.host_count, holder=holder, on=on)


def hosts_error(asks: Request, fleet: FleetSnapshot, alone: str) -> str:
    """Why the ranks of a run cannot be spread evenly over the hosts that it asks for; '' if they can. `alone`: why they
    must be on one."""
    over, devices, kind, among = asks.hosts, asks.devices, asks.kind, asks.over
    word = WORDS[kind]
    if over < 2:
        return ""
    if alone:
        return f"All ranks must be on one host, because {alone}."
    if devices % over:
        fitting = [str(n) for n in range(2, min(devices, MOST_HOSTS) + 1) if devices % n == 0]
        choose = f"choose {' or '.join(fitting)}, or as few as it takes" if fitting else "choose as few as it takes"
        return f"{devices} {word}s cannot be spread evenly over {over} hosts; {choose}."
    reporting = fleet.among(among)
    have = [worker for worker in reporting if _count(worker.devices, kind) >= devices // over]
    apart = [worker.name for worker in have if not worker.across_hosts]
    enough = len(have) - len(apart)
    if reporting and enough < over:
        each = plural_text(devices // over, word)
        those = f"those that share its files ({listed_text(among)}) have" if among else fleet.on.have
        return f"{over} hosts with {each} each are needed; {those} {enough}.{apart_text(apart)}"
    return ""


def asked(
    spec: RunSpec, files: Files, *, begins: ResumeFrom | None = None, host_count: int = 0, on: RunOn = ANYWHERE
) -> tuple[str, Request]:
    """Returns (why all ranks must be on one host, '' if they need not be; the request for the placement).

    `begins`: the checkpoint from which the run begins; `on`: the devices chosen for it.
    """
    plain, resumes = spec.model_dump(mode="json"), begins is not None
    holder = files.holder(begins) if begins is not None else None
    alone = alone_because(plain, files, resumes=resumes, host_count=host_count, holder=holder, on=on)
    needs, over = files.needed(plain, holder), files.reach(plain, resumes=resumes)
    where = Request(0, spec.parallel.world, spec.train.device, needs=needs, hosts=host_count, over=over, on=on)
    return alone, replace(where, alone=bool(alone), unit=spec.parallel.tp, fields=needs_later(plain))


def chosen(request: Request, fleet: FleetSnapshot | None = None) -> list[str]:
    """The worker of each rank, as the placement would choose it in an idle fleet; [] if it has too few devices."""
    return [share.host for share in given(request, fleet or FleetSnapshot.now()) for _ in share.devices]


def given(request: Request, fleet: FleetSnapshot) -> list[Share]:
    """The devices that the placement would choose in an idle fleet; [] if it has too few."""
    return [share for _, shares in plan([request], fleet.idle()).placed for share in shares]


def least_memory(request: Request, fleet: FleetSnapshot) -> int:
    """Bytes of the smallest of the devices `given`; 0 if there are none, or if none of them reports its memory."""
    hosts = {host.name: host.memory.get(request.kind, {}) for host in fleet.idle()}
    sizes = (hosts[share.host].get(i, 0) for share in given(request, fleet) for i in share.devices)
    return min(filter(None, sizes), default=0)


def most_memory(request: Request, fleet: FleetSnapshot) -> int:
    """The most bytes that the smallest of the run's devices could have: reporting workers, also draining ones, have
    enough devices with as much, on as few hosts as the run needs. Of the largest device if they have too few devices;
    0 if no memory is known. Looked up once for each request."""
    if request not in fleet.most_memory:
        fleet.most_memory[request] = _most_memory(request, [idle_host(one) for one in fleet.among(request.needs)])
    return fleet.most_memory[request]


def _most_memory(request: Request, hosts: Sequence[Host]) -> int:
    """`most_memory` on these hosts, by bisection: devices that are enough with one size are enough with any less."""
    sizes = sorted({size for host in hosts for size in host.memory.get(request.kind, {}).values()}, reverse=True)
    if len(sizes) < 2:
        return sum(sizes)
    first = bisect_left(sizes, True, key=lambda size: bool(plan([replace(request, memory=size)], hosts).placed))
    return sizes[first] if first < len(sizes) else sizes[0]


def too_small(request: Request, fleet: FleetSnapshot) -> str:
    """Names the open workers that the run could have if their devices had enough memory, as a sentence; '' if there are
    none."""
    anywhere = replace(request, memory=0)
    left = [host for host in fleet.idle() if host.open and _could(host, anywhere) and not _could(host, request)]
    return f"Left out, as their devices are smaller: {sizes_text(left, request.kind)}." if left else ""


def sizes_text(hosts: Iterable[Host], kind: str) -> str:
    """`yard-b (24 GiB)`: the memory of these hosts' devices of a kind, from the least to the most."""
    said = []
    for host in hosts:
        sizes = [bytes_text(size) for size in sorted(set(host.memory.get(kind, {}).values()))]
        said.append(f"{host.name} ({' to '.join(dict.fromkeys((sizes[0], sizes[-1])))})" if sizes else host.name)
    return listed_text(said)


def several(workers: Sequence[str]) -> list[str]:
    """The worker of each rank if they are on several hosts, else []."""
    return list(workers) if len(set(workers)) > 1 else []


def expected(request: Request, fleet: FleetSnapshot | None = None) -> list[str]:
    """As `chosen`, but [] on one host."""
    return several(chosen(request, fleet)) if request.devices > 1 else []


def waits_for(request: Request, fleet: FleetSnapshot) -> str:
    """What a run would wait for even if nothing else ran, as a sentence: workers, or devices with the memory that it
    asks for; '' if it could start, or if there are never so many devices of its kind."""
    found = plan([request], fleet.idle())
    if found.placed:
        return ""
    if not fleet.every:
        return "No worker has reported yet."
    why, names = found.waits[request.run]
    if why is Wait.UNABLE:
        return unable_sentence(names, request, fleet)
    if why is Wait.VERSIONS:
        return versions_sentence(names, request, fleet)
    if why is Wait.MEMORY and not _takes_once_open(request, fleet):
        return f"{too_small_text([host for host in fleet.idle() if host.name in names], request)}. {FITS_NOWHERE}"
    return _closed([worker for worker in fleet.every if _could(idle_host(worker), request)], fleet)


def unable_sentence(names: Sequence[str], request: Request, fleet: FleetSnapshot) -> str:
    """What a run waits for if the workers `names` have the devices but do not know its task or its fields: workers that
    have both, if those could take it once they take runs again, else a newer version."""
    old = unable_text([(w.name, w.version) for w in fleet.every if w.name in names], request.task, request.fields)
    able = [one for one in fleet.every if (host := idle_host(one)).knows(request) and _could(host, request)]
    closed = _closed(able, fleet)
    if closed and _takes_once_open(request, fleet):
        return f"{closed} {old}."
    return f"Needs a newer worker: {old}."


def versions_sentence(names: Sequence[str], request: Request, fleet: FleetSnapshot) -> str:
    """What a run waits for that only those of the workers `names` could take which differ in version."""
    said = [
        f"{worker.name} runs {worker.version or 'an unknown one'}" for worker in fleet.every if worker.name in names
    ]
    ranks = plural_text(request.devices, "rank")
    return f"Needs workers of one version for its {ranks}: {listed_text(said)}. Update the older ones."


def _takes_once_open(request: Request, fleet: FleetSnapshot) -> bool:
    """Whether the known workers could take the run once all of them take runs."""
    return bool(plan([request], [host.ready() for host in fleet.idle()]).placed)


def too_small_text(hosts: Iterable[Host], request: Request) -> str:
    """That the run needs more memory than the devices of these hosts have: `Needs 1 GPU of 40 GiB, …`, without a full
    stop."""
    each = "" if request.devices == 1 else " each"
    needs = f"Needs {request.devices} {word_of(request)} of {bytes_text(request.memory)}{each}, by its predicted memory"
    return f"{needs}; too small: {sizes_text(hosts, request.kind)}"


def word_of(request: Request) -> str:
    """What the devices of the run are called: `GPU` of one, `GPUs` of several."""
    return WORDS.get(request.kind, request.kind) + ("" if request.devices == 1 else "s")


def _closed(workers: Iterable[Worker], fleet: FleetSnapshot) -> str:
    """A sentence that those of the workers that take no runs now are missing; '' if all take them."""
    said = listed_text([f"{worker.name} is {state}" for worker in workers if (state := state_of(worker, fleet))])
    return f"Too few such devices take runs now: {said}." if said else ""


def _could(host: Host, request: Request) -> bool:
    """Whether the host could have all or some ranks of a run if it took runs now."""
    have = len(host.having(request))
    whole = request.hosts < 2 and have >= request.devices
    some = have > 0 and host.across and not request.alone
    return (whole or some) and (not request.needs or host.name in request.needs)


def state_of(worker: Worker, fleet: FleetSnapshot) -> str:
    """Why the worker takes no runs; '' if it does."""
    if worker not in fleet.reporting:
        return SILENT
    if worker.clashes:
        return "a name that two workers use"
    return "draining" if worker.draining else "leaving" if worker.leaving else ""


def _count(devices: list[dict[str, Any]], kind: str) -> int:
    return sum(device["kind"] == kind for device in devices)


def workers_of(attempt: Attempt | None) -> list[str]:
    """The worker of each rank, in rank order; [] without an attempt."""
    return [str(node["worker"]) for node in _nodes(attempt) for _ in node["devices"]] if attempt else []


def hosts_of(attempt: Attempt | None) -> list[str]:
    """The worker of each rank, in rank order; [] if all ranks are on one."""
    return several(workers_of(attempt))


def devices_of(attempt: Attempt) -> list[int]:
    """The index of each rank's device on its worker, in rank order."""
    return [index for node in _nodes(attempt) for index in node["devices"]]


def _nodes(attempt: Attempt) -> list[dict[str, Any]]:
    return sorted(attempt.devices, key=lambda node: int(node["first_rank"]))
