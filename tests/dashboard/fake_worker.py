"""A fake worker that only speaks the stream protocol: it trains nothing and publishes what a test asks for."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import redis

from parallel_core.analysis.step_waits import StepWaits
from parallel_core.known_fields import later
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import POINT, SPAN, STEP_SUM, WAIT
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from workers.contract import EVENTS, TASKS, Channel, ControlEntry, control_stream, queue_of


def spec(**parallel: Any) -> dict[str, Any]:
    """A small valid spec, e.g. spec(dp=2)."""
    return RunSpec.model_validate({"parallel": parallel}).model_dump(mode="json")


def points_frame(first: int, count: int, name: str = "loss", rank: int = 0) -> bytes:
    """A frame of `count` points for consecutive steps; the value at a step is the step number + 0.5."""
    rows = np.zeros(count, POINT)
    rows["step"] = np.arange(first, first + count)
    rows["time"] = 1_700_000_000 + rows["step"]
    rows["value"] = rows["step"] + 0.5
    return encode({"kind": "points", "rank": rank, "t": 1.0, "series": [[name, count]]}, rows.tobytes())


def spans_frame(step: int, count: int = 3, rank: int = 0, total: int | None = None, **more: Any) -> bytes:
    rows = np.zeros(count, SPAN)
    rows["start"] = np.arange(count) * 10
    rows["end"] = rows["start"] + 5
    header = {"kind": "spans", "rank": rank, "t": 1.0, "step": step, "count": count, "total": total or count}
    header |= more
    return encode(header, rows.tobytes())


def waits_of(steps: Sequence[int], late: int = 0, recompute: int = 0) -> StepWaits:
    """Steps of 1 000 ns; in each a collective of all ranks, which the rank reaches `late` ns after the step's start and
    leaves after 500 ns.
    """
    sums, rows = np.zeros(len(steps), STEP_SUM), np.zeros(len(steps), WAIT)
    sums["step"], sums["count"], sums["time"], sums["total"] = steps, 1, 1_700_000_000 + np.array(steps), 1_000
    sums["waiting"], sums["recompute"] = 500 - late, recompute
    begin = np.array(steps) * 10_000
    rows["kind"], rows["micro_batch"], rows["start"], rows["end"] = Kind.NORM, -1, begin + late, begin + 500
    return StepWaits(sums, rows)


def waits_frame(steps: Sequence[int], rank: int = 0, late: int = 0, recompute: int = 0) -> bytes:
    """A frame about `waits_of` these steps."""
    header = {"kind": "waits", "rank": rank, "t": 1.0, "steps": len(steps)}
    return encode(header, waits_of(steps, late, recompute).pack())


class Peer:
    """One lifetime of a worker process. `files` holds the bytes that its ranks have written so far."""

    def __init__(self, url: str, name: str = "yard-a", boot: str = "boot-1", devices: int = 2) -> None:
        self.redis = redis.Redis.from_url(url)
        self.name, self.boot, self.devices = name, boot, devices
        self.files: dict[tuple[int, int, Channel], bytes] = defaultdict(bytes)
        self._heard = "0"

    def say(self, kind: str, body: dict[str, Any], data: bytes = b"", age: float = 0.0) -> None:
        """Publishes an entry; with `age`, as if it had reached the broker that many seconds ago."""
        fields: dict[Any, Any] = {"worker": self.name, "boot": self.boot, "kind": kind, "body": json.dumps(body)}
        when = f"{int((time.time() - age) * 1000)}-*" if age else "*"
        self.redis.xadd(EVENTS, {**fields, "data": data} if data else fields, id=when)

    def beat(self, *attempts: int, step: int = 3, age: float = 0.0, **more: Any) -> None:
        devices = [
            {"index": i, "kind": "cpu", "name": "core", "memory_total": 1 << 30, "memory_used": 0, "load": 0.0}
            for i in range(self.devices)
        ]
        live = {str(pk): {"0": {"step": step, "op": "0F1", "age": 0.1}} for pk in attempts}
        about = {"host": "host-a", "version": "1", "load": 0.1, "memory_total": 1, "memory_available": 1}
        about["time"] = time.time() - age
        lists = {"devices": devices, "attempts": live, "tasks": list(TASKS), "fields": later()}
        self.say("heartbeat", {**about, **lists, **more}, age=age)

    def running(self, attempt: int) -> None:
        self.say("attempt", {"attempt": attempt, "state": "running"})

    def ended(self, attempt: int, outcome: str = "succeeded", **more: Any) -> None:
        sizes = {f"{channel}:{rank}": len(data) for (pk, rank, channel), data in self.files.items() if pk == attempt}
        body = {"attempt": attempt, "state": "ended", "outcome": outcome, "cause": "", "none_left": True}
        self.say("attempt", {**body, "sizes": sizes, **more})

    def write(self, attempt: int, data: bytes, rank: int = 0, channel: Channel = "events") -> tuple[int, int]:
        """Appends to a rank's file without publishing; returns [start, end)."""
        start = len(self.files[attempt, rank, channel])
        self.files[attempt, rank, channel] += data
        return start, start + len(data)

    def publish(self, attempt: int, start: int, end: int, rank: int = 0, channel: Channel = "events") -> None:
        body = {"attempt": attempt, "rank": rank, "channel": channel, "start": start, "end": end}
        self.say("batch", body, self.files[attempt, rank, channel][start:end])

    def send(self, attempt: int, data: bytes, rank: int = 0, channel: Channel = "events") -> None:
        """Writes and publishes."""
        self.publish(attempt, *self.write(attempt, data, rank, channel), rank=rank, channel=channel)

    def orders(self) -> list[ControlEntry]:
        """Control entries that arrived since the last call."""
        rows: Any = self.redis.xrange(control_stream(self.name), min=f"({self._heard}" if self._heard != "0" else "-")
        if rows:
            self._heard = rows[-1][0].decode()
        return [json.loads(fields[b"body"]) for _, fields in rows]

    def obey(self) -> None:
        """Answers every rewind order by publishing the file again from the requested offset."""
        for order in self.orders():
            if order["kind"] == "rewind":
                key = (order["attempt"], order["rank"], order["channel"])
                self.publish(key[0], order["offset"], len(self.files[key]), key[1], key[2])

    def tasks(self) -> list[dict[str, Any]]:
        """Start messages in this worker's Celery queue, oldest first."""
        raw: Any = self.redis.lrange(queue_of(self.name), 0, -1)
        return [_body_of(json.loads(item)) for item in reversed(raw)]


def _body_of(message: dict[str, Any]) -> dict[str, Any]:
    import base64

    args, _kwargs, _embed = json.loads(base64.b64decode(message["body"]))
    (start,) = args
    return dict(start)
