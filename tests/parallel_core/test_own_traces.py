"""Steps that were exported here and read back: the same spans and accounts; also with damaged files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.analysis.breakdown import accounts
from parallel_core.analysis.export import FORMAT, MARK, About, chrome_trace
from parallel_core.layout import Layout
from parallel_core.observe.records import LANES, SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from parallel_core.traces import trainyard_export
from parallel_core.traces.__main__ import read_all
from parallel_core.traces.job_trace import JobTrace
from tests.dashboard.factory import simulate
from tests.parallel_core import profiled

BEGIN = 4_812_345_678_901_237
"""The clock of a host that has been up for 55 days, not a whole number of microseconds."""
PIPELINE = {"pp": 2, "dp": 2, "schedule": "1f1b", "micro_batches": 4}


def spec(split: Mapping[str, Any] | None = None, **more: Any) -> RunSpec:
    given = {"model": {"layers": 2}, "parallel": PIPELINE if split is None else split, "train": {"global_batch": 16}}
    return RunSpec.model_validate(given | more)


def step(made: RunSpec) -> dict[int, NDArray[np.void]]:
    spans = simulate(made)
    for rank, rows in spans.items():
        for side in ("start", "end"):
            rows[side] += BEGIN
        rows["end"] += rank * (rows["kind"] == Kind.STEP)
    return spans


def document(made: RunSpec, number: int = 10, run: str = "run 7", **more: Any) -> dict[str, Any]:
    about = About(number, made.model_dump(mode="json"), run, **more)
    text = "".join(chrome_trace(step(made), Layout.of(made), about))
    return dict(json.loads(text))


def read(folder: Path, *documents: Any) -> JobTrace:
    files = []
    for i, one in enumerate(documents):
        path = folder / f"{i}.json"
        path.write_bytes(one if isinstance(one, bytes) else json.dumps(one).encode())
        files.append((f"{i}.json", path))
    return read_all(files)


def spans_of(found: JobTrace, number: int = 10) -> dict[int, NDArray[np.void]]:
    return {rank: trace.steps[number] for rank, trace in found.ranks.items() if number in trace.steps}


@pytest.mark.parametrize("split", [{}, PIPELINE, {"tp": 2}, {"pp": 2, "schedule": "zb-h1", "micro_batches": 4}])
@pytest.mark.parametrize("packed", [False, True])
def test_what_was_exported_comes_back_to_the_nanosecond(split: dict[str, Any], packed: bool, tmp_path: Path) -> None:
    made = spec(split)
    text = json.dumps(document(made)).encode()
    found = read(tmp_path, gzip.compress(text) if packed else text)
    before = waits.ordered(step(made))
    after = spans_of(found)
    assert {rank: rows.tolist() for rank, rows in after.items()} == {r: rows.tolist() for r, rows in before.items()}
    layout = Layout.of(RunSpec.model_validate(found.recorded["spec"]))
    assert accounts(after, layout) == accounts(before, Layout.of(made))
    assert found.recorded["spec"] == made.model_dump(mode="json")
    (note,) = found.notes
    assert note.startswith("As recorded: run 7, step 10, ") and "nothing is recovered" in note


ROW = st.tuples(
    st.sampled_from([int(kind) for kind in Kind]),
    st.integers(0, len(LANES) - 1),
    st.integers(0, 1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(BEGIN, BEGIN + trainyard_export.LATEST_NS // 2),
    st.integers(0, trainyard_export.LATEST_NS // 2),
    st.integers(0, 2**60),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=20), min_size=1, max_size=4))
def test_any_spans_come_back_as_they_were(tables: list[list[tuple[int, ...]]]) -> None:
    rows = [[(*row[:6], row[6], row[6] + row[7], row[8]) for row in table] for table in tables]
    spans = {rank: np.array(table, SPAN) for rank, table in enumerate(rows)}
    made, layout = spec(), Layout.of(spec())
    text = json.loads("".join(chrome_trace(spans, layout, About(3, made.model_dump(mode="json")))))
    found = trainyard_export.read(text["traceEvents"], text)
    assert not found.notes and not trainyard_export.lacking(found)
    before = waits.ordered(spans)
    assert {rank: table.tolist() for rank, table in found.spans.items()} == {
        rank: table.tolist() for rank, table in before.items()
    }
    assert accounts(found.spans, layout) == accounts(spans, layout)


def test_steps_of_one_run_are_one_job(tmp_path: Path) -> None:
    made = spec()
    found = read(tmp_path, document(made, 10), document(made, 20), document(made, 20), document(made, 30, run="run 8"))
    assert {rank: tuple(sorted(trace.steps)) for rank, trace in found.ranks.items()} == dict.fromkeys(
        range(4), (10, 20)
    )
    text = " ".join(found.notes)
    assert "2.json holds step 20 of ranks 0, 1, 2, 3 once more: the first one is shown." in text
    assert "3.json is of another run than the first file and was left out" in text
    assert list(found.recorded["spans"]) == [10, 20]


def test_files_of_torch_profiler_beside_them_are_left_out(tmp_path: Path) -> None:
    theirs = profiled.record(tmp_path)[0].read_bytes()
    found = read(tmp_path, theirs, document(spec()))
    assert "0.json is a trace of torch.profiler and was left out" in " ".join(found.notes)
    assert found.recorded["run"] == "run 7" and len(found.ranks) == 4


def test_a_file_that_does_not_tell_what_it_is_is_refused_with_the_reason(tmp_path: Path) -> None:
    """As exported by versions that wrote no otherData."""
    old = document(spec())
    del old["otherData"]
    found = read(tmp_path, old)
    assert not any(trace.steps for trace in found.ranks.values())
    assert "A timeline that an older version exported here has neither, and no layout" in " ".join(found.notes)


@pytest.mark.parametrize(("name", "value"), [("format", 2), ("clock", "us"), (None, "x")])
def test_another_format_is_not_guessed_at(name: str | None, value: Any, tmp_path: Path) -> None:
    made = document(spec())
    if name:
        made["otherData"][MARK][name] = value
    else:
        made["otherData"][MARK] = value
    found = read(tmp_path, made)
    assert not found.ranks
    assert f"{value}: this version reads format {FORMAT}" in " ".join(found.notes).replace(", clock ns", "")


def test_its_name_may_stand_behind_the_events(tmp_path: Path) -> None:
    made = document(spec())
    other = made.pop("otherData")
    found = read(tmp_path, made | {"otherData": other})
    assert len(found.ranks) == 4 and len(found.notes) == 1


def edited(change: Any) -> dict[str, Any]:
    made = document(spec())
    change(made, made["otherData"][MARK], [event for event in made["traceEvents"] if event["ph"] == "X"])
    return made


def _spec_of(**split: Any) -> Any:
    return lambda made, mark, spans: mark["spec"]["parallel"].update(split)


CASES = {
    "a field that is none": (
        lambda made, mark, spans: mark["spec"].update(modle={}),
        "The spec of its run does not hold here (modle: ",
    ),
    "rules between fields": (_spec_of(micro_batches=5), "does not hold here (parallel.micro_batches: "),
    "no spec at all": (lambda made, mark, spans: mark.update(spec="<b>"), "The spec of its run does not hold here"),
    "many ranks": (_spec_of(dp=16384, micro_batches=1), "does not hold here"),
    "more ranks than are read": (
        lambda made, mark, spans: mark["spec"].update(
            parallel={"dp": 8192, "pp": 2}, train=mark["spec"]["train"] | {"global_batch": 8192}
        ),
        "The spec of its run has 16\N{NO-BREAK SPACE}384 ranks, 4\N{NO-BREAK SPACE}096 are read.",
    ),
    "stages that take long to cut": (
        lambda made, mark, spans: mark["spec"].update(
            model={"layers": 1024},
            parallel={"pp": 200, "replicas": [4, 2] * 100, "micro_batches": 8},
            train={"global_batch": 8},
        ),
        "Where the stages of its run are cut would take too long to find.",
    ),
    "a negative duration": (lambda made, mark, spans: spans[3].update(dur=-1), "1 span whose kind, times or numbers"),
    "a time that is none": (lambda made, mark, spans: spans[3].update(ts="0"), "1 span whose kind"),
    "a time that is not finite": (lambda made, mark, spans: spans[3].update(ts=float("nan")), "1 span whose kind"),
    "a time of another age": (lambda made, mark, spans: spans[3].update(ts=1e300), "1 span whose kind"),
    "an unknown kind": (lambda made, mark, spans: spans[3].update(name="<i>"), "1 span whose kind"),
    "an unknown lane": (lambda made, mark, spans: spans[3].update(cat=["p2p"]), "1 span whose kind"),
    "a number that does not fit": (
        lambda made, mark, spans: spans[3]["args"].update(micro_batch=2**40),
        "1 span whose kind",
    ),
    "a rank beyond the layout": (lambda made, mark, spans: spans[3].update(pid=4), "1 span of ranks or stages beyond"),
    "a stage beyond the layout": (
        lambda made, mark, spans: spans[3]["args"].update(stage=2),
        "1 span of ranks or stages beyond",
    ),
    "a rank that is gone": (
        lambda made, mark, spans: [span.update(ph="i") for span in spans if span["pid"] == 2],
        "There are no spans of rank 2.",
    ),
    "spans that are gone": (
        lambda made, mark, spans: spans[3].update(ph="i"),
        "In the file of step 10 rank 0 has 19 of 20 spans.",
    ),
    "a share that is none": (lambda made, mark, spans: mark.update(others="all"), "As recorded"),
    "no step": (lambda made, mark, spans: mark.update(step=None), "It does not say which step it is"),
    "spans that were not kept": (
        lambda made, mark, spans: mark.update(recorded=1000),
        "Its ranks kept 80 of 1\N{NO-BREAK SPACE}000 spans of step 10 when it ran.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_of_a_damaged_file_what_is_missing_is_said_and_the_rest_is_shown(case: str, tmp_path: Path) -> None:
    change, words = CASES[case]
    found = read(tmp_path, edited(change))
    assert words in " ".join(found.notes)
    shown = sum(len(rows) for trace in found.ranks.values() for rows in trace.steps.values())
    assert shown >= 60


def test_a_file_that_is_cut_off_says_whose_spans_are_gone(tmp_path: Path) -> None:
    whole = json.dumps(document(spec())).encode()
    found = read(tmp_path, whole[: len(whole) * 2 // 3])
    text = " ".join(found.notes)
    assert "The file is cut off after event" in text and "There are no spans of rank 3." in text
    assert 0 in found.ranks and found.recorded["spec"] is not None


@pytest.mark.parametrize("where", ["spec", "ranks", "run"])
def test_what_nests_without_end_ends_no_reader(where: str, tmp_path: Path) -> None:
    made = document(spec())
    made["otherData"][MARK][where] = "DEEP"
    text = json.dumps(made).replace('"DEEP"', "[" * 200_000 + "]" * 200_000)
    assert "stops making sense" in " ".join(read(tmp_path, text.encode()).notes)


def test_a_bomb_is_not_read_on(tmp_path: Path) -> None:
    made = json.dumps(document(spec())).encode()
    bomb = gzip.compress(made[:-2] + b"," + b" " * (128 << 20) + b"]}")
    assert "no trace does" in " ".join(read(tmp_path, bomb).notes)


def test_what_came_from_elsewhere_keeps_how_surely_it_is_known(tmp_path: Path) -> None:
    spans = step(spec())
    about = About(2, None, "trace 3", counted=True)
    found = read(tmp_path, "".join(chrome_trace(spans, Layout.unknown(4), about)).encode())
    assert all(trace.counted == [2] for trace in found.ranks.values())
    assert "Stages and micro-batches were recognised by messages there" in found.notes[0]
    assert found.recorded["spec"] is None
