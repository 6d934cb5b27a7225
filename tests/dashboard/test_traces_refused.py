"""Files that are no traces, or odd ones: nothing of them stays that no page can show."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import default_storage
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse

from dashboard.analyst import claims
from dashboard.analyst.child import Child
from dashboard.traces import reading
from dashboard.traces.models import Trace, TraceFile, TraceState
from tests.dashboard.run_analyst import finish, lane_of, read_next
from tests.dashboard.test_traces import send, shown

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_files")]
TORN, ODD = gzip.compress(b"[" * 99)[:15], b'[{"ph": "X", "name": "a", "ts": "x", "dur": 1, "pid": 0, "tid": 0}]'


def test_files_are_stored_before_the_database_is_locked(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    save, begun, open_then = default_storage.save, len(connection.savepoint_ids), []

    def saved(*given: Any) -> str:
        open_then.append(len(connection.savepoint_ids) - begun)
        return save(*given)

    monkeypatch.setattr(default_storage, "save", saved)
    send(member, ("rank0.json", b"{}"), ("rank1.json", b"{}"))
    assert open_then == [0, 0] and Trace.objects.get().files.count() == 2


def test_files_without_rows_do_not_stay(member: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(TraceFile.objects, "bulk_create", refused)
    with pytest.raises(OperationalError):
        send(member, ("rank0.json", b"{}"))
    assert not Trace.objects.exists() and not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_stay_where_the_rows_may_have_been_stored(
    member: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The connection went away during the commit, so nobody knows; whoever asks again with the same key gets them."""

    def lost(*_: Any, **__: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(TraceFile.objects, "bulk_create", lost)
    monkeypatch.setattr(TraceFile.objects, "filter", lost)
    with pytest.raises(OperationalError):
        send(member, ("rank0.json", b"{}"))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("data", [b"", b"not json", b"PK\x03\x04", b'{"traceEvents": []}', TORN, ODD])
def test_what_is_no_trace_is_told_so(member: Client, reader: Client, data: bytes) -> None:
    trace, page = shown(member, ("a.json", data))
    assert trace.state == TraceState.FAILED
    assert page.status_code == 200
    assert "Nothing could be read" in page.content.decode() and "Upload another" in page.content.decode()
    assert "Upload another" not in reader.get(f"/traces/{trace.pk}/").content.decode()
    assert trace.detail.startswith("a.json: ")
    assert "is shown" not in trace.detail and " 1 events" not in trace.detail


def test_names_that_no_database_holds_are_mended_and_numbers_too_large_are_no_steps(member: Client) -> None:
    odd = ["aten::\x00mul", "aten::\ud800add", "aten::\u202eneg", "ProfilerStep#99999999999999999999"]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": 10 * i + k, "dur": 4, "pid": 1, "tid": 1}
        for k, name in enumerate(odd)
        for i in range(2)
    ]
    steps = [{"name": f"ProfilerStep#{i}", "cat": "user_annotation", "ts": 10 * i, "dur": 9} for i in range(2)]
    events += [{"ph": "X", "pid": 1, "tid": 1} | step for step in steps]
    trace, page = shown(member, ("rank0.json", json.dumps({"traceEvents": events}).encode()))
    assert (trace.state, trace.steps) == (TraceState.READY, [0, 1])
    assert page.status_code == 200
    assert "aten::\N{REPLACEMENT CHARACTER}mul" in page.content.decode()


def test_a_step_without_length_is_shown(member: Client) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "ts": 10, "pid": 1, "tid": 1}
    trace, page = shown(member, ("rank0.json", json.dumps({"traceEvents": [event]}).encode()))
    assert (trace.state, page.status_code) == (TraceState.READY, 200)
    whatif = member.get(reverse("traces:whatif", args=(trace.pk,)))
    assert whatif.status_code == 200 and whatif.context["whatif"].check == ""
    assert member.get(f"/api/v1/traces/{trace.pk}/whatif").status_code == 200
    assert member.get(f"/api/v1/traces/{trace.pk}/analysis").status_code == 200


def test_a_trace_that_ends_its_reader_is_given_up(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    send(member, ("rank0.json", b"{}"))
    Trace.objects.update(tries=claims.MAX_TRIES)
    assert read_next()
    assert Trace.objects.get().detail == (
        f"Reading it was begun {claims.MAX_TRIES} times and never came to its end; the analyst's log says why."
    )
    assert not read_next()


def test_one_whose_reader_is_killed_keeps_its_files_and_is_tried_again(
    member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a search is: the kernel may have been out of memory for a moment. It is given up in the end."""
    started: list[Child] = []

    def noted(*given: Any) -> Child:
        started.append(Child(*given))
        return started[-1]

    monkeypatch.setattr(reading, "Child", noted)
    send(member, ("a.json", b"[]"))
    trace, lane = Trace.objects.get(), lane_of(reading)
    for tries in range(1, claims.MAX_TRIES + 1):
        assert lane.move()
        os.kill(started[-1].pid, signal.SIGKILL)
        finish(lane)
        trace.refresh_from_db()
        assert (trace.state, trace.tries, trace.files.count()) == (TraceState.QUEUED, tries, 1)
    assert read_next()
    page = member.get(reverse("traces:page", args=(trace.pk,))).content.decode()
    assert "Reading it was begun 3 times and never came to its end" in page and not trace.files.exists()
