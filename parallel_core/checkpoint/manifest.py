"""The manifest of a checkpoint. It is fully checked when read, as it decides what is copied into a model."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.cover import covers
from parallel_core.untrusted import PARSE_ERRORS, text_of

FORMAT = "trainyard-checkpoint-1"
FILE = "manifest.json"
_NAME = re.compile(r"^rank-\d+\.bin$")
_DIGITS = re.compile(r"[0-9a-f]{1,64}")
MOST_DIMENSIONS = 8
"""The most of a tensor; a convolution's weight has four."""
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class CheckpointError(Exception):
    """A checkpoint cannot be written or used; the text says why. `fields`: messages by dotted field of the spec."""

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
    """The content of a checkpoint after `step` steps, written by `run` and `attempt` (0 without a dashboard).

    `spec` = the spec of that run. Tensors are named `<kind>/<parameter>`, e.g. `value/embed.token.weight`, and
    `stat/<name>` for running statistics. `scalars` = those of the optimizer and the loss scale.
    """

    step: int
    run: int
    attempt: int
    spec: dict[str, Any]
    scalars: dict[str, float]
    tensors: dict[str, Stored]
    files: dict[str, int] = field(default_factory=dict)
    """File name -> size in bytes."""
    held_out: float | None = None
    """The held-out loss after exactly these steps; None where it was not evaluated then."""
    reads: dict[str, str] = field(default_factory=dict)
    """The digits of the content of what its attempt read (`engine.inputs.reads`); {} in those of earlier versions."""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    @property
    def content(self) -> str:
        """16 hexadecimal digits of the parameter values, which tell them from others of the same step."""
        values = {name: stored for name, stored in self.tensors.items() if name.startswith("value/")}
        pieces = [(name, piece.offsets, piece.sha256) for name, stored in values.items() for piece in stored.pieces]
        return _digest({"pieces": sorted(pieces)})[:16]

    @property
    def weights_only(self) -> bool:
        """Whether it has only parameter values, such as imported ones: the optimizer then starts anew, in any
        precision."""
        return "steps" not in self.scalars

    def text(self) -> str:
        """The manifest as JSON, with the SHA-256 of all other fields as `digest`."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "digest": _digest(body)}, separators=(",", ":"))


def changed(folder: Path, name: str, piece: Piece) -> CheckpointError:
    """The error to raise if the bytes of a piece of the tensor `name` have another SHA-256."""
    return CheckpointError(f"The checkpoint {folder} was changed: {name} in {piece.file} does not match its sha256.")


def read(folder: Path) -> Manifest:
    """The manifest of a complete, whole checkpoint.

    Raises CheckpointError if there is none, it was changed, or a file is missing or has another size. The content of
    the files is checked piece by piece when it is loaded (or by `verify.verified`).
    """
    try:
        raw = json.loads(text_of(folder / FILE))
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


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parse(raw: dict[str, Any]) -> Manifest:
    """Raises one of PARSE_ERRORS if `raw` is not a manifest."""
    return Manifest(
        step=_count(raw["step"]),
        run=_count(raw["run"]),
        attempt=_count(raw["attempt"]),
        spec=_sections(raw["spec"]),
        scalars={str(name): _finite(value) for name, value in raw["scalars"].items()},
        tensors={str(name): parse_stored(entry) for name, entry in raw["tensors"].items()},
        files={_plain(name): _count(size) for name, size in raw["files"].items()},
        held_out=None if raw.get("held_out") is None else _finite(raw["held_out"]),
        reads={str(what): _digits(content) for what, content in raw.get("reads", {}).items()},
    )


def _finite(raw: Any) -> float:
    if not math.isfinite(number := float(raw)):
        raise ValueError(f"number {number}")
    return number


def parse_stored(raw: Mapping[str, Any]) -> Stored:
    """Parses one tensor's entry. Raises one of PARSE_ERRORS if it is malformed."""
    if raw["dtype"] not in _BYTES:
        raise ValueError(f"element type {raw['dtype']!r}")
    pieces = tuple(
        Piece(_plain(p["file"]), _count(p["start"]), _sizes(p["offsets"]), _sizes(p["sizes"]), str(p["sha256"]))
        for p in raw["pieces"]
    )
    shape = _sizes(raw["shape"])
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"a shape of {len(shape)} dimensions")
    if odd := next((p for p in pieces if not len(p.offsets) == len(p.sizes) == len(shape)), None):
        raise ValueError(f"a piece of {odd.sizes} at {odd.offsets} of shape {shape}")
    return Stored(raw["dtype"], shape, pieces)


def _sections(raw: Any) -> dict[str, Any]:
    """A spec of any version; checks that the sections which `match.mismatches` compares are objects."""
    spec = dict(raw)
    if odd := next((name for name in ("model", "train") if not isinstance(spec.get(name, {}), dict)), None):
        raise ValueError(f"spec.{odd}")
    return spec


def _count(raw: Any) -> int:
    """Returns a number that is whole and not negative, after checking that it is one, and no text or truth value."""
    if type(raw) is not int or raw < 0:
        raise ValueError(f"count {str(raw)[:40]!r}")
    return raw


def _digits(raw: Any) -> str:
    """Returns the digits of some content after checking that they are some: messages repeat them."""
    if not isinstance(raw, str) or not _DIGITS.fullmatch(raw):
        raise ValueError(f"digits {str(raw)[:40]!r}")
    return raw


def _sizes(raw: Any) -> tuple[int, ...]:
    return tuple(map(_count, raw))


def _plain(name: Any) -> str:
    """Returns a file name after checking that it is one of a rank's data, not a path to elsewhere."""
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
        if not covers(stored.shape, ((piece.offsets, piece.sizes) for piece in stored.pieces)):
            raise CheckpointError(f"The checkpoint {folder} is damaged: its pieces do not cover {name} once.")
        for piece in stored.pieces:
            if piece.start + piece.elements * stored.item > manifest.files.get(piece.file, -1):
                raise CheckpointError(f"The checkpoint {folder} is damaged: {name} lies outside {piece.file}.")
