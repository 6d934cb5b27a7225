"""Runs with records, for tests of pages: real frames, decoded and stored by the controller's own code.

The times come from a small cost model applied to the run's real schedule, so that Gantt charts, breakdowns and speedups
are consistent with each other, as in a measured run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from django.db import transaction
from django.utils import timezone

from dashboard.control.frames import decode_batch
from dashboard.control.store import Store
from dashboard.control.summary import store_summary
from dashboard.fleet.models import Worker
from dashboard.ledger.models import Profile
from dashboard.ledger.services import answer_profile, ask_profile
from dashboard.runs import services
from dashboard.runs.models import Attempt, Run, State
from dashboard.studies.models import Study
from parallel_core.analysis.meters import Work
from parallel_core.layout import Layout
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import CATEGORIES, MEMORY, POINT, SPAN
from parallel_core.schedule import build
from parallel_core.schedule.ir import RECVS, SENDS, Kind
from parallel_core.spec import RunSpec
from tests.parallel_core.tables import table
from workers.contract import TASKS

BASE: dict[str, Any] = {
    "model": {"layers": 4, "hidden": 64, "heads": 4, "seq": 32},
    "train": {"steps": 43, "warmup_steps": 3, "global_batch": 16},
}
SPLITS: tuple[dict[str, Any], ...] = (
    {},
    {"micro_batches": 4},
    {"pp": 2, "schedule": "naive"},
    {"dp": 2},
    {"tp": 2},
    {"pp": 2, "schedule": "gpipe", "micro_batches": 4},
    {"pp": 2, "schedule": "1f1b", "micro_batches": 4},
)
PROFILED = RunSpec.model_validate(
    {"model": {"layers": 4, "hidden": 32, "heads": 2, "seq": 16}, "train": {"global_batch": 16}}
)
"""The spec of profiles: small, so that predictions from it are quick."""
UNCOUNTED: dict[str, Any] = {
    "model": {"layers": 1024, "hidden": 64, "heads": 4, "seq": 64},
    "parallel": {"pp": 512, "micro_batches": 4096, "schedule": "interleaved"},
    "train": {"global_batch": 4096},
}
"""A spec whose memory takes too long to count while somebody waits."""
MS = 1_000_000
FORWARD = 40 * MS  # of the whole batch on one device
MIB = 1 << 20
PEAK = 1e11  # FLOP/s of one device


def spec_of(split: dict[str, Any], **train: Any) -> dict[str, Any]:
    return {"model": BASE["model"], "parallel": split, "train": {**BASE["train"], **train}}


def worker(name: str = "yard-a", devices: int = 2) -> Worker:
    """A live worker with CPU devices."""
    listed = [
        {"index": i, "kind": "cpu", "name": f"core {i}", "memory_total": 4 << 30, "memory_used": 1 << 30, "load": 0.1}
        for i in range(devices)
    ]
    lists = {"devices": listed, "tasks": list(TASKS)}
    defaults = {"host": "localhost", "boot": "b1", "heartbeat_at": timezone.now(), **lists}
    return Worker.objects.get_or_create(name=name, defaults=defaults)[0]


def sized(name: str, *sizes: int, kind: str = "cpu") -> Worker:
    """A live worker with a device of each of these sizes in bytes."""
    made = worker(name, devices=len(sizes))
    made.devices = [{**one, "kind": kind, "memory_total": size} for one, size in zip(made.devices, sizes, strict=True)]
    made.save()
    return made


def profiled(owner: Any, worker: Worker, spec: RunSpec) -> Profile:
    """A finished profile of the spec's model, with made-up times."""
    asked = ask_profile(worker=worker, spec=spec, user=owner)
    answer_profile(worker.name, {"profile": asked.pk, "table": table(spec.model).dump()})
    return Profile.objects.get(pk=asked.pk)


def queued(owner: Any, split: dict[str, Any] | None = None, **kwargs: Any) -> Run:
    """A queued run; `train` overrides its training fields, `inject` adds faults, everything else goes to
    services.submit. A run of a study has its host to itself.
    """
    train, inject = kwargs.pop("train", {}), kwargs.pop("inject", [])
    kwargs.setdefault("exclusive", "study" in kwargs)
    return services.submit(owner=owner, spec={**spec_of(split or {}, **train), "inject": inject}, **kwargs)


def start(run: Run) -> Attempt:
    """Puts a queued run into the running state on a worker."""
    host = worker(devices=max(2, run.devices))
    node = {"worker": host.name, "devices": list(range(run.devices)), "first_rank": 0, "address": "127.0.0.1"}
    now = timezone.now()
    number = run.attempts.count() + 1
    attempt = Attempt.objects.create(
        run=run, number=number, worker=host, worker_boot=host.boot, devices=[node], sent_at=now, started_at=now
    )
    Run.objects.filter(pk=run.pk).update(state=State.RUNNING, started_at=now)
    run.refresh_from_db()
    return attempt


def feed(attempt: Attempt, rank: int, data: bytes) -> None:
    """Stores encoded frames of a rank as the controller does."""
    with transaction.atomic():
        store = Store()
        store.add_records(attempt, rank, decode_batch(data, 0))
        store.flush({attempt.pk: attempt})


def feed_steps(attempt: Attempt, upto: int, loss_shift: float = 0.0) -> None:
    """Feeds the series, one traced step and the memory of every rank, up to step `upto`."""
    spec = RunSpec.model_validate(attempt.run.spec)
    spans = simulate(spec)
    for rank in range(spec.parallel.world):
        seconds = int(spans[rank]["end"].max() - spans[rank]["start"].min()) / 1e9
        frames = [
            encode({"kind": "hello", "rank": rank, "t": time.time(), "pid": 1, "units": spec.model.units()}),
            _points(spec, rank, upto, seconds, loss_shift),
            _memory(spec, rank),
        ]
        if upto > 10:
            rows = spans[rank]
            head = {"kind": "spans", "rank": rank, "t": time.time(), "step": 10, "count": len(rows), "total": len(rows)}
            frames.append(encode(head, rows.tobytes()))
        feed(attempt, rank, b"".join(frames))


def feed_losses(attempt: Attempt, loss: Sequence[float], first: int = 0, lr: float = 3e-4) -> None:
    """Feeds the loss of each step from `first` on, its time of 0.1 s and its learning rate."""
    values = {"loss": loss, "step_time": [0.1] * len(loss), "lr": [lr] * len(loss)}
    rows = np.zeros((len(values), len(loss)), POINT)
    rows["step"], rows["value"] = first + np.arange(len(loss)), list(values.values())
    head = {"kind": "points", "rank": 0, "t": time.time(), "series": [[name, len(loss)] for name in values]}
    feed(attempt, 0, encode(head, rows.tobytes()))


def finished(owner: Any, split: dict[str, Any] | None = None, **kwargs: Any) -> Run:
    """A run that succeeded, with all its records. Taken out of kwargs: `cpu_others`, `loss_shift`, `reference` (seconds
    of the reference work; None: not measured) and `company` (how many times longer it takes while other devices are
    busy; None: not measured).
    """
    others, shift = kwargs.pop("cpu_others", 0.01), kwargs.pop("loss_shift", 0.0)
    reference, company = kwargs.pop("reference", None), kwargs.pop("company", None)
    run = queued(owner, split, **kwargs)
    attempt = start(run)
    feed_steps(attempt, run.spec["train"]["steps"], shift)
    for rank in range(run.devices):
        peak = {"flops_per_s": PEAK * run.devices, "source": "measured", "devices": run.devices}
        equal = {"step": 42, "checks": 3, "seconds": 4e-4, "parameters": "0123456789abcdef", "samples": "f" * 16}
        frame = {"kind": "summary", "rank": rank, "t": time.time(), "steps": 43, "cpu_others": others}
        frame |= {"peak": peak, "fingerprint": equal}
        beside = {"company": company, "alone": 7} if company else {}
        frame |= {"reference": {"seconds": reference, "times": 14, **beside}} if reference else {}
        feed(attempt, rank, encode(frame))
    end(run, State.SUCCEEDED)
    return run


def end(run: Run, state: State, detail: str = "", cause: str = "") -> None:
    """Ends a run and computes its summary, as the controller does."""
    now = timezone.now()
    Attempt.objects.filter(run=run).update(over=True, settled=True, outcome=state, ended_at=now)
    Run.objects.filter(pk=run.pk).update(state=state, ended_at=now, detail=detail, cause=cause)
    run.refresh_from_db()
    store_summary(run.pk)
    run.refresh_from_db()


def study(
    owner: Any, name: str = "Starter", splits: tuple[dict[str, Any], ...] = SPLITS, recompute: bool = True
) -> Study:
    """A study in which every run has succeeded; its baseline is the first run."""
    made = Study.objects.create(name=name, owner=owner, kind="starter", base=BASE)
    every = [*splits, *({**split, "recompute": "full"} for split in splits if recompute)]
    runs = [finished(owner, s, study=made, position=i, exclusive=True) for i, s in enumerate(every)]
    made.baseline = runs[0]
    made.save(update_fields=("baseline",))
    return made


def _points(spec: RunSpec, rank: int, upto: int, seconds: float, shift: float) -> bytes:
    steps = np.arange(upto)
    noise = np.random.default_rng(rank).normal(1, 0.01, upto)
    series: dict[str, np.ndarray] = {"rank_step_time": seconds * noise, "memory": np.full(upto, 8.0 * MIB)}
    if rank == 0:
        loss = 5.5 * np.exp(-steps / 60) + shift + 1e-7 * spec.parallel.world
        series |= {"loss": loss, "grad_norm": loss / 3, "step_time": seconds * noise}
        of_one_second = Work.of(spec).speeds(1.0, PEAK * spec.parallel.world)
        series |= {name: speed / (seconds * noise) for name, speed in of_one_second.items()}
    rows = np.zeros((len(series), upto), POINT)
    for row, values in zip(rows, series.values(), strict=True):
        row["step"], row["value"] = steps, values
        row["time"] = 1.75e9 + np.cumsum(seconds * noise)
    head = {"kind": "points", "rank": rank, "t": time.time(), "series": [[name, upto] for name in series]}
    return encode(head, rows.tobytes())


def _memory(spec: RunSpec, rank: int) -> bytes:
    split = spec.parallel
    kept = 12 * MIB // (split.tp * split.pp)
    activations = 40 * MIB // (split.dp * split.tp * split.pp) // (1 if split.recompute == "none" else 3)
    peak = dict(zip(CATEGORIES, (kept, kept, 2 * kept, activations, MIB), strict=True))
    curve = np.zeros(8, MEMORY)
    curve["t"] = np.arange(8) * 20 * MS
    for name, size in peak.items():
        curve[name] = size * np.minimum(1, (np.arange(8) + 1) / 4)
    head = {"kind": "memory", "rank": rank, "t": time.time(), "step": 1, "peak": peak, "final": peak, "rss_delta": 0}
    return encode({**head, "peak_total": sum(peak.values())}, curve.tobytes())


def simulate(spec: RunSpec) -> dict[int, np.ndarray]:
    """SPAN rows of one step for every rank, computed by walking its program with fixed costs."""
    layout, schedule = Layout.of(spec), build(spec)
    split = spec.parallel
    forward = FORWARD // (split.dp * split.tp * split.pp * split.micro_batches)
    clock = dict.fromkeys(range(schedule.pipeline_ranks), 0)
    at = dict(clock)
    sent: dict[tuple[int, Kind, int], int] = {}
    rows: dict[int, list[tuple[Any, ...]]] = {q: [] for q in clock}
    while any(at[q] < len(schedule.programs[q]) for q in clock):
        for q, program in enumerate(schedule.programs):
            while at[q] < len(program):
                op, begin = program[at[q]], clock[q]
                end = _end(op, begin, forward, split, sent, q)
                if end is None:
                    break
                rows[q] += _spans(op, begin, end, split)
                clock[q] = end
                at[q] += 1
    last = max(clock.values()) + MS
    out = {}
    for rank in range(layout.world):
        q = layout.pipeline_rank(rank)
        stage, replica, _ = layout.coords(rank)
        step = (Kind.STEP, 3, stage, -1, replica, 0, 0, last, 0)
        norm = (Kind.NORM, 2, stage, -1, replica, 0, clock[q], last, 8)
        out[rank] = np.array([step, *rows[q], norm], SPAN)
    return out


def _end(op: Any, begin: int, forward: int, split: Any, sent: dict[Any, int], q: int) -> int | None:
    """The end of the operation, or None if the message it waits for has not been sent yet."""
    if op.kind in SENDS:
        sent[op.peer, Kind(op.kind + 1), op.micro_batch] = begin + MS // 2
        return begin + MS // 10
    if op.kind in RECVS:
        there = sent.get((q, op.kind, op.micro_batch))
        return None if there is None else max(begin, there)
    recompute = split.recompute == "full"
    tensor = 1.5 if split.tp > 1 else 1.0
    costs = {Kind.F: forward * tensor, Kind.BW: forward * tensor * (3 if recompute else 2), Kind.ALLREDUCE: 6 * MS}
    return begin + int(costs.get(op.kind, 3 * MS))


def _spans(op: Any, begin: int, end: int, split: Any) -> list[tuple[Any, ...]]:
    lane = 1 if op.kind in SENDS | RECVS else 2 if op.kind is Kind.ALLREDUCE else 0
    tail = (op.stage, op.micro_batch, op.replica, 0)
    rows: list[tuple[Any, ...]] = [(op.kind, lane, *tail, begin, end, 0)]
    if op.kind is Kind.BW and split.recompute == "full":
        rows.append((Kind.R, 0, *tail, begin, begin + (end - begin) // 3, 0))
    if op.kind in (Kind.F, Kind.BW) and split.tp > 1:
        rows.append((Kind.TP_COLLECTIVE, 2, *tail, end - (end - begin) // 3, end, 4096))
    return rows
