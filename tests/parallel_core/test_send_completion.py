"""Which message proves that a sent tensor was received: never one that the peer may send before receiving it."""

from __future__ import annotations

from hypothesis import given

from parallel_core.schedule import build
from parallel_core.schedule.ir import SENDS, Kind, other_end
from parallel_core.schedule.send_completion import key, receipts
from parallel_core.spec import RunSpec
from tests.parallel_core.strategies import run_specs


@given(run_specs())
def test_what_proves_a_send_was_sent_after_it_was_taken(spec: RunSpec) -> None:
    schedule = build(spec)
    at = [{key(op): i for i, op in enumerate(program)} for program in schedule.programs]
    for here, program in enumerate(schedule.programs):
        sends = {key(op): op for op in program if op.kind in SENDS}
        receives = {key(op): op for op in program if op.kind in (Kind.RECV_ACT, Kind.RECV_GRAD)}
        released = [sent for proved in receipts(schedule, here).values() for sent in proved]
        assert len(set(released)) == len(released) and set(released) <= sends.keys()
        for proof, proved in receipts(schedule, here).items():
            for sent in proved:
                theirs = at[sends[sent].peer]
                assert receives[proof].peer == sends[sent].peer
                assert theirs[other_end(sends[sent])] < theirs[other_end(receives[proof])]
                assert at[here][sent] < at[here][proof]


def test_in_1f1b_few_sends_wait_for_the_end_of_the_step() -> None:
    """Without proof, a tensor is held until the end of the step; the number of those must not grow with that of
    micro-batches.
    """
    schedule = build(RunSpec.model_validate({"parallel": {"pp": 4, "micro_batches": 16}}))
    for here, program in enumerate(schedule.programs):
        proven = {sent for proved in receipts(schedule, here).values() for sent in proved}
        left = [op for op in program if op.kind in SENDS and key(op) not in proven]
        assert len(left) <= 4
