"""Optimizer updates as they are drawn: the gradient norm over all ranks is a span inside the optimizer's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import Kind


def of_one(rows: NDArray[np.void], ranks: int) -> NDArray[np.void]:
    """Returns the SPAN rows of one of `ranks` ranks as they are drawn.

    On a single device the norm waits for nobody and sends nothing, so it is part of the update, as in the breakdown.
    """
    out = after_norm(rows)
    if ranks == 1 and (norms := out["kind"] == Kind.NORM).any():
        out = out.copy()
        out["kind"][norms] = Kind.OPT_STEP
    return out


def after_norm(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Returns SPAN rows of one rank, where an OPT_STEP with a NORM inside begins at the end of the norm.

    The time before is a wait for other ranks: the breakdown counts it as bubble, so it is not drawn as work.
    """
    updates, norms = np.flatnonzero(rows["kind"] == Kind.OPT_STEP), rows[rows["kind"] == Kind.NORM]
    if not len(updates) or not len(norms):
        return rows
    out = rows.copy()
    for i in updates:
        inside = (norms["start"] >= rows["start"][i]) & (norms["end"] <= rows["end"][i])
        if inside.any():
            out["start"][i] = norms["end"][inside].max()
    return out
