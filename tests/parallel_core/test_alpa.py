"""Alpa's two levels against brute force: the strategies within a stage, and the stages and meshes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_core.cli import main
from parallel_core.outline.splits import Cut
from parallel_core.plan.alpa.costs import Analytic, LayerCosts, LayerSharding, Measured
from parallel_core.plan.alpa.inter import Mesh, Plan, Search
from parallel_core.plan.alpa.intra import Chain, fastest, solve, within
from parallel_core.plan.alpa.plans import MIXED, UNEVEN, summary, with_alternatives
from parallel_core.plan.alpa.programme import Stage
from parallel_core.plan.cluster.efficiency import Machine as PlannerMachine
from parallel_core.plan.cluster.efficiency import fitted
from parallel_core.plan.cluster.hardware import clusters
from parallel_core.plan.cluster.plans import Plan as PlannerPlan
from parallel_core.plan.cluster.plans import Plans
from parallel_core.plan.units import unit_costs
from parallel_core.profile.table import CostTable, Layers
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import table

STRATEGIES = st.sampled_from(("data", "column-row", "replicated", "columns", "sequence"))
SMALL = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32, "vocab": 4096}
NUMBER = st.integers(0, 50)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    of_backward = {"rebuilt": NUMBER, "working": NUMBER}
    sharding = st.builds(LayerSharding, STRATEGIES, NUMBER, NUMBER, NUMBER, NUMBER, **of_backward)
    shardings = draw(st.lists(st.lists(sharding, min_size=1, max_size=3), min_size=1, max_size=4))
    turns = draw(st.lists(NUMBER, min_size=len(shardings) - 1, max_size=len(shardings) - 1))
    blocks = draw(st.lists(st.sampled_from("ab"), min_size=len(shardings), max_size=len(shardings)))
    return Chain(shardings, turns, draw(st.integers(1, 4)), (draw(NUMBER), draw(NUMBER)), blocks)


@given(chains(), st.integers(1, 4), st.integers(20, 500))
@settings(max_examples=60)
def test_the_ways_of_a_stage_against_all_of_them(chain: Chain, in_flight: int, limit: int) -> None:
    every = list(product(*chain.shardings))
    fitting = [chosen for chosen in every if chain.memory(chosen, in_flight) <= limit]
    assert chain.seconds(fastest(chain)) == pytest.approx(min(map(chain.seconds, every)))
    found = within(chain, limit, in_flight)
    assert (found is None) == (not fitting)
    if found is not None:
        assert chain.memory(found, in_flight) <= limit
        assert chain.seconds(found) == pytest.approx(min(map(chain.seconds, fitting)))
        alone = solve(chain, limit, in_flight)
        assert alone is not None and chain.seconds(alone) == pytest.approx(chain.seconds(found))


def spec_of(**model: int) -> RunSpec:
    return RunSpec.model_validate({"model": SMALL | model, "train": {"global_batch": 16}})


def search_of(machine: Analytic, mesh: Mesh, samples: int = 4, micro_batches: int = 4) -> Search:
    return Search(LayerCosts(spec_of(), machine, samples), mesh, micro_batches)


def every_plan(search: Search) -> Iterator[Plan]:
    """All cuts, all meshes that fill the cluster in order, all views of each."""
    units, mesh = len(search.costs.units), search.mesh
    for count in range(1, units + 1):
        for cuts in combinations(range(1, units), count - 1):
            edges = list(pairwise((0, *cuts, units)))
            for sizes in product(mesh.sizes(), repeat=count):
                if sum(sizes) != mesh.devices:
                    continue
                for views in product(*map(mesh.views, sizes)):
                    stages = [
                        search.stage(*edge, *view, count - i)
                        for i, (edge, view) in enumerate(zip(edges, views, strict=True))
                    ]
                    made = [stage for stage in stages if stage is not None]
                    if len(made) == count:
                        yield Plan(tuple(made), search.micro_batches)


@given(st.sampled_from((1e8, 1e10)), st.sampled_from((1e6, 1e8, 1e10)), st.sampled_from((1e5, 1e7)), st.booleans())
@settings(max_examples=8)
def test_stages_against_all_partitions(flops: float, bandwidth: float, network: float, short: bool) -> None:
    machine = Analytic(flops, bandwidth, network, 2)
    roomy = search_of(machine, Mesh(2, 2)).best()
    assert roomy is not None
    most = max(stage.memory for stage in roomy.stages)
    search = search_of(machine, Mesh(2, 2, 0.6 * most if short else inf))
    plans = list(every_plan(search))
    best = search.best()
    assert (best is None) == (not plans)
    if best is not None:
        assert best.seconds == pytest.approx(min(plan.seconds for plan in plans))
        assert all(stage.memory <= search.mesh.memory for stage in best.stages)
        assert sum(stage.devices for stage in best.stages) == 4


def test_replicas_of_wide_tensor_groups_are_on_other_hosts() -> None:
    """Tensor groups as wide as a host: rings over replicas take the network, at the prices of the planner."""
    selene, plans = clusters()["selene"], Plans.of([PlannerPlan(dp=2, tp=8)])
    planner = PlannerMachine(selene, fitted(), plans)
    link, network = selene.link * fitted().link, selene.network * fitted().network
    machine = Analytic(1e14, link, network, selene.per_host, alpha=0.0)
    size = 1e9
    for ranks, stride in ((2, 1), (2, 4), (2, 8), (4, 4), (16, 1), (8, 2)):
        expected = replace(planner, efficiency=replace(fitted(), latency=0.0, network_latency=0.0)).ring(
            np.array([size]), np.array([float(ranks)]), np.array([float(stride)])
        )
        assert machine.all_reduce(ranks, size, stride) == pytest.approx(expected[0])
    assert machine.all_reduce(2, size, 8) == pytest.approx(size / network)
    costs = LayerCosts(spec_of(), Analytic(1e9, 1e9, 1e6, 2), 4)
    shardings = costs.shardings(2, 2)
    assert shardings is not None
    sync = {sharding.strategy: sharding.sync for sharding in shardings[1]}
    assert sync["replicated"] == pytest.approx(costs.machine.all_reduce(2, 4 * unit_costs(spec_of())[1].flat, 2))
    assert sync["data"] == pytest.approx(costs.machine.all_reduce(4, 4 * unit_costs(spec_of())[1].flat)), "all four"
    assert sync["replicated"] > sync["column-row"] > costs.machine.all_reduce(2, 4 * unit_costs(spec_of())[1].flat)


def test_messages_on_one_host_take_its_links() -> None:
    slow = Analytic(1e9, 1e9, 1e3, 4)
    one, two = (search_of(slow, mesh).given((3,), [(1, 1), (1, 1)]) for mesh in (Mesh(1, 2), Mesh(2, 1)))
    assert one is not None and two is not None
    sent = search_of(slow, Mesh(1, 2)).costs.boundary(3)
    longer = [b.seconds - a.seconds for a, b in zip(one.stages, two.stages, strict=True)]
    assert longer == pytest.approx([0, 2 * sent * (1 / 1e3 - 1 / 1e9)])


def test_little_memory_makes_other_stages() -> None:
    machine = Analytic(1e9, 1e9, 1e9, 2)
    roomy, tight = (search_of(machine, Mesh(1, 2, limit)).best() for limit in (inf, 7e6))
    assert roomy is not None and tight is not None
    assert tight.seconds > roomy.seconds
    assert max(stage.memory for stage in tight.stages) <= 7e6 < max(stage.memory for stage in roomy.stages)
    assert search_of(machine, Mesh(1, 2, 1e4)).best() is None
    split = {n.name: n for n in with_alternatives(search_of(machine, Mesh(1, 2, 1e4)))}["Exact min-max split"]
    assert split.plan is None and split.why_not.startswith("It needs ")


def test_what_runs_and_what_does_not() -> None:
    search = search_of(Analytic(1e9, 1e9, 1e7, 2), Mesh(2, 2))
    found = {named.name: named for named in with_alternatives(search)}
    able = [named for named in found.values() if named.spec is not None]
    for named in able:
        assert named.spec is not None and named.plan is not None
        split = named.spec.parallel
        assert (split.world, split.pp, split.cuts or ()) == (4, len(named.plan.stages), named.plan.cuts)
        assert named.spec.train.global_batch == 16
    assert len([named for named in able if named.name.startswith("Alpa, ")]) >= 5
    best = found["Alpa's optimum"].plan
    assert best is not None
    assert best.seconds <= min(named.plan.seconds for named in found.values() if named.plan is not None)
    assert found["PipeDream's optimum"].why_not == UNEVEN  # it takes 3 replicas for 4 samples
    assert found["Exact min-max split"].spec is not None
    assert "2 blocks cannot be shared out to 4" in found["Megatron's even split"].why_not
    for named in found.values():
        assert named.why_not in ("", MIXED) or named.plan is None


def test_stages_on_other_meshes_are_runs() -> None:
    """Two devices as replicas or tensor ranks, next to stages with one device each, in every order; micro-batches are
    made small enough for the replicas.
    """
    search = search_of(Analytic(1e9, 1e9, 1e7, 4), Mesh(1, 4))
    best, found = search.best(), [named for named in with_alternatives(search) if " then " in named.name]
    meshes = {named.name.removeprefix("Alpa, "): named for named in found}
    pairs = {"2 x 1 then 1 x 2", "1 x 2 then 2 x 1"}
    with_columns = {name for name in meshes if name.endswith(", by columns")}
    assert with_columns and len(set(meshes) - with_columns) == 8
    assert pairs <= set(meshes) and "1 x 1 then 1 x 2 then 1 x 1" in meshes
    costs = also("columns", devices=4)
    for named in found:
        assert named.spec is not None and named.plan is not None and best is not None
        assert named.plan.seconds >= best.seconds
        split, stages = named.spec.parallel, named.plan.stages
        assert list(zip(split.copies, split.tensor_ranks, strict=True)) == [(s.dp, s.tp) for s in stages]
        assert (split.world, split.cuts, named.spec.train.global_batch) == (4, named.plan.cuts, 16)
        assert split.micro_batches == (4 if split.replicas is None else 8)
        assert predict_step(named.spec, costs).seconds > 0
    named = meshes["1 x 2 then 2 x 1"]
    assert named.plan is not None and named.plan == search.given(named.plan.cuts, [(1, 2), (2, 1)])


def test_a_layer_takes_each_way_that_the_engine_runs() -> None:
    """Memory must equal that of a run in which all layers use the strategy. Layers split by rows and layers split by
    data can follow each other without a gather in between: both are `spread`.
    """
    costs = LayerCosts(spec_of(), Analytic(1e9, 1e9, 1e9, 2), 4)
    shardings = costs.shardings(1, 2)
    assert shardings is not None
    assert [sharding.strategy for sharding in shardings[1]] == [
        "column-row",
        "columns",
        "sequence",
        "data",
        "replicated",
    ]
    pairs, columns, rows, data, _ = shardings[1]
    assert rows.activations < pairs.activations < columns.activations
    assert pairs.state < data.state and rows.spread and data.spread and not columns.spread
    for strategy, fields in (("columns", {"tensor_split": "columns"}), ("sequence", {"sequence": True})):
        alone = RunSpec.model_validate({"model": SMALL, "train": {"global_batch": 4}, "parallel": {"tp": 2, **fields}})
        kept = [4 * (cost.boundary + cost.inner) for cost in unit_costs(alone)]
        assert [sharding.activations for row in shardings for sharding in row if sharding.strategy == strategy] == kept


@pytest.mark.parametrize(("cut", "named"), [("columns", "by columns"), ("sequence", "with sequence parallelism")])
def test_a_cut_is_offered_where_the_profile_measured_it(cut: Cut, named: str) -> None:
    """If the profile measured the cut and it is the fastest, Alpa's optimum uses it, and the simulator agrees on the
    time.
    """
    plain, both = table(ModelSpec.model_validate(SMALL)), also(cut)
    for costs, able in ((plain, False), (both, True)):
        found = with_alternatives(Search(LayerCosts(spec_of(), Measured(costs), 4), Mesh(1, 2), 4))
        assert (f"Alpa, 2 tensor ranks {named}" in {one.name for one in found}) == able
    best = found[0].plan
    assert best is not None and {sharding.strategy for sharding in best.stages[0].shardings[1:]} == {cut}
    spec, plan = next((one.spec, one.plan) for one in found if one.spec is not None)
    assert plan is not None and spec.parallel.cut == cut and spec.parallel.tp == 2
    assert plan.seconds == pytest.approx(predict_step(spec, both).seconds, rel=0.15)


def also(cut: Cut, **changes: int) -> CostTable:
    """The made-up table with additional, faster rows for layers that use this cut."""
    plain = table(ModelSpec.model_validate(SMALL), **changes)
    fast = [faster(row, cut) for row in plain.layers if row.tp == 2]
    return plain.model_copy(update={"layers": (*plain.layers, *fast)})


def faster(row: Layers, cut: Cut) -> Layers:
    """The same layers with another cut, in a quarter of the time."""
    seconds = {part: tuple(t / 4 for t in each) for part, each in row.seconds.items()}
    whole = {part: t / 4 for part, t in row.whole.items()}
    return row.model_copy(update={"tensor_split": cut, "seconds": seconds, "whole": whole})


def test_no_run_takes_rows_where_widths_differ() -> None:
    search = search_of(Analytic(1e9, 1e9, 1e7, 4), Mesh(1, 4))
    found = [(one.name, one.plan) for one in with_alternatives(search) if one.plan]
    named = [name for name, plan in found if len({stage.tp for stage in plan.stages}) > 1]
    assert named and not [name for name in named if "sequence" in name]


def test_a_stage_says_its_ways() -> None:
    shardings = [LayerSharding(name, 1, 0, 0, 0) for name in ("vocab", "column-row", "column-row", "vocab")]
    plan = Plan((Stage(0, 4, 1, 2, tuple(shardings), 4, 0),), 2)
    assert summary(plan, ["embed", "block.0.attn", "block.0.mlp", "head"]) == [
        "embed to head on 1 x 2: vocab embed; column-row block.0.attn to block.0.mlp; vocab head"
    ]
    assert plan.seconds == 8


def test_plans_of_a_profile_are_predicted_as_runs() -> None:
    """Two replicas, two tensor ranks and two stages: Alpa's equation 2 agrees with the simulator."""
    spec = spec_of()
    costs = table(ModelSpec.model_validate(SMALL))
    search = Search(LayerCosts(spec, Measured(costs), 4), Mesh(1, 2), 4)
    even = [named for named in with_alternatives(search) if named.name.startswith("Alpa, ")]
    assert {named.name for named in even} == {"Alpa, 2 replicas", "Alpa, 2 stages", "Alpa, 2 tensor ranks"}
    for named in even:
        assert named.spec is not None and named.plan is not None
        simulated = predict_step(named.spec, costs).seconds
        assert named.plan.seconds == pytest.approx(simulated, rel=0.15)


@pytest.mark.parametrize(("devices", "told"), [("1000000", "use 1 to 128"), ("12", "hosts of 8; try 8 or 16")])
def test_devices_that_cannot_be_searched_are_refused_at_once(
    devices: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--spec", "examples/pp2.json", "--devices", devices]) == 2
    assert told in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--spec", "examples/pp2.json", "--devices", "4"]) == 0
    said = capsys.readouterr().out
    assert "Alpa's optimum" in said and "PipeDream's optimum" in said and "Megatron's even split" in said
    path = tmp_path / "costs"
    path.write_text(table(ModelSpec(layers=2, hidden=64, heads=4, seq=32)).model_dump_json())
    assert main(["plan", "--spec", "examples/pp2.json", "--table", str(path)]) == 2
    assert "the profile is of another model" in capsys.readouterr().err


def test_a_batch_norm_never_gets_a_single_sample() -> None:
    """Its plans have micro-batches of two or more a replica; with one sample alone there is no plan, and no error."""
    model = {"kind": "resnet50", "width": 8, "image": 32}
    spec = RunSpec.model_validate({"model": model, "train": {"global_batch": 16, "corpus": "digits"}})
    machine = Analytic(1e9, 1e9, 1e9, 2)
    costs = LayerCosts(spec, machine, 2)
    assert costs.shardings(1, 1) and not costs.shardings(2, 1)
    found = Search(costs, Mesh(1, 2), 8).best()
    assert found is not None and all(stage.dp == 1 for stage in found.stages)
    assert Search(LayerCosts(spec, machine, 1), Mesh(1, 2), 16).best() is None
