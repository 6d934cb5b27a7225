"""The reference work: a fixed computation that measures the speed of devices during a run and a profile, and its
use.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, connect, joined
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.reference_probe import ALONE_EVERY, BUDGET, ReferenceProbe
from parallel_core.layout import Layout
from parallel_core.observe import host
from parallel_core.observe.cores import cores
from parallel_core.observe.reference import Reference
from parallel_core.profile import cpu_steal, normalize
from parallel_core.profile.cpu_steal import undisturbed
from parallel_core.profile.table import CostTable, Part
from parallel_core.simulate.device_drift import Spell, spells_beside
from parallel_core.simulate.predict import predict_step
from parallel_core.simulate.recalibrate import scaled
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.ranks import run
from tests.parallel_core.tables import SAMPLES, row, table
from tests.parallel_core.test_trainer import frames, one, series, spec_of

MODEL = ModelSpec(layers=4, hidden=32, seq=16, vocab=64)


def test_it_draws_nothing_and_leaves_nothing() -> None:
    before = torch.get_rng_state()
    work = Reference()
    assert all(work.timed_pass() > 0 for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    held = [*work._weights, work._input]
    assert all(tensor.grad is None for tensor in held)
    with torch.no_grad():
        assert work.timed_pass() > 0, "also inside no_grad, which a run may have set"


def probe(**changes: object) -> ReferenceProbe:
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), **changes})
    device = open_device("cpu")
    return ReferenceProbe(spec, device, Exchange(device, None, 1))


def test_its_time_stays_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by 2 ms whenever it is read: the work takes 4 ms, so with steps of 1 ms it runs every 100
    steps.
    """
    clock = count(0)
    monkeypatch.setattr(
        "parallel_core.engine.reference_probe.time", SimpleNamespace(perf_counter=lambda: next(clock) * 2e-3)
    )
    rare, often = probe(), probe()
    short = [rare.after_step(1e-3) for _ in range(1000)]
    done = [i for i, found in enumerate(short) if found is not None]
    assert [found.lasted for found in short if found is not None] == pytest.approx([4e-3] * len(done))
    assert done[0] == 0 and len(done) in (11, 12) and BUDGET == 0.04
    assert all(often.after_step(100.0) is not None for _ in range(5)), "after every step where steps are long"


@pytest.mark.parametrize(
    "changes",
    [{"trace": {"reference": False}}, {"parallel": {"pp": 2, "schedule": "1f1b-stash"}, "train": {"clip": "stage"}}],
)
def test_where_it_is_left_out(changes: dict[str, object]) -> None:
    made = probe(**changes)
    assert [made.after_step(100.0) for _ in range(3)] == [None] * 3


def test_runs_do_it_behind_timed_steps_and_learn_the_same(tmp_path: Path) -> None:
    """All ranks do it after the same steps, and never before the first timed one."""
    found = {}
    for name, on in (("with", True), ("without", False)):
        folder = tmp_path / name
        folder.mkdir()
        found[name] = frames(spec_of(trace={"reference": on}, dp=2, pp=2, micro_batches=2), folder)
    ranks, bare = found["with"], found["without"]
    steps = [series(rank, "reference_time")["step"].tolist() for rank in ranks]
    assert steps[0] and all(other == steps[0] for other in steps)
    assert min(steps[0]) == next(f.header["step"] for f in ranks[0] if f.header.get("phase") == "timed")
    for rank, own in zip(ranks, steps, strict=True):
        told = one(rank, "summary").header["reference"]
        assert told["times"] == len(own) and told["seconds"] > 0
    every = [one(rank, "summary").header["reference"] for rank in ranks]
    assert sum(each.get("alone", 0) for each in every) == -(-len(steps[0]) // ALONE_EVERY), "one rank at a time"
    assert all(each["company"] > 0 for each in every if each.get("alone"))
    assert max(each.get("alone", 0) for each in every) - min(each.get("alone", 0) for each in every) <= 1, (
        "ranks take turns"
    )
    assert series(ranks[0], "loss")["value"].tolist() == series(bare[0], "loss")["value"].tolist()
    assert not any(series(rank, "reference_time").size for rank in bare)
    assert "reference" not in one(bare[0], "summary").header


def test_a_slower_device_is_slower_by_as_much() -> None:
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 16}})
    plain = predict_step(spec, table(MODEL)).seconds
    assert predict_step(spec, table(MODEL), spells=[Spell(1.0, (1.5,))]).seconds == pytest.approx(1.5 * plain, rel=1e-6)


@pytest.mark.parametrize("split", [{"dp": 2}, {"tp": 2}])
def test_ranks_that_wait_for_each_other_wait_for_the_slowest_device(split: dict[str, int]) -> None:
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": split, "train": {"global_batch": 16}})
    slower = (1.0, 1.0), (1.0, 1.5), (1.5, 1.5)
    times = [predict_step(spec, table(MODEL), spells=[Spell(1.0, each)]).seconds for each in slower]
    assert times[0] < times[1] == pytest.approx(times[2], rel=1e-3)


def test_what_a_run_says_is_held_against_the_profile() -> None:
    known = table(MODEL, reference={1: 0.002, 2: 0.004})
    assert [known.usual(together) for together in (1, 2, 4)] == [0.002, 0.004, 0.004]
    assert spells_beside([[0.004], [0.006]], known.usual(2)) == [Spell(1.0, (1.0, 1.5))]
    assert spells_beside([[0.003]], table(MODEL).usual(1)) == []
    assert scaled(known, 1.2).usual(1) == 0.0, "the costs are now those of runs, so their speed is not known any more"


def test_a_profile_of_an_earlier_work_says_nothing_of_the_pace_of_runs_today() -> None:
    """It still predicts: its rows are consistent with each other."""
    known = table(MODEL, reference={1: 0.002, 2: 0.004})
    told = known.dump()
    del told["reference_uncounted"]
    earlier = CostTable.model_validate(told)
    assert earlier.reference and [earlier.usual(together) for together in (1, 2)] == [0.0, 0.0]
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": {"dp": 2}, "train": {"global_batch": 16}})
    assert predict_step(spec, earlier).seconds == predict_step(spec, known).seconds


def test_what_ran_before_it_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A work whose caches fill gradually takes 3, 2 and 1 s after anything else; only the last one counts."""
    work, taken, pending = Reference(), [0.0], [3.0, 2.0, 1.0]

    def do() -> None:
        taken[0] += pending.pop(0)

    monkeypatch.setattr(work, "_do", do)
    monkeypatch.setattr("parallel_core.observe.reference.time", SimpleNamespace(thread_time=lambda: taken[0]))
    assert work.timed_pass() == 1.0 and not pending


def header(rank: int, busy: int, seconds: float, tp: int = 1) -> normalize.Header:
    return {"rank": rank, "row": {**row(MODEL, tp, "none", SAMPLES[0], busy, 1.0), **TOLD}, "reference": seconds}


TOLD = {"joined": False, "tensor_split": "pairs"}


def test_passes_are_brought_to_one_pace() -> None:
    """Core 1 is twice as slow as core 0, and both were twice as slow as before while the wider group was timed."""
    headers = [header(0, 1, 2.0), header(0, 2, 4.0), header(1, 2, 8.0)]
    headers += [header(0, 1, 4.0, tp=2), header(0, 2, 8.0, tp=2), header(1, 2, 16.0, tp=2)]
    usual = normalize.reference(headers)
    assert usual == pytest.approx({1: 4.5, 2: 9.0}), "core 0 alone takes half as long as next to core 1"
    rows = normalize.layers_at(usual, headers)
    for found, told in zip(rows, headers, strict=True):
        expected = told["row"]["whole"]["forward"] * usual[found.busy] / told["reference"]
        assert found.whole["forward"] == pytest.approx(expected)


def test_a_group_that_talks_is_at_the_pace_of_its_slowest() -> None:
    """Core 1 is twice as slow as core 0, and the group waits for it at each collective. Both rows have its speed, and a
    run on the same cores is predicted to take as long as the group did.
    """
    headers = [header(0, 2, 4.0), header(1, 2, 8.0)]
    talking = [{**told, "row": {**told["row"], "tp": 2, "joined": True}} for told in headers]
    usual = normalize.reference([*headers, *talking])
    assert usual == pytest.approx({2: 6.0})
    for found in normalize.layers_at(usual, talking):
        took = talking[0]["row"]["whole"]["forward"]
        assert found.whole["forward"] == pytest.approx(took * 6.0 / 8.0)
        assert found.whole["forward"] * max(4.0, 8.0) / usual[2] == pytest.approx(took)


def test_a_profile_without_the_work_stays_as_it_was_measured() -> None:
    headers = [header(0, 1, 0.0), header(0, 2, 0.0)]
    assert normalize.reference(headers) == {}
    assert [found.whole for found in normalize.layers_at({}, headers)] == [told["row"]["whole"] for told in headers]


def test_waiting_for_a_turn_is_told_apart_from_working() -> None:
    """Two processes on one core: each waits while the other runs."""
    core = min(cores())
    busy = [
        sys.executable,
        "-c",
        f"import os; os.sched_setaffinity(0, [{core}])\nprint(1, flush=True)\nwhile True: pass",
    ]
    with ThreadPoolExecutor(1) as own, subprocess.Popen(busy, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        try:
            waited = own.submit(_work_on, core).result()
        finally:
            other.kill()
    assert waited > 0.05


def _work_on(core: int) -> float:
    """Seconds that this thread waited for the core during 0.2 s of its own processor time."""
    os.sched_setaffinity(0, [core])
    before, until = host.waited(), time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    return host.waited() - before


def test_a_group_gets_on_while_none_of_its_ranks_is_held_up(tmp_path: Path) -> None:
    """Each of two ranks is delayed half of the time by other processes on its core; for a quarter of the time, neither
    is.
    """
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": {"dp": 2}})
    assert run(spec, _held_up, tmp_path) == pytest.approx([0.25, 0.25])


def _held_up(spec: RunSpec, rank: int, rendezvous: Rendezvous, folder: Path) -> float:
    groups, began, held = connect(rendezvous, rank, Layout.of(spec), "gloo"), iter((0.0, 2.0)), iter((3.0, 4.0))
    with (
        joined(),
        patch.object(cpu_steal, "time", SimpleNamespace(perf_counter=lambda: next(began))),
        patch.object(cpu_steal, "_beside", lambda: 0.0),
        patch.object(host, "waited", lambda: next(held)),
    ):
        return undisturbed(lambda: None, groups.data, open_device("cpu"))[1]


def _rest() -> dict[Part, list[float]]:
    time.sleep(0.1)
    return {}


def test_a_thread_of_ones_own_on_the_core_is_nobody_else() -> None:
    """Waiting for gloo's threads is part of the duration of a rank's collectives."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})  # of this thread, and of those that it starts
    try:
        before = host.waited()
        (own, lasted), share = undisturbed(_worked_with_another, None, open_device("cpu"))
        waited = host.waited() - before
    finally:
        os.sched_setaffinity(0, every)
    if not waited:
        pytest.skip("this kernel does not tell how long a thread waited")
    assert share > 1.0 - (waited - own / 2) / lasted, "processes besides the tests may have used the core, too"


def _worked_with_another() -> tuple[float, float]:
    """(processor seconds of the other thread, elapsed seconds of both)."""
    began, spent = time.perf_counter(), [0.0]

    def work() -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)  # releases the interpreter's lock
        spent[0] = time.thread_time()

    other = threading.Thread(target=work)
    other.start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
    other.join()
    return spent[0], time.perf_counter() - began


def test_passes_that_others_held_up_count_without_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu")
    monkeypatch.setattr(host, "waited", lambda: 0.0)
    assert undisturbed(lambda: {"forward": [1.0]}, None, device) == ({"forward": [1.0]}, 1.0)
    told = iter([0.0, 0.05])
    monkeypatch.setattr(host, "waited", lambda: next(told))
    _, share = undisturbed(_rest, None, device)
    assert 0.1 < share < 1.0, "0.05 s of a little more than 0.1 s"
