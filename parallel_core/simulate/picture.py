"""Draws a schedule with letters: one line a pipeline rank, one column a time slot."""

from __future__ import annotations

from parallel_core.analysis.quantities import percent_text, plural_text
from parallel_core.schedule.ir import COMPUTE, Kind, Op, Schedule
from parallel_core.schedule.peaks import peak_copies, peak_kept
from parallel_core.schedule.text import align
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.idle import bubble


def picture(schedule: Schedule) -> str:
    """The compute operations in time slots: F, B and W take one each, BW two, communication none; `.` is idle.

    Each slot shows kind and micro-batch (`F0`, `B0`), with the stage in front where ranks hold several (`4F0`). Raises
    ValueError for a deadlock.
    """
    several = any(len({op.stage for op in program}) > 1 for program in schedule.programs)
    spans = simulate(schedule, Costs.uniform(schedule.stages, 1, 1, 1))
    rows = []
    for rank, program in enumerate(schedule.programs):
        compute = spans[rank][[kind in COMPUTE for kind in spans[rank]["kind"]]]
        row: list[str] = []
        for op, start in zip((op for op in program if op.kind in COMPUTE), compute["start"].tolist(), strict=True):
            row += ["."] * (start - len(row))
            row += [cell for part in op.parts() for cell in [_cell(part, several)] * (2 if part.kind is Kind.BW else 1)]
        rows.append(row)
    longest = max(map(len, rows))
    return "\n".join(align([row + ["."] * (longest - len(row)) for row in rows]))


def caption(schedule: Schedule) -> str:
    """Idle time and activations kept, in a sentence that states its assumptions."""
    share = bubble(simulate(schedule, Costs.uniform(schedule.stages, 1, 1, 1)))
    kept = max(peak_kept(schedule))
    if schedule.sync != "flush":
        versions = plural_text(1 + max(map(peak_copies, schedule.programs)), "version")
        return (
            "A stream without a flush: idle while it fills and drains alone (F = B = W, messages free); at most "
            f"{plural_text(kept, 'micro-batch')} and {versions} of the weights kept on a rank."
        )
    return (
        f"{percent_text(share)} idle over busy on the worst rank (F = B = W, messages free); "
        f"at most {plural_text(kept, 'micro-batch')} a stage kept on a rank."
    )


def _cell(op: Op, several: bool) -> str:
    return f"{op.stage if several else ''}{op.kind.name[0]}{op.micro_batch}"
