"""A user's own schedule: the program that a spec carries as CSV."""

from __future__ import annotations

from functools import lru_cache

from parallel_core.schedule.check import check
from parallel_core.schedule.ir import Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.table import TableError, from_csv

EXAMPLE = "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"
"""1F1B over two stages and four micro-batches, with one warm-up forward more; in the format of
torch.distributed.pipelining."""


@lru_cache(maxsize=64)
def read(program: str) -> Schedule:
    """The compute-only schedule of one replica in `program` (`table.from_csv`), validated.

    Raises TableError if it cannot be parsed or its ranks hold unequal numbers of stages, ScheduleError if it is invalid
    or deadlocks. Cached, since a spec is validated in many places.
    """
    made = from_csv(program)
    held = [len({part.stage for op in program for part in op.parts()}) for program in made.programs]
    odd = next((q for q, count in enumerate(held) if count != held[0]), None)
    if odd is not None:
        raise TableError(f"row 0 holds {held[0]} stages, row {odd} holds {held[odd]}; every row needs as many.")
    check(reduce_and_step(communicate(made)))
    return made
