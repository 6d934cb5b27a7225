"""The study of text generation: one checkpoint's text from several splits over devices, and what its runs say.

All runs have the same prompt and seed, so all splits are to generate the same text (`engine.generate`); whether they
did is compared token by token, and no difference is explained away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from types import MappingProxyType
from typing import Any

from dashboard.runs import generating, services
from dashboard.runs.generating import ONE, Split
from dashboard.runs.models import ENDED, Run, State
from dashboard.studies import excluded
from dashboard.studies.excluded import NAMED
from dashboard.studies.variants import Plan, Skipped, Variant
from parallel_core.analysis.generated import first_difference
from parallel_core.analysis.quantities import bytes_text, listed_text, plural_text, rate_text, ratio_text
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
    """Tokens/s of all texts."""
    kv_bytes: int | None = None
    """Keys and values on the rank that has the most."""
    memory: Mapping[str, Any] | None = None
    """`peak_total` of the worst rank, and its `peak` by category: params, activations (keys and values), buffers."""
    digest: str = ""
    """Equal for equal texts."""
    speed: Speedup | None = None
    """Over the single device, in tokens/s; None for its own runs."""

    @property
    def done(self) -> bool:
        """Whether it has a result that can be compared."""
        return self.rate is not None

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

    @property
    def open(self) -> list[Row]:
        """Rows of the runs that have not ended."""
        return [row for row in self.rows if row.run.state not in ENDED]

    @property
    def compared(self) -> list[Row]:
        """One row with a result for each split, labelled by it, fastest first: of repeats the medians."""
        own: dict[Split, list[Row]] = {}
        for row in self.rows:
            if row.done:
                own.setdefault(row.split, []).append(row)
        return sorted((_against(self.single, _middle(rows)) for rows in own.values()), key=_fastest)

    @property
    def reference(self) -> Row | None:
        """The run whose text all others are compared with: the first one of the single device, else the first one."""
        done = [row for row in self.rows if row.done]
        return min(done, key=lambda row: (row.split != ONE, row.run.position), default=None)

    @property
    def unlike(self) -> list[Row]:
        """The runs whose text is not that of the reference."""
        return [row for row in self.rows if row.done and self.reference and row.digest != self.reference.digest]


def of_runs(runs: Iterable[Run]) -> Generations:
    """Reads the runs' rows alone."""
    rows = sorted(map(_row, runs), key=_order)
    alone = [row for row in rows if row.done and row.split == ONE]
    single = _middle(alone) if alone else None
    return Generations([_against(single, row) for row in rows], single)


def _against(single: Row | None, row: Row) -> Row:
    """The row with its speed over the single device's, if both have a result."""
    base, own = single.each if single and row.split != ONE else None, row.each
    return replace(row, speed=speedup(base, own)) if base and own else row


def _middle(rows: Sequence[Row]) -> Row:
    """The row of a split of which these are the runs with a result: of each figure the median over them."""
    first = min(rows, key=lambda row: row.run.position)
    tokens, memories = [row.token for row in rows if row.token], [row.memory for row in rows if row.memory]
    return replace(
        first,
        label=first.split.label,
        prefill=median(row.prefill for row in rows if row.prefill is not None),
        token=_middle_stats(tokens) if tokens else None,
        rate=median(row.rate for row in rows if row.rate is not None),
        memory=_middle_memory(memories) if memories else None,
    )


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
        kv_bytes=made["kv_bytes"],
        memory=run.summary.get("memory"),
        digest=made["digest"],
    )


def _fastest(row: Row) -> tuple[float, int]:
    return -(row.rate or 0.0), row.run.position


def _order(row: Row) -> tuple[int, float, int]:
    place = 0 if row.done else 1 if row.run.state not in ENDED else 2
    return place, *_fastest(row)


def differences(view: Generations) -> dict[int, tuple[int, int]]:
    """Run -> (text, token), both from 1, of the first token that is not the reference's; only runs with another text.

    Reads what their ranks have stored.
    """
    base = generating.whole(view.reference.run) if view.reference and view.unlike else None
    found = {}
    for row in view.unlike:
        made = generating.whole(row.run)
        first = first_difference(base["tokens"], made["tokens"]) if base and made else None
        if first is not None:
            found[row.run.pk] = (first[0] + 1, first[1] + 1)
    return found


def sentences(view: Generations, where: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> list[str]:
    """The first sentences of the page: the fastest split and the one with the least memory, whether the texts are the
    same, how far the study is, and what has no result. `where`: see `differences`."""
    said = [_answer(view), *_sameness(view, where)]
    done = sum(row.done for row in view.rows)
    if view.open and done:
        said.append(f"{done} of {len(view.rows)} runs have generated their text so far.")
    said += [
        f"What {row.label} generated has not arrived."
        for row in view.rows
        if row.run.state == State.SUCCEEDED and not row.done
    ]
    return [*said, *excluded.sentences([(row.label, row.run) for row in view.rows])]


def _answer(view: Generations) -> str:
    found = view.compared
    if found:
        return f"{_speed(view, found)}{_memory(found)}."
    every = plural_text(len(view.rows), "run")
    return f"0 of {every} generated text{' so far' if view.open else ''}."


def _speed(view: Generations, found: Sequence[Row]) -> str:
    """The fastest split against the single device."""
    best, reached = found[0], rate_text(found[0].rate or 0.0)
    if len(found) == 1:
        return f"{best.label} alone has a result{' so far' if view.open else ''}: {reached}"
    if view.single is None:
        yet = " yet" if any(row.split == ONE for row in view.open) else ""
        return f"{best.label} is fastest of {len(found)}, {reached}; the single device has no result{yet}"
    if best.split == ONE:
        other = found[1]
        noise = ", within noise" if other.speed and other.speed.within_noise else ""
        reaches = f"{other.label} reaches {_over(other)} of it{noise}"
        return f"No split is faster than the single device, {reached}: {reaches}"
    if best.speed and best.speed.within_noise:
        return f"{best.label} is fastest, but within noise: {reached}, {_over(best)} the single device"
    return f"{best.label} is fastest: {reached}, {_over(best)} the single device"


def _over(row: Row) -> str:
    """The ratio of its tokens/s to those of the single device, with its whiskers."""
    speed = row.speed
    return f"{ratio_text(speed.ratio)} ({ratio_text(speed.low)} to {ratio_text(speed.high)})" if speed else ""


def _memory(found: Sequence[Row]) -> str:
    """Where a rank needs least memory, as a clause; '' if it was measured nowhere."""
    peaks = {row.label: row.peak for row in found if row.peak is not None}
    if not peaks:
        return ""
    size = bytes_text(min(peaks.values()))
    if len(found) == 1:
        return f", and {size} on its worst rank"
    least = [label for label, peak in peaks.items() if bytes_text(peak) == size]
    if len(least) == len(found):
        return f"; each needs {size} on its worst rank"
    if len(least) == 1:
        return f"; {least[0]} needs least memory, {size} on its worst rank"
    named = listed_text(least) if len(least) <= NAMED else f"{len(least)} splits"
    return f"; {named} need least memory, {size} on their worst ranks"


def _sameness(view: Generations, where: Mapping[int, tuple[int, int]]) -> list[str]:
    """Whether all runs generated the same text; [] if there is nothing to compare."""
    base, unlike, count = view.reference, view.unlike, len(view.compared)
    if base is None or not unlike:
        return [f"All {count} splits generate the same text."] if count > 1 else []
    told = [f"{row.label}{_first(where.get(row.run.pk))}" for row in unlike[:NAMED]]
    more = [f"{len(unlike) - NAMED} more"] if len(unlike) > NAMED else []
    verb = "does" if len(unlike) == 1 else "do"
    other = "the single device" if base.split == ONE and len(view.compared) > 1 else base.label
    return [f"{listed_text([*told, *more])} {verb} not generate the text of {other}."]


def _first(found: tuple[int, int] | None) -> str:
    return f" (from token {found[1]} of text {found[0]} on)" if found else ""
