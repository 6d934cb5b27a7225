"""Compares the ways to split a profiled model over the available devices, each predicted from the profile.

Times are simulated from the cost table (`simulate.predict`), memory is counted (`plan.memory`): the same two numbers
that the ledger later compares with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, get_args

from pydantic import ValidationError

from parallel_core.analysis.pareto import pareto_front
from parallel_core.outline.recompute import Recompute
from parallel_core.outline.splits import Cut, cut_fields
from parallel_core.parallel_spec import ParallelSpec
from parallel_core.plan.lean import leaner, with_fewest
from parallel_core.plan.memory import worst_stage
from parallel_core.plan.orders.measured import ordered
from parallel_core.plan.orders.problem import OrderError
from parallel_core.plan.strategy import label
from parallel_core.plan.unlike_stages import shapes
from parallel_core.profile.table import CostTable
from parallel_core.rules import divisors
from parallel_core.searches import ProgressCallback, silent
from parallel_core.simulate.cost_requirements import CannotPredict
from parallel_core.simulate.cuts import best_cuts
from parallel_core.simulate.network import ALONE, Where
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

EARLY = {"early_gradients": True}
ORDERS: tuple[dict[str, Any], ...] = (
    {"schedule": "1f1b"},
    {"schedule": "1f1b"} | EARLY,
    {"schedule": "interleaved"},
    {"schedule": "interleaved"} | EARLY,
    {"schedule": "zb-h1"},
    {"schedule": "zb-v"},
)
"""Schedules tried. Early gradients are faster, but may need more memory."""
FAR: tuple[dict[str, Any], ...] = (
    {"schedule": "gpipe"},
    {"schedule": "gpipe"} | EARLY,
    {"schedule": "looped-bfs"},
    {"schedule": "looped-bfs"} | EARLY,
    {"schedule": "zb-h2"},
)
"""Tried, too, where the ranks are on several hosts. With more micro-batches under way they wait less often for a slow
link: 1F1B for nearly every message, GPipe on p stages for p - 1 each way. On one host messages are short, so that these
would gain next to nothing, and keep more."""
UNLIKE = ORDERS[:2]
"""Tried where stages have different numbers of devices."""
MOST_MICRO_BATCHES = 32
"""Most micro-batches tried, where fewer are possible: more hardly shorten a step on MOST_DEVICES, but take longer to
simulate."""
COUNTS = 5
"""Numbers of micro-batches tried for each split."""
RECOMPUTES: tuple[Recompute, ...] = ("none", "full")
"""Recomputation tried with every split; `selective` as well where the profile timed it."""
SHARDS: tuple[dict[str, Any], ...] = (*({"zero": n} for n in range(4)), {"zero": 3, "zero_backend": "fully_shard"})
"""What is sharded over replicas (ZeRO stage), and by which backend."""
MOST_DEVICES = 8
"""Most devices: with more, there are too many ways to simulate while a user waits."""
RECUT = 3
"""Pipelines that are also tried with cuts searched for them by the layers' profiled times: the fastest ones. Two stages
of a VGG-16 are a tenth faster with them than with those by FLOPs."""
UNSURE = 0.05
"""Splits that are predicted so close may run the other way round: as far as any of 38 in three clusters was off beside
what all of its cluster were off by (docs/numbers.md, "This fleet")."""
TOO_LARGE = "too large"
LEANEST = 10
"""Most splits that are a little too large and tried with recomputation of as few blocks as must: the fastest ones."""
_CUTS = 50
"""Steps predicted in the search for cuts of one of them (`best_cuts`), and a few more."""
_EFFORT = 30_000
"""Operations timed in the search for an order (`orders.search`)."""


Placing = Callable[[RunSpec, int], Where]
"""The hosts of the ranks of a run, each of which needs so many bytes at most."""


@dataclass(frozen=True)
class Split:
    """A way to split the model: its run, seconds a step, bytes of its worst rank. `why_not`: why it is refused."""

    name: str
    spec: RunSpec
    seconds: float | None = None
    memory: int = 0
    why_not: str = ""


@dataclass(frozen=True)
class Splits:
    """`able`: ways that can run, fastest first; `refused`: the others, with their reasons."""

    able: tuple[Split, ...]
    refused: tuple[Split, ...]

    def pareto(self) -> list[Split]:
        """Pareto front of time and memory, fastest first."""
        return pareto_front(self.able, _measures)


def on_one_host(spec: RunSpec, needs: int) -> Where:
    """Placement of all ranks on one host."""
    return ALONE


def unlimited(spec: RunSpec) -> None:
    """Bytes for tensors of each device where they are not known."""


def splits(
    spec: RunSpec,
    table: CostTable,
    devices: int,
    memory: Callable[[RunSpec], float | None] = unlimited,
    on_progress: ProgressCallback = silent,
    placed: Placing = on_one_host,
) -> Splits:
    """Ways to train the model of `spec` with its batch on at most `devices` devices: all degrees of parallelism, with
    some numbers of micro-batches, tensor groups in every way that the table has, and a few pipelines of unlike stages.

    The fastest pipelines are also tried with cuts searched for them, the fastest of all with a searched order.
    `memory`: bytes for tensors of each device of a run (None: unlimited; see `plan.room`); `placed`: hosts of a run's
    ranks; `on_progress`: progress callback (ways judged, ways in all).
    """
    tried = list(_tried(spec, table, min(devices, MOST_DEVICES), placed))
    found = []
    for done, one in enumerate(tried):
        on_progress(done, len(tried))
        found.append(_judged(one, table, memory(one), placed))
    able = [split for split in found if not split.why_not]
    able += _leaner(found, table, memory, placed)
    pipelines = [split for split in sorted(able, key=_measures) if split.spec.parallel.pp > 1]
    recut = [split for one in _first(pipelines, RECUT) for split in _recut(one, table, memory(one.spec), placed)]
    able += recut
    for fastest in _first(sorted(pipelines + recut, key=_measures), 1):
        able += _searched(fastest, table, memory(fastest.spec), placed)
    refused = [split for split in found if split.why_not]
    return Splits(tuple(sorted(able, key=_measures)), tuple(refused))


def _measures(split: Split) -> tuple[float, int]:
    """Time, and memory, which decides between equally fast ones."""
    return split.seconds or 0.0, split.memory


def _first(ranked: Sequence[Split], count: int) -> list[Split]:
    """The first `count`, and the first as many that every profile can price: what a profile has in addition never keeps
    a search from what it would find without."""
    plain = [split for split in ranked if _plain(split.spec.parallel)]
    return list(ranked[:count]) + [split for split in plain[:count] if split not in ranked[:count]]


def _plain(split: ParallelSpec) -> bool:
    return (split.cut, split.replicas, split.widths) == ("pairs", None, None) and split.recompute in RECOMPUTES


def _tried(spec: RunSpec, table: CostTable, devices: int, placed: Placing) -> Iterator[RunSpec]:
    """The runs that are judged: those in the orders of FAR only where they would be on several hosts."""
    yield from _candidates(spec, table, devices)
    yield from _unlike(spec, table, devices)
    for one in _candidates(spec, table, devices, FAR):
        if one.parallel.pp > 1 and len(set(placed(one, worst_stage(one).total).hosts)) > 1:
            yield one


def _candidates(
    spec: RunSpec, table: CostTable, devices: int, pipelines: Sequence[dict[str, Any]] = ORDERS
) -> Iterator[RunSpec]:
    """The valid runs on at most `devices` devices, each once, with some numbers of micro-batches (`_counts`)."""
    for dp, tp, pp in product(range(1, devices + 1), repeat=3):
        if dp * tp * pp > devices or spec.train.global_batch % dp:
            continue
        counts = _counts(spec.train.global_batch // dp, pp)
        orders = pipelines if pp > 1 else ORDERS[:1]
        shards = SHARDS if dp > 1 else SHARDS[:1]
        for (how, cut), order, count, shard in product(_layers(table, tp), orders, counts, shards):
            parallel = {"dp": dp, "tp": tp, "pp": pp, "micro_batches": count, "recompute": how, **cut_fields(cut)}
            yield from _valid(spec, parallel | order | shard)


def _layers(table: CostTable, tp: int) -> list[tuple[Recompute, Cut]]:
    """The ways to compute layers in tensor groups of `tp` that the table can price, and the plain ones, which it says
    itself if it cannot. Full recomputation is priced by plain layers."""
    timed = {(how, cut) for width, how, cut in table.conditions if width == tp}
    cuts = [cut for cut in get_args(Cut) if cut == "pairs" or (tp > 1 and ("none", cut) in timed)]
    ways = [(how, cut) for how, cut in product(RECOMPUTES, cuts)]
    return ways + [("selective", cut) for cut in cuts if ("selective", cut) in timed]


def _unlike(spec: RunSpec, table: CostTable, devices: int) -> Iterator[RunSpec]:
    """The valid runs whose stages have different numbers of replicas or of tensor ranks, in the few shapes that share
    out the work best."""
    batch = spec.train.global_batch
    widths = frozenset(width for width, _, cut in table.conditions if cut == "pairs")
    found: list[tuple[int, dict[str, Any]]] = [
        (batch, {"replicas": shape, "pp": len(shape)}) for shape in shapes(spec.model, devices)
    ]
    for dp in (n for n in range(1, devices // 3 + 1) if batch % n == 0):
        each = shapes(spec.model, devices // dp, widths)
        found += [(batch // dp, {"dp": dp, "widths": shape, "pp": len(shape)}) for shape in each]
    for samples, parallel in found:
        least = max(parallel.get("replicas", (parallel["pp"],)))
        for count, order, how in product(_counts(samples, least), UNLIKE, RECOMPUTES):
            yield from _valid(spec, {**parallel, "micro_batches": count, "recompute": how, **order})


def _counts(samples: int, stages: int) -> list[int]:
    """At most COUNTS numbers of micro-batches that divide the samples, evenly spread from the smallest to the largest.
    With fewer micro-batches than stages some stages are always idle."""
    able = [n for n in divisors(samples) if n >= stages]
    able = [n for n in able if n <= MOST_MICRO_BATCHES] or able[:1]
    if len(able) <= COUNTS:
        return able
    return [able[round(i * (len(able) - 1) / (COUNTS - 1))] for i in range(COUNTS)]


def _valid(spec: RunSpec, parallel: dict[str, Any]) -> Iterator[RunSpec]:
    """The run, unless the model does not divide, or the schedule refuses."""
    with suppress(ValidationError):
        yield RunSpec.model_validate(spec.model_dump() | {"parallel": parallel})


def _judged(spec: RunSpec, table: CostTable, limit: float | None, placed: Placing) -> Split:
    name, needs = _name(spec), worst_stage(spec).total
    if limit is not None and needs > limit:
        return Split(name, spec, None, needs, TOO_LARGE)
    try:
        return Split(name, spec, predict_step(spec, table, where=placed(spec, needs)).seconds, needs)
    except CannotPredict as error:
        return Split(name, spec, None, needs, str(error))


def _leaner(
    found: Sequence[Split], table: CostTable, memory: Callable[[RunSpec], float | None], placed: Placing
) -> list[Split]:
    """What else can be done with splits that recompute nothing and are too large: ways that fit."""
    large = [one.spec for one in found if one.why_not == TOO_LARGE and one.spec.parallel.recompute == "none"]
    made = [_judged(spec, table, memory(spec), placed) for one in large for spec in leaner(one)]
    able = [split for split in made if not split.why_not]
    least = min((one.seconds or inf for one in (*found, *able)), default=inf)
    whole = sorted((_judged(spec, table, None, placed) for spec in large), key=_measures)
    for one in [one for one in whole if not one.why_not and (one.seconds or 0.0) < least][:LEANEST]:
        room = memory(one.spec)
        if (one.seconds or 0.0) < least and room is not None and (spec := with_fewest(one.spec, room)):
            able.append(_judged(spec, table, room, placed))
            least = min(least, able[-1].seconds or inf)
    return [split for split in able if not split.why_not]


def _name(spec: RunSpec, called: str = "") -> str:
    name = called or label(spec)
    if spec.parallel.pp > 1:
        name += f", {spec.parallel.micro_batches} micro-batches"
    return f"{name}, cuts by the profile" if spec.parallel.cuts else name


def _recut(split: Split, table: CostTable, limit: float | None, placed: Placing) -> list[Split]:
    """The split with the cuts that were found for it, if it is faster with them and fits on the same hosts."""
    where = placed(split.spec, split.memory)
    best = best_cuts(split.spec, table, where, _CUTS)
    needs = worst_stage(best.spec).total
    if best.seconds >= best.before or (limit is not None and needs > limit) or placed(best.spec, needs) != where:
        return []
    return [Split(_name(best.spec), best.spec, best.seconds, needs)]


def _searched(split: Split, table: CostTable, limit: float | None, placed: Placing) -> list[Split]:
    """Orders found for the split's micro-batches, on the hosts where it would be, that fit there."""
    where = placed(split.spec, split.memory)
    try:
        rows = ordered(split.spec, table, effort=_EFFORT, where=where)
    except OrderError:
        return []
    return [
        Split(_name(row.spec, f"PP-{row.name}"), row.spec, row.seconds, row.memory)
        for row in rows
        if row.found is not None
        and (limit is None or row.memory <= limit)
        and placed(row.spec, row.memory) == where  # else its time would be that of other hosts
    ]
