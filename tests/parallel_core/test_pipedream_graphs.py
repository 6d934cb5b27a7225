"""Files of PipeDream's graphs: read as the tool does, or refused by line and field."""

from __future__ import annotations

import pytest

from parallel_core.plan.layer_graph import GraphError, read_graph

LINE = "node{} -- x -- forward_compute_time=1, backward_compute_time=2, activation_size=3, parameter_size=4"


def graph(count: int, *edges: str) -> str:
    return "\n".join([*(LINE.format(i) for i in range(count)), *edges])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no layers"),
        ("node1 -- x -- forward_compute_time=1", "line 1: backward_compute_time is missing"),
        (LINE.format(1).replace("=3", "=-3"), "line 1: activation_size must be from 0 to 1e.18; got -3"),
        (LINE.format(1).replace("=2", "=soon"), "line 1: backward_compute_time must be a number, got soon"),
        (LINE.format(1).replace("=1", "=nan"), "line 1: forward_compute_time must be from 0 to 1e.18"),
        (graph(1, "\tnode0 -- node7"), "line 2: there is no layer node7"),
        (graph(2, "node0 -- node1", "node1 -- node0"), "line 3: the layers go round in a circle"),
        (
            graph(5, "node0 -- node1", "node1 -- node2", "node3 -- node4", "node2 -- node3", "node3 -- node2"),
            "line 9: the layers go round in a circle: node2 -- node3 is one of its 2 edges",
        ),
        (graph(100_000, *(f"node{i} -- node{i + 1}" for i in range(99_999))), "line 2001: more than 2000 layers"),
        (graph(2) + "\n" * 2**24, "line 1000001: more than 1000000 lines"),
        (graph(2) + "\n" + " " * 2**24, "line 3: more than 16777216 characters"),
        (graph(2, "node0 -- node\0"), "line 3: a null character"),
        ("hello", "line 1: neither a layer"),
        (LINE.format(1) + "\n" + LINE.format(1), "line 2: node1 is there twice"),
        (graph(100_000), "line 2001: more than 2000 layers"),
        (graph(2, *["node0 -- node1"] * 200_001), "line 200003: more than 200000 edges"),
        (graph(2, "node1 -- node1"), "line 3: node1 cannot come before itself"),
        (graph(2), "2 layers and no edge .*: its end is missing"),
        (graph(1, " -- x -- "), "line 2: the name of the layer is missing"),
        (LINE.format(1).replace("=3", "=3, activation_size=4"), "line 1: activation_size is there twice"),
        (LINE.format(1).replace("=3", "=3,5"), "line 1: '5' is no field"),
        (LINE.format(1).replace("=3", "=[5; -3]"), "line 1: activation_size must be from 0 to 1e.18"),
        (LINE.format(1).replace("=3", "=1_0"), "line 1: activation_size must be a number, got 1_0"),
        (
            LINE.format(1).replace("=3", "=1e308"),
            "line 1: activation_size must be from 0 to 1e.18; got 1e308",
        ),
        ("node1 -- x -- " + "forward_compute_time=[" * 100_000, "line 1: forward_compute_time must be a number"),
        ("node1 -- x -- " + "w" * 1_000_000, "line 1: 'www.* is no field"),
        (bytes(range(256)).decode("latin-1"), "line 1: neither a layer"),
    ],
)
def test_wrong_files_are_told_by_line_and_field(text: str, told: str) -> None:
    with pytest.raises(GraphError, match=told):
        read_graph(text)


def test_what_is_no_layer_of_the_model_is_dropped() -> None:
    lists = LINE.format(2).replace("activation_size=3", "activation_size=[3; 4.5]")
    text = "\n".join([LINE.format(1).replace("-- x", "-- Input0"), lists, "node1 -- node2"])
    (layer,) = read_graph(text).layers
    assert (layer.forward, layer.backward, layer.activation, layer.parameters) == (1e-3, 2e-3, 7.5, 4.0)


def test_a_description_cannot_turn_the_text_around_it() -> None:
    (layer,) = read_graph(LINE.format(1).replace("-- x", "-- \u202eConv\t2d\x1b[31m")).layers
    assert layer.name == "\ufffdConv 2d\ufffd[31m"


def test_files_of_other_systems_and_repeated_edges_are_read_alike() -> None:
    text = graph(3, "node0 -- node1", "node1 -- node2")
    plain = read_graph(text)
    for other in (text.replace("\n", "\r\n"), "\ufeff" + text, text + "\nnode0 -- node1\n"):
        assert read_graph(other) == plain
