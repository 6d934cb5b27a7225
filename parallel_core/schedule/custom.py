"""A user's own schedule: the program that a spec carries as CSV or JSON."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from parallel_core.schedule.check import check
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import Kind, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.table import TableError, from_csv, from_json, in_csv_spelling, is_json
from parallel_core.schedule.traits import CUSTOM

EXAMPLE = "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"
"""1F1B over two stages and four micro-batches, with one warm-up forward more; in the format of
torch.distributed.pipelining."""


def read(program: str) -> Schedule:
    """The compute-only schedule of one replica in `program` (`table.from_csv`, `table.from_json`), validated.

    Raises TableError if it cannot be parsed or its ranks hold unequal numbers of stages, ScheduleError if it is invalid
    or deadlocks. Cached, errors too, since a spec is validated in many places and its refusal tries several changes.
    """
    found = _read(program)
    if isinstance(found, Exception):
        raise found.with_traceback(None)  # or it would keep the frames of everyone who has read it
    return found


@lru_cache(maxsize=64)
def _read(program: str) -> Schedule | TableError | ScheduleError:
    try:
        return _checked(program)
    except ScheduleError as error:
        if not is_json(program):
            error.spell(in_csv_spelling)
        return error
    except TableError as error:
        return error


def _checked(program: str) -> Schedule:
    made = _compute_of(from_json(program)) if is_json(program) else from_csv(program)
    held = [len({part.stage for op in program for part in op.parts()}) for program in made.programs]
    odd = next((q for q, count in enumerate(held) if count != held[0]), None)
    if odd is not None:
        raise TableError(f"row 0 holds {held[0]} stages, row {odd} holds {held[odd]}; every row needs as many.")
    check(reduce_and_step(communicate(made)))
    return made


KEPT = frozenset({Kind.F, Kind.B, Kind.W, Kind.BW, Kind.PAIR})
"""What is read of a program in JSON, which may be that of a whole run: all else is added automatically."""


def _compute_of(made: Schedule) -> Schedule:
    """The compute operations of a schedule from JSON. Raises TableError where it is not one step of one replica."""
    if made.sync != "flush":
        raise TableError(
            f'"sync" is {made.sync}, and a schedule of your own ends every step with a flush; write flush.'
        )
    if made.per_step not in (0, made.micro_batches):
        raise TableError(f'"per_step" is {made.per_step}; write the {made.micro_batches} micro-batches of one step.')
    more = next((stage for stage, ranks in enumerate(made.placement) if len(ranks) > 1), None)
    if more is not None:
        raise TableError(
            f"stage {more} has {len(made.placement[more])} replicas; write the programs of one, and set data."
        )
    programs = tuple(tuple(op for op in program if op.kind in KEPT) for program in made.programs)
    return replace(made, name=CUSTOM, programs=programs, vertical=False, per_step=0)
