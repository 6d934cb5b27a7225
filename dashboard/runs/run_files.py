"""What a run reads and where it can write, which workers have that, and whether all its ranks must be on one host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs.models import Checkpoint, Run
from parallel_core.analysis.quantities import listed_text
from parallel_core.outline import FILE_CORPORA
from workers.contract import ResumeFrom

FILE_WORDS = {"tokens": "token file", "images": "image file"}
"""What files of each kind of FILE_CORPORA are called."""
_TELLING = {"tokens": ("tokens", "vocab"), "images": ("images", "height", "width", "channels", "classes")}


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
        """Of the whole fleet. Of files with the same name but different sizes or content, counts the one that most
        reporting workers have; so of weights with the same name but another model, or other values."""
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
    return *(file[name] for name in _TELLING[kind]), file.get("values")


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
