"""Attempts that resume from a checkpoint on this host: a real worker, real ranks, SIGKILL and SIGTERM."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.observe import record_files
from tests.parallel_core.corrupt import change_byte
from tests.workers.harness import ENDLESS, Bench, none_alive, tiny


def saving(steps: int, every: int = 0, **parallel: Any) -> dict[str, Any]:
    spec = tiny(steps, **parallel)
    return {**spec, "train": {**spec["train"], "checkpoint_every": every}}


def slowly_saving(steps: int = 1_000_000, every: int = 0) -> dict[str, Any]:
    """`saving` that waits for data in each step, which leaves the processor to the code under test."""
    return {**saving(steps, every), "inject": ENDLESS["inject"]}


def run_folder(bench: Bench, run: int) -> Path:
    return bench.folder / "checkpoints" / str(run)


def losses(bench: Bench, attempt: int) -> dict[int, float]:
    """Step -> loss, from the points of rank 0 that have arrived."""
    from parallel_core.outcome import points

    rows = points(list(record_files.decode(bench.received(attempt, "events", 0))), "loss")
    return dict(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


def dropped(bench: Bench) -> list[int]:
    """Runs whose checkpoints the worker has reported as deleted."""
    return [entry.body["run"] for entry in bench.heard if entry.kind == "dropped"]


def begins(bench: Bench, attempt: int) -> dict[str, Any]:
    return dict(bench.states(attempt, "running")[-1]["begins"])


def test_a_retry_goes_on_with_the_bits_of_an_uninterrupted_run(bench: Bench) -> None:
    spec = slowly_saving(100, every=20)
    whole = bench.send(spec, run=901)
    assert bench.wait_end(whole)["outcome"] == "succeeded"
    first = bench.send(spec, run=900)
    recorded = bench.wait_running(first, step=30)
    os.kill(recorded[1][0], signal.SIGKILL)
    assert bench.wait_end(first)["cause"] == "killed_by_signal"
    second = bench.send(spec, run=900, number=2)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    where = begins(bench, second)
    assert where["step"] >= 20 and where["step"] % 20 == 0
    assert (where["run"], where["attempt"], where["why"]) == (900, first, "")
    uninterrupted, resumed = losses(bench, whole), losses(bench, second)
    assert sorted(resumed) == list(range(where["step"], 100))
    assert all(resumed[step] == uninterrupted[step] for step in resumed)


def test_a_retry_of_a_run_that_had_trained_every_step_only_ends(bench: Bench) -> None:
    """Its worker was lost between its last checkpoint and its end."""
    first = bench.send(saving(20, every=10), run=911)
    assert bench.wait_end(first)["outcome"] == "succeeded"
    second = bench.send(saving(20, every=10), run=911, number=2)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    assert begins(bench, second) == {"step": 20, "run": 911, "attempt": first, "why": ""}
    assert losses(bench, second) == {} and folders.steps(run_folder(bench, 911)) == [10, 20]
    end = bench.wait_end(bench.send(saving(20), run=912, resume={"run": 911, "step": 20}))
    assert end["cause"] == "refused" and "steps=20 leaves none to train" in end["detail"]


def test_a_retry_passes_over_what_a_bad_disk_changed(bench: Bench) -> None:
    """Names and sizes are right, so nobody but who reads it through can tell."""
    first = bench.send(saving(60, every=20), run=909)
    assert bench.wait_end(first)["outcome"] == "succeeded"
    assert folders.steps(run_folder(bench, 909)) == [40, 60]
    change_byte(folders.path_of(run_folder(bench, 909), 60) / "rank-0.bin", 100)
    second = bench.send(saving(60, every=20), run=909, number=2)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    damaged = "the checkpoint after 60 steps is damaged"
    assert begins(bench, second) == {"step": 40, "run": 909, "attempt": first, "why": damaged}
    assert losses(bench, second) == {step: loss for step, loss in losses(bench, first).items() if step >= 40}
    assert "step-00000060 was changed" in bench.log()


def test_a_retry_begins_anew_where_every_checkpoint_is_damaged(bench: Bench) -> None:
    first = bench.send(saving(20, every=10), run=910)
    assert bench.wait_end(first)["outcome"] == "succeeded"
    for step in (10, 20):
        change_byte(folders.path_of(run_folder(bench, 910), step) / "rank-0.bin", 100)
    second = bench.send(saving(20, every=10), run=910, number=2)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    damaged = "the checkpoints after 10 and 20 steps are damaged, and no other is on bench"
    assert begins(bench, second) == {"step": 0, "run": 910, "attempt": 0, "why": damaged}
    assert losses(bench, second) == losses(bench, first)


def test_an_orderly_stop_saves_and_the_next_attempt_goes_on_there(bench: Bench) -> None:
    first = bench.send(slowly_saving(), run=902)
    bench.wait_running(first)
    bench.stop_worker()
    (step,) = folders.steps(run_folder(bench, 902))
    bench.start_worker()
    end = bench.wait_end(first)
    assert (end["outcome"], end["cause"]) == ("interrupted", "interrupted")
    second = bench.send(saving(step + 20), run=902, number=2)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    assert begins(bench, second)["step"] == step
    assert sorted(losses(bench, second)) == list(range(step, step + 20))


def test_sigterm_of_one_rank_ends_the_attempt_in_good_order(bench: Bench) -> None:
    attempt = bench.send(slowly_saving(), run=903)
    recorded = bench.wait_running(attempt)
    os.kill(recorded[1][0], signal.SIGTERM)
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"]) == ("interrupted", "interrupted")
    assert len(folders.steps(run_folder(bench, 903))) == 1


def test_a_later_attempt_without_a_checkpoint_says_that_it_begins_anew(bench: Bench) -> None:
    attempt = bench.send(saving(6), run=904, number=2)
    assert bench.wait_end(attempt)["outcome"] == "succeeded"
    assert begins(bench, attempt) == {"step": 0, "run": 904, "attempt": 0, "why": "no checkpoint of it is on bench"}


def test_a_start_message_that_outlived_its_attempt_deletes_no_checkpoint_of_the_next(bench: Bench) -> None:
    late, bench.next_attempt = bench.next_attempt, bench.next_attempt + 1
    later = bench.send(saving(40, every=20), run=940, number=2)
    assert bench.wait_end(later)["outcome"] == "succeeded"
    saved = folders.steps(run_folder(bench, 940))
    end = bench.wait_end(bench.send(saving(40, every=20), late, run=940))
    assert (end["outcome"], end["cause"]) == ("failed", "refused")
    assert f"its later attempt {later} has checkpoints" in end["detail"]
    assert saved and folders.steps(run_folder(bench, 940)) == saved


def test_a_later_attempt_ends_the_earlier_one_and_begins_where_that_left_off(bench: Bench) -> None:
    """The worker was cut off, and the yard has given the run a new attempt; the old one still saves and drops."""
    spec = slowly_saving(200, every=5)
    first = bench.send(spec, run=942)
    recorded = bench.wait_running(first, step=12)
    second = bench.send(spec, run=942, number=2)
    end = bench.wait_end(first)
    assert (end["outcome"], end["cause"]) == ("failed", "worker_lost")
    assert none_alive(recorded)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    where = begins(bench, second)
    assert where["step"] >= 10 and where["attempt"] == first
    steps = set(losses(bench, first))
    assert set(range(where["step"])) <= steps, "no step before that is missing"


def test_an_attempt_whose_run_went_on_elsewhere_ends_at_its_next_save(bench: Bench) -> None:
    """Both hosts share the folder, and this one is cut off from the yard: nobody can end the attempt."""
    attempt = bench.send(slowly_saving(every=5), run=943)
    recorded = bench.wait_running(attempt, step=12)
    folder = run_folder(bench, 943)
    folders.claim(folder, attempt + 1000)
    saved = folders.steps(folder)
    end = bench.wait_end(attempt)
    assert end["outcome"] == "failed"
    assert f"its later attempt {attempt + 1000} has begun in {folder}" in end["detail"]
    assert none_alive(recorded) and folders.steps(folder)[:1] == saved[:1]


@pytest.fixture(scope="module")
def first(bench: Bench) -> int:
    """The attempt of run 905, which has left checkpoints of steps 6 and 12."""
    attempt = bench.send(saving(12, every=6), run=905)
    assert bench.wait_end(attempt)["outcome"] == "succeeded"
    return attempt


def test_another_layout_goes_on_from_a_named_checkpoint(bench: Bench, first: int) -> None:
    named = {"run": 905, "step": 6}
    second = bench.send(saving(12, dp=1, pp=2, micro_batches=2), run=906, resume=named)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    assert begins(bench, second) == {"step": 6, "run": 905, "attempt": first, "why": ""}
    before, after = losses(bench, first), losses(bench, second)
    assert sorted(after) == list(range(6, 12))
    assert all(abs(after[step] - before[step]) < 1e-6 * before[step] for step in after)


@pytest.mark.usefixtures("first")
def test_a_checkpoint_that_is_not_here_or_does_not_fit_is_refused(bench: Bench) -> None:
    end = bench.wait_end(bench.send(saving(12), run=907, resume={"run": 905, "step": 7}))
    assert (end["outcome"], end["cause"]) == ("failed", "refused")
    assert "no checkpoint of run 905 at step 7; it has steps 6, 12" in end["detail"]
    other = saving(12)
    other["model"]["hidden"] = 32
    end = bench.wait_end(bench.send(other, run=908, resume={"run": 905, "step": 6}))
    assert end["cause"] == "refused"
    assert "saved with hidden=16; this run has hidden=32" in end["detail"]


def test_the_checkpoints_of_a_deleted_run_go_once_no_rank_uses_them(bench: Bench) -> None:
    whose = {"uid": "0a" * 8, "attempts": [bench.next_attempt]}
    saved = bench.send(saving(20, every=10), run=913, identity=whose)
    assert bench.wait_end(saved)["outcome"] == "succeeded"
    folder = bench.folder / "checkpoints" / f"913-{'0a' * 8}"
    reader = bench.send(slowly_saving(), run=914, resume={"run": 913, "step": 20}, resume_identity=whose)
    bench.wait_running(reader)
    bench.control("drop", 913, identity=whose)
    bench.control("drop", 915)  # this host has no checkpoint of that run
    bench.wait("answer", lambda: dropped(bench))
    assert dropped(bench) == [915] and folders.steps(folder) == [10, 20]
    bench.control("cancel", reader)
    bench.wait_end(reader)
    bench.control("drop", 913, identity=whose)
    bench.wait("answer", lambda: 913 in dropped(bench))
    assert not folder.exists() and run_folder(bench, 914).exists()
    bench.wait("free disk", lambda: not list(bench.folder.glob("checkpoints/.dropped-*")))


def test_what_a_killed_worker_had_put_aside_goes_with_its_next_start(bench: Bench) -> None:
    bench.stop_worker()
    aside = bench.folder / "checkpoints" / ".dropped-905-1"
    (aside / "step-00000010").mkdir(parents=True)
    bench.start_worker()
    bench.wait("free disk", lambda: not aside.exists())
