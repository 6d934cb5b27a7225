"""Benchmark of Alpa's plans for this host: predicted (by its equation 2, and simulated) and measured step times.

Takes the fastest plans that can run: on two ranks with equal meshes, on four ranks with meshes that differ, and some
that split layers by columns or by rows (sequence parallelism). Ranks may share devices, which is simulated, too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.analysis.quantities import percent_text, seconds_text
from parallel_core.bench import goals
from parallel_core.bench.predict import Taken, held, measured, spec_of
from parallel_core.local import LocalRunner
from parallel_core.outline.splits import Cut
from parallel_core.plan.alpa.costs import LayerCosts, Measured
from parallel_core.plan.alpa.inter import Mesh, Search
from parallel_core.plan.alpa.plans import Named, with_alternatives
from parallel_core.profile.measure import measure_for
from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec

MICRO_BATCHES, RUN = 4, 3
WORST = 0.08
"""Goal for the largest error of a simulated plan."""
TRIES, QUIET = 3, 0.03
"""Most repetitions of a profile or run, and the spread of its repeats (profile) or share of the devices used by others
(run) at which it is accepted."""
SPLITS: tuple[Cut, ...] = ("pairs", "columns", "sequence")
EQUAL, UNEQUAL = 2, 4
"""Number of ranks of the plans with equal meshes, and of those with meshes that differ."""


def run(rounds: int) -> dict[str, Any]:
    """Returns rows (one per plan; `cut`: how its layers are split), and mean errors of the predictions.

    mean_error and bias: simulated, of plans with meshes that differ; mean_equal: simulated, of those with equal
    meshes; mean_cut: simulated, of those by columns or sequence; mean_equation: of Alpa's equation 2, for equal
    meshes; others: mean share of the devices used by other processes.
    """
    table = _profile(rounds)
    chosen = [*plans(table, EQUAL), *plans(table, UNEQUAL), *cut_plans(table)]
    with LocalRunner() as runner, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        rows = [_row(runner, table, named, Path(folder) / str(i), Path(folder)) for i, named in enumerate(chosen)]
    plain = [row for row in rows if row["cut"] == "pairs"]
    unequal = np.array([row["error"] for row in plain if row["ranks"] == UNEQUAL])
    equal = [row for row in plain if row["ranks"] == EQUAL]
    found = {
        "rows": rows,
        "mean_error": float(abs(unequal).mean()),
        "bias": float(unequal.mean()),
        "mean_cut": float(np.mean([abs(row["error"]) for row in rows if row["cut"] != "pairs"])),
        "mean_equal": float(np.mean([abs(row["error"]) for row in equal])),
        "mean_equation": float(np.mean([abs(row["equation_error"]) for row in equal])),
        "others": float(np.mean([row["others"] for row in rows])),
    }
    worst = max(abs(row["error"]) for row in rows)
    judged = [goals.at_most("largest error of a plan's step, simulated", worst, WORST)]
    return {**found, "goals": judged, "text": "\n".join([_text(found), *map(_line, rows)])}


def _profile(rounds: int) -> CostTable:
    """Returns the first profile whose repeats agree, otherwise the one whose repeats agree best."""
    tables: list[CostTable] = []
    while len(tables) < TRIES and not (tables and _spread(tables[-1]) <= QUIET):
        seconds = min(2.5, max(1.0, rounds / 2))
        tables.append(measure_for(spec_of({}), seconds=seconds, recompute=("none",), splits=SPLITS))
    return min(tables, key=_spread)


def _spread(table: CostTable) -> float:
    return float(np.median([row.jitter for row in table.layers]))


def _quietest(runner: LocalRunner, spec: RunSpec, folder: Path, corpora: Path) -> Taken:
    """Returns `measured` of the first run that was hardly disturbed by other processes, otherwise of the least
    disturbed one."""
    tries: list[Taken] = []
    while len(tries) < TRIES and not (tries and tries[-1].others <= QUIET):
        tries.append(measured(runner, spec, folder.with_name(f"{folder.name}-{len(tries)}"), corpora))
    return min(tries, key=lambda taken: taken.others)


def plans(table: CostTable, ranks: int) -> list[Named]:
    """Returns the fastest plans by equation 2 that can run on so many ranks: with equal meshes or, where `ranks` is
    UNEQUAL, the fastest of each set of meshes that differ."""
    able = [named for named in _able(table, ranks) if _cut(named) == "pairs"]
    if ranks == EQUAL:
        return [named for named in able if len(set(_meshes(named))) == 1][:RUN]
    firsts = {_meshes(named): named for named in reversed(able) if len(set(_meshes(named))) > 1}
    return [named for named in able if named in firsts.values()][:RUN]


def cut_plans(table: CostTable) -> list[Named]:
    """Returns the fastest plans by equation 2 that split by columns, and by sequence, on EQUAL ranks, and the fastest
    by either on UNEQUAL ranks."""
    few = _able(table, EQUAL)
    firsts = [next((named for named in few if _cut(named) == cut), None) for cut in SPLITS[1:]]
    many = next((named for named in _able(table, UNEQUAL) if _cut(named) != "pairs"), None)
    return [named for named in (*firsts, many) if named is not None]


def _able(table: CostTable, ranks: int) -> list[Named]:
    """Returns the plans that can run on so many ranks, fastest first."""
    spec = spec_of({})
    samples = spec.train.global_batch // MICRO_BATCHES
    search = Search(LayerCosts(spec, Measured(table), samples), Mesh(1, ranks), MICRO_BATCHES)
    return [named for named in with_alternatives(search) if named.spec is not None and named.name.startswith("Alpa, ")]


def _cut(named: Named) -> Cut:
    """Returns how the plan's tensor-parallel groups split layers."""
    assert named.spec is not None
    return named.spec.parallel.cut


def _meshes(named: Named) -> tuple[tuple[int, int], ...]:
    """Returns (dp, tp) of the stages, regardless of their order."""
    return tuple(sorted((stage.dp, stage.tp) for stage in named.plan.stages)) if named.plan else ()


def _row(runner: LocalRunner, table: CostTable, named: Named, folder: Path, corpora: Path) -> dict[str, Any]:
    assert named.spec is not None and named.plan is not None
    found = held(named.spec, table, _quietest(runner, named.spec, folder, corpora))
    ranks = named.spec.parallel.world
    equation = named.plan.seconds / found["measured"] - 1
    return {"label": named.name, "ranks": ranks, "cut": _cut(named), "equation_error": equation, **found}


def _text(found: dict[str, Any]) -> str:
    return (
        f"{RUN} plans with meshes that differ, on {UNEQUAL} ranks: off by {found['mean_error'] * 100:.1f} % simulated, "
        f"bias {found['bias'] * 100:+.1f} %; {RUN} with equal ones, on {EQUAL}: {found['mean_equal'] * 100:.1f} % "
        f"simulated, {found['mean_equation'] * 100:.1f} % by equation 2; "
        f"those by columns or sequence {found['mean_cut'] * 100:.1f} % simulated; "
        f"others used {percent_text(found['others'])} of the devices"
    )


def _line(row: dict[str, Any]) -> str:
    said = f"simulated {seconds_text(row['predicted'])}, {row['error']:+.1%}"
    equation = f"; equation 2 {row['equation_error']:+.1%}" if row["ranks"] == EQUAL else ""
    others = f"; others used {percent_text(row['others'])}"
    return f"  {row['label']:<34} measured {seconds_text(row['measured'])}; {said}{equation}{others}"
