"""Schedules found by search: valid, within memory, as good as published ones where those are optimal, and never
worse.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_core.cli import main
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.plan.orders.greedy import Rules, _Walk
from parallel_core.plan.orders.local import timed
from parallel_core.plan.orders.measured import ordered, with_schedule
from parallel_core.plan.orders.problem import F, OrderError, Problem, peaks
from parallel_core.plan.orders.search import FoundOrder, find, known_lengths
from parallel_core.schedule import compute_only, plain
from parallel_core.schedule.check import check
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.peaks import peak_kept
from parallel_core.schedule.table import from_csv, from_json, to_csv, to_json
from parallel_core.schedule.traits import Shape, place
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.idle import bubble
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.parity import spec_of
from tests.parallel_core.tables import table

ALIKE = (1000, 1000, 1000)
EFFORT = 20_000
SMALL = st.integers(0, 30)
MODEL = {"layers": 6, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}


SHAPES: tuple[Shape, ...] = ("line", "v")


@st.composite
def problems(draw: st.DrawFn, ranks: int = 4, micro_batches: int = 6) -> Problem:
    p, m, shape = draw(st.integers(2, ranks)), draw(st.integers(1, micro_batches)), draw(st.sampled_from(SHAPES))
    stages = p * (2 if shape == "v" else 1)
    placement = tuple(place(shape, stage, p) for stage in range(stages))
    f, b, w = (tuple(draw(st.lists(st.integers(1, 30), min_size=stages, max_size=stages))) for _ in range(3))
    message = tuple(0 if here == there else draw(SMALL) for here, there in pairwise(placement))
    limit = (float(draw(st.integers(2 * p if shape == "v" else 1, 3 * p))),) * p
    whole = tuple(draw(st.integers(max(b[s], w[s]), b[s] + w[s])) for s in range(stages))
    share = (1.0,) * stages
    return Problem(m, placement, f, b, w, whole, message, share, share, limit, draw(st.booleans()))


def simulated(problem: Problem, found: FoundOrder) -> int:
    """The step time by the simulator, which shares no code with the search; all messages of the problem must be
    equal.
    """
    each = {Kind.F: problem.forward, Kind.B: problem.grad, Kind.W: problem.weight, Kind.BW: problem.whole}
    costs = {(s, kind): times[s] for kind, times in each.items() for s in range(problem.stages)}
    spans = simulate(found.schedule, Costs(costs, message=max(problem.message, default=0)))
    return max(int(rows["end"].max()) for rows in spans.values())


@pytest.mark.parametrize("p", range(2, 8))
def test_the_books_bubbles_at_equal_times(p: int) -> None:
    """Qi et al. 2024a, section 2: with the memory of 1F1B, the bubble of ZB-H1, (p - 1) T_F; with 2p - 1 micro-batches,
    none.
    """
    m = 3 * p
    little, much = (find(Problem.uniform(p, m, ALIKE, limit=limit, barrier=False), EFFORT) for limit in (p, 2 * p - 1))
    costs = Costs.uniform(p, *ALIKE)
    assert little.length == little.bound == m * 3000 + (p - 1) * 1000
    assert much.length == much.bound == m * 3000
    assert bubble(simulate(little.schedule, costs)) == bubble(simulate(compute_only("zb-h1", p, m), costs)) > 0
    assert bubble(simulate(much.schedule, costs)) == 0


@given(problems())
@settings(max_examples=60)
def test_never_worse_than_the_book_and_always_right(problem: Problem) -> None:
    found = find(problem, EFFORT)
    assert all(length is None or found.bound <= found.length <= length for length in known_lengths(problem).values())
    assert all(most <= limit + 1e-9 for most, limit in zip(peaks(problem, found.programs), problem.limit, strict=True))
    check(reduce_and_step(communicate(found.schedule)))
    assert replace(from_csv(to_csv(found.schedule)), name="found") == found.schedule
    assert from_json(to_json(found.schedule)) == found.schedule


@given(problems(), SMALL)
@settings(max_examples=40)
def test_it_takes_as_long_as_the_simulator_says(problem: Problem, message: int) -> None:
    links = tuple(0 if here == there else message for here, there in pairwise(problem.placement))
    same = replace(problem, message=links, barrier=True)
    found = find(same, EFFORT)
    assert found.length == simulated(same, found)


def every_order(m: int) -> list[tuple[int, ...]]:
    """All orders of F, B and W of m micro-batches on one stage in which each kind is in micro-batch order."""
    orders: list[tuple[int, ...]] = [()]
    for _ in range(3 * m):
        longer = [(*order, kind) for order in orders for kind in range(3)]
        orders = [o for o in longer if m >= o.count(0) >= o.count(1) >= o.count(2)]
    return orders


def shortest(problem: Problem) -> int:
    """The shortest step, by trying all orders on all ranks."""
    tried = product(every_order(problem.micro_batches), repeat=problem.ranks)
    made = (timed(problem, [[4 * s + kind for kind in order] for s, order in enumerate(orders)]) for orders in tried)
    return min(order.rank[0] for order in made if order is not None)


def _gaps(count: int, m: int, seed: int) -> list[float]:
    rng, gaps = np.random.default_rng(seed), []
    for _ in range(count):
        f, b, w = (tuple(int(x) for x in rng.integers(1, 20, 2)) for _ in range(3))
        whole, message = tuple(map(sum, zip(b, w, strict=True))), (int(rng.integers(0, 10)),)
        limit = (float(rng.integers(1, m + 1)),) * 2
        problem = Problem(m, (0, 1), f, b, w, whole, message, (1.0,) * 2, (0.5,) * 2, limit, bool(rng.integers(2)))
        best, found = shortest(problem), find(problem, EFFORT)
        assert found.bound <= best <= found.length
        gaps.append(found.length / best - 1)
    return gaps


def test_small_cases_against_all_orders() -> None:
    gaps = _gaps(15, 3, seed=1)
    print(f"{gaps.count(0)} of {len(gaps)} shortest, mean gap {np.mean(gaps):.2%}, worst {max(gaps):.2%}")
    assert gaps.count(0) >= 14


@pytest.mark.full
def test_more_small_cases_against_all_orders() -> None:
    gaps = [*_gaps(200, 3, seed=2), *_gaps(6, 4, seed=3)]
    print(f"{gaps.count(0)} of {len(gaps)} shortest, mean gap {np.mean(gaps):.2%}, worst {max(gaps):.2%}")
    assert gaps.count(0) >= 0.95 * len(gaps)


def test_of_the_stages_ready_before_a_rank_is_free_the_deepest_is_next() -> None:
    """Rank 0 holds the first and the last stage of a V; the first one's input is always there."""
    walk = _Walk(Problem.uniform(2, 4, ALIKE, shape="v"), Rules())
    rank = walk._ranks[0]
    rank.free, walk._arrived[F][3] = 10, [5]
    assert walk._next(rank, F) == (10, 3)
    walk._arrived[F][3] = [11]
    assert walk._next(rank, F) == (10, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"micro_batches": 0}, "micro_batches: at least one"),
        ({"grad": (1,)}, "grad: 2 stages need as many numbers"),
        ({"forward": (1, -1)}, "forward: 2 stages need as many numbers, none below 0"),
        ({"message": ()}, "message: 2 stages have 1 links"),
        ({"limit": (1.0,)}, "limit: 2 ranks need as many"),
        ({"limit": (2.0, 0.5)}, "limit: rank 1 must keep at least 1; 0.5 is too little"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = dict.fromkeys(("forward", "grad", "weight", "whole", "kept", "needed"), (1, 1))
    given |= {"micro_batches": 2, "placement": (0, 1), "message": (0,), "limit": (2.0, 2.0)}
    with pytest.raises(OrderError, match=said):
        Problem(**(given | changes))


def test_a_run_gets_its_own_order() -> None:
    spec = RunSpec.model_validate(
        {"model": MODEL, "parallel": {"pp": 2, "micro_batches": 4}, "train": {"global_batch": 8}}
    )
    rows = ordered(spec, table(ModelSpec.model_validate(MODEL)), keep=3, effort=EFFORT)
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
    found = {row.name: row for row in rows}
    handmade = {"1f1b", "1f1b + early gradients", "zb-h1", "zb-v"}
    assert set(found) == handmade | {"found order", "found order as a V"}
    assert found["found order"].seconds <= min(found[name].seconds for name in handmade - {"zb-v"}) * (1 + 1e-9)
    assert found["1f1b + early gradients"].seconds < found["1f1b"].seconds
    early = spec.model_copy(update={"parallel": found["1f1b + early gradients"].spec.parallel})
    assert early.parallel.early_gradients and not with_schedule(early, "zb-h1").parallel.early_gradients
    assert found["found order"].spec.parallel.schedule == "custom"
    assert (found["found order as a V"].spec.parallel.stages, found["found order"].spec.parallel.stages) == (4, 2)
    assert all(row.memory > 0 for row in rows)


def test_the_command_writes_a_spec_and_an_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "best.json"
    assert main(["order", "examples/pp2.json", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "13.0 units  found" in said and "14.0 units  1f1b" in said
    assert "proven: no order with one stage a device is shorter" in said
    assert main(["order", "examples/pp2.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[-1]
    assert found == {"name": "found", "units": 13.0, "found": True, "least_units": 13.0}
    program = json.loads(out.read_text())["parallel"]["program"]
    assert main(["order", "examples/pp2.json", "--csv"]) == 0
    assert capsys.readouterr().out.strip() == program.strip()
    assert main(["order", "examples/pp2.json", "--keep", "0.5"]) == 2
    assert "must keep at least 1" in capsys.readouterr().err


def test_the_command_writes_the_fastest_that_keeps_as_little_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = {"pp": 2, "micro_batches": 4}
    given = {"model": {**MODEL, "layers": 8}, "parallel": split, "train": {"global_batch": 8}}
    path, costs, out = (tmp_path / name for name in ("spec.json", "costs", "best.json"))
    path.write_text(json.dumps(given))
    costs.write_text(table(ModelSpec.model_validate(given["model"])).model_dump_json())
    base = ["order", str(path), "--table", str(costs), "--effort", str(EFFORT), "--out", str(out)]
    for keep in (1, 2):
        assert main([*base, "--keep", str(keep)]) == 0
        rows = capsys.readouterr().out.splitlines()
        over = [" more than --keep" in row for row in rows]
        spec = RunSpec.model_validate_json(out.read_text())
        allowed = rows[over.index(False)]
        assert ("found order" in allowed) == (spec.parallel.schedule == "custom")
        assert spec.parallel.schedule == "custom" or allowed.split()[4] == spec.parallel.schedule
        assert max(peak_kept(plain(spec.parallel))) / spec.parallel.chunks_per_rank <= keep
        assert any(over) == (keep == 1)
        assert main([*base, "--keep", str(keep), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [one["keeps"] > keep and not one["found"] for one in told] == over
        assert [one["seconds"] for one in told] == sorted(one["seconds"] for one in told)
        assert main([*base, "--keep", str(keep), "--csv"]) == 0
        assert capsys.readouterr().out == to_csv(plain(spec.parallel))


def test_a_run_whose_rules_allow_no_found_order_is_told_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stages of tied weights on two ranks cannot clip their gradients on their own; zb-v puts both on one."""
    split = {"pp": 2, "micro_batches": 4, "schedule": "zb-v"}
    given = {"model": {**MODEL, "tied": True}, "parallel": split, "train": {"global_batch": 8, "clip": "stage"}}
    spec, costs = tmp_path / "spec.json", tmp_path / "costs"
    spec.write_text(json.dumps(given))
    costs.write_text(table(ModelSpec.model_validate(given["model"])).model_dump_json())
    monkeypatch.setattr("parallel_core.plan.orders.measured._found", lambda *_: iter(()))
    assert main(["order", str(spec), "--table", str(costs)]) == 2
    assert capsys.readouterr().err.startswith("No order found for this run could run: clip=stage multiplies")


def _losses(trainer: Trainer) -> list[float]:
    return [trainer.step(step)[0] for step in range(4)]


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _losses)


def test_a_found_order_trains_with_the_same_bits(tmp_path: Path) -> None:
    """A schedule for unequal costs that equals no published one, on two real ranks, compared with 1F1B."""
    plain = spec_of({}, {"precision": "fp32"}, pp=2, micro_batches=4)
    problem = Problem(4, (0, 1), (3, 2), (4, 3), (2, 2), (6, 5), (1,), (1.0,) * 2, (1.0,) * 2, (4.0, 2.0))
    made = find(problem, EFFORT).schedule
    assert made.programs not in [compute_only(name, 2, 4).programs for name in ("1f1b", "zb-h1", "zb-h2", "gpipe")]
    found = with_schedule(plain, "custom", to_csv(made))
    (expected, _), (losses, _) = ranks.run_many([plain, found], _work, tmp_path)
    assert losses == expected
    assert len(set(losses)) == len(losses) == 4
