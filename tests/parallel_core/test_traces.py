"""Imported traces: real ones of torch.profiler, damaged copies of those, and events written by hand."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.schedule.ir import Kind
from parallel_core.traces import kineto
from parallel_core.traces.__main__ import main, read_all
from parallel_core.traces.collect import Collected
from parallel_core.traces.job_trace import JobTrace, join
from parallel_core.traces.stream import EventStream, Limits
from tests.parallel_core import profiled


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return profiled.record(tmp_path_factory.mktemp("profiled"))


def read(*paths: Path, limits: Limits = Limits()) -> JobTrace:  # noqa: B008
    return read_all([(path.name, path) for path in paths], limits)


def events(data: bytes, limits: Limits = Limits()) -> tuple[list[Any], EventStream]:  # noqa: B008
    stream = EventStream(io.BytesIO(data), limits)
    return list(stream), stream


def changed(path: Path, to: Path, data: bytes) -> Path:
    made = to / path.name
    made.write_bytes(data)
    return made


def host(name: str, start: int, end: int, cat: str = "user_annotation") -> dict[str, Any]:
    """An event on the host, with times in microseconds, as the profiler writes it."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start}


def test_messages_that_only_annotations_tell_of_are_waits_and_not_gaps() -> None:
    """Stages on one host communicate through shared memory, so no operation of a library stands for the wait."""
    made = [host("ProfilerStep#3", 0, 100), host("0F0", 0, 20), host("aten::mm", 0, 20, "cpu_op")]
    made += [host("0SEND_ACT0", 20, 22), host("PP:0RECV_B0", 22, 70), host("0BW0", 70, 100)]
    made += [host("aten::mm", 70, 100, "cpu_op"), host("aten::empty", 30, 31, "cpu_op")]
    rows = kineto.read(Collected(made)).steps[3]
    found = {Kind(row["kind"]): (int(row["end"] - row["start"]) // 1000, int(row["micro_batch"])) for row in rows}
    assert found[Kind.SEND_ACT] == (2, 0)
    assert found[Kind.RECV_GRAD] == (48, 0)
    library = kineto.read(Collected([*made[:-1], host("gloo:recv", 40, 70)])).steps[3]
    received = library[library["kind"] == Kind.RECV_GRAD]
    said = received[["start", "end", "micro_batch"]].tolist()
    assert said == [(40_000, 70_000, 0)], "the time comes from the library's span, the micro-batch from the annotation"


def test_work_goes_on_beside_what_a_library_carries_out() -> None:
    """gloo attributes a send to the calling thread for as long as it is in flight; the call itself may block."""
    made = [host("ProfilerStep#3", 0, 100), host("aten::mm", 0, 10, "cpu_op"), host("c10d::send", 10, 14, "cpu_op")]
    made += [host("gloo:send", 13, 40), host("aten::mm", 16, 36, "cpu_op"), host("c10d::recv_", 50, 80, "cpu_op")]
    made += [host("gloo:recv", 79, 90), host("aten::mm", 92, 96, "cpu_op")]
    rows = kineto.read(Collected(made)).steps[3]
    found = {(Kind(row["kind"]), int(row["start"]) // 1000, int(row["end"]) // 1000) for row in rows}
    assert found == {
        (Kind.STEP, 0, 100), (Kind.F, 0, 10), (Kind.F, 16, 36), (Kind.F, 92, 96), (Kind.SEND_ACT, 10, 40),
        (Kind.RECV_ACT, 50, 90),
    }  # fmt: skip


def test_pauses_inside_an_annotated_operation_of_a_cpu_are_its_own() -> None:
    made = [host("ProfilerStep#3", 0, 3000), host("0F0", 0, 200), host("0BW0", 200, 3000)]
    made += [host("aten::mm", at, at + 20, "cpu_op") for at in (0, 60, 170, 200, 900)]
    made += [
        host("aten::mm", 950, 960, "cpu_op"),
        host("gloo:all_reduce", 962, 970),
        host("aten::mm", 975, 980, "cpu_op"),
    ]
    rows = kineto.read(Collected(made)).steps[3]
    found = [(Kind(row["kind"]), int(row["start"]) // 1000, int(row["end"]) // 1000) for row in rows]
    assert (Kind.F, 0, 190) in found
    assert {one for one in found if one[0] is Kind.BW} == {
        (Kind.BW, 200, 220),
        (Kind.BW, 900, 960),
        (Kind.BW, 975, 980),
    }


def test_a_real_trace_becomes_steps_of_phases(real: list[Path]) -> None:
    found = read(*real)
    assert sorted(found.ranks) == [0, 1]
    for trace in found.ranks.values():
        assert sorted(trace.steps) == [1, 2, 3]
        for rows in trace.steps.values():
            kinds = Counter(Kind(kind) for kind in rows["kind"])
            assert kinds[Kind.STEP] == 1
            assert kinds[Kind.BUCKET] >= 1
            assert kinds[Kind.OPT_STEP] == 1
            assert kinds[Kind.F] and kinds[Kind.BW]
            (step,) = rows[rows["kind"] == Kind.STEP]
            assert (rows["end"] >= rows["start"]).all()
            assert (rows["start"] >= step["start"]).all() and (rows["end"] <= step["end"]).all()


def test_annotations_name_stage_and_micro_batch_and_that_is_said(real: list[Path]) -> None:
    found = read(*real)
    rows = found.ranks[0].steps[2]
    for kind in (Kind.F, Kind.BW):
        named = rows[(rows["kind"] == kind) & (rows["micro_batch"] >= 0)]
        assert set(named["micro_batch"].tolist()) == {0, 1}
        assert set(named["stage"].tolist()) == {0}
    forward, backward = (rows[(rows["kind"] == kind) & (rows["micro_batch"] == 0)] for kind in (Kind.F, Kind.BW))
    assert forward["end"].max() <= backward["start"].min()
    assert any(note.startswith("Certain:") for note in found.notes)


def test_no_operation_is_lost_but_for_those_outside_of_steps(real: list[Path]) -> None:
    with real[0].open("rb") as file:
        trace = Collected(EventStream(file))
    found = kineto.read(trace)
    assert found.raw >= sum(len(rows) - 1 for rows in found.steps.values()) > 0
    assert found.top == sorted(found.top, key=lambda row: -row["ns"])


def test_gzip_and_the_bare_list_are_the_same(real: list[Path], tmp_path: Path) -> None:
    whole = json.loads(real[0].read_text())["traceEvents"]
    for name, data in (("a.json.gz", gzip.compress(real[0].read_bytes())), ("b.json", json.dumps(whole).encode())):
        path = tmp_path / name
        path.write_bytes(data)
        with path.open("rb") as file:
            assert list(EventStream(file)) == whole


def test_the_process_that_reads_leaves_a_report_and_tables(
    real: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever characters the names of files and folders have."""
    odd = tmp_path / "a=b #1" / "=?.json"
    odd.parent.mkdir()
    odd.write_bytes(real[1].read_bytes())
    assert main([str(tmp_path), "rank0.json", str(real[0]), "rank1=x.json", str(odd)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ranks"]["1"]["file"] == "rank1=x.json"
    assert len(np.load(tmp_path / "0-2.npy")) == report["ranks"]["0"]["steps"]["2"]
    assert json.loads(capsys.readouterr().out.splitlines()[0])["of"] == sum(path.stat().st_size for path in real)


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_file_that_is_cut_off_the_rest_is_shown(real: list[Path], tmp_path: Path, packed: bool) -> None:
    data = real[0].read_bytes()
    data = gzip.compress(data)[: len(gzip.compress(data)) * 2 // 3] if packed else data[: len(data) * 2 // 3]
    found = read(changed(real[0], tmp_path, data))
    assert any("cut off" in note for note in found.notes)
    assert found.ranks[0].raw > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"traceEvents": [{"ph": "X", "na', "within its first event"),
        ('[{"ph": "X"', "within its first event"),
        ("[1, 2, 3]", ""),
    ],
)
def test_a_file_without_one_whole_event_says_why(text: str, said: str) -> None:
    found, stream = events(text.encode())
    assert not found
    assert any(said in note for note in stream.notes) if said else not stream.notes


def test_an_event_that_makes_no_sense_is_left_out(real: list[Path]) -> None:
    text = real[0].read_text()
    whole, _ = events(text.encode())
    middle = text.index('"ph": "X"', len(text) // 2)
    some, stream = events((text[:middle] + "@@" + text[middle:]).encode())
    assert len(whole) - 4 <= len(some) < len(whole)
    assert stream.damaged >= 1
    assert any("could not be read" in note for note in stream.notes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (b"hello", "no Chrome trace"),
        (b'{"a": 1}', "no traceEvents"),
        (b'{"a" 1}', "stops making sense"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x1f\x8b\x08\x00damaged by hand", "gzip file is"),
        (b"\x00\xff\xfe", "no Chrome trace"),
    ],
)
def test_what_is_no_trace_is_told_so(data: bytes, words: str) -> None:
    found, stream = events(data)
    assert not found
    assert words in " ".join(stream.notes)


def test_a_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([packer.compress(b" " * (1 << 20)) for _ in range(200)] + [packer.flush()])
    found, stream = events(bomb)
    assert not found
    assert [("times its size" in note) for note in stream.notes] == [True]


def test_limits_stop_the_reading_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    many = json.dumps([{"ph": "X"}] * 50).encode()
    found, stream = events(many, Limits(events=10))
    assert len(found) == 10
    assert stream.notes == ["Only the first 10 events were read."]
    monkeypatch.setattr("parallel_core.traces.stream.PIECE", 40)
    found, stream = events(many, Limits(unpacked=100))
    assert 0 < len(found) < 10, "of 100 bytes, at 13 bytes an event"
    assert any("MiB" in note for note in stream.notes)


@pytest.mark.parametrize(
    ("broken", "most"),
    [
        ('{"a":[{},' * 200, 3),  # each is read up to the end of the file, and again from the next one on
        ('{"a":[{},' * 5_000, 1),  # nested more deeply than is read
        ('{"a":"' + "x" * 4_000 + "},{x", 1),  # a text without an end
    ],
)
def test_a_file_of_beginnings_of_events_is_not_read_on(broken: str, most: int) -> None:
    found, stream = events(f'[{{"ph":"X"}},\n{broken}'.encode(), Limits(wasted=3_600))
    assert found[:1] == [{"ph": "X"}] and stream.damaged <= most
    assert any(note.startswith("So much of it is damaged that it was not read on") for note in stream.notes)


@pytest.mark.parametrize("piece", [1 << 20, 200])
def test_only_events_that_are_kept_count_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Calls of Python functions come first, and are many more than kernels."""
    monkeypatch.setattr("parallel_core.traces.stream.PIECE", piece)
    monkeypatch.setattr("parallel_core.traces.stream.NEAR_END", piece)
    many = [host(f"f{i}", i, i + 1, "python_function") for i in range(50)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps([*many, *(host("aten::mm", 100 + i, 101 + i, "cpu_op") for i in range(8))]))
    assert read(path, limits=Limits(events=9)).ranks[0].raw == 8
    found = read(path, limits=Limits(events=5))
    assert found.ranks[0].raw == 5 and any("Only the first 5 events were read." in note for note in found.notes)


def test_events_are_found_wherever_a_piece_of_the_file_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_core.traces.stream.PIECE", 7)
    wanted = [{"ph": "X", "name": f"é{i}", "args": {"x": [i]}} for i in range(40)]
    found, stream = events(json.dumps({"a": {"b": [1]}, "traceEvents": wanted, "z": "é"}, ensure_ascii=False).encode())
    assert found == wanted
    assert stream.header == {"a": {"b": [1]}, "z": "é"}


def test_times_that_make_no_sense_are_counted() -> None:
    bad: list[dict[str, Any]] = [{"ts": "x"}, {"ts": 1, "dur": -5}, {"ts": 1e300}, {"ts": float("nan")}]
    bad += [{"ts": 1, "dur": 2}, {"ts": 1.7e15, "dur": 7.6e15}, {"ts": -8e15, "dur": 8.9e15}]
    trace = Collected({"ph": "X", "cat": "cpu_op", "name": "aten::mm", **times} for times in bad)
    assert (trace.odd, len(trace.host)) == (5, 2)


@pytest.mark.parametrize(
    "name",
    [
        "99999F0", "0F9999999999", "PP:0SEND_F9999999999", "PP:99999RECV_B0", "Forward 9999999999",
        "PP:(0F9999999999;1B0)OVERLAP_F_B",
    ],
)  # fmt: skip
def test_numbers_that_no_column_holds_name_nothing(name: str) -> None:
    rows = kineto.read(Collected([host(name, 0, 20), host("aten::mm", 0, 20, "cpu_op")])).steps[0]
    assert rows[["stage", "micro_batch"]][rows["kind"] != Kind.STEP].tolist() == [(-1, -1)]


def test_overlapping_operations_are_counted_once() -> None:
    ops = [(0, 100), (10, 20), (50, 150), (150, 160)]
    trace = Collected(
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": a, "dur": b - a} for a, b in ops
    )
    rows = kineto.read(trace).steps[0]
    forward = rows[rows["kind"] == Kind.F]
    assert (forward["end"] - forward["start"]).sum() == 110_000
    assert any("without lying in it: 1." in note for note in kineto.read(trace).notes)


def test_a_missing_rank_and_doubles_are_said(real: list[Path]) -> None:
    traces = [read(path).ranks[rank] for rank, path in enumerate(real)]
    assert any("no trace of rank 0" in note for note in join([("b", 1, traces[1])]).notes)
    found = join([("a", 0, traces[0]), ("b", 0, traces[1])])
    assert sorted(found.ranks) == [0, 1]
    assert any("as another does" in note for note in found.notes)


@pytest.mark.parametrize(("host", "moved"), [("elsewhere", True), ("", True), (None, False)])
def test_clocks_of_two_hosts_are_made_one(real: list[Path], tmp_path: Path, host: str | None, moved: bool) -> None:
    """A skew of an hour is removed if the ends of collectives reveal it; ranks on one host share a clock."""
    whole = json.loads(real[1].read_text())
    for event in whole["traceEvents"]:
        if "ts" in event:
            event["ts"] += 3.6e9
    if host is not None:
        whole["host_name"] = host
    found = read(real[0], changed(real[1], tmp_path, json.dumps(whole).encode()))
    away = found.ranks[1].steps[2]["start"].min() - found.ranks[0].steps[2]["start"].min()
    assert (abs(away) < 60e9) == moved
    assert any("clock of rank 1" in note and "ahead" in note for note in found.notes) == moved
    assert any("the same step as rank 0: rank 1." in note for note in found.notes) != moved
