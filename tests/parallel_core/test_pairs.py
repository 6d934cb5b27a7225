"""How a PAIR executes: the forward, the sending of its result, and meanwhile the backward of another micro-batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.parallel_core import parity, ranks

SPLIT = {"micro_batches": 8, "schedule": "dualpipe-v"}


def _spans(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def use(trainer: Trainer) -> Any:
        trainer.step(0)
        trainer.advance(1)
        rows = trainer.recorder.end_step()
        return trainer.place.place, [
            tuple(row[n] for n in ("kind", "stage", "micro_batch", "start", "end")) for row in rows
        ]

    return ranks.with_trainer(spec, rank, meeting, folder, use)


@pytest.mark.parametrize("pp", [2, 3, pytest.param(4, marks=pytest.mark.full)])
def test_what_its_forward_makes_is_sent_before_its_backward(pp: int, tmp_path: Path) -> None:
    """A rank in the middle of the V sends to both of its neighbours."""
    spec = parity.spec_of({"layers": 4}, {}, pp=pp, **SPLIT)
    made, sent_inside = build(spec), 0
    for place, spans in ranks.run(spec, _spans, tmp_path):
        at = {(Kind(kind), stage, micro): (start, end) for kind, stage, micro, start, end in spans}
        pairs = [op for op in made.programs[place] if op.kind is Kind.PAIR]
        assert pairs
        for pair in pairs:
            forward, backward = pair.parts()
            (first, ended), (goes_back, last) = at[_key(forward)], at[_key(backward)]
            start, end = at[_key(pair)]
            assert start <= first <= ended <= goes_back <= last <= end, "one after the other, inside the pair"
            send = at.get((Kind.SEND_ACT, forward.stage, forward.micro_batch))
            assert send is None or ended <= send[0] <= send[1] <= goes_back
            sent_inside += send is not None
        planned = Counter(op.kind for op in made.programs[place] if op.kind in (Kind.SEND_ACT, Kind.SEND_GRAD))
        assert planned == Counter(Kind(row[0]) for row in spans if row[0] in planned), "every message once"
    assert sent_inside


def _key(op: Any) -> tuple[Kind, int, int]:
    return op.kind, op.stage, op.micro_batch
