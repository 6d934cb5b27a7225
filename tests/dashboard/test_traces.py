"""Traces in the browser: uploaded, read by the analyst, shown, deleted; errors in them are reported."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.cache import cache
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import DatabaseError, transaction
from django.test import Client
from django.urls import reverse

from dashboard.body_limit import MAX_BODY, limit_of
from dashboard.runs.form.choice_labels import CHOICE_LABELS
from dashboard.traces import reading, services
from dashboard.traces.models import Trace, TraceSpans, TraceState
from parallel_core import limits
from parallel_core.analysis.quantities import bytes_text
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from tests.dashboard.plain import plain
from tests.dashboard.run_analyst import analyse_until, finish, lane_of, read_next
from tests.dashboard.streamed_body import received
from tests.parallel_core import profiled

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_files")]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return [path.read_bytes() for path in profiled.record(tmp_path_factory.mktemp("profiled"))]


def send(client: Client, *files: tuple[str, bytes], name: str = "") -> Any:
    uploads = [SimpleUploadedFile(file, data) for file, data in files]
    return client.post(reverse("traces:new"), {"name": name, "files": uploads})


def shown(client: Client, *files: tuple[str, bytes], name: str = "") -> tuple[Trace, Any]:
    """Uploads the files, lets the analyst read them, and returns the trace and its page."""
    assert send(client, *files, name=name).status_code == 302
    assert read_next()
    trace = Trace.objects.latest("pk")
    return trace, client.get(reverse("traces:page", args=(trace.pk,)))


def test_a_job_of_two_ranks_is_uploaded_read_and_shown(member: Client, real: list[bytes]) -> None:
    trace, page = shown(member, ("rank0.json", real[0]), ("rank1.json.gz", gzip.compress(real[1])), name="Two ranks")
    assert trace.state == TraceState.READY
    assert trace.steps == [1, 2, 3]
    text = plain(page.content.decode())
    assert "Two ranks" in text and "2 ranks, 3 steps" in text
    assert page.context["step"] == 2
    assert page.context["verdict"] in text and " a step" in page.context["verdict"]
    assert len(page.context["where"].rows) == 2
    assert page.context["gantt"].figure["layout"]["meta"]["total"] == sum(
        len(np.frombuffer(row.data, SPAN)) for row in TraceSpans.objects.filter(step=2)
    )
    assert "Certain: " in text
    trace.ranks["0"]["raw"] = 1234567
    trace.save()
    text = plain(member.get(f"/traces/{trace.pk}/").content.decode())
    (above, below) = re.findall(r"([0-9]+(?:.[0-9]{3})+) CPU operations", text)
    assert above == below, "digits are grouped alike at the head and below the largest"
    assert member.get(f"/traces/{trace.pk}/?step=3").context["step"] == 3
    assert "Two ranks" in (listed := member.get("/traces/").content.decode()) and '<td class="whole"><time' in listed


def test_a_step_is_taken_away_as_a_file(member: Client, real: list[bytes]) -> None:
    trace, page = shown(member, ("rank0.json", real[0]), ("rank3.json", real[1].replace(b'"rank": 1', b'"rank": 3')))
    spans = page.context["gantt"].figure["layout"]["meta"]["total"]
    csv = received(member.get(f"/traces/{trace.pk}/step-2.csv")).decode()
    assert len(csv.splitlines()) == spans + 1 and csv.startswith("rank,kind,lane")
    chrome = received(member.get(f"/traces/{trace.pk}/step-2.chrome"))
    assert sum(event["ph"] == "X" for event in json.loads(chrome)["traceEvents"]) >= spans
    assert member.get(f"/traces/{trace.pk}/step-2.exe").status_code == 404
    assert member.get(f"/traces/{trace.pk}/step-9.csv").status_code == 404


def test_ranks_are_held_against_each_other(member: Client, real: list[bytes]) -> None:
    other = real[1].replace(b'"aten::relu"', b'"aten::gelu"')
    trace, _ = shown(
        member,
        ("rank0.json", real[0]),
        ("rank1.json", real[1]),
        ("rank2.json", other.replace(b'"rank": 1', b'"rank": 2')),
    )
    address = reverse("traces:operators", args=(trace.pk,))
    alone = member.get(f"{address}?step=2")
    part = member.get(f"{address}?step=2", headers={"HX-Request": "true"}).content.decode()
    assert part.startswith("<section ") and part in alone.content.decode() and "</html>" in alone.content.decode()
    assert "<title>Rank against rank of " in alone.content.decode()
    alike = alone.context["operators"]
    assert alike.sentence.startswith("The same ") and alike.sentence.endswith("in the same order on rank 0 and rank 1.")
    assert alike.levels == {"operators": "operators (ATen)"} and alike.total == alike.shown >= len(alike.rows) > 10
    assert alike.which == "", "there is no first difference"
    differing = member.get(f"{address}?step=2&a=1&b=2").context["operators"]
    assert "2 are only on rank 1 (aten::relu), 2 are only on rank 2 (aten::gelu)" in differing.sentence
    assert {row[0] for row in differing.rows} == {"same", "only_a", "only_b"}
    assert (replace(alike, total=9999).which, replace(differing, total=9999).which) == (
        ", the first",
        ", around the first difference",
    )
    assert f'hx-get="{address}"' in member.get(f"/traces/{trace.pk}/").content.decode()
    TraceSpans.objects.update(names={})
    assert "upload it again" in member.get(address).content.decode()
    one, _ = shown(member, ("rank0.json", real[0]))
    said = html.unescape(member.get(reverse("traces:operators", args=(one.pk,))).content.decode())
    assert "It has rank 0 alone: upload files of several ranks together to compare them." in said


def test_what_if_walks_through_a_real_step(member: Client, real: list[bytes]) -> None:
    trace, page = shown(member, ("rank0.json", real[0]), ("rank1.json", real[1]))
    address = reverse("traces:whatif", args=(trace.pk,))
    assert f'hx-get="{address}"' in page.content.decode() and f'href="{address}"' in page.content.decode()
    part = member.get(f"{address}?step=2", headers={"HX-Request": "true"}).content.decode()
    assert part.startswith('<section class="section stack" id="whatif"')
    whole = member.get(f"{address}?step=2")
    assert "</html>" in whole.content.decode() and part in whole.content.decode()
    assert whole.content.decode().count('class="legend') == page.content.decode().count('class="legend') == 1
    assert f'<a href="/traces/{trace.pk}/?step=2">Back to its timeline</a>' in whole.content.decode()
    assert f"<title>What if of {trace.name} ·" in whole.content.decode()
    assert "(0 % off)" in plain(whole.content.decode()) and "Free communication" in whole.content.decode()
    assert "HX-Replace-Url" not in whole.headers
    fast = member.get(f"{address}?step=2&links=free&device=2")
    made = fast.context["whatif"]
    assert "free communication, a device 2 times as fast" in made.sentence and "faster" in made.sentence
    assert {row[0] for row in made.chart.rows} == {"measured", "predicted"}
    assert fast.headers["HX-Replace-Url"] == f"/traces/{trace.pk}/?step=2&links=free&device=2"
    assert "as fast must be a number from 0.1 to 100; got 0." in member.get(f"{address}?device=0").content.decode()
    assert "its schedule is not known" in member.get(reverse("traces:planned", args=(trace.pk,))).content.decode()


def annotated(rank: int, backwards: Sequence[int] = range(4)) -> bytes:
    """GPipe on two ranks, annotated as torch.distributed.pipelining does: 4 forwards of 10 ms, then `backwards` of 20
    ms.
    """
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, start: float, took: float) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start * 1e3, "dur": took * 1e3})

    add("user_annotation", "ProfilerStep#2", 0, 170)
    starts = [(f"PP:{rank}F{i}", 10 * (i + rank), 10) for i in range(4)]
    starts += [(f"PP:{rank}B{i}", 50 + 20 * (i + 1 - rank), 20) for i in backwards]
    for name, start, took in starts:
        add("user_annotation", name, start, took)
        add("cpu_op", "aten::mm", start, took)
    add("user_annotation", "Optimizer.step#AdamW.step", 150, 10)
    return json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank}}).encode()


def test_a_pipeline_that_no_spec_describes_has_its_plan_drawn_too(member: Client) -> None:
    files = [annotated(rank).replace(b'{"rank": %d}' % rank, b'{"rank": %d}' % (rank + 4)) for rank in (0, 1)]
    trace, _ = shown(member, ("a.json", files[0]), ("b.json", files[1]))
    found = member.get(reverse("traces:planned", args=(trace.pk,)), headers={"HX-Request": "true"})
    assert "Certain: PP-GPipe, 2 stages, 4 micro-batches" in plain(found.content.decode())
    made = found.context["overlay"]
    assert made.title == "No operation ends more than 2 % of the step later than planned."
    assert [row[:2] for row in made.rows] == [["4", "8"], ["5", "8"]], "ranks are called as in the trace"
    assert found.context["late"] == [] and found.context["late_total"] > 16


@pytest.mark.full
def test_what_if_of_a_pipeline_asks_all_that_a_run_is_asked(member: Client) -> None:
    trace, _ = shown(member, ("a.json", annotated(0)), ("b.json", annotated(1)))
    address = reverse("traces:whatif", args=(trace.pk,))
    whole = member.get(address).context["whatif"]
    assert whole.known == "Certain: PP-GPipe, 2 stages, 4 micro-batches; annotations name every operation."
    assert whole.check == "Replayed unchanged: 170 ms, measured 170 ms (0 % off)."
    assert {f"Schedule {CHOICE_LABELS['zb-h1']}", "Balanced stages", "8 micro-batches"} <= {
        idea["words"] for idea in whole.ideas
    }
    asked = member.get(f"{address}?step=2&schedule=zb-h1&links=free")
    made = asked.context["whatif"]
    assert "instead of 170 ms" in made.sentence and CHOICE_LABELS["zb-h1"] in made.sentence
    assert {row[0] for row in made.chart.rows} == {"measured", "predicted"}
    assert asked.headers["HX-Replace-Url"] == f"/traces/{trace.pk}/?step=2&schedule=zb-h1&links=free"
    refused = member.get(f"{address}?schedule=dualpipe-v&micro_batches=2").content.decode()
    assert "needs at least 4 micro-batches" in refused
    cut, _ = shown(member, ("a.json", annotated(0)), ("b.json", annotated(1, range(3))))
    why = member.get(reverse("traces:whatif", args=(cut.pk,))).content.decode()
    assert "the step lacks the backward of micro-batch 3 on stage 1" in why


def test_files_go_once_they_are_read(member: Client, real: list[bytes]) -> None:
    send(member, ("rank0.json", real[0]))
    stored = Trace.objects.get().files.get().stored
    assert default_storage.exists(stored)
    read_next()
    assert not default_storage.exists(stored)
    assert not Trace.objects.get().files.exists()


def test_while_it_waits_the_page_says_so_and_asks_again(member: Client, real: list[bytes]) -> None:
    send(member, ("rank0.json", real[0]))
    address = reverse("traces:page", args=(Trace.objects.get().pk,))
    said = member.get(address).content.decode()
    assert "Waits to be read" in said and "data-state" not in said, "only the element that polls holds the state"
    part = member.get(address, HTTP_HX_REQUEST="true")
    assert part.content.decode().lstrip().startswith('<div id="waiting"')
    Trace.objects.update(state=TraceState.READING, read=1, size=2)
    assert "Being read: 50 %" in member.get(address, HTTP_HX_REQUEST="true").content.decode()
    Trace.objects.update(state=TraceState.QUEUED)
    read_next()
    assert member.get(address, HTTP_HX_REQUEST="true").headers["HX-Refresh"] == "true"


def test_of_a_damaged_one_the_rest_is_shown(member: Client, real: list[bytes]) -> None:
    trace, page = shown(member, ("rank0.json", real[0][: len(real[0]) * 3 // 4]), ("rank1.json", real[1]))
    assert trace.state == TraceState.READY
    assert "cut off" in (text := plain(page.content.decode())) and "Part of what rank 0 recorded could not be" in text


def test_an_upload_that_was_cut_off_is_swept_once_it_is_a_day_old(member: Client, tmp_path: Path) -> None:
    """A web process that is killed between the files and their row leaves up to a GiB that nobody can see."""
    assert send(member, ("rank0.json", b"{}")).status_code == 302
    (kept,) = Trace.objects.get().files.values_list("stored", flat=True)
    places = {name: f"traces/{name}/0" for name in ("old", "young")}
    for place in places.values():
        default_storage.save(place, ContentFile(b"half of it"))
    (tmp_path / "traces" / "empty").mkdir()
    aged = time.time() - services.LEFT_S - 60
    for path in ("old/0", "empty", kept.removeprefix("traces/")):
        os.utime(tmp_path / "traces" / path, (aged, aged))
    reading.recover()
    assert sorted(default_storage.listdir("traces")[0]) == sorted(["young", kept.split("/")[1]])
    os.utime(tmp_path / "traces" / "young/0", (aged, aged))
    assert send(member, ("rank0.json", b"{}")).status_code == 302
    assert "young" not in default_storage.listdir("traces")[0] and default_storage.exists(kept)


def test_uploads_are_bounded(member: Client, real: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit_of("/traces/new/") > limits.MAX_TRACE_BYTES > MAX_BODY == limit_of("/traces/")
    cases: list[tuple[list[tuple[str, bytes]], str, str, int]] = [
        ([], "MAX_FILES", "at least one file", 64),
        ([("a", b"1"), ("b", b"2")], "MAX_FILES", "At most 1 files", 1),
        ([("a", b"1")], "MAX_TRACES", "delete one", 0),
    ]
    for files, name, words, value in cases:
        monkeypatch.setattr(services, name, value)
        page = send(member, *files)
        assert page.status_code == 422
        assert words in page.content.decode()
    monkeypatch.setattr(limits, "MAX_TRACE_BYTES", 0)
    assert "At most 1 GiB in all; these files have 3 B more." in send(member, ("a", b"123")).content.decode()
    assert not Trace.objects.exists()


def test_owner_and_admin_delete_others_may_not(member: Client, bob: Any, admin: Any, real: list[bytes]) -> None:
    for who, allowed in ((bob, False), (admin, True)):
        trace, _ = shown(member, ("rank0.json", real[0]))
        other = Client()
        other.force_login(who)
        seen = other.get(f"/traces/{trace.pk}/")
        assert ("Delete" in seen.content.decode()) == allowed
        assert other.post(f"/traces/{trace.pk}/delete/").status_code == (302 if allowed else 403)
        assert Trace.objects.filter(pk=trace.pk).exists() != allowed
    trace = Trace.objects.get()
    page = member.get(f"/traces/{trace.pk}/delete/").content.decode()
    size = bytes_text(sum(map(len, TraceSpans.objects.values_list("data", flat=True))))
    assert "Delete “rank0.json”?" in page and f"That is {size} of the database." in page
    assert member.post(f"/traces/{trace.pk}/delete/").status_code == 302
    assert not TraceSpans.objects.exists()


def test_viewers_look_and_strangers_sign_in(bob: Any, alice: Any, client: Client, real: list[bytes]) -> None:
    assert client.get("/traces/").status_code == 302
    client.force_login(bob)
    assert client.get("/traces/").status_code == 200
    assert client.get("/traces/new/").status_code == 403
    assert send(client, ("a", b"1")).status_code == 403


def test_names_are_text(member: Client, real: list[bytes]) -> None:
    _, page = shown(member, ("<b>x.json", real[0]), name="<script>alert(1)</script>")
    assert "<script>alert" not in page.content.decode()
    assert "<b>x.json" not in page.content.decode()


def test_a_reader_without_memory_says_so(member: Client, real: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MEMORY_BYTES", 1 << 20)
    trace, _ = shown(member, ("rank0.json", real[0]))
    assert trace.state == TraceState.FAILED
    assert trace.detail


def test_one_that_was_deleted_while_it_was_read_leaves_nothing(member: Client, real: list[bytes]) -> None:
    send(member, ("rank0.json", real[0]))
    lane = lane_of(reading)
    assert lane.move()
    Trace.objects.get().delete()
    finish(lane)
    assert not TraceSpans.objects.exists()


def test_a_trace_whose_deletion_fails_has_its_files(
    member: Client, admin: Any, real: list[bytes], django_capture_on_commit_callbacks: Any
) -> None:
    send(member, ("rank0.json", real[0]))
    trace = Trace.objects.get()
    place = trace.files.get().stored
    with suppress(DatabaseError), transaction.atomic():
        services.delete(trace=trace, user=admin)
        raise DatabaseError("as the commit")
    assert default_storage.exists(place) and Trace.objects.get().files.get().stored == place
    with django_capture_on_commit_callbacks(execute=True):
        services.delete(trace=Trace.objects.get(), user=admin)
    assert not Trace.objects.exists() and not default_storage.exists(place)


def test_an_analyst_takes_up_what_another_left(member: Client, real: list[bytes]) -> None:
    send(member, ("rank0.json", real[0]))
    Trace.objects.update(state=TraceState.READING, tries=1)
    analyse_until(lambda: Trace.objects.get().state == TraceState.READY)


@pytest.mark.parametrize("first", [b"{}", None], ids=["failed", "read"])
def test_files_that_a_killed_analyst_had_read_and_not_deleted_go(
    member: Client, real: list[bytes], first: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may take a GiB, and nobody would see them."""
    send(member, ("rank0.json", first or real[0]))
    with monkeypatch.context() as killed:
        killed.setattr(services, "drop_files", lambda trace: None)
        assert read_next()
    assert Trace.objects.get().state == (TraceState.FAILED if first else TraceState.READY)
    stored = Trace.objects.get().files.get().stored
    assert default_storage.exists(stored)
    reading.recover()
    assert not default_storage.exists(stored) and not Trace.objects.get().files.exists()


def test_rules_that_need_no_more_than_spans_judge_a_trace(member: Client, real: list[bytes]) -> None:
    trace, page = shown(member, ("rank0.json", real[0]), ("rank1.json", real[1]))
    findings = page.context["findings"]
    assert findings.rules == 6
    assert ("checked the 6 rules" in page.content.decode()) == (not findings.found)
    spread = []
    for row in TraceSpans.objects.all():
        same = np.sort(np.frombuffer(bytes(TraceSpans.objects.get(rank=0, step=row.step).data), SPAN), order="start")
        took = 9_000 if row.rank == 0 else 27_000  # each operation, one after the other; three times as long on rank 1
        same["start"] = same["start"].min() + np.arange(len(same)) * (took + 1_000)
        same["end"] = same["start"] + took
        whole = same["kind"] == Kind.STEP
        same["start"][whole], same["end"][whole] = same["start"].min(), same["end"].max()
        row.data, row.count = same.tobytes(), len(same)
        spread.append(row)
    for row in spread:
        row.save()
    cache.clear()
    slow = member.get(f"/traces/{trace.pk}/")
    assert 'data-rule="straggler"' in slow.content.decode()
    (_, _, words, address), *_ = slow.context["findings"].found
    assert "Judged over steps 1, 2, 3: numbers are of their median" in slow.content.decode()
    assert words.startswith("Rank 1, ") and address.startswith("?step=2&from=") and address.endswith("#timeline-title")
    TraceSpans.objects.filter(rank=0).delete()
    cache.clear()
    alone = member.get(f"/traces/{trace.pk}/").content.decode()
    assert 'data-rule="straggler"' not in alone and "Nothing was judged" not in alone, "rank 1 is judged by itself"
