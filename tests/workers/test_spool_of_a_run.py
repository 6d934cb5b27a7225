"""A real run that traces every step while the broker is away, on a worker with little room for records."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import pytest

from dashboard.control.frames import Decoded, decode_batch
from dashboard.yard import broker
from parallel_core.observe.record_files import last_of, segments
from parallel_core.observe.spool import segment_bytes
from tests.workers.harness import PATIENCE_S, Bench, tiny

LIMIT = 1 << 20
WORKER = {"TRAINYARD_SPOOL_BYTES": str(LIMIT)}
STEPS = 1200


def records_of(bench: Bench, attempt: int, rank: int) -> list[Decoded]:
    """The records of a rank as the controller stores them; fails if any are missing."""
    found, offset = [], 0
    for entry in bench.heard:
        body = entry.body
        key = (body.get("attempt"), body.get("channel"), body.get("rank"))
        if entry.kind == "batch" and key == (attempt, "events", rank) and body["end"] > offset:
            assert body["start"] <= offset
            assert len(entry.data) + body.get("omitted", 0) == body["end"] - body["start"]
            found.append(decode_batch(entry.data, body["start"], offset))
            offset = found[-1].end
            assert offset == body["end"]
    return found


@pytest.mark.full
def test_a_night_without_a_broker_fills_no_disk(bench: Bench) -> None:
    attempt = bench.send({**tiny(STEPS), "trace": {"trace_every": 1, "memory": False}})
    bench.wait_running(attempt)
    bench.broker.kill()
    bench.broker.wait()
    folder = bench.folder / "attempts" / str(attempt)
    deadline = time.monotonic() + PATIENCE_S
    while not (all(last_of(folder, rank, "exit") for rank in (0, 1)) and size_of(folder) <= LIMIT):
        assert time.monotonic() < deadline, f"{size_of(folder)} bytes; the worker's log:\n{bench.log()}"
        time.sleep(0.1)
    assert len(segments(folder, 0)) > 3 and segment_bytes(LIMIT, 2) == 64 << 10
    bench.broker, _ = broker.start(bench.broker_home)
    assert bench.wait_end(attempt)["outcome"] == "succeeded"
    for rank in (0, 1):
        spans, omitted = list[int](), list[int]()
        points: dict[str, list[int]] = defaultdict(list)
        for some in records_of(bench, attempt, rank):
            spans += [header["step"] for header, _ in some.spans]
            # A record may also stand for steps that had been published: the yard keeps what came first.
            omitted += [step for step, total in some.omitted if total > 0 and step not in spans]
            for name, parts in some.points.items():
                points[name] += [int(step) for part in parts for step in part["step"]]
        assert sorted(spans + omitted) == list(range(min(spans + omitted), STEPS))
        assert len(omitted) > STEPS // 10 and max(spans) == STEPS - 1
        assert points["rank_step_time"] == list(range(STEPS))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for rank in (0, 1) for _, path in segments(folder, rank))
