"""Updates without the wait in them: the gradient norm of all ranks is taken inside the span of the optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import Kind


def behind_the_norm(rows: NDArray[np.void]) -> NDArray[np.void]:
    """SPAN rows of one rank of several; an OPT_STEP with a NORM inside begins at its end.

    What lies before is a wait for other ranks: the breakdown calls it bubble, so it is not drawn as work.
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
