"""Alpa's plans for this host: the three fastest that can run are predicted (its equation 2; simulated) and run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.analysis.quantities import percent_text, seconds_text
from parallel_core.bench.predict import held, measured, spec_of
from parallel_core.local import LocalYard
from parallel_core.plan.alpa.costs import LayerCosts, Measured
from parallel_core.plan.alpa.inter import Mesh, Search
from parallel_core.plan.alpa.plans import Named, beside
from parallel_core.profile.measure import measure_for
from parallel_core.profile.table import CostTable
from parallel_core.simulate.predict import predict_step

DEVICES, MICRO_BATCHES, RUN = 2, 4, 3


def run(rounds: int) -> dict[str, Any]:
    """Results: rows (one a plan that ran), mean_error (simulated), mean_equation (Alpa's equation 2), others."""
    spec = spec_of({})
    table = measure_for(spec, seconds=max(1.0, rounds / 2))
    samples = spec.train.global_batch // MICRO_BATCHES
    search = Search(LayerCosts(spec, Measured(table), samples), Mesh(1, DEVICES), MICRO_BATCHES)
    able = [named for named in beside(search) if named.spec is not None and named.name.startswith("Alpa, ")][:RUN]
    with LocalYard() as yard, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        rows = [_row(yard, table, named, Path(folder) / str(i), Path(folder)) for i, named in enumerate(able)]
    mean, equation = (float(np.mean([abs(row[name]) for row in rows])) for name in ("error", "equation_error"))
    others = float(np.mean([row["others"] for row in rows]))
    lines = [
        f"  {row['label']:<24} measured {seconds_text(row['measured'])}; simulated {row['error']:+.1%}, "
        f"equation 2 {row['equation_error']:+.1%}"
        for row in rows
    ]
    text = (
        f"{len(rows)} plans off by {mean * 100:.1f} % simulated, {equation * 100:.1f} % by equation 2; "
        f"others used {percent_text(others)} of the devices"
    )
    return {
        "rows": rows,
        "mean_error": mean,
        "mean_equation": equation,
        "others": others,
        "text": "\n".join([text, *lines]),
    }


def _row(yard: LocalYard, table: CostTable, named: Named, folder: Path, corpora: Path) -> dict[str, Any]:
    assert named.spec is not None and named.plan is not None
    found = held(predict_step(named.spec, table).seconds, *measured(yard, named.spec, folder, corpora))
    return {"label": named.name, "equation_error": named.plan.seconds / found["measured"] - 1, **found}
