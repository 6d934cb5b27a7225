"""The manifest of a checkpoint: read with suspicion, since what it says decides what is copied into a model."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from parallel_core.layout import Layout
from parallel_core.spec import DRAWN, RunSpec
from parallel_core.untrusted import PARSE_ERRORS

FORMAT = "trainyard-checkpoint-1"
FILE = "manifest.json"
_NAME = re.compile(r"^rank-\d+\.bin$")
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class CheckpointError(Exception):
    """A checkpoint cannot be written or used; the text says which and why. `fields`: message by dotted spec field."""

    def __init__(self, message: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.fields = dict(fields or {})


@dataclass(frozen=True)
class Piece:
    """A box of a tensor: `sizes` elements from `offsets` on, row-major, at byte `start` of `file`."""

    file: str
    start: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    sha256: str

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Stored:
    """A whole tensor: element type, full shape, and the pieces that cover it."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def item(self) -> int:
        """Bytes of one element."""
        return _BYTES[self.dtype]


@dataclass(frozen=True)
class Manifest:
    """`step` steps are done; `run` and `attempt` (0 without a dashboard) wrote it under `spec`.

    Tensors are named `<kind>/<parameter>`, e.g. `value/embed.token.weight`; `stat/` are running statistics. `scalars`
    are the optimizer's numbers.
    """

    step: int
    run: int
    attempt: int
    spec: dict[str, Any]
    scalars: dict[str, float]
    tensors: dict[str, Stored]
    files: dict[str, int] = field(default_factory=dict)
    """Name -> bytes."""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    @property
    def weights_only(self) -> bool:
        """Values and nothing else, such as imported ones: the optimizer begins afresh, in any precision."""
        return not any(name.startswith("mean/") for name in self.tensors)

    def text(self) -> str:
        """As JSON, with the sha256 of the rest at its end."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "digest": _digest(body)}, separators=(",", ":"))


def changed(folder: Path, name: str, piece: Piece) -> CheckpointError:
    """What to raise where the bytes of a piece of the tensor `name` have another sha256."""
    return CheckpointError(f"The checkpoint {folder} was changed: {name} in {piece.file} does not match its sha256.")


def read(folder: Path) -> Manifest:
    """The manifest of a complete, whole checkpoint.

    Raises CheckpointError where there is none, it was changed, or a file of it is missing or has another size. The
    content of the files is checked piece by piece when it is read (or by `verify.verified`).
    """
    try:
        raw = json.loads((folder / FILE).read_text())
    except OSError as error:
        raise CheckpointError(f"{folder} is no checkpoint: {FILE} cannot be read ({error.strerror}).") from error
    except PARSE_ERRORS as error:
        raise CheckpointError(f"The checkpoint {folder} is damaged: {FILE} is no JSON ({error}).") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise CheckpointError(f"{folder} is no checkpoint of this engine: its format is not {FORMAT}.")
    digest = raw.pop("digest", None)
    if digest != _digest(raw):
        raise CheckpointError(f"The checkpoint {folder} was changed: {FILE} does not match its own sha256.")
    try:
        manifest = _parse(raw)
    except PARSE_ERRORS as error:
        raise CheckpointError(f"The checkpoint {folder} is damaged: {FILE} lacks or spoils {error}.") from error
    _check_files(folder, manifest)
    return manifest


def mismatches(
    saved: Mapping[str, Any], spec: RunSpec, step: int, scalars: Mapping[str, float] = MappingProxyType({})
) -> dict[str, str]:
    """Message by dotted field where a run of `spec` cannot go on from step `step` of one of the spec `saved`.

    Model and precision must be the same; the layout, the data and the optimiser's settings may change. Where stages
    have made different numbers of updates (as `scalars` or the schedule tell), they must hold the same layers.
    """
    mine = spec.model_dump(mode="json")
    out = {}
    for section, names in (("model", mine["model"]), ("train", ["precision"])):
        before = saved.get(section, {})
        default = type(getattr(spec, section)).model_construct().model_dump(mode="json")
        for name in names:
            was, now = before.get(name, default[name]), mine[section][name]
            if was != now:
                out[f"{section}.{name}"] = f"The checkpoint was saved with {name}={was}; this run has {name}={now}."
    if before := _own_stages(saved, scalars):
        now = Layout.of(spec)
        if (before.stage_units, before.places) != (now.stage_units, now.places):
            cuts = ", ".join(str(units[0]) for units in before.stage_units[1:])
            out["parallel.pp"] = (
                f"The checkpoint's {before.pp} stages have made different numbers of updates, so each must stay whole: "
                f"use pipeline={before.pp} and cuts={cuts}; the replicas of each may change."
            )
    if step >= spec.train.steps:
        out["train.steps"] = f"The checkpoint has {step} steps done; steps={spec.train.steps} leaves none to train."
    return out


def _own_stages(saved: Mapping[str, Any], scalars: Mapping[str, float]) -> Layout | None:
    """The layout of `saved` where its stages have made different numbers of updates."""
    try:
        spec = RunSpec.model_validate(saved, context={DRAWN: True})
    except ValidationError:
        return None
    uneven = len({spec.parallel.updates(place) for place in range(spec.parallel.pp)}) > 1
    return Layout.of(spec) if uneven or any(name.startswith("steps.") for name in scalars) else None


def require_match(manifest: Manifest, spec: RunSpec, run: int = 0) -> None:
    """Raises CheckpointError, with messages by field, where a run of `spec` cannot go on from this checkpoint.

    `run` is that run's number, 0 without a dashboard. One that it wrote itself behind its last step it can go on from,
    to its end: it has nothing left to train.
    """
    wrong = mismatches(manifest.spec, spec, manifest.step, manifest.scalars)
    if run and manifest.run == run and manifest.step == spec.train.steps:
        wrong.pop("train.steps", None)
    if manifest.weights_only:
        wrong.pop("train.precision", None)
    if wrong:
        raise CheckpointError(" ".join(wrong.values()), wrong)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parse(raw: dict[str, Any]) -> Manifest:
    """Raises one of SPOILT on what is no manifest."""
    return Manifest(
        step=int(raw["step"]),
        run=int(raw["run"]),
        attempt=int(raw["attempt"]),
        spec=_sections(raw["spec"]),
        scalars={str(name): float(value) for name, value in raw["scalars"].items()},
        tensors={str(name): parse_stored(entry) for name, entry in raw["tensors"].items()},
        files={_plain(name): int(size) for name, size in raw["files"].items()},
    )


def parse_stored(raw: Mapping[str, Any]) -> Stored:
    """One tensor's entry. Raises one of SPOILT where it is none."""
    if raw["dtype"] not in _BYTES:
        raise ValueError(f"element type {raw['dtype']!r}")
    pieces = tuple(
        Piece(_plain(p["file"]), int(p["start"]), _sizes(p["offsets"]), _sizes(p["sizes"]), str(p["sha256"]))
        for p in raw["pieces"]
    )
    shape = _sizes(raw["shape"])
    if odd := next((p for p in pieces if not len(p.offsets) == len(p.sizes) == len(shape)), None):
        raise ValueError(f"a piece of {odd.sizes} at {odd.offsets} of shape {shape}")
    return Stored(raw["dtype"], shape, pieces)


def _sections(raw: Any) -> dict[str, Any]:
    """A spec, of any version, whose sections are such as a run is held against (`mismatches`)."""
    spec = dict(raw)
    if odd := next((name for name in ("model", "train") if not isinstance(spec.get(name, {}), dict)), None):
        raise ValueError(f"spec.{odd}")
    return spec


def _sizes(raw: Any) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in raw)
    if any(size < 0 for size in sizes):
        raise ValueError(f"size {sizes}")
    return sizes


def _plain(name: Any) -> str:
    """A file name of ours: never a path that leads elsewhere."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise ValueError(f"file name {name!r}")
    return name


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, size in manifest.files.items():
        try:
            found = (folder / name).stat().st_size
        except OSError:
            raise CheckpointError(f"The checkpoint {folder} is damaged: {name} is missing.") from None
        if found != size:
            raise CheckpointError(f"The checkpoint {folder} is damaged: {name} has {found} bytes instead of {size}.")
    for name, stored in manifest.tensors.items():
        if sum(piece.elements for piece in stored.pieces) != math.prod(stored.shape):
            raise CheckpointError(f"The checkpoint {folder} is damaged: its pieces do not cover {name}.")
        for piece in stored.pieces:
            end = piece.start + piece.elements * stored.item
            inside = all(at + n <= full for at, n, full in zip(piece.offsets, piece.sizes, stored.shape, strict=True))
            if not inside or piece.start < 0 or end > manifest.files.get(piece.file, -1):
                raise CheckpointError(f"The checkpoint {folder} is damaged: {name} lies outside {piece.file}.")
