"""A transformer block under each way of splitting linear layers over a tensor group: what a rank holds and sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dashboard.runs.layout.boxes import Box, box_of
from parallel_core.analysis.quantities import bytes_text, ratio_text
from parallel_core.layout import Layout
from parallel_core.outline.splits import COLUMN, ROW, TensorSplit
from parallel_core.plan.rank_shards import Held, Matrix, held
from parallel_core.plan.traffic import comm_volumes, gathered_widths
from parallel_core.spec import RunSpec

NAMES: dict[TensorSplit, str] = {"pairs": "Pairs", "columns": "Columns"}
ABOUT: dict[TensorSplit, str] = {
    "pairs": "The first matrix of two is cut by its outputs, the second by its inputs: one sum after both.",
    "columns": "Every matrix is cut by its outputs, so what it takes, and what it makes, is gathered.",
}


@dataclass(frozen=True)
class Piece:
    """A matrix (`box`), or a collective of the forward after it: its name (`said`) and the bytes of the full tensor."""

    box: Box | None = None
    said: str = ""
    size: str = ""


@dataclass(frozen=True)
class Split:
    """One way: a block's matrices and collectives in the order of a forward. `wire` = bytes of a whole step."""

    key: TensorSplit
    name: str
    about: str
    layers: list[list[Piece]]
    wire: str
    own: bool
    """Whether the run is split this way."""
    shown: bool


@dataclass(frozen=True)
class Splits:
    """All ways; `sentence` compares what they send."""

    sentence: str
    ways: list[Split]

    @property
    def other(self) -> bool:
        """Whether the way shown is not the run's own."""
        return any(way.shown and not way.own for way in self.ways)


def resplit(spec: RunSpec, how: str) -> RunSpec:
    """The run with its tensors split that way; unchanged if that is impossible, or `how` is no way."""
    if how not in NAMES or how == spec.parallel.tensor_split:
        return spec
    found: dict[str, Any] = spec.model_dump()
    found["parallel"]["tensor_split"] = how
    try:
        return RunSpec.model_validate(found)
    except ValidationError:
        return spec


def splits_of(spec: RunSpec, rank: int, shown: TensorSplit) -> Splits | None:
    """The ways to split for the picture of `rank`.

    None if the rank has no tensor group or holds no block, or if the run allows only one way (sequence parallel).
    """
    layout = Layout.of(spec)
    runs = {how: resplit(spec, how) for how in NAMES}
    if layout.widths[layout.coords(rank).place] == 1 or any(r.parallel.tensor_split != how for how, r in runs.items()):
        return None
    if not _block(held(spec, rank)):
        return None
    sent = {how: _wire(run, rank) for how, run in runs.items()}
    ways = [
        Split(how, NAMES[how], ABOUT[how], _layers(run, rank), bytes_text(sent[how]), run == spec, how == shown)
        for how, run in runs.items()
    ]
    return Splits(_sentence(rank, sent), ways)


def _sentence(rank: int, sent: dict[TensorSplit, int]) -> str:
    pairs, columns = sent["pairs"], sent["columns"]
    ratio = ratio_text(columns / pairs)
    return (
        f"Pairs send {bytes_text(pairs)} a step within the tensor group of rank {rank}, columns {bytes_text(columns)}: "
        f"{ratio} as much."
    )


def _wire(spec: RunSpec, rank: int) -> int:
    """Bytes that the rank sends within its tensor group in a step."""
    return sum(talk.wire for talk in comm_volumes(spec, rank) if talk.kind == "tensor")


def _block(layers: list[Held]) -> list[Held]:
    """The rank's first layer of each kind that has a pair of linear layers."""
    found: dict[str, Held] = {}
    for layer in layers:
        if any(_layer_of(matrix) in ROW for matrix in layer.matrices):
            found.setdefault(layer.unit.rsplit(".", 1)[-1], layer)
    return list(found.values())


def _layer_of(matrix: Matrix) -> str:
    return matrix.name.rsplit(".", 1)[0]


def _layers(spec: RunSpec, rank: int) -> list[list[Piece]]:
    """For each layer of a block its weights, and the collectives of a forward after them."""
    block = _block(held(spec, rank))
    longest = max(max(matrix.shape) for layer in block for matrix in layer.matrices)
    return [_pieces(spec, layer, longest) for layer in block]


def _pieces(spec: RunSpec, layer: Held, longest: int) -> list[Piece]:
    weights = [m for m in layer.matrices if len(m.shape) == 2 and _layer_of(m) in COLUMN | ROW]
    inputs, outputs = gathered_widths({matrix.name: matrix.shape for matrix in weights})
    each = spec.micro_batch_size * spec.model.seq * spec.element_bytes
    out = []
    for matrix in weights:
        out.append(Piece(box_of(matrix, longest)))
        second = _layer_of(matrix) in ROW
        if spec.parallel.tensor_split == "columns":
            out.append(Piece(said="gather", size=bytes_text(each * (outputs if second else inputs))))
        elif second:
            out.append(Piece(said="all-reduce", size=bytes_text(each * outputs)))
    return out
