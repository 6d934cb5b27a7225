"""The study of text generation: one checkpoint's text from several splits over devices, and what its runs say.

All runs have the same prompt and seed, so all splits are to generate the same text (`engine.generate`); whether they
did is compared token by token, and no difference is explained away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

from dashboard.runs import services
from dashboard.runs.generation import generating
from dashboard.runs.generation.generating import ONE, Split
from dashboard.runs.models import ENDED, Run, State
from dashboard.runs.places import NOWHERE, Machines, Place, places_of
from dashboard.studies.new.variants import Plan, Skipped, Variant
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.generated import Parts, Stretch
from parallel_core.analysis.stats import Speedup, Stats, speedup
from parallel_core.generation_request import read_request
from parallel_core.plan.generation import worst_place
from parallel_core.spec import RunSpec

KIND = "generation"


def plan(run: Run, step: int, request: Mapping[str, Any], splits: Iterable[Split]) -> Plan:
    """The single device, then each of the splits once, all from `run`'s checkpoint of `step`; what cannot generate is
    left out, with the reason.

    `request`: see `parallel_core.generation_request.TextRequest`.
    """
    made = [_variant(run, step, request, split) for split in dict.fromkeys((ONE, *splits))]
    kept = (one for one in made if isinstance(one, Variant))
    return Plan(tuple(kept), tuple(one for one in made if isinstance(one, Skipped)))


def _variant(run: Run, step: int, request: Mapping[str, Any], split: Split) -> Variant | Skipped:
    try:
        spec = generating.spec_of(run, split)
    except services.Invalid as error:
        return Skipped(split.label, " ".join(error.field_errors.values()))
    found = read_request(request, spec)
    if found.request is None:
        return Skipped(split.label, " ".join(found.errors.values()))
    return Variant(split.label, spec, dict(found.request), {"run": run.pk, "step": step})


@dataclass(frozen=True)
class Row:
    """One run. What was measured is None unless it succeeded; times in seconds, sizes in bytes."""

    run: Run
    label: str
    """Its name in the study: that of its split, with the number of the repeat."""
    split: Split
    prefill: float | None = None
    token: Stats | None = None
    """Of each token after the first, on the slowest replica."""
    rate: float | None = None
    """Tokens/s of all texts at the median token."""
    overall: float | None = None
    """Tokens/s of all texts with the prefill, and with the tokens that took longer; None also for runs of earlier
    versions."""
    text: float | None = None
    """Seconds from the prompt to the last token, on the replica that took longest; None also for runs of earlier
    versions."""
    kv_bytes: int | None = None
    """Keys and values on the rank that has the most."""
    memory: Mapping[str, Any] | None = None
    """`peak_total` of the worst rank, and its `peak` by category: params, activations (keys and values), buffers."""
    digest: str = ""
    """Equal for equal texts."""
    parts: Parts | None = None
    """Where a token goes; None also for runs of earlier versions."""
    positions: Sequence[Stretch] = ()
    """Time of a token over its position."""
    others: float | None = None
    """The share of one of its devices that other processes used."""
    speed: Speedup | None = None
    """Over the single device, in tokens/s; None for its own runs."""

    @property
    def done(self) -> bool:
        """Whether it has a result that can be compared."""
        return self.rate is not None

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much of a device that its times say little."""
        return (self.others or 0.0) > DISTURBED_ABOVE

    @property
    def peak(self) -> int | None:
        """Peak bytes on the worst rank, measured; None if it is not known."""
        return self.memory["peak_total"] if self.memory else None

    @cached_property
    def predicted(self) -> int:
        """Peak bytes on the worst rank, predicted."""
        return worst_place(RunSpec.stored(self.run.spec), self.run.task).total

    @property
    def each(self) -> Stats | None:
        """`token` divided by the texts that go on at a time: its median is 1 / `rate`."""
        token = self.token
        if token is None or not self.rate or not token.median:
            return None
        part = 1 / self.rate / token.median
        return Stats(part * token.median, part * token.p10, part * token.p90, part * token.mean, token.n)


@dataclass(frozen=True)
class Generations:
    """The runs of a study of text generation: those with a result first, fastest on top."""

    rows: Sequence[Row]
    single: Row | None
    """The single device's result, with which all are compared, of repeats the medians; None while there is none."""
    places: Mapping[int, Place] = field(default_factory=dict)
    """By run: where it ran."""

    @property
    def open(self) -> list[Row]:
        """Rows of the runs that have not ended."""
        return [row for row in self.rows if row.run.state not in ENDED]

    @property
    def compared(self) -> list[Row]:
        """One row for each split whose times are compared, labelled by it, fastest first: of repeats the medians."""
        return sorted((_against(self.single, _middle(rows)) for rows in _by_split(_timed(self.rows))), key=_fastest)

    @property
    def splits(self) -> list[Row]:
        """As `compared`, but one row for each split with a result, for what nobody can disturb: text and memory."""
        return [_middle(rows) for rows in _by_split([row for row in self.rows if row.done])]

    @property
    def disturbed(self) -> list[Row]:
        """The rows whose times are left out since other processes disturbed them; [] if they are all there is."""
        timed = {row.run.pk for row in _timed(self.rows)}
        return [row for row in self.rows if row.done and row.run.pk not in timed]

    @property
    def machines(self) -> Machines:
        """Where the runs ran whose times are held against the single device's, the first of its repeats."""

        def placed(row: Row) -> tuple[str, Place]:
            return row.label, self.places.get(row.run.pk, NOWHERE)

        timed = _timed(self.rows)
        base = next((row for row in timed if self.single and row.run.pk == self.single.run.pk), None)
        others = [placed(row) for row in timed if row is not base]
        return Machines(placed(base) if base else ("", NOWHERE), others)

    @property
    def reference(self) -> Row | None:
        """The run whose text all others are compared with: the first one of the single device, else the first one."""
        done = [row for row in self.rows if row.done]
        return min(done, key=lambda row: (row.split != ONE, row.run.position), default=None)

    @property
    def unlike(self) -> list[Row]:
        """The runs whose text is not that of the reference."""
        return [row for row in self.rows if row.done and self.reference and row.digest != self.reference.digest]


def of_runs(runs: Iterable[Run], places: Mapping[int, Place] | None = None) -> Generations:
    """Reads the runs' rows alone. `places`: see `places_of`; None = read here."""
    every = list(runs)
    rows = sorted(map(_row, every), key=_order)
    alone = [row for row in _timed(rows) if row.split == ONE]
    single = _middle(alone) if alone else None
    known = places_of(every) if places is None else places
    return Generations([_against(single, row) for row in rows], single, known)


def _timed(rows: Sequence[Row]) -> list[Row]:
    """The rows with a result that nothing disturbed; all with a result if everything was disturbed."""
    done = [row for row in rows if row.done]
    return [row for row in done if not row.disturbed] or done


def _by_split(rows: Iterable[Row]) -> list[list[Row]]:
    own: dict[Split, list[Row]] = {}
    for row in rows:
        own.setdefault(row.split, []).append(row)
    return list(own.values())


def _against(single: Row | None, row: Row) -> Row:
    """The row with its speed over the single device's, if both have a result."""
    base, own = single.each if single and row.split != ONE else None, row.each
    return replace(row, speed=speedup(base, own)) if base and own else row


def _middle(rows: Sequence[Row]) -> Row:
    """The row of a split of which these are the runs with a result: of each figure the median over them."""
    first = min(rows, key=lambda row: row.run.position)
    told = [row.parts for row in rows if row.parts]
    tokens, memories = [row.token for row in rows if row.token], [row.memory for row in rows if row.memory]
    return replace(
        first,
        label=first.split.label,
        prefill=median(row.prefill for row in rows if row.prefill is not None),
        token=_middle_stats(tokens) if tokens else None,
        rate=median(row.rate for row in rows if row.rate is not None),
        overall=_median([row.overall for row in rows]),
        text=_median([row.text for row in rows]),
        memory=_middle_memory(memories) if memories else None,
        parts=Parts(*(median(column) for column in zip(*told, strict=True))) if told else None,
        others=max((row.others for row in rows if row.others is not None), default=None),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _middle_stats(each: Sequence[Stats]) -> Stats:
    return Stats(
        median=median(one.median for one in each),
        p10=median(one.p10 for one in each),
        p90=median(one.p90 for one in each),
        mean=median(one.mean for one in each),
        n=round(median(one.n for one in each)),
    )


def _middle_memory(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    peak = {name: round(median(one["peak"][name] for one in each)) for name in each[0]["peak"]}
    return {"peak_total": round(median(one["peak_total"] for one in each)), "peak": peak}


def _row(run: Run) -> Row:
    parallel = RunSpec.stored(run.spec).parallel
    row = Row(run, run.name, Split(parallel.tp, parallel.pp, parallel.dp))
    made = run.summary.get("generation") if run.state == State.SUCCEEDED else None
    if not made:
        return row
    return replace(
        row,
        prefill=made["prefill"],
        token=Stats(**made["token"]) if made["token"] else None,
        rate=made["tokens_per_s"],
        overall=made.get("overall_tokens_per_s"),
        text=made.get("text_s"),
        kv_bytes=made["kv_bytes"],
        memory=run.summary.get("memory"),
        digest=made["digest"],
        parts=Parts(**found) if (found := made.get("parts")) else None,
        positions=[Stretch(*found) for found in made.get("positions", ())],
        others=run.summary.get("cpu_others"),
    )


def _fastest(row: Row) -> tuple[float, int]:
    return -(row.rate or 0.0), row.run.position


def _order(row: Row) -> tuple[int, float, int]:
    place = 0 if row.done else 1 if row.run.state not in ENDED else 2
    return place, *_fastest(row)
