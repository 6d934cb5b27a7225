"""Rules for imported traces of jobs that were not launched here: each finds its fault in the spans alone."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_core.analysis.breakdown import Account, accounts
from parallel_core.analysis.diagnosis.imported import diagnose
from parallel_core.analysis.gaps import gaps
from parallel_core.analysis.meetings import last_to_come
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind

MS = 1_000_000
Step = dict[int, np.ndarray]


def step(ranks: int = 4, slow: float = 1.0, data: float = 0.1, sums: float = 0.5, gap: float = 0.0) -> Step:
    """Ranks that read data, compute 10 ms in 20 operations with gaps (rank 1 `slow` times that), and reduce; times in
    ms.
    """
    longest = data + 10 * max(1.0, slow) + 20 * gap + sums
    out = {}
    for rank in range(ranks):
        each = 10 * (slow if rank == 1 else 1.0) / 20
        at = data + np.arange(20) * (each + gap)
        rows = np.zeros(23, SPAN)
        rows["kind"] = [Kind.STEP, Kind.DATA, *[Kind.F, Kind.BW] * 10, Kind.BUCKET]
        rows["lane"] = [3, 3, *[0] * 20, 2]
        rows["start"] = np.round(np.array([0, 0, *at, at[-1] + each]) * MS)
        rows["end"] = np.round(np.array([longest, data, *(at + each), longest]) * MS)
        out[rank] = rows
    return out


def found(made: Step, copies: int = 4) -> list[str]:
    return [finding.rule for finding in diagnose([made] * copies)]


def test_a_healthy_job_is_silent() -> None:
    assert found(step()) == [] == found(step(ranks=1))


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (step(slow=2.0), "straggler"),
        (step(data=3.0), "data_stall"),
        (step(sums=6.0), "exposed_collectives"),
        (step(slow=1.0, gap=0.05), "tiny_kernels"),
    ],
)
def test_each_rule_finds_its_fault_first(made: Step, rule: str) -> None:
    if rule == "tiny_kernels":
        made = {rank: _short(rows) for rank, rows in made.items()}
    first = diagnose([made] * 4)[0]
    assert first.rule == rule and first.effect_ns > 0
    assert first.title[0].isdigit() and first.change.endswith(".")
    if rule == "straggler":
        assert first.rank == 1 and "2.00x" in first.title


def _short(rows: np.ndarray) -> np.ndarray:
    """The rows with operations of a fifth of their length."""
    out = rows.copy()
    work = np.isin(out["kind"], (int(Kind.F), int(Kind.BW)))
    out["end"][work] = out["start"][work] + (out["end"][work] - out["start"][work]) // 5
    return out


def test_pauses_are_told_from_waits() -> None:
    made = {rank: _short(rows) for rank, rows in step(gap=0.05).items()}
    (small,) = (one for one in diagnose([made] * 4) if one.rule == "tiny_kernels")
    assert "448 µs each" in small.title
    assert gaps(made[0]) == (20, 19 * 450_000 + 400_000) and gaps(made[0]).each == 447_500
    assert gaps(step(gap=0.6)[0]) == (0, 0), "a pause this long is not Python overhead"
    assert gaps(made[0][:1]).each == 0


def test_half_a_pause_a_rank_is_no_pause() -> None:
    """The median of two ranks with one pause and none is half a pause, which has no length."""
    rows = np.zeros(3, SPAN)
    rows["kind"] = [Kind.STEP, Kind.F, Kind.F]
    rows["start"], rows["end"] = [0, 0, 300_000], [400_000, 100_000, 400_000]
    busy = rows.copy()
    busy["end"][1] = 300_000
    assert gaps(rows) == (1, 200_000) and gaps(busy) == (0, 0)
    assert "tiny_kernels" not in found({0: rows, 1: busy})


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_without_length_is_judged_by_no_rule(ranks: int) -> None:
    rows = np.zeros(3, SPAN)
    rows["kind"], rows["micro_batch"] = [Kind.STEP, Kind.F, Kind.BW], -1
    assert found(dict.fromkeys(range(ranks), rows)) == []
    stages = {rank: rows.copy() for rank in range(ranks)}
    for rank, own in stages.items():
        own["stage"][1:], own["micro_batch"] = rank, [-1, 0, 0]
    assert found(stages) == []


def test_short_operations_alike_hide_no_straggler() -> None:
    """Shortest spans of an imported trace are operators, not whole forwards: rank 1 is slow in its long ones."""
    made = step(slow=2.0)
    for rank, rows in made.items():
        for kind, usual in ((Kind.F, 10_000), (Kind.BW, 20_000)):
            first = np.flatnonzero(rows["kind"] == kind)[0]
            rows["end"][first] = rows["start"][first] + usual + (8_000_000 // 20 if rank == 1 else 0)
    assert found(made)[0] == "straggler"


def test_waiting_for_a_slow_rank_is_no_exposed_collective() -> None:
    assert "exposed_collectives" not in found(step(slow=2.0))


@pytest.mark.parametrize(("world", "said"), [(0, ""), (3, ""), (4, "1 rank"), (64, "61 ranks")])
def test_collectives_of_some_ranks_include_waiting_for_those_without_a_trace(world: int, said: str) -> None:
    """Without the slow rank 1 all others wait, which nothing in their spans tells from slow links."""
    made = step(slow=2.0)
    del made[1]
    (one,) = (one for one in diagnose([made] * 4, world=world) if one.rule == "exposed_collectives")
    assert one.evidence.endswith(
        f"least of it; it may include waiting for {said} without a trace of it." if said else "of it."
    )
    assert one.change.startswith("First upload the traces of all ranks of the same steps") == bool(said)


def test_stages_of_a_pipeline_are_not_held_against_each_other() -> None:
    made = step(slow=2.0)
    made[0]["kind"][2] = Kind.SEND_ACT
    assert "straggler" not in found(made)


def test_ranks_that_are_traced_are_judged_by_their_own_numbers() -> None:
    """Of a job of 64 ranks often only a few are traced."""
    slow, fed = ({7 * rank + 3: rows for rank, rows in made.items()} for made in (step(slow=2.0), step(data=3.0)))
    straggler = diagnose([slow] * 4, [accounts_of(slow)] * 4)[0]
    assert (straggler.rule, straggler.rank) == ("straggler", 10)
    assert "rank 10 is a straggler" in straggler.title and "the device of rank 10:" in straggler.change
    for rank in (3, 17, 24):
        fed[rank]["end"][1] -= MS // 10  # the batch of rank 10 comes last
    stall = diagnose([fed] * 4)[0]
    assert (stall.rule, stall.rank) == ("data_stall", 10) and stall.evidence.startswith("Rank 10 reads ")


def test_without_a_step_of_all_ranks_nothing_is_judged() -> None:
    made = step()
    made[0] = made[0][:0]
    incomplete: tuple[list[Step], ...] = ([made], [], [{}])
    for steps in incomplete:
        with pytest.raises(ValueError, match="no step is in the traces of all ranks"):
            diagnose(steps)


def accounts_of(made: Step) -> dict[int, Account]:
    return accounts(made, Layout.unknown(max(made) + 1))


def test_accounts_that_are_known_are_used() -> None:
    made, healthy = step(sums=6.0), step()
    assert diagnose([made], [accounts_of(made)]) == diagnose([made])
    assert diagnose([healthy]) == []
    assert "exposed_collectives" in [one.rule for one in diagnose([healthy], [accounts_of(made)])]


def test_accounts_of_a_step_that_lacks_a_rank_are_of_no_other_step() -> None:
    healthy, cut = step(), step(sums=6.0)
    del cut[3]
    steps = [cut, healthy, healthy]
    assert diagnose(steps, [accounts_of(one) for one in steps]) == [] == diagnose(steps)


def test_waiting_for_a_straggler_is_no_communication() -> None:
    """The sums last 1 ms from the arrival of rank 1, which computes 10 ms longer than the others."""
    made = step(slow=2.0, sums=1.0)
    parts = {rank: one.parts for rank, one in accounts(made, Layout.unknown(4), last_to_come(made, None)).items()}
    assert {rank: one.exposed_collective for rank, one in parts.items()} == dict.fromkeys(range(4), MS)
    assert {rank: one.bubble for rank, one in parts.items()} == {0: 10 * MS, 1: 0, 2: 10 * MS, 3: 10 * MS}
