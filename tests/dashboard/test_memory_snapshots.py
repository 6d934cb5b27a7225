"""A snapshot of the CUDA allocator: requested on a run's page, stored, drawn on its Memory tab, and downloadable."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from django.test import Client

from dashboard.control import sweeps
from dashboard.runs.models import Run, State
from dashboard.runs.tracing import next_trace, profiles
from parallel_core.observe.record_files import encode
from parallel_core.observe.snapshot import packed
from tests.dashboard import factory
from tests.parallel_core.cuda_snapshot import snapshot

pytestmark = pytest.mark.django_db
DATA = packed(snapshot())


@pytest.fixture
def running(alice: Any, redis_url: str) -> Run:
    """Two ranks on CUDA, at step 100 of 1 000."""
    run = factory.queued(alice, {"dp": 2}, train={"steps": 1000, "device": "cuda"})
    factory.feed_steps(factory.start(run), 12)
    Run.objects.filter(pk=run.pk).update(step=100, step_time=0.5, state=State.RUNNING)
    run.refresh_from_db()
    return run


def feed(run: Run, rank: int, data: bytes = DATA, *, step: int = 108, of: int = 2) -> None:
    half = len(data) // 2
    for part, blob in enumerate((data[:half], data[half:])[:of]):
        head = {"kind": "snapshot", "rank": rank, "t": time.time(), "step": step, "part": part, "of": 2}
        factory.feed(run.attempts.get(), rank, encode({**head, "size": len(data)}, blob))


def test_from_the_button_to_the_picture(client: Client, alice: Any, running: Run) -> None:
    client.force_login(alice)
    page = f"/runs/{running.pk}/"
    assert "with a memory snapshot" in client.get(page).content.decode()
    assert client.post(f"{page}trace-next", {"how": "memory"}).status_code == 302
    (_, told), *_ = sweeps.sweep_traces()
    assert (told["kind"], told["step"], told["how"]) == ("trace", 108, "memory")
    running.refresh_from_db()
    assert "will be traced with a memory snapshot" in next_trace.status(running).sentence
    feed(running, 0)
    feed(running, 1, of=1)
    done = next_trace.status(running)
    assert (done.sentence, done.address) == ("The allocations of step 108 were recorded.", "?tab=memory#snapshots")
    text = client.get(f"{page}?tab=memory").content.decode()
    assert "1.1 MiB at most: 300 KiB from before the step and 800 KiB on top." in text
    assert "attention.py:83" in text and "executor.py:40" in text and "before the recording" in text
    assert "rank 1: on its way" in text
    assert not profiles.listed(running), "a snapshot is not listed as a torch.profiler trace"


def test_it_is_handed_out_as_it_came_and_as_the_viewer_takes_it(client: Client, alice: Any, running: Run) -> None:
    client.force_login(alice)
    feed(running, 0)
    base = f"/runs/{running.pk}/snapshot/108"
    assert client.get(f"{base}/0.json.gz").content == DATA
    page = client.get(f"{base}/0.pickle")
    assert pickle.loads(page.content) == snapshot()  # data that this test has just stored, so unpickling is safe
    assert f"run-{running.pk}-step-108-rank0-memory.pickle" in page.headers["Content-Disposition"]
    for missing in ("1.pickle", "0.zip", "0.json"):
        assert client.get(f"{base}/{missing}").status_code == 404


def test_each_rank_has_its_own_and_a_bad_one_says_so(client: Client, alice: Any, running: Run) -> None:
    client.force_login(alice)
    other = snapshot()
    other["segments"][0]["blocks"][0]["requested_size"] *= 4
    feed(running, 0)
    feed(running, 1, packed(other))
    feed(running, 0, b"no snapshot", step=90)
    page = f"/runs/{running.pk}/?tab=memory&snapshot="
    assert "600 KiB from before" in client.get(f"{page}108-1").content.decode()
    assert "300 KiB from before" in client.get(f"{page}108-0").content.decode()
    assert "300 KiB from before" in client.get(f"{page}7-7").content.decode(), (
        "for a snapshot that does not exist, the newest is shown"
    )
    assert "This is no snapshot of the allocator" in client.get(f"{page}90-0").content.decode()
    assert client.get(f"/runs/{running.pk}/snapshot/90/0.pickle").status_code == 404


def test_on_a_cpu_it_is_not_offered_and_refused_with_what_is_there(client: Client, alice: Any, redis_url: str) -> None:
    run = factory.queued(alice, {"dp": 2}, train={"steps": 1000})
    factory.feed_steps(factory.start(run), 12)
    client.force_login(alice)
    page = f"/runs/{run.pk}/"
    assert "with a memory snapshot" not in client.get(page).content.decode()
    told = client.post(f"{page}trace-next", {"how": "memory"}, follow=True).content.decode()
    assert "this run is on CPU" in told and "metered step" in told
    odd = client.post(f"{page}trace-next", {"how": "films"}, follow=True).content.decode()
    assert "it can be spans, profiler, memory" in odd
    run.refresh_from_db()
    assert run.trace_asked_at is None
