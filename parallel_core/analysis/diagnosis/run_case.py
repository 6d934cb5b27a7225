"""The case of a run as rules see it, from the records of its ranks, wherever they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.diagnosis.case import Case, Floats, Step, paces
from parallel_core.faults import trained
from parallel_core.spec import RunSpec

STEPS = 5
"""How many of the newest traced steps are judged."""
MANY_SPANS = 200_000
"""With more spans in a step, only one step is judged."""
SERIES = ("loss", "eval_loss", "grad_norm", "loss_scale", "skipped_steps", "lr", "reference_time")
"""The series that a case is made from."""


class RunRecords(Protocol):
    """A store of a run's records."""

    def curve(self, name: str, rank: int = 0) -> tuple[NDArray[np.integer], Floats]:
        """(steps, values) of a series of SERIES of a rank, in order; both empty if there is none."""

    def peaks(self) -> Mapping[int, int]:
        """Rank -> bytes at the peak of its newest metered step."""

    def devices(self) -> Mapping[int, int | None]:
        """Rank -> number of its device, as in its `hello`; None where it did not tell."""

    def first_timed(self) -> int:
        """The first step behind the warm-up of the attempt whose steps were traced."""

    def traced_steps(self) -> Sequence[int]:
        """Steps of which spans are there, ascending."""

    def checkpoints(self) -> frozenset[int] | None:
        """Steps done at each checkpoint that is kept; None if unknown."""

    def rate_before(self) -> float | None:
        """Learning rate of the last step before the checkpoint that the run began from; None if unknown."""

    def spans(self, step: int) -> tuple[Step, int]:
        """(SPAN rows by rank of a traced step, how many spans its ranks recorded)."""


def case_from(
    spec: RunSpec,
    records: RunRecords,
    *,
    limit: int | None,
    others: float | None,
    hosts: Sequence[str] = (),
    timed_ns: int = 0,
    dropped: bool = False,
    earlier: Case | None = None,
) -> Case:
    """The run as rules see it: its spec with faults applied, its newest whole traced steps, its curves and peaks.

    The other fields of the case are passed on: memory `limit` in bytes, share of a device that `others` used, `hosts`
    of the ranks, nanoseconds of the median timed step, whether spans were `dropped`, and an `earlier` run to compare
    with.
    """
    spec = trained(spec)
    loss_steps, loss = records.curve("loss")
    evaluated, held_out = records.curve("eval_loss")
    ranks = range(spec.parallel.world if spec.train.device == "cpu" else 0)  # others do no reference work
    return Case(
        spec,
        _newest_whole(records, spec.parallel.world),
        loss_steps=loss_steps.astype(np.int64),
        loss=loss,
        held_out_steps=evaluated.astype(np.int64),
        held_out=held_out,
        grad_norm=records.curve("grad_norm")[1],
        loss_scale=records.curve("loss_scale")[1],
        skipped=records.curve("skipped_steps")[1],
        peaks=records.peaks(),
        limit=limit,
        others=others,
        earlier=earlier,
        lr=records.curve("lr")[1],
        rate_before=records.rate_before(),
        hosts=hosts,
        together=together(records.devices(), hosts),
        paces=paces({rank: records.curve("reference_time", rank)[1] for rank in ranks}),
        checkpoints=records.checkpoints(),
        timed_ns=timed_ns,
        dropped=dropped,
    )


def together(devices: Mapping[int, int | None], hosts: Sequence[str]) -> int:
    """The most ranks on one device; `hosts`: that of each rank, if there are several."""
    known = {rank: number for rank, number in devices.items() if number is not None}
    on = Counter((hosts[rank] if hosts else "", number) for rank, number in known.items())
    return max(on.values(), default=1)


def _newest_whole(records: RunRecords, world: int) -> list[Step]:
    """The newest steps of which all spans of all ranks are there, oldest first; of the timed steps if any was traced,
    as the first ones of an attempt warm up."""
    steps, timed_from = records.traced_steps(), records.first_timed()
    late = [step for step in steps if step >= timed_from] or steps
    out: list[Step] = []
    for step in reversed(late):
        spans, recorded = records.spans(step)
        kept = sum(map(len, spans.values()))
        if len(spans) == world and kept == recorded and all(map(len, spans.values())):
            out.append(spans)
        if len(out) == (1 if kept > MANY_SPANS else STEPS):
            break
    return out[::-1]
