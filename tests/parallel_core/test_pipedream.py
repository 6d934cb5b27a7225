"""PipeDream's partitioner: the objective values of the released tool, exhaustive search, and invalid graph files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_core.plan.graph_plan import takes_long
from parallel_core.plan.layer_graph import GraphError, GraphLayer, LayerGraph, read_graph
from parallel_core.plan.network_levels import Level
from parallel_core.plan.pipedream import Form, partition
from tests.parallel_core.pipedream_profiles import released

GBS = 1e9
BRANCHES = """
node1 -- Input -- forward_compute_time=9, backward_compute_time=0, activation_size=1, parameter_size=0
node2 -- Stem -- forward_compute_time=500, backward_compute_time=500, activation_size=5e9, parameter_size=0
node3 -- Arm -- forward_compute_time=500, backward_compute_time=2000, activation_size={half}, parameter_size=0
node4 -- Arm -- forward_compute_time=1500, backward_compute_time=1000, activation_size={half}, parameter_size=0
node5 -- Head -- forward_compute_time=1000, backward_compute_time=2000, activation_size=4, parameter_size=1e9
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node5
\tnode4 -- node5
"""
"""The head computes 3 s and has 1 GB of parameters; all before it computes 6 s and has none."""


@pytest.mark.parametrize(
    ("gigabytes", "text", "seconds"),
    [
        (0.2, "2-1", 6 / 2),  # each stage computes for 3 s
        (1.8, "2-1", 2 * 1.8),  # what both arms send to the head, and its gradient
        (2.0, "3", (9 + 4 * 2 / 3) / 3),  # 4 s of messages are more than the gradients of data parallelism
    ],
)
def test_a_small_graph_by_the_released_cost_model(gigabytes: float, text: str, seconds: float) -> None:
    """On three workers at 1 GB/s. Where the stem alone would be sent, its 5 GB cost more than any other cut."""
    graph = read_graph(BRANCHES.format(half=gigabytes * GBS / 2))
    found = partition(graph, [Level(3, GBS)])
    assert (found.text, found.seconds) == (text, pytest.approx(seconds))


@pytest.mark.parametrize(
    ("name", "levels", "seconds", "text"),
    [
        ("vgg16", [Level(4, GBS)], 0.20552, "3-1"),
        ("vgg16", [Level(16, 0.4 * GBS)], 0.08078, "15-1"),
        ("resnet50", [Level(8, GBS)], 0.09201, "5-3"),
        ("resnet50", [Level(4, 12 * GBS), Level(4, 1.25 * GBS)], 0.04321, None),
    ],
)
def test_objective_values_of_the_released_optimizer(
    name: str, levels: list[Level], seconds: float, text: str | None
) -> None:
    found = partition(read_graph(released(name).read_text()), levels)
    assert found.seconds == pytest.approx(seconds, abs=5e-6)
    assert text is None or found.text == text
    assert found.workers == math.prod(level.workers for level in levels)
    assert found.noam == math.ceil(found.workers / found.stages[0].replicas)


LAYERS = st.lists(st.builds(GraphLayer, st.just("x"), *(st.floats(0, 9) for _ in range(4))), min_size=1, max_size=4)


def best_by_hand(layers: list[GraphLayer], workers: int, bandwidth: float, form: Form, memory: float | None) -> float:
    """The best objective over all cuts and all numbers of replicas."""
    n, best = len(layers), math.inf
    for stages in range(1, min(n, workers) + 1):
        for cuts in combinations(range(1, n), stages - 1):
            edges = (0, *cuts, n)
            for replicas in product(range(1, workers + 1), repeat=stages):
                if sum(replicas) == workers:
                    best = min(best, time_of(layers, edges, replicas, bandwidth, form, memory))
    return best


def time_of(
    layers: list[GraphLayer],
    edges: tuple[int, ...],
    replicas: tuple[int, ...],
    bandwidth: float,
    form: Form,
    memory: float | None,
) -> float:
    worst = 0.0
    for s, m in enumerate(replicas):
        own = layers[edges[s] : edges[s + 1]]
        compute, weights = sum(layer.compute for layer in own), sum(layer.parameters for layer in own)
        versions = math.ceil(sum(replicas[s:]) / m)
        if memory is not None and versions * (weights + sum(layer.activation for layer in own)) > memory:
            return math.inf
        if form == "paper":
            worst = max(worst, max(compute, 2 * (m - 1) * weights / bandwidth) / m)
        else:
            worst = max(worst, (compute + 4 * (m - 1) * weights / (bandwidth * m)) / m)
        if s:
            share = m if form == "released" else 1
            worst = max(worst, 2 * layers[edges[s] - 1].activation / (bandwidth * share))
            before = replicas[s - 1]
            if form == "released" and s > 1:
                worst = max(worst, 2 * layers[edges[s] - 1].activation / (bandwidth * before))
    return worst


@given(LAYERS, st.integers(1, 4), st.sampled_from(["paper", "released"]), st.none() | st.floats(5, 60))
@settings(max_examples=60, deadline=None)
def test_no_other_partition_of_a_chain_is_faster(
    layers: list[GraphLayer], workers: int, form: Form, memory: float | None
) -> None:
    expected = best_by_hand(layers, workers, 2.0, form, memory)
    if math.isinf(expected):
        with pytest.raises(GraphError, match="no partition fits"):
            partition(LayerGraph.chain(layers), [Level(workers, 2.0)], form, memory)
        return
    found = partition(LayerGraph.chain(layers), [Level(workers, 2.0)], form, memory)
    assert found.seconds == pytest.approx(expected)
    assert [n for stage in found.stages for n in stage.layers] == list(range(len(layers)))
    assert found.workers == workers


def best_on_two_levels(layers: list[GraphLayer], levels: list[Level], memory: float) -> float:
    """The least time of a slowest stage, by the paper's form and without messages, over all ways to give groups to runs
    of layers and a group's workers to the layers in it. Each worker keeps a version for each micro-batch in flight,
    counted over all stages after its own.
    """
    best, n = math.inf, len(layers)
    (inside, _), (groups, _) = levels
    for outer in compositions(groups):
        for cuts in combinations(range(1, n), len(outer) - 1):
            runs = [range(a, b) for a, b in pairwise((0, *cuts, n))]
            for inner in product(*(list(stages_of(run, inside)) for run in runs)):
                rows = list(zip(outer, inner, strict=True))
                if fits(layers, [(part, own * times) for times, row in rows for part, own in row], memory):
                    best = min(best, slowest(layers, rows, levels))
    return best


def slowest(layers: list[GraphLayer], rows: list[tuple[int, list[tuple[range, int]]]], levels: list[Level]) -> float:
    """Each of `rows` stands for so many groups, with these stages inside each."""

    def reduced(compute: float, weights: float, m: int, level: Level) -> float:
        return max(compute, 2 * (m - 1) * weights / level.bandwidth) / m

    worst = 0.0
    for i, (times, row) in enumerate(rows):
        weights = [sum(layers[n].parameters for n in part) for part, _ in row]
        within = max(
            reduced(sum(layers[n].compute for n in part), size, own, levels[0])
            for size, (part, own) in zip(weights, row, strict=True)
        )
        shared = levels[0].workers if i == 0 else 1  # as in the released tool: only before a first cut
        worst = max(worst, reduced(within, sum(weights) / shared, times, levels[1]))
    return worst


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    if not total:
        yield ()
    for first in range(1, total + 1):
        yield from ((first, *rest) for rest in compositions(total - first))


def stages_of(run: range, workers: int) -> Iterator[list[tuple[range, int]]]:
    """All ways to cut a run of layers over the workers of a group."""
    for owns in compositions(workers):
        for cuts in combinations(run[1:], len(owns) - 1):
            edges = (run.start, *cuts, run.stop)
            yield [(range(a, b), own) for (a, b), own in zip(pairwise(edges), owns, strict=True)]


def fits(layers: list[GraphLayer], stages: list[tuple[range, int]], memory: float) -> bool:
    after = [sum(own for _, own in stages[s:]) for s in range(len(stages))]
    held = [sum(layers[i].parameters + layers[i].activation for i in part) for part, _ in stages]
    return all(size * math.ceil(n / own) <= memory for size, n, (_, own) in zip(held, after, stages, strict=True))


WHOLE = st.integers(1, 6).map(float)
SILENT = st.lists(st.builds(GraphLayer, st.just("x"), WHOLE, WHOLE, st.just(0.0), WHOLE), min_size=2, max_size=5)


@given(SILENT, st.integers(1, 3), st.integers(1, 3), st.sampled_from((0.5, 2.0, 1e9)), st.integers(5, 60))
@settings(max_examples=80, deadline=None)
def test_stages_inside_groups_keep_what_all_later_workers_ask_for(
    layers: list[GraphLayer], inside: int, groups: int, bandwidth: float, memory: int
) -> None:
    levels = [Level(inside, bandwidth), Level(groups, bandwidth)]
    expected = best_on_two_levels(layers, levels, memory)
    if math.isinf(expected):
        with pytest.raises(GraphError, match="no partition fits"):
            partition(LayerGraph.chain(layers), levels, "paper", memory)
        return
    found = partition(LayerGraph.chain(layers), levels, "paper", memory)
    assert found.seconds == pytest.approx(expected)
    stages = [(range(stage.layers[0], stage.layers[-1] + 1), stage.replicas) for stage in found.stages]
    assert found.workers == inside * groups and fits(layers, stages, memory)


def test_a_stage_has_the_memory_of_its_own_layers_alone() -> None:
    """Eight layers of 1 GB over two groups of four: the first stages fit with 4.5 GB."""
    layers = [GraphLayer(str(n), 1, 1, 0, GBS) for n in range(8)]
    found = partition(LayerGraph.chain(layers), [Level(4, 1e30), Level(2, 1e30)], memory=4.5 * GBS)
    assert found.workers == 8
    assert fits(layers, [(range(s.layers[0], s.layers[-1] + 1), s.replicas) for s in found.stages], 4.5 * GBS)


def test_workers_of_other_groups_count_as_later_ones() -> None:
    """The first of four workers would keep four versions of its 10 GB."""
    layers = [GraphLayer(str(n), 1, 1, 0, size * GBS) for n, size in enumerate((10, 1, 1, 1))]
    levels = [Level(2, GBS), Level(2, GBS)]
    found = partition(LayerGraph.chain(layers), levels, memory=22 * GBS)
    assert found.text != "1-1-1-1"
    assert fits(layers, [(range(s.layers[0], s.layers[-1] + 1), s.replicas) for s in found.stages], 22 * GBS)


def test_a_large_network_with_little_memory_is_answered_or_refused_in_time() -> None:
    layers = [GraphLayer(str(n), 1, 1, 0, 1) for n in range(3)]
    for levels in ([Level(1024, GBS)], [Level(16, GBS), Level(64, GBS)]):
        assert partition(LayerGraph.chain(layers), levels, memory=100.0).workers == 1024
    with pytest.raises(GraphError, match="too many for an exact partition"):
        partition(LayerGraph.chain(layers), [Level(2, GBS), Level(2048, GBS)], memory=100.0)


def test_branches_are_cut_between_states() -> None:
    """A diamond has six states including the empty one, and the cut through both arms sends both outputs."""
    layer = GraphLayer("x", 1.0, 1.0, 3.0, 0.0)
    diamond = LayerGraph((layer,) * 4, ((0, 1), (0, 2), (1, 3), (2, 3)))
    states = diamond.states()
    assert states == [0b0001, 0b0011, 0b0101, 0b0111, 0b1111]
    assert diamond.leaving(states).tolist() == [3, 6, 6, 6, 0]
    assert partition(diamond, [Level(2, 1e9)], "paper").seconds == pytest.approx(4.0)


def test_a_long_chain_over_many_workers_is_refused_in_time() -> None:
    layer = GraphLayer("x", 1, 1, 1, 1)
    with pytest.raises(GraphError, match="1501 states and 64 workers a level are too many"):
        partition(LayerGraph.chain([layer] * 1500), [Level(64, 1e9)])


def test_a_chain_as_long_as_a_released_one_is_cut_over_hosts_of_eight() -> None:
    """240 equal layers on 2 x 8 workers with free messages and gradients: 16 times one worker's speed."""
    layers = [GraphLayer(str(n), 1, 2, 0, 0) for n in range(240)]
    found = partition(LayerGraph.chain(layers), [Level(8, 1e9), Level(2, 1e9)])
    assert found.seconds == pytest.approx(240 * 3 / 16)


def test_a_graph_that_is_too_wide_is_refused_in_time() -> None:
    layer = GraphLayer("x", 1, 1, 1, 1)
    with pytest.raises(GraphError, match="too many parallel branches"):
        LayerGraph((layer,) * 40, ()).states()
    with pytest.raises(GraphError, match="too many parallel branches"):
        LayerGraph((layer,) * 2000, tuple((0, i) for i in range(1, 2000))).states()


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ([], "one level"),
        ([Level(0, 1.0)], "levels.0.workers"),
        ([Level(2, 1.0), Level(2, 0.0)], "levels.1.bandwidth"),
        ([Level(10**6, 1.0)], "at most 4096"),
    ],
)
def test_networks_that_cannot_be(levels: list[Level], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        partition(LayerGraph.chain([GraphLayer("x", 1, 1, 1, 1)]), levels)


def test_many_workers_for_few_layers_are_compared_in_few_operations() -> None:
    """32640 ways to give some of up to 256 workers to the last stage."""
    told: list[tuple[int, int]] = []
    layers = [GraphLayer(str(n), n + 1, 0, 0, 0) for n in range(3)]
    found = partition(LayerGraph.chain(layers), [Level(256, GBS)], on_progress=lambda *now: told.append(now))
    assert found.workers == 256
    assert told[-1] == (32640, 32640)
    assert len(told) <= 512


def test_what_takes_long_is_known_beforehand() -> None:
    """Few layers on many workers take long as well; a single layer, which cannot be cut, never does."""
    chain = LayerGraph.chain([GraphLayer(str(n), 1, 1, 1, 1) for n in range(3)])
    assert not takes_long(chain, [Level(256, GBS)])
    assert takes_long(chain, [Level(3000, GBS)])
    assert not takes_long(LayerGraph.chain([chain.layers[0]]), [Level(4096, GBS)])


def test_many_layers_take_long_however_few_the_workers() -> None:
    """What is summed for every pair of states grows with the layers, too."""
    layers = [GraphLayer(str(n), 1, 1, 1, 1) for n in range(1999)]
    assert takes_long(LayerGraph.chain(layers), [Level(2, GBS)])
    assert not takes_long(LayerGraph.chain(layers[:300]), [Level(5, GBS)])


def test_a_limit_on_memory_takes_longer_between_groups() -> None:
    """A table inside a group for each share of the workers after it."""
    chain, levels = LayerGraph.chain([GraphLayer(str(n), 1, 1, 1, 1) for n in range(24)]), [Level(8, GBS)] * 2
    assert not takes_long(chain, levels) and takes_long(chain, levels, 1e9)
    assert not takes_long(chain, levels[:1], 1e9)
