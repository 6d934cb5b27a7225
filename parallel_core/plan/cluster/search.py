"""All plans of a job on a cluster: memory first, then time; refused plans keep their reasons as a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from time import process_time

import numpy as np

from parallel_core.analysis.pareto import pareto_front
from parallel_core.plan.cluster import memory, rules, step
from parallel_core.plan.cluster.device_counts import fewer
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import PRECISIONS, RECOMPUTE, SCHEDULES, Floats, Ints, Plan, Plans
from parallel_core.plan.cluster.problems import require
from parallel_core.rules import divisors
from parallel_core.schedule.traits import TRAITS

MOST_PLANS = 1_000_000
"""Most plans of a search; of a larger space the layouts with the widest tensor groups are left out."""

LEFT_OUT = 0.06
"""By how much the fastest plan of a `lean` space was slower than that of the whole, at most: in 120 searches over 4 to
32 devices, with 4 to 24 layers."""

MOST_MICRO_BATCH = 32
"""Most sequences of a micro-batch that are tried: larger ones hardly compute faster."""


@dataclass(frozen=True, slots=True)
class Space:
    """Options that a search combines. `devices` None: the cluster's, and fewer where that is faster (`search`)."""

    devices: tuple[int, ...] | None = None
    most_tp: int = 64
    most_pp: int = 128
    most_chunks: int = 8
    most_micro_batch: int = MOST_MICRO_BATCH
    schedules: tuple[str, ...] = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
    recompute: tuple[str, ...] = RECOMPUTE
    zero: tuple[int, ...] = (0, 1, 2, 3)
    sequence_parallel: tuple[bool, ...] = (False, True)
    precisions: tuple[str, ...] = ("16-bit",)
    states: tuple[int, ...] = (18,)
    offload: tuple[bool, ...] = (False, True)
    by_columns: tuple[bool, ...] = (False,)


def lean(space: Space) -> Space:
    """A smaller space for searches beside the main one: what it leaves out gains LEFT_OUT at most. The user's choices
    (precision, bytes a parameter, offload) stay, and all schedules: on a few devices a zero-bubble one may take two
    thirds of the time of the others."""
    return replace(
        space,
        sequence_parallel=(True,),
        most_micro_batch=min(space.most_micro_batch, 8),
        zero=tuple(stage for stage in space.zero if stage != 2) or space.zero,
        by_columns=(False,),
    )


@dataclass(frozen=True)
class SearchResult:
    """Every plan of a search.

    `codes`: 0 if it can be trained, else rules.Reason; `peak`: bytes (nan if a structural rule refused it); `seconds` a
    step (nan if refused); `order`: indices of the trainable plans, fastest first; `space`: the options that were
    combined; `devices`: of the cluster; `slower`: plans on fewer devices that were evaluated and left out.
    """

    plans: Plans
    codes: Ints
    peak: Floats
    seconds: Floats
    order: Ints
    cpu_seconds: float
    space: Space
    devices: int
    slower: int = 0

    @property
    def timed(self) -> int:
        """Number of plans whose memory and time were both evaluated."""
        return len(self.order)

    @property
    def too_large(self) -> int:
        """Number of plans rejected by memory alone."""
        return int(np.count_nonzero(~np.isnan(self.peak))) - self.timed

    @property
    def rate(self) -> float:
        """Plans evaluated, or rejected by memory, per CPU second; those that break a structural rule do not count."""
        return (self.timed + self.too_large + self.slower) / max(self.cpu_seconds, 1e-9)

    def best(self, count: int = 1) -> list[int]:
        """Indices of the fastest plans."""
        return [int(i) for i in self.order[:count]]

    def label(self, i: int) -> str:
        """`named` of plan `i`."""
        return self.named(self.plans.row(i))

    def named(self, plan: Plan) -> str:
        """The label of a plan, with its devices where these are not the whole cluster."""
        on = f", on {plan.devices} of {self.devices} devices" if plan.devices < self.devices else ""
        return f"{plan.label()}{on}"

    def leaders(self, count: int | None = None) -> list[int]:
        """Indices of the fastest plan of each layout (DP x TP x PP), fastest layout first; at most `count`."""
        keys = np.stack([self.plans.dp[self.order], self.plans.tp[self.order], self.plans.pp[self.order]])
        _, first = np.unique(keys, axis=1, return_index=True)
        return [int(i) for i in self.order[np.sort(first)][:count]]


def search(job: Job, cluster: Cluster, space: Space | None = None) -> SearchResult:
    """All plans of the space with memory and time; `order` is empty where nothing fits. Raises Unphysical for an
    impossible job or cluster.

    Where `space.devices` is None, plans on fewer of the cluster's devices (`device_counts.fewer`) that are faster than
    every plan on all of them are found, too."""
    require({**cluster.problems(), **job.problems()})
    began = process_time()
    tried = space or Space()
    plans = grid(job, cluster, tried)
    made = evaluate(job, cluster, plans)
    best = float(made[2][made[3][0]]) if len(made[3]) else inf
    plans, slower = _with_faster(job, cluster, tried, plans, best)
    if len(plans) > len(made[0]):
        made = evaluate(job, cluster, plans)
    return SearchResult(plans, *made, process_time() - began, tried, cluster.devices, slower)


def _with_faster(job: Job, cluster: Cluster, space: Space, plans: Plans, best: float) -> tuple[Plans, int]:
    """(`plans` and those on fewer devices that take less than `best` seconds, which is inf where none of `plans` can be
    trained; how many others were evaluated)."""
    count = 0
    for devices in () if space.devices else fewer(job, cluster, space, best):
        here = replace(space, devices=(devices,))
        for part, least in ((lean(here), best * (1 + LEFT_OUT)), (here, best)):  # all only where one is promising
            found = grid(job, cluster, part)
            _, peak, seconds, order = evaluate(job, cluster, found)
            faster = order[seconds[order] < least]
            count += int(np.count_nonzero(~np.isnan(peak)))
            if not len(faster):
                break
        else:
            plans, count = plans.joined(found.take(faster)), count - len(faster)
            best = float(seconds[faster[0]]) if best == inf else best  # then of the most devices that can have a plan
    return plans, count


def evaluate(job: Job, cluster: Cluster, plans: Plans) -> tuple[Ints, Floats, Floats, Ints]:
    """(codes, peak, seconds, order) of these plans, as in SearchResult."""
    codes = rules.structure(job, cluster, plans)
    peak, seconds = np.full(len(plans), np.nan), np.full(len(plans), np.nan)
    whole = np.flatnonzero(codes == 0)
    if len(whole):
        chosen = plans.take(whole)
        found = memory.of(job, chosen)
        peak[whole] = found.peak
        codes[whole] = rules.bytes_of(cluster, chosen, found)
    fits = np.flatnonzero(codes == 0)
    if len(fits):
        seconds[fits] = step.of(job, cluster, plans.take(fits)).total
    # Ties in time go to the plan with less memory.
    return codes, peak, seconds, fits[np.lexsort((peak[fits], seconds[fits]))]


def grid(job: Job, cluster: Cluster, space: Space) -> Plans:
    """The combinations of a space, without those that change nothing: a schedule without a pipeline, ZeRO without
    replicas, sequence parallel without tensor ranks, and without those that divide no sequence."""
    blocks: list[np.ndarray] = []
    total = 0
    for devices, tp, pp in _layouts(job, cluster, space):
        options = _options(job, space, tp, pp, devices // (tp * pp))
        block = np.array([(devices // (tp * pp), tp, pp, *option) for option in options], np.float64)
        total += len(block)
        if total > MOST_PLANS:
            break
        if len(block):  # a schedule may not divide the layers of this layout
            blocks.append(block)
    columns = np.concatenate(blocks).T if blocks else np.zeros((len(Plans.__dataclass_fields__), 0))
    names = list(Plans.__dataclass_fields__)
    return Plans.columns(**dict(zip(names, columns, strict=True)))


def _layouts(job: Job, cluster: Cluster, space: Space) -> Iterator[tuple[int, int, int]]:
    """(devices, tensor ranks, stages) where tensor ranks divide heads and devices, and stages the remaining devices."""
    ways = [t for t in divisors(job.model.heads) if t <= space.most_tp]
    for devices in space.devices or (cluster.devices,):
        for tp in ways:
            if devices % tp:
                continue
            for pp in divisors(devices // tp):
                if pp <= min(space.most_pp, job.model.layers):
                    yield devices, tp, pp


def _options(job: Job, space: Space, tp: int, pp: int, dp: int) -> Iterator[tuple[float, ...]]:
    """(chunks, micro-batch, schedule, recompute, ZeRO, SP, precision, state, offload, columns), as codes."""
    sizes = micro_batches(job.batch, dp, space.most_micro_batch)
    zero = space.zero if dp > 1 else (0,)
    split = space.sequence_parallel if tp > 1 and job.model.seq % tp == 0 else (False,)
    columns = space.by_columns if tp > 1 else (False,)
    more = (
        [RECOMPUTE.index(word) for word in space.recompute],
        zero,
        split,
        [PRECISIONS.index(word) for word in space.precisions],
        space.states,
        space.offload,
        columns,
    )
    able = [rest for rest in product(*more) if not (rest[2] and rest[-1])]  # by_columns excludes sequence parallel
    for (schedule, chunks), size, rest in product(schedules(job, space, pp), sizes, able):
        yield (chunks, size, SCHEDULES.index(schedule), *rest)


def micro_batches(batch: int, dp: int, most: int = MOST_MICRO_BATCH) -> list[int]:
    """Sequences that a micro-batch can have, at most `most`: what divides a replica's part of the batch. [1], which
    `rules` refuses, where the batch does not divide over the replicas."""
    return [1] if batch % dp else [size for size in divisors(batch // dp) if size <= most]


def schedules(job: Job, space: Space, pp: int) -> list[tuple[str, int]]:
    """(schedule, chunks a rank) over which the layers divide, alone or with the embedding and output layer."""
    if pp == 1:
        return [("1f1b", 1)]
    made: list[tuple[str, int]] = []
    for name in space.schedules:
        traits = TRAITS[name]
        counts = range(traits.least, (traits.most or space.most_chunks) + 1)
        made += [(name, v) for v in counts if v == 1 or memory.even(job.model.layers, pp * v)]
    return made


def pareto(found: SearchResult) -> list[int]:
    """Indices of trainable plans that no other beats in both time and memory, fastest first."""
    return pareto_front(found.order.tolist(), lambda i: (float(found.seconds[i]), float(found.peak[i])))
