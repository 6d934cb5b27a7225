"""The legs of a pair of features (`pair_runs`), and the files that the first of them begin with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import safetensors
from parallel_core.combinations import Combination, ends, one_device
from parallel_core.combinations.features import FEATURES, TOKEN_FILE, UPLOADED_TEXT
from parallel_core.data import token_file
from parallel_core.engine import llama
from parallel_core.launch import GenerationRequest
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.record_files import Frame, events_path
from parallel_core.spec import ModelSpec, RunSpec, TraceSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file

STEPS = 2
Kind = Literal["steps", "run", "capped", "reload", "text"]


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
    return plain and not pair.spec.train.held_out and not pair.imported and pair.hosts == 1


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
