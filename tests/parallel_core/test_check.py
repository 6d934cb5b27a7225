"""`check` accepts every schedule that `build` makes and rejects each kind of damage, naming the cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core import schedule
from parallel_core.schedule.check import Walk, check, terminates
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import AHEAD, P2P, SENDS, Kind, Op, Program, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.table import from_csv
from parallel_core.spec import RunSpec
from tests.parallel_core.strategies import run_specs


def made(**split: object) -> Schedule:
    parallel = {"pp": 2, "micro_batches": 3, "schedule": "1f1b", **split}
    return schedule.build(RunSpec.model_validate({"parallel": parallel, "train": {"global_batch": 24}}))


class Blocking(Walk):
    """A walk in which SEND blocks until its receive is posted, and each rank has posted `ahead` receives beyond those
    it has waited for, on every link.
    """

    def __init__(self, schedule: Schedule, ahead: int) -> None:
        super().__init__(schedule)
        self.ahead = ahead

    def may_pass(self, rank: int, op: Op) -> bool:
        link = (rank, op.peer, op.kind is Kind.SEND_ACT)
        blocked = op.kind in SENDS and self.sent[link] >= self.received[link] + self.ahead
        passed = not blocked and super().may_pass(rank, op)
        if passed and op.kind in P2P - SENDS:
            self.resume((op.peer,))
        return passed


class Counting(Walk):
    """A walk that counts how often a rank tries to go on."""

    tries = 0

    def may_pass(self, rank: int, op: Op) -> bool:
        self.tries += 1
        return super().may_pass(rank, op)


def ends_though_sends_block(proven: Schedule, ahead: int) -> None:
    check(proven)
    terminates(proven, Blocking(proven, ahead))


def damaged(good: Schedule, rank: int, change: Callable[[list[Op]], object]) -> Schedule:
    """A copy of `good` in which `change` has modified the program of one rank."""
    program = list(good.programs[rank])
    change(program)
    return with_program(good, rank, tuple(program))


def with_program(good: Schedule, rank: int, program: Program) -> Schedule:
    return replace(good, programs=tuple(program if q == rank else old for q, old in enumerate(good.programs)))


def find(program: list[Op], name: str) -> int:
    return [str(op) for op in program].index(name)


def swap(a: str, b: str) -> Callable[[list[Op]], None]:
    def change(program: list[Op]) -> None:
        i, j = find(program, a), find(program, b)
        program[i], program[j] = program[j], program[i]

    return change


def drop(name: str) -> Callable[[list[Op]], None]:
    def change(program: list[Op]) -> None:
        program.pop(find(program, name))

    return change


def again(name: str) -> Callable[[list[Op]], None]:
    return lambda program: program.insert(find(program, name), program[find(program, name)])


def alter(name: str, **fields: int) -> Callable[[list[Op]], None]:
    def change(program: list[Op]) -> None:
        i = find(program, name)
        program[i] = replace(program[i], **fields)  # type: ignore[arg-type]

    return change


@given(run_specs())
def test_everything_built_is_right(spec: RunSpec) -> None:
    check(schedule.build(spec))


@pytest.mark.parametrize(
    ("rank", "change", "message"),
    [
        (0, drop("0F1"), "0BW1 has no forward"),
        (0, drop("0BW1"), "0BW1 is missing"),
        (0, again("0F1"), "0F1 happens twice"),
        (0, again("0BW1"), "0BW1 happens twice"),
        (1, swap("1F0", "1BW0"), "1BW0 comes before its forward"),
        (0, alter("0F1", stage=1), "1F1 of replica 0 belongs on rank 1"),
        (0, alter("0F1", stage=7), "names a stage or replica that does not exist"),
        (0, alter("0F1", micro_batch=9), "0F9 is not a micro-batch of this replica"),
        (0, alter("0F1", version=1), "0F1 uses weight version 1 under flush"),
        (1, drop("1RECV_ACT1"), "1F1 has no RECV_ACT before it"),
        (1, drop("1SEND_GRAD1"), "1BW1 has no SEND_GRAD after it"),
        (1, swap("1RECV_ACT1", "1F1"), "1F1 has no RECV_ACT before it"),
        (0, swap("0SEND_ACT1", "0F1"), "0F1 has no SEND_ACT after it"),
        (0, again("0SEND_ACT2"), "0SEND_ACT2 is never received"),
        (1, again("1RECV_ACT2"), "1RECV_ACT2 is never sent"),
        (0, alter("0SEND_ACT1", peer=5), "names rank 5, which does not exist"),
        (0, drop("0OPT_STEP"), "stage 0 must end with OPT_STEP, once"),
        (0, again("0OPT_STEP"), "stage 0 must end with OPT_STEP, once"),
        (0, swap("0OPT_STEP", "0BW0"), "stage 0 must end with OPT_STEP, once"),
    ],
)
def test_damage_is_named(rank: int, change: Callable[[list[Op]], None], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(damaged(made(), rank, change))


def test_sends_in_another_order_than_receives() -> None:
    with pytest.raises(ScheduleError, match="1RECV_ACT0 on rank 1 meets 0SEND_ACT1 of rank 0"):
        check(reordered(made(schedule="gpipe")))


def reordered(good: Schedule) -> Schedule:
    """GPipe whose first stage processes micro-batch 1 before 0, so that the second stage waits for the wrong
    message.
    """
    program = [
        replace(op, micro_batch={0: 1, 1: 0}.get(op.micro_batch, op.micro_batch))
        if op.kind in (Kind.F, Kind.SEND_ACT)
        else op
        for op in good.programs[0]
    ]
    return with_program(good, 0, tuple(program))


def test_replicas_must_reduce() -> None:
    with pytest.raises(ScheduleError, match="stage 1 must end with ALLREDUCE then OPT_STEP"):
        check(damaged(made(dp=2), 1, drop("1ALLREDUCE")))


def test_ranks_that_wait_for_each_other_deadlock() -> None:
    """Rank 0 waits for the first gradient before it continues; rank 1 waits for all activations before it returns
    one.
    """
    crossed = with_program(made(schedule="naive"), 1, made(schedule="gpipe").programs[1])
    with pytest.raises(ScheduleError, match=r"deadlock: rank 0 waits in 0RECV_GRAD0 for rank 1; rank 1 waits in"):
        check(crossed)


def test_sends_that_block_need_receives_posted_ahead() -> None:
    """Rank 0 sends all activations first, rank 1 returns each gradient at once: neither posts the receive the other
    needs.

    This ends only because SEND does not block. If it did, one receive ahead would be enough for three micro-batches,
    but not for four.
    """
    for micro_batches, ahead in ((3, 1), (4, 2)):
        first = made(schedule="gpipe", micro_batches=micro_batches)
        mixed = with_program(first, 1, made(micro_batches=micro_batches).programs[1])
        ends_though_sends_block(mixed, ahead)
    with pytest.raises(ScheduleError, match="deadlock: rank 0 waits in 0SEND_ACT3 for rank 1"):
        ends_though_sends_block(mixed, 1)


@given(run_specs())
def test_every_schedule_ends_even_if_sends_block(spec: RunSpec) -> None:
    """With the number of receives that the engine posts ahead; breadth-first alone may need one for each
    micro-batch.
    """
    ahead = spec.parallel.micro_batches if spec.parallel.schedule == "looped-bfs" else AHEAD
    ends_though_sends_block(schedule.build(spec), ahead)


def test_activations_and_gradients_between_two_ranks_are_two_links() -> None:
    """In a V schedule both go in the same direction between two ranks, in different orders at the two ends."""
    check(made(schedule="zb-v", micro_batches=8))


def test_what_is_made_on_the_same_rank_comes_first() -> None:
    with pytest.raises(ScheduleError, match="2F0 comes before stage 1 made its input"):
        check(damaged(made(schedule="zb-v", micro_batches=8), 1, swap("2F0", "1F0")))


def test_a_pair_is_both_its_halves() -> None:
    good = made(schedule="dualpipe-v", micro_batches=4)
    pair = next(str(op) for op in good.programs[0] if op.kind is Kind.PAIR)
    check(good)
    with pytest.raises(ScheduleError, match="has no forward"):
        check(damaged(good, 0, drop(pair)))


def test_a_message_behind_the_reduction_is_late_but_right() -> None:
    check(damaged(made(dp=2, micro_batches=1), 1, swap("1SEND_GRAD0", "1ALLREDUCE")))


def test_error_shows_the_grid_with_the_cell_marked() -> None:
    with pytest.raises(ScheduleError) as caught:
        check(damaged(made(), 0, again("0F1")))
    lines = str(caught.value).splitlines()
    assert (caught.value.rank, str(made().programs[0][caught.value.index - 1])) == (0, "0F1")
    assert lines[1].startswith("1f1b: operations")
    assert ">0F1<" in lines[2]
    assert ">" not in lines[3]


def test_a_micro_batch_that_never_appears() -> None:
    def lose(program: list[Op]) -> None:
        program[:] = [op for op in program if op.micro_batch != 1]

    with pytest.raises(ScheduleError, match="1F1 is missing"):
        check(damaged(made(), 1, lose))


def test_a_missing_operation_is_marked_behind_the_program() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1 \|.*>missing<"):
        check(damaged(made(), 1, drop("1BW2")))


@given(run_specs().filter(lambda spec: spec.parallel.pp > 1), st.data())
def test_no_single_lost_message_goes_unseen(spec: RunSpec, data: st.DataObject) -> None:
    good = schedule.build(spec)
    rank = data.draw(st.integers(0, good.pipeline_ranks - 1))
    messages = [i for i, op in enumerate(good.programs[rank]) if op.kind in P2P]
    lost = data.draw(st.sampled_from(messages))
    with pytest.raises(ScheduleError):
        check(damaged(good, rank, lambda program: program.pop(lost)))


def test_a_rank_that_waits_is_tried_again_only_when_it_is_freed() -> None:
    """Each micro-batch runs forwards and then backwards through all ranks before the next one."""
    ranks, micro_batches = 40, 4
    rows = (",".join(f"{q}F{i},{q}B{i}" for i in range(micro_batches)) for q in range(ranks))
    proven = reduce_and_step(communicate(from_csv("\n".join(rows))))
    walk = Counting(proven)
    assert walk.stuck() == []
    assert walk.tries <= 2 * sum(map(len, proven.programs))
