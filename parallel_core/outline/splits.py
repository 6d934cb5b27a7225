"""How a tensor group splits each parameter, by its name (Shoeybi et al. 2019, section 3).

Of two linear layers in a row, `pairs` cuts the first by its outputs and the second by its inputs, so that nothing is
exchanged between them; `columns` cuts both by their outputs and gathers what is between (`tensor.columns`).
"""

from __future__ import annotations

from typing import Any, Literal

TensorSplit = Literal["pairs", "columns"]
Cut = Literal["pairs", "columns", "sequence"]
"""What a rank of a tensor group does of a layer: by one of these splits, or in pairs and with sequence parallelism."""
IN_WORDS: dict[Cut, str] = {"pairs": "", "columns": " by columns", "sequence": " with sequence parallelism"}
"""Behind what is cut."""

COLUMN = frozenset({"qkv", "fc1", "output"})
"""Linear layers whose outputs are shared out."""
ROW = frozenset({"proj", "fc2"})
"""Linear layers whose inputs are, in pairs: the second ones."""
VOCAB = frozenset({"token"})
"""Embeddings whose rows are."""


def cut_fields(cut: Cut) -> dict[str, Any]:
    """Fields of ParallelSpec that say this cut."""
    return {"sequence": True} if cut == "sequence" else {"tensor_split": cut}


def split_dim(name: str, how: TensorSplit) -> int | None:
    """Dimension along which the full parameter `name` is split over the tensor group; None = every rank has it all."""
    layer, kind = name.rsplit(".", 2)[-2:]
    if layer in COLUMN or layer in VOCAB:
        return 0
    if layer not in ROW:
        return None
    if how == "columns":
        return 0
    return 1 if kind == "weight" else None


def summed_by_rows(name: str) -> bool:
    """Whether, with sequence parallelism, each tensor rank has only its rows' part of this parameter's gradient: of
    what is not split, all but the biases of row-parallel layers, whose backward gathers the gradient."""
    return split_dim(name, "pairs") is None and name.rsplit(".", 2)[-2] not in ROW
