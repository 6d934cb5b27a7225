"""Runs pairs of features on real ranks: what `parallel_core.combinations` says of each, in several launches.

Pairs with the same number of ranks share their processes. The launches of a pair are its *legs*: each is a part of a
run from a checkpoint of an earlier leg, or generates text from it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import safetensors
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.combinations import Combination, ends, one_device
from parallel_core.combinations.features import FEATURES, TOKEN_FILE, UPLOADED_TEXT
from parallel_core.data import token_file
from parallel_core.engine import checkpoint, generate, host_memory, llama
from parallel_core.engine.device import use_deterministic_algorithms
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.fingerprint import ReplicasDiffer
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.launch import GenerationRequest
from parallel_core.local import points
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.memory import MemoryCapExceeded
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import FileSink, Frame, events_path
from parallel_core.spec import ModelSpec, RunSpec, TraceSpec
from tests.parallel_core import injections, ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.injections import Injections

STEPS = 2
Kind = Literal["steps", "run", "capped", "reload", "text"]


class Steps(NamedTuple):
    """Of a rank that only trained: its losses, and a hash of the parameters that it holds after the last step."""

    losses: list[float]
    parameters: str


class End(NamedTuple):
    """Of a rank that ran: what ended it, '' if nothing did, and what faults did on it."""

    why: str
    injections: Injections


@dataclass(frozen=True)
class Leg:
    """One launch. `folder` gets its records and checkpoints; it begins from the newest checkpoint of the first of
    `after` that has one.

    "steps" only trains, "run" is all that a rank does, "capped" has a cap below what the run in `cap_of` took, "reload"
    saves at once what it has loaded, "text" generates.
    """

    kind: Kind
    spec: RunSpec
    folder: Path
    after: tuple[Path, ...] = ()
    hosts: int = 1
    request: GenerationRequest | None = None
    cap_of: Path | None = None

    @property
    def source(self) -> Path | None:
        found = (folders.newest(folder) for folder in self.after)
        return next((one[0] for one in found if one is not None), None)

    def frames(self, kind: str) -> list[list[Frame]]:
        """The records of a kind, by rank."""
        every = (read_file(events_path(self.folder, rank)) for rank in range(self.spec.parallel.world))
        return [[frame for frame in of_rank if frame.kind == kind] for of_rank in every]


@dataclass
class Ran:
    """The legs of a pair, and the result of each rank in each: `Steps` of "steps", `End` of others. `error`: tracebacks
    of a leg that failed, after which there is none.
    """

    legs: list[Leg]
    results: list[list[Any]] = field(default_factory=list)
    error: str = ""

    def named(self, name: str) -> Leg:
        return next(leg for leg in self.legs if leg.folder.name == name)

    def ends(self, leg: Leg) -> list[End]:
        return next(results for one, results in zip(self.legs, self.results, strict=True) if one is leg)

    def losses(self, *names: str) -> list[float]:
        """The losses of these legs, in the order of their steps."""
        found: dict[int, float] = {}
        for leg, results in zip(self.legs, self.results, strict=True):
            if leg.folder.name in names:
                rows = points(read_file(events_path(leg.folder, 0)), "loss")[["step", "value"]].tolist()
                found |= dict(enumerate(results[0].losses) if leg.kind == "steps" else rows)
        return [found[step] for step in sorted(found)]


def run(pairs: Mapping[str, Combination], home: Path) -> dict[str, Ran]:
    """Runs the legs of all pairs, with a folder in `home` for each; the first ones of all, then the second ones."""
    corpora()  # now, as ranks inherit the cached result
    every = {name: Ran(legs_of(pair, home / str(i))) for i, (name, pair) in enumerate(pairs.items())}
    for number in range(max(len(ran.legs) for ran in every.values())):
        due = [ran for ran in every.values() if number < len(ran.legs) and not ran.error]
        worlds = sorted(((ran.legs[number].spec.parallel.world, i) for i, ran in enumerate(due)))
        for _, group in groupby(worlds, itemgetter(0)):
            _run_legs([due[i] for _, i in group], number)
    return every


def _run_legs(due: Sequence[Ran], number: int) -> None:
    turns = []
    for ran in due:
        leg = ran.legs[number]
        leg.folder.mkdir(parents=True)
        turns.append((leg.spec, partial(_WORK[leg.kind], leg, leg.source)))
    for ran, result in zip(due, ranks.run_each(turns), strict=True):
        if isinstance(result, str):
            ran.error = f"{ran.legs[number].folder.name}: {result}"
        else:
            ran.results.append(result)


def legs_of(pair: Combination, home: Path) -> list[Leg]:
    start = (weights(pair.spec.model.model_dump_json(), pair.spec.train.precision),) if pair.imported else ()
    legs = [replace(leg, hosts=pair.hosts) for leg in _trained(pair, home, start)]
    if pair.text is not None:
        spec, request = pair.text
        alone = spec.model_copy(update={"parallel": RunSpec().parallel})
        after = tuple(leg.folder for leg in reversed(legs) if leg.kind == "run")
        legs.append(Leg("text", spec, home / "text", after, pair.hosts, request))
        legs.append(Leg("text", alone, home / "alone", after, 1, {**request, "cached": not request["cached"]}))
    return legs


def _trained(pair: Combination, home: Path, start: tuple[Path, ...]) -> Iterator[Leg]:
    spec, alone = pair.spec, one_device(pair.spec)
    alone = alone.model_copy(update={"train": alone.train.model_copy(update={"checkpoint_every": 1})})
    first, second = home / "first", home / "second"
    if pair.resume == "same":
        yield (whole := Leg("run", steps(spec, STEPS), home / "whole", start))
        yield Leg("run", steps(spec, 1), first, start)
        yield Leg("run", steps(spec, STEPS), second, (first,))
        yield from _capped(whole)
    elif pair.resume == "another":
        yield Leg("run", steps(alone, 1), first, start)
        yield Leg("reload", spec, home / "loaded", (first,))
        yield (main := Leg("run", steps(spec, STEPS), second, (first,)))
        yield from _again(main)
        yield from _capped(main)
        yield Leg("reload", alone, home / "returned", (second, first))
        yield Leg("run", steps(alone, STEPS + 1), home / "third", (second, first))
    else:
        yield (main := Leg("steps" if only_trains(pair) else "run", steps(spec, STEPS), home / "run", start))
        yield from _again(main)
        yield from _capped(main)
        if spec.train.checkpoint_every and not ends(spec):  # a run that fails may not have written its last checkpoint
            yield Leg("run", steps(spec, 1), home / "saved", start)


def _again(leg: Leg) -> Iterator[Leg]:
    """The same a second time, of a deterministic run."""
    if leg.spec.train.deterministic:
        yield replace(leg, folder=leg.folder.with_name("again"))


def _capped(leg: Leg) -> Iterator[Leg]:
    """The same with too little memory, of a run with a cap; none where a flipped bit ends it before it is metered."""
    if leg.spec.trace.memory_cap is not None and ends(leg.spec):
        yield replace(leg, kind="capped", folder=leg.folder.with_name("capped"), cap_of=leg.folder)


def only_trains(pair: Combination) -> bool:
    """Whether a pair has no feature of a whole run: then only its steps are run, which takes less time."""
    plain = pair.spec.trace == TraceSpec() and not pair.spec.inject and not pair.spec.train.checkpoint_every
    return plain and not pair.imported and pair.hosts == 1


def steps(spec: RunSpec, count: int) -> RunSpec:
    """The run with so many steps; warm-up steps are those before the last."""
    train = spec.train.model_copy(update={"steps": count, "warmup_steps": min(count - 1, spec.train.warmup_steps)})
    return spec.model_copy(update={"train": train})


def corpora_of(spec: RunSpec) -> Path | None:
    """The folder with the corpus of a run; None for those that are part of an installation."""
    return corpora() if ":" in spec.train.corpus else None


@cache
def corpora() -> Path:
    """A folder with the uploaded text and the token file that features name."""
    folder = ranks.scratch()
    blob: str = FEATURES["uploaded text"]["train.corpus"]
    (folder / blob.removeprefix("blob:")).write_bytes(UPLOADED_TEXT)
    raw = folder / "raw"
    np.random.default_rng(3).integers(0, 64, 4096).astype("<u2").tofile(raw)
    token_file.pack(raw, 2, 64, TOKEN_FILE.removeprefix("tokens:"), folder)
    return folder


@cache
def weights(model: str, precision: str) -> Path:
    """A folder with a checkpoint of step 0 that was imported from safetensors weights of a Llama `model`."""
    spec = ModelSpec.model_validate_json(model)
    hub, out = ranks.scratch(), ranks.scratch()
    dtype = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    random = torch.Generator().manual_seed(5)
    ours = {
        name: (torch.randn(shape, generator=random) * 0.3 + (len(shape) == 1)).to(dtype)
        for name, shape in parameter_shapes(spec).items()
    }
    theirs = {name: tensor.contiguous() for name, tensor in llama.theirs(spec, ours.__getitem__)}
    llama._put(
        hub,
        llama.config_of(spec),
        {name: (llama._NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in theirs.items()},
        (tensor.view(-1).view(torch.uint8).numpy().data for tensor in theirs.values()),
    )
    assert (hub / safetensors.SINGLE).exists()
    llama.import_weights(hub, out, spec.seq)
    return out


def _steps(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Steps:
    if spec.train.deterministic:
        use_deterministic_algorithms()

    def use(trainer: Trainer) -> Steps:
        losses = [trainer.step(step).loss for step in range(spec.train.steps)]
        parameters = hashlib.sha256()
        for _, (_, values) in sorted(trainer.flat.owned_values().items()):
            parameters.update(values.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
        return Steps(losses, parameters.hexdigest())

    return ranks.with_trainer(spec, rank, meeting, folder, use, corpora_of(spec))


def _run(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    saving = spec.train.checkpoint_every or source is not None
    saves = CheckpointConfig(leg.folder, source) if saving else None
    sink, page, why = FileSink(leg.folder, rank), Progress(folder, rank), ""
    with injections.measured() as found:
        try:
            run_rank(spec, rank, sink, _at_host(leg, rank, meeting), page, corpora_of(spec), saves)
        except (ReplicasDiffer, MemoryCapExceeded) as error:
            why = str(error)
    return End(why, found)


def _run_capped(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    """Runs with less memory than any rank of the earlier run had for its optimizer, so that each fails by itself."""
    assert leg.cap_of is not None
    of_ranks = (read_file(events_path(leg.cap_of, rank)) for rank in range(spec.parallel.world))
    peaks = [[frame for frame in frames if frame.kind == "memory"][-1].header["peak"] for frames in of_ranks]
    trace = spec.trace.model_copy(update={"memory_cap": min(peak["optimizer"] for peak in peaks)})
    return _run(leg, source, spec.model_copy(update={"trace": trace}), rank, meeting, folder)


def _reload(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    assert source is not None

    def use(trainer: Trainer) -> End:
        done = checkpoint.load(trainer, source)
        saver = checkpoint.Saver(trainer, CheckpointConfig(leg.folder), FileSink(leg.folder, rank))
        saver.save(done)
        saver.wait()
        return End("", Injections())

    return ranks.with_trainer(spec, rank, meeting, folder, use, corpora_of(spec))


def _text(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    assert source is not None and leg.request is not None
    sink, page = FileSink(leg.folder, rank), Progress(folder, rank)
    generate.run_rank(spec, rank, sink, _at_host(leg, rank, meeting), page, source, leg.request)
    return End("", Injections())


_WORK: dict[Kind, Callable[..., Any]] = {
    "steps": _steps,
    "run": _run,
    "capped": _run_capped,
    "reload": _reload,
    "text": _text,
}


def _at_host(leg: Leg, rank: int, meeting: Rendezvous) -> Rendezvous:
    """Puts the rank on one of the leg's hosts, which share no memory; the first half of the ranks is on the first."""
    if leg.hosts == 1 or meeting.world == 1:
        return meeting
    node = 0 if rank < meeting.world // 2 else meeting.world // 2
    os.environ[host_memory.NODE] = str(node)
    return replace(meeting, node=node)
