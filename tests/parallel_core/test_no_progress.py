"""Where ranks without progress are in their programs: each near its own operation, whatever its step."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_core import no_progress
from parallel_core.no_progress import marked
from parallel_core.observe import progress
from parallel_core.observe.progress import Progress
from parallel_core.schedule import build, text
from parallel_core.schedule.stream import Windows
from parallel_core.spec import RunSpec
from workers.no_progress import MAX_MARKED, report


def spec(train: dict[str, Any] | None = None, **split: Any) -> RunSpec:
    fixed = {"global_batch": 512, "clip": "stage", "steps": 40} | (train or {})
    return RunSpec.model_validate({"model": {"layers": 8}, "parallel": split, "train": fixed})


def lines(folder: Path, made: RunSpec, *places: tuple[int, str]) -> list[str]:
    """The lines of ranks that stand at these (step, operation)."""
    for rank, (step, op) in enumerate(places):
        Progress(folder, rank).at(step, op)
    return marked(folder, range(len(places)), made).splitlines()


def test_the_rank_at_fault_is_shown_however_far_apart_the_ranks_are(tmp_path: Path) -> None:
    """In GPipe all other ranks have sent 256 micro-batches ahead of it."""
    made = spec(pp=4, schedule="gpipe", micro_batches=256)
    places = [(3, "0RECV_GRAD0"), (3, "1RECV_GRAD0"), (3, "2RECV_GRAD0"), (3, "3F0")]
    first, head, *shown = lines(tmp_path, made, *places)
    assert first.startswith("Stacks of all ranks") and head.startswith("gpipe: operations around")
    assert [re.findall(r">(\w+)<", line) for line in shown] == [[op] for _, op in places]
    for rank, line in enumerate(shown):
        number, *words = line.removeprefix(f"rank {rank}, step 3 | ").split()
        program = [str(op) for op in build(made).programs[rank]]
        begin = int(number.removesuffix(":"))
        assert [word.strip("><") for word in words] == program[begin : begin + len(words)]
        assert len(words) in (8, 13), "six on either side; rank 3 has done one operation"
    assert report(tmp_path, range(4), 5.0, made).traceback == "\n".join([first, head, *shown])


def test_a_rank_that_measures_is_in_no_step(tmp_path: Path) -> None:
    """It said "at step 0 in layers" of a profile."""
    Progress(tmp_path, 0).at(progress.NO_STEPS, "layers tp=2 recompute=full")
    said = "No rank moved for 5 s: rank 0 while it measured layers tp=2 recompute=full."
    assert no_progress.sentence(tmp_path, [0], 5) == said
    assert marked(tmp_path, [0], spec()) == no_progress.STACKS


def test_a_page_that_cannot_be_read_stops_no_run(tmp_path: Path) -> None:
    """Its rank may be moving; one that has no page has not started."""
    Progress(tmp_path, 0).at(3, "0F3")
    assert no_progress.still_for(tmp_path, [0, 1], time.monotonic() - 90) < 90
    progress.path(tmp_path, 0).unlink()
    assert no_progress.still_for(tmp_path, [0, 1], time.monotonic() - 90) >= 90
    progress.path(tmp_path, 1).mkdir()
    assert progress.read(tmp_path, 1) is None
    assert no_progress.still_for(tmp_path, [0, 1], time.monotonic() - 90) == 0


@pytest.mark.parametrize("every", [0, 5])
@pytest.mark.parametrize(("schedule", "micro_batches"), [("1f1b-stash", 1), ("1f1b-2bw", 4), ("1f1b-vertical", 2)])
def test_in_a_stream_the_operation_of_every_step_is_found(
    schedule: str, micro_batches: int, every: int, tmp_path: Path
) -> None:
    """From the step in which the pipeline fills to that in which it drains, each rank in one of its operations."""
    steps = 10
    made = spec({"checkpoint_every": every, "steps": steps}, pp=4, schedule=schedule, micro_batches=micro_batches)
    windows, length = Windows(made), every or steps
    for step in range(steps):
        programs = windows.window(step % length, length).programs
        at = [step % len(program) for program in programs]
        places = [(step, str(program[i])) for program, i in zip(programs, at, strict=True)]
        _, head, *shown = lines(tmp_path, made, *places)
        assert "micro-batches count from the first of the rank's step" in head
        for rank, (line, program, i) in enumerate(zip(shown, programs, at, strict=True)):
            assert line == f"rank {rank}, step {step} | {text.around(program, {i})}"
            assert f">{program[i]}<" in line


def test_ranks_of_a_stream_may_be_in_different_steps_of_a_resumed_run(tmp_path: Path) -> None:
    """It fills in step 7, which is in the middle of a stream of a run from step 0 on."""
    made = spec(pp=4, schedule="1f1b-stash", micro_batches=1)
    _, _, *shown = lines(tmp_path, made, (8, "0RECV_GRAD0"), (7, "1RECV_ACT1"), (7, "2F0"), (7, "3RECV_ACT0"))
    assert [re.sub(r"\|.*>(.*)<.*", r"\1", line) for line in shown] == [
        "rank 0, step 8 0RECV_GRAD0",
        "rank 1, step 7 1RECV_ACT1",
        "rank 2, step 7 2F0",
        "rank 3, step 7 3RECV_ACT0",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_page_is_on_the_disk_before_it_is_used(tmp_path: Path) -> None:
    """A rank that writes into a page that the disk has no room for is killed by SIGBUS."""
    progress.path(tmp_path, 0).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        Progress(tmp_path, 0)


def test_a_page_that_is_being_written_shows_a_rank_that_has_started(tmp_path: Path) -> None:
    """A rank that the kernel interrupted while it wrote its page was taken for one that never began: its run, which was
    older than the limit, was ended for lack of progress."""
    Progress(tmp_path, 0)
    writer = os.fork()
    if not writer:
        page = Progress(tmp_path, 0)
        while True:
            page.at(7, "0F3")
            page.moved()
    try:
        while not (where := progress.read(tmp_path, 0)) or where.op != "0F3":
            pass
        seen = [progress.read(tmp_path, 0) for _ in range(2_000)]
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert {where and (where.step, where.op, where.pid, where.age < 3600) for where in seen} == {
        (7, "0F3", writer, True)
    }


def test_ranks_that_still_connect_have_no_lines(tmp_path: Path) -> None:
    made = spec(pp=2, schedule="gpipe", micro_batches=256)
    assert lines(tmp_path, made, (-1, "connecting"), (-1, "connecting")) == [
        "Stacks of all ranks are at the end of their logs."
    ]


def test_a_rank_between_operations_has_a_line_that_says_what_it_does(tmp_path: Path) -> None:
    made = spec(pp=2, schedule="gpipe", micro_batches=4)
    _, _, *shown = lines(tmp_path, made, (3, "reading data"), (3, "1F0"))
    assert shown[0] == "rank 0, step 3 | between operations: reading data"
    assert ">1F0<" in shown[1]


def test_ranks_of_a_tensor_group_share_a_line(tmp_path: Path) -> None:
    made = spec(pp=2, tp=2, schedule="gpipe", micro_batches=64)
    _, _, *shown = lines(tmp_path, made, (1, "0F3"), (1, "0F40"), (2, "1F0"), (1, "1BW63"))
    assert [line.split(" | ")[0] for line in shown] == ["ranks 0, 1, step 1", "rank 2, step 2", "rank 3, step 1"]
    assert re.fullmatch(r"ranks 0, 1, step 1 \| 0: .* >0F3< .* \.\.\. \d+: .* >0F40< .*", shown[0])


def test_the_ranks_of_a_large_host_fit(tmp_path: Path) -> None:
    made = spec(pp=4, dp=16, schedule="1f1b", micro_batches=8)
    shown = lines(tmp_path, made, *[(7, f"{rank // 16}BW{rank % 16}") for rank in range(64)])
    assert len(shown) == 2 + 64 and len("\n".join(shown)) < MAX_MARKED


@pytest.mark.parametrize(
    ("split", "shown"),
    [
        ({"schedule": "1f1b-stash", "micro_batches": 64}, True),
        ({"schedule": "1f1b-stash", "micro_batches": 256}, False),
        ({"schedule": "1f1b-stash", "micro_batches": 4, "dp": 64}, False),
        ({"schedule": "1f1b", "micro_batches": 256}, True),
        ({"schedule": "1f1b", "micro_batches": 4096}, False),
    ],
    ids=str,
)
def test_programs_that_take_long_to_make_are_left_out(split: dict[str, Any], shown: bool, tmp_path: Path) -> None:
    """The supervisor of the worker would stand still. The sentence still has every rank's place."""
    made = spec({"global_batch": 4096}, pp=8, **split)
    for rank in range(8):
        Progress(tmp_path, rank).at(20, f"{rank}F3")
    with pytest.MonkeyPatch.context() as patch:
        if not shown:
            patch.setattr(no_progress, "_Programs", _refused)
        end = report(tmp_path, range(8), 5.0, made)
    assert (">0F3<" in end.traceback) == shown
    assert ("programs are too long" in end.traceback) != shown
    assert end.detail.count("at step 20 in forward 3") == 8 and end.traceback.startswith(no_progress.STACKS)


def _refused(made: RunSpec) -> None:
    raise AssertionError("a program is made")
