"""How a tensor-parallel group splits each parameter, by its name (Shoeybi et al. 2019, section 3).

Of two consecutive linear layers, `pairs` splits the first by its outputs and the second by its inputs, so that nothing
is communicated between them; `columns` splits both by their outputs and gathers what is between (`tensor.columns`).
"""

from __future__ import annotations

from typing import Any, Literal

TensorSplit = Literal["pairs", "columns"]
Cut = Literal["pairs", "columns", "sequence"]
"""How layers are split over a tensor-parallel group: by a `TensorSplit`, or in pairs with sequence parallelism."""
IN_WORDS: dict[Cut, str] = {"pairs": "", "columns": " by columns", "sequence": " with sequence parallelism"}
"""Text that is appended to the name of what is split."""

COLUMN = frozenset({"qkv", "fc1", "output"})
"""Linear layers that are split by outputs."""
ROW = frozenset({"proj", "fc2"})
"""The second linear layers of blocks, which are split by inputs under `pairs`."""
VOCAB = frozenset({"token"})
"""Embeddings that are split by rows."""


def cut_fields(cut: Cut) -> dict[str, Any]:
    """Returns the fields of ParallelSpec that select this split."""
    return {"sequence": True} if cut == "sequence" else {"tensor_split": cut}


def split_dim(name: str, how: TensorSplit) -> int | None:
    """The dimension along which the full parameter `name` is split over the tensor-parallel group; None = not split."""
    layer, kind = name.rsplit(".", 2)[-2:]
    if layer in COLUMN or layer in VOCAB:
        return 0
    if layer not in ROW:
        return None
    if how == "columns":
        return 0
    return 1 if kind == "weight" else None


def summed_by_rows(name: str) -> bool:
    """Whether, under sequence parallelism, each tensor rank has a partial gradient of this parameter, from its own
    rows.

    That is the case for all parameters that are not split, except the biases of row-parallel layers, whose backward
    gathers the gradient.
    """
    return split_dim(name, "pairs") is None and name.rsplit(".", 2)[-2] not in ROW
