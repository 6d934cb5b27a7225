"""The JSON API of traces: uploaded, read and analysed with a token."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.api.models import Scope
from dashboard.traces.models import Trace, TraceSpans, TraceState
from parallel_core.observe.records import SPAN
from tests.dashboard.run_analyst import read_next
from tests.dashboard.test_api import bearer

pytestmark = pytest.mark.django_db


def kineto(rank: int) -> SimpleUploadedFile:
    """A trace in PyTorch's format with two steps of 10 ms: a forward of 4 ms on rank 0, of 8 ms on rank 1."""
    steps = [
        {"cat": "user_annotation", "name": f"ProfilerStep#{k}", "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 10_000}
        for k, ts in ((0, 0), (1, 10_000))
    ]
    work = [
        {"cat": "cpu_op", "name": "aten::mm", "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 4_000 * (rank + 1)}
        for ts in (100, 10_100)
    ]
    return SimpleUploadedFile(
        f"rank{rank}.json", json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": steps + work}).encode()
    )


def test_a_trace_is_uploaded_read_and_analysed_with_a_token(
    client: Client, alice: Any, bob: Any, settings: Any, tmp_path: Any
) -> None:
    settings.MEDIA_ROOT = tmp_path
    headers, url = bearer(alice, Scope.SUBMIT), "/api/v1/traces"
    made = client.post(url, {"files": [kineto(0), kineto(1)], "name": "Elsewhere"}, headers=headers)
    assert made.status_code == 201
    one = f"{url}/{made.json()['data']['id']}"
    assert client.get(f"{one}/analysis", headers=headers).status_code == 404, "the trace has not been read yet"
    assert read_next()
    known = client.get(one, headers=headers).json()["data"]
    assert (known["state"], known["steps"], known["ranks"]) == ("succeeded", [0, 1], 2)
    assert [rank["spans"] for rank in known["files"]] == [{"0": 2, "1": 2}] * 2
    found = client.get(f"{one}/analysis?step=0", headers=headers).json()["data"]
    assert [account["components"]["compute"] for account in found["accounts"]] == [4_000_000, 8_000_000]
    assert all(sum(own["components"].values()) == own["total"] == 10_000_000 for own in found["accounts"])
    straggler = found["findings"][0]
    assert (straggler["rule"], straggler["rank"]) == ("straggler", 1) and "from=" in straggler["address"]
    assert found["largest"][0] == {"name": "aten::mm", "family": "matrix products", "count": 4, "ns": 24_000_000}
    assert client.get(f"{one}/spans?step=1", headers=headers).json()["data"]["total"] == 4
    assert client.get(f"{one}/spans?step=9", headers=headers).status_code == 404
    assert client.get(url, headers=headers).json()["meta"]["count"] == 1
    assert client.post(url, {"name": "none"}, headers=headers).status_code == 422
    assert client.delete(one, headers=bearer(bob, Scope.SUBMIT)).status_code == 403
    assert client.delete(one, headers=headers).status_code == 204


def test_of_a_trace_of_many_steps_each_answer_has_a_part_and_says_of_how_many(client: Client, alice: Any) -> None:
    steps = {str(step): 3 for step in range(1000)}
    ranks = {str(rank): {"file": "a", "device": "", "raw": 1, "steps": steps} for rank in (0, 10)}
    ranks["2"] = {**ranks["0"], "steps": {"7": 1}}
    made = Trace.objects.create(name="long", owner=alice, state=TraceState.READY, ranks=ranks)
    TraceSpans.objects.create(trace=made, rank=0, step=100, count=1, data=np.zeros(1, SPAN).tobytes())
    headers, url = bearer(alice, Scope.READ), "/api/v1/traces"
    near = [*range(450, 551), *range(900, 1000)]
    (row,) = client.get(url, headers=headers).json()["data"]
    one = client.get(f"{url}/{made.pk}", headers=headers).json()["data"]
    assert (row["steps"], row["step_count"]) == (one["steps"], one["step_count"]) == (near, 1000)
    assert [len(file["spans"]) for file in one["files"]] == [201, 0, 201]
    pages = [client.get(f"{url}/{made.pk}/steps?per_page=200&page={n}", headers=headers).json() for n in range(1, 7)]
    assert [step["step"] for page in pages for step in page["data"]] == list(range(1000))
    assert pages[0]["data"][7]["spans"] == {"0": 3, "2": 1, "10": 3}
    assert pages[0]["meta"] == {"count": 1000, "page": 1, "per_page": 200}
    found = client.get(f"{url}/{made.pk}/spans?step=100", headers=headers).json()
    assert (found["data"]["traced_steps"], found["meta"]) == ([*range(50, 151), *range(900, 1000)], {"traced": 1000})
