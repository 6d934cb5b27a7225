"""Searches as questions and answers in JSON: the same numbers as from the engine, but computed in a separate
process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from parallel_core.analysis.quantities import bytes_text
from parallel_core.plan.alpa.inter import Mesh, Search
from parallel_core.plan.alpa.plans import OPTIMUM, OVERSIZE, Named
from parallel_core.plan.cluster.zero_bubble import bubble_rows
from parallel_core.plan.fleet import splits
from parallel_core.plan.graph_plan import plan_graph
from parallel_core.plan.layer_graph import read_graph
from parallel_core.plan.network_levels import Level
from parallel_core.processes import EXIT_MEMORY
from parallel_core.searches import KINDS, ProgressCallback, alpa
from parallel_core.searches import bubbles as bubbles_kind
from parallel_core.searches import partition as partition_kind
from parallel_core.searches import splits as splits_kind
from parallel_core.searches.__main__ import work
from parallel_core.simulate.network import ALONE, Where
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import curve, table
from tests.parallel_core.test_network import between

MODEL = ModelSpec(layers=4, hidden=32, heads=2, seq=16)
SPEC = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 16}})
PROFILED = {"spec": SPEC.model_dump(mode="json"), "table": table(MODEL).dump()}


def said(kind: str, question: dict[str, Any]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    assert work(kind, json.dumps(question), lines.append) == 0
    return lines


def test_splits_are_those_of_the_engine() -> None:
    own = splits(SPEC, table(MODEL), 2)
    *_, last = said("splits", {**PROFILED, "devices": 2})
    found = splits_kind.Answer.model_validate(last["answer"])
    assert [(way.name, way.seconds, way.memory) for way in found.able] == [
        (split.name, split.seconds, split.memory) for split in own.able
    ]
    assert [way.name for way in found.able if way.best] == [split.name for split in own.pareto()]
    assert {why: count for count, why in found.refused} == Counter(split.why_not for split in own.refused)
    assert [RunSpec.model_validate(way.spec) for way in found.able] == [split.spec for split in own.able]


def test_splits_are_held_to_the_memory_of_their_own_devices() -> None:
    """Two devices together have less each than one alone: what only fits on that is not said to run on both."""
    alone = max(split.memory for split in splits(SPEC, table(MODEL), 1).able)
    sizes = [{"world": 2, "tp": tp, "memory": alone / 2} for tp in (1, 2)]
    question = {**PROFILED, "devices": 2, "memory": alone, "placements": sizes}
    *_, last = said("splits", question)
    found = splits_kind.Answer.model_validate(last["answer"])
    most = {count: max(way.memory for way in found.able if way.devices == count) for count in (1, 2)}
    assert most[1] == alone and most[2] <= alone / 2


@pytest.mark.full
def test_splits_that_need_more_are_timed_on_the_hosts_that_have_it() -> None:
    """Two devices with little memory are on one host, two with more on two: each split has the hosts of its need."""
    at = sorted(split.memory for split in splits(SPEC, table(MODEL), 2).able if split.spec.parallel.world == 2)
    little = at[len(at) // 2]
    apart = {"memory": max(at), "hosts": ["a", "b"]}
    placed = [{"world": 2, "tp": tp, **how} for tp in (1, 2) for how in ({"memory": little}, apart)]
    links = [between("a", "b").model_dump(mode="json")]
    *_, last = said("splits", {**PROFILED, "devices": 2, "placements": placed, "between": links})
    found = splits_kind.Answer.model_validate(last["answer"])
    for split in found.able:
        far = split.devices == 2 and split.memory > little
        where = Where(["a", "b"], [between("a", "b")]) if far else ALONE
        assert split.hosts == (("a", "b") if far else ())
        spec = RunSpec.model_validate(split.spec)
        assert split.seconds == predict_step(spec, table(MODEL), where=where).seconds
    assert len({split.hosts for split in found.able}) == 2


def test_splits_tell_how_far_they_are() -> None:
    told: list[tuple[int, int]] = []
    splits(SPEC, table(MODEL), 2, on_progress=lambda done, of: told.append((done, of)))
    assert [done for done, _ in told] == list(range(told[0][1]))


def test_a_partition_is_that_of_the_engine_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_core.searches.__main__.EVERY_S", -1.0)
    text = (Path(__file__).parents[2] / "examples" / "branches.graph.txt").read_text()
    question = {"text": text, "levels": [[8, 1e9], [2, 1e8]], "form": "released"}
    *told, last = said("partition", question)
    own = plan_graph(read_graph(text), [Level(8, 1e9), Level(2, 1e8)], "released")
    found = partition_kind.Answer.model_validate(last["answer"])
    assert (found.found, found.together) == (own.found, own.together)
    done, of = zip(*((line["done"], line["of"]) for line in told), strict=True)
    assert list(done) == sorted(set(done)) and {done[-1]} == set(of)
    assert said("partition", {**question, "memory": 1.0})[-1]["refused"].startswith("memory: no partition fits")


def test_alpas_answer_can_be_told_in_full() -> None:
    found = alpa.Answer.model_validate(said("alpa", {**PROFILED, "samples": 4, "devices": 2})[-1]["answer"])
    best = found.rows[0]
    assert best.name == "Alpa's optimum" and best.seconds is not None
    assert all(row.seconds is None or row.seconds >= best.seconds for row in found.rows)
    assert len(found.stages) == len(best.meshes) and found.runnable is not None and found.runnable >= best.seconds
    runs = [row for row in found.rows if row.spec]
    assert runs and all(RunSpec.model_validate(row.spec).parallel.world <= 2 for row in runs)
    assert {row.simulated is None for row in runs} == {False}


def test_the_best_plan_that_can_run_may_be_of_others() -> None:
    """50 layers are cut between 24 groups of them, by PipeDream's programme anywhere."""
    deep = SPEC.model_copy(update={"model": ModelSpec(layers=24, hidden=64, heads=4, seq=32, vocab=512)})
    links = [{"what": what, "ranks": 2, "time": curve(1e-4, 2e-7)} for what in ("all_reduce", "all_gather", "send")]
    costs = table(deep.model, tps=(1,), links=links).dump()
    question = {"spec": deep.model_dump(mode="json"), "table": costs, "samples": 4, "devices": 2}
    found = alpa.Answer.model_validate(said("alpa", question)[-1]["answer"])
    runs = {row.name: row.seconds or 0.0 for row in found.rows if row.spec}
    assert found.runnable == min(runs.values()) == runs["PipeDream's optimum"] < (found.rows[0].seconds or 0.0)


def test_no_plan_of_alpa_exceeds_the_memory_and_those_that_would_say_so() -> None:
    """Two replicas would be the fastest; one stage of the even split needs 1.12 MB, of the exact one 1.3 MB."""
    question = {**PROFILED, "samples": 4, "devices": 2, "memory": 1.2e6}
    found = alpa.Answer.model_validate(said("alpa", question)[-1]["answer"])
    rows = {row.name: row for row in found.rows}
    fitting = [row for row in found.rows if row.spec is not None]
    assert {row.name for row in fitting} >= {"Alpa, 2 tensor ranks", "Megatron's even split"}
    assert all(row.memory is not None and row.memory <= 1.2e6 for row in [*fitting, rows["Alpa's optimum"]])
    assert "Alpa, 2 replicas" not in rows
    more, best = rows["Alpa's optimum with more memory"], rows["Alpa's optimum"]
    assert more.meshes == ((2, 1),) and more.spec is None and (more.memory or 0) > 1.2e6
    assert (more.seconds or 0) < (best.seconds or 0) <= (found.runnable or 0)
    for name, needs in (("Alpa's optimum with more memory", "1.3"), ("PipeDream's optimum", "1.2")):
        assert rows[name].why_not == f"It needs {needs} MiB of 1.1 MiB a device."
    refused = said("alpa", {**question, "memory": 1e4})[-1]
    assert refused == {"refused": "No plan fits: the fastest needs 1.3 MiB of 9.8 KiB a device."}
    free = said("alpa", {**question, "memory": 1e9})[-1]
    assert free == said("alpa", {**question, "memory": None})[-1], "ample memory changes nothing"


@pytest.mark.parametrize(("memory", "first"), [(1.2e6, "Alpa's best plan found"), (9e5, OVERSIZE)])
def test_without_time_to_search_what_fits_alpa_still_answers(
    memory: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0.9 MB all stages that might fit need an integer linear programme."""
    monkeypatch.setattr(alpa, "SEARCH_S", 0.0)
    question = {**PROFILED, "samples": 4, "devices": 2, "memory": memory}
    found = alpa.Answer.model_validate(said("alpa", question)[-1]["answer"])
    rows = {row.name: row for row in found.rows}
    assert found.unfinished == f"The search within {bytes_text(memory)} a device did not finish."
    assert (rows[OPTIMUM].seconds, rows[OPTIMUM].why_not) == (None, found.unfinished)
    best, larger = found.rows[0], rows[OVERSIZE]
    assert best.name == first and len(found.stages) == len(best.meshes)
    assert larger.meshes == ((2, 1),) and (larger.memory or 0) > memory
    assert best == larger or (best.memory or 0) <= memory < (larger.memory or 0)
    assert all(row.seconds is None or row == larger or row.seconds >= (best.seconds or 0) for row in found.rows)


def test_where_no_stage_can_fit_alpa_needs_no_time_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alpa, "SEARCH_S", 0.0)
    assert "No plan fits" in said("alpa", {**PROFILED, "samples": 4, "devices": 2, "memory": 1e4})[-1]["refused"]


def test_alpa_says_how_far_its_search_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """First the tables of the search, then the rows of the answer."""
    monkeypatch.setattr("parallel_core.searches.__main__.EVERY_S", -1.0)
    *lines, last = said("alpa", {**PROFILED, "samples": 4, "devices": 2, "memory": 1.2e6})
    tables = 2 * 2  # one or two stages left, on one or two devices
    rows = len(last["answer"]["rows"])
    assert [line["done"] for line in lines] == [*range(1, tables + 1), *range(tables, tables + rows)]
    assert all(line["done"] < line["of"] for line in lines)


def test_a_plan_of_others_is_not_taken_for_the_optimum_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Alpa itself has no plan at all."""
    plan = Search(alpa.Question.model_validate({**PROFILED, "samples": 4, "devices": 2}).costs(), Mesh(1, 2), 4).best()
    others = [Named(OPTIMUM, None, None, "Nothing."), Named("PipeDream's optimum", plan)]
    monkeypatch.setattr(alpa, "with_alternatives", lambda *_: others)
    refused = said("alpa", {**PROFILED, "samples": 4, "devices": 2, "memory": 1e4})[-1]
    assert refused == {"refused": "2 devices cannot share out these micro-batches."}


def test_a_process_of_its_own_answers_on_its_output() -> None:
    command = [sys.executable, "-m", "parallel_core.searches", "bubbles"]
    ended = subprocess.run(command, input=b'{"model": "1.5B"}', capture_output=True, check=True)
    *said_before, last = map(json.loads, ended.stdout.splitlines())
    # a fast machine may finish before the first report of progress
    assert all({"done", "of"} == set(line) for line in said_before)
    found = bubbles_kind.Answer.model_validate(last["answer"])
    assert found.predicted == bubble_rows("1.5B")


def test_progress_is_told_in_front_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_core.searches.__main__.EVERY_S", -1.0)
    first, last = said("bubbles", {"model": "1.5B"})
    assert first == {"done": 1, "of": 2} and set(last) == {"answer"}


def test_what_has_no_answer_says_why_and_what_is_no_question_breaks() -> None:
    assert said("bubbles", {"model": "7B"}) == [
        {"refused": "The tables have no model 7B; they have 1.5B, 6.2B, 14.6B, 28.3B."}
    ]
    with pytest.raises(ValidationError):
        said("bubbles", {"models": "1.5B"})
    assert len(KINDS) == 4


@pytest.mark.parametrize("wrong", [MemoryError, ValidationError])
def test_a_mistake_of_ours_is_no_refusal(monkeypatch: pytest.MonkeyPatch, wrong: type[Exception]) -> None:
    def answer(question: bubbles_kind.Question, told: ProgressCallback) -> bubbles_kind.Answer:
        if wrong is MemoryError:
            raise MemoryError
        return bubbles_kind.Answer.model_validate({"predicted": 3})

    monkeypatch.setattr(bubbles_kind, "answer", answer)
    lines: list[dict[str, Any]] = []
    if wrong is MemoryError:
        assert work("bubbles", '{"model": "1.5B"}', lines.append) == EXIT_MEMORY
    else:
        with pytest.raises(ValidationError):
            work("bubbles", '{"model": "1.5B"}', lines.append)
    assert not lines


def test_what_was_not_timed_is_named_where_the_model_can_be_split_so() -> None:
    """Of 5 x 15 rows, which two ranks cannot share, it was said that the profile did not time that."""
    model = MODEL.model_dump() | {"seq": 15}
    odd = RunSpec.model_validate({"model": model, "train": {"global_batch": 5}})
    questions = [splits_kind.Question(spec=spec, table=table(spec.model), devices=2) for spec in (SPEC, odd)]
    assert [splits_kind.answer(each).untimed for each in questions] == [
        (" by columns", " with sequence parallelism"),
        (" by columns",),
    ]
