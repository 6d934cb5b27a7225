"""The picture of the rank mesh, of what a rank holds and what it sends: as values, on a run's page and in the form."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given

from dashboard.runs.layout.hosts import Hosts, even
from dashboard.runs.layout.picture import picture
from dashboard.runs.models import Run, SpanChunk
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.parallel_core.strategies import run_specs


def spec(**parallel: Any) -> RunSpec:
    return RunSpec.model_validate({"parallel": parallel})


def test_every_rank_stands_once_and_the_chosen_one_has_its_groups() -> None:
    run = spec(dp=2, tp=2, pp=2, micro_batches=4)
    drawn = picture(run, 3)
    cells = {one.rank: one.role for row in drawn.rows for cell in row for one in cell}
    assert sorted(cells) == list(range(8))
    assert {rank: role for rank, role in cells.items() if role} == {3: "chosen", 2: "tensor", 1: "data", 7: "next"}
    assert drawn.sentence.startswith("Rank 3 holds 5 of the 10 parts of the model") and drawn.place.startswith(
        "Place 0 of the pipeline"
    )
    assert list(drawn.groups) == ["tensor", "data", "next"]


def test_the_sentence_says_once_what_is_all_that_is_sent() -> None:
    assert picture(spec(dp=2), 0).sentence.endswith(" it sends 3.3 MiB a step: all-reduce of gradients.")
    assert picture(spec(pp=2, micro_batches=4), 0).sentence.endswith(" a step: activations to stage 1.")
    both = picture(spec(dp=2, pp=2, micro_batches=4), 0).sentence
    assert " a step. Largest part, " in both and both.endswith(": all-reduce of gradients.")


def test_the_other_end_of_the_pipeline_has_the_same_tied_matrix() -> None:
    """Of 50 304 tokens its gradient is 24.6 MiB, and the activations of 16 samples are 1 MiB."""
    run = RunSpec.model_validate({"model": {"tied": True, "vocab": 50304}, "parallel": {"pp": 3, "micro_batches": 4}})
    drawn = picture(run, 0)
    assert [cell.role for (place,) in zip(*drawn.rows, strict=True) for cell in place] == ["chosen", "next", "ends"]
    assert list(drawn.groups) == ["next", "ends"]
    assert drawn.sentence.endswith(
        "; it sends 26 MiB a step. Largest part, 25 MiB: all-reduce of the tied matrix's gradient."
    )
    assert drawn.said[-1].group == "other end of the pipeline" and drawn.said[-1].ranks == "0, 2"


def test_a_matrix_shows_the_part_that_is_held() -> None:
    boxes = {box.name: box for layers in picture(spec(tp=2), 1).layers for box in layers.boxes}
    column, row, whole = boxes["qkv.weight"], boxes["proj.weight"], boxes["norm.weight"]
    assert column.text == "384 × 128: rows 192–383"
    assert (column.y, column.held_height) == (column.height / 2, column.height / 2)
    assert row.text == "128 × 128: columns 64–127"
    assert (row.x, row.held_width) == (row.width / 2, row.width / 2)
    assert (whole.text, whole.held_width) == ("128", whole.width)


def test_a_block_is_drawn_under_both_splits() -> None:
    """The amounts sent in a step agree with the traffic prediction, and each split holds equally much of every
    matrix.
    """
    own = picture(spec(tp=2, micro_batches=2), 1)
    assert own.splits is not None and own.query == ""
    pairs, columns = own.splits.ways
    assert (pairs.own, pairs.shown, columns.own, columns.shown) == (True, True, False, False)
    assert own.splits.sentence == (
        "Pairs send 18 MiB a step within the tensor group of rank 1, columns 34 MiB: 1.89x as much."
    )
    sent = [[piece.said for layer in way.layers for piece in layer if piece.said] for way in (pairs, columns)]
    assert sent == [["all-reduce"] * 2, ["gather"] * 4]
    assert [piece.size for layer in columns.layers for piece in layer if piece.said] == [
        *("512 KiB", "512 KiB", "2 MiB", "512 KiB")
    ]
    for a, b in zip(pairs.layers, columns.layers, strict=True):
        areas = [[p.box.held_width * p.box.held_height for p in pieces if p.box] for pieces in (a, b)]
        assert areas[0] == pytest.approx(areas[1])


def test_the_other_split_is_drawn_where_it_is_asked_for() -> None:
    shown = picture(spec(tp=2), 1, "columns")
    boxes = {box.name: box.text for layers in shown.layers for box in layers.boxes}
    assert boxes["proj.weight"] == "128 × 128: rows 64–127"
    assert shown.query == "&split=columns" and shown.how == "columns"
    assert {row.what for row in shown.said} == {
        "all-reduces of activations",
        "gathers and scatters of activations by columns",
    }
    assert picture(spec(tp=2), 1, "no such thing") == picture(spec(tp=2), 1)


@pytest.mark.parametrize("split", [{}, {"dp": 2}, {"tp": 2, "sequence": True}, {"tp": 2, "pp": 2, "cuts": (9,)}])
def test_there_is_nothing_to_compare(split: dict[str, Any]) -> None:
    """Three cases: no tensor group, rows that a split by columns does not support, or a last rank that holds no
    block.
    """
    run = spec(**split)
    assert picture(run, Layout.of(run).world - 1).splits is None


def test_of_very_many_ranks_some_are_drawn_and_it_says_so() -> None:
    many = RunSpec.model_validate({"parallel": {"dp": 64, "tp": 4}, "train": {"global_batch": 64}})
    drawn = picture(many, 0)
    assert drawn.drawn == "32 of 256 ranks drawn"
    assert sum(len(cell) for row in drawn.rows for cell in row) == 32
    assert next(row.ranks for row in drawn.said if row.group == "replicas") == "0, 4 … 252 (64)"


@given(run_specs())
def test_parts_lie_within_their_matrix(run: RunSpec) -> None:
    for layers in picture(run, Layout.of(run).world - 1).layers:
        for box in layers.boxes:
            assert 0 < box.held_width <= box.width - box.x + 1e-9
            assert 0 < box.held_height <= box.height - box.y + 1e-9


def test_of_very_many_ranks_the_chosen_one_is_drawn() -> None:
    """Sixteen replicas of eighteen stages; the last rank is in the last of both."""
    split = {"dp": 16, "pp": 18, "micro_batches": 1}
    many = RunSpec.model_validate({"model": {"layers": 18}, "parallel": split, "train": {"global_batch": 16}})
    drawn = picture(many, 16 * 18 - 1)
    assert (drawn.heads[-2:], drawn.replicas[-2:]) == (["stage 14", "stage 17"], [6, 15])
    cell = drawn.rows[-1][-1][0]
    assert (cell.rank, cell.role) == (287, "chosen") and drawn.drawn == "128 of 288 ranks drawn"


def test_a_single_device_talks_to_nobody() -> None:
    alone = picture(spec(), 9)
    assert (alone.rank, alone.said) == (0, [])
    assert alone.instead == "There is no rank 9: the only one is rank 0. Rank 0 is shown."
    assert alone.sentence.endswith(" of 875 k parameters; it sends nothing.")


@pytest.mark.usefixtures("redis_url")
def test_on_the_page_a_rank_is_chosen_by_its_address(client: Client, alice: Any) -> None:
    client.force_login(alice)
    run = factory.finished(alice, {"pp": 2, "schedule": "gpipe", "micro_batches": 4})
    page = client.get(reverse("runs:page", args=[run.pk]) + "?tab=layout&rank=1").content.decode()
    assert "What rank 1 holds" in page and "Draw" not in page
    beyond = client.get(reverse("runs:page", args=[run.pk]) + "?tab=layout&rank=2").content.decode()
    assert "There is no rank 2: ranks are 0 to 1. Rank 0 is shown." in beyond and "There is no" not in page
    assert re.search(r'rank=1#details" data-role="chosen"', page)
    assert "receives activations from stage 0" in page


@pytest.mark.usefixtures("redis_url")
def test_what_is_in_the_table_is_not_said_to_be_left_out(client: Client, alice: Any) -> None:
    client.force_login(alice)
    run = factory.finished(alice, {"tp": 2, "sequence": True})
    page = html.unescape(plain(client.get(f"/runs/{run.pk}/?tab=layout").content.decode()))
    assert "all-reduces of vectors' gradients" in page.partition("On the wire")[2]
    left = page.partition("Not counted: ")[2].partition("</p>")[0]
    assert left and "vectors" not in left


@pytest.mark.usefixtures("redis_url")
def test_on_the_page_the_split_is_chosen_by_its_address(client: Client, alice: Any) -> None:
    client.force_login(alice)
    run = factory.finished(alice, {"tp": 2})
    page = client.get(reverse("runs:page", args=[run.pk]) + "?tab=layout&rank=1&split=columns").content.decode()
    assert "What rank 1 holds if split by columns" in page
    assert 'href="?tab=layout&amp;rank=1&amp;split=pairs#details"' in page
    assert 'href="?tab=layout&amp;rank=0&amp;split=columns#details"' in page


@pytest.mark.usefixtures("redis_url")
def test_the_form_draws_the_mesh(client: Client, alice: Any) -> None:
    client.force_login(alice)
    assert "columns 34 MiB: 1.89x as much" in client.get(reverse("runs:new") + "?preset=tp2").content.decode()
    assert 'class="mesh"' in client.get(reverse("runs:new") + "?preset=dp2").content.decode()
    assert 'class="mesh"' not in client.get(reverse("runs:new") + "?preset=tiny").content.decode()


def test_older_weights_are_no_further_parameters() -> None:
    """A stage that stashes weight versions does not hold a larger part of the model."""
    split = {"pp": 2, "micro_batches": 2}
    said = [
        picture(
            RunSpec.model_validate({"parallel": split | {"schedule": name}, "train": {"clip": "stage"}}), 0
        ).sentence
        for name in ("1f1b", "1f1b-stash")
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize(("zero", "share"), [(0, "100 %"), (1, "100 %"), (2, "100 %"), (3, "50 %")])
def test_only_zero_3_leaves_a_replica_a_part_of_the_parameters(zero: int, share: str) -> None:
    assert f" and {share} of 875 k parameters; " in picture(spec(dp=2, zero=zero), 1).sentence


@pytest.mark.usefixtures("redis_url")
def test_under_zero_3_a_drawn_layer_is_gathered_not_held(client: Client, alice: Any) -> None:
    client.force_login(alice)

    def page(zero: int, kind: str) -> str:
        run = factory.finished(alice, {"dp": 2, "zero": zero})
        if kind != "gpt":
            changed = {"model": {"kind": kind}, "train": {**run.spec["train"], "corpus": "digits"}}
            Run.objects.filter(pk=run.pk).update(spec=run.spec | changed)
        return str(client.get(reverse("runs:page", args=[run.pk]) + "?tab=layout").content.decode())

    assert "filled: the part that this rank holds;" in page(2, "gpt")
    assert "works with, gathered from 2 replicas that keep equal parts (ZeRO-3);" in page(3, "gpt")
    assert "held whole: this kind" in page(2, "mlp") and "gathered whole: this kind" in page(3, "mlp")


@pytest.mark.parametrize(
    "model", [{"kind": "resnet50", "width": 8}, {"kind": "mlp", "hidden": 8}, {"hidden": 8, "heads": 2, "tied": True}]
)
def test_padding_is_no_parameter(model: dict[str, Any]) -> None:
    corpus = {"corpus": "digits"} if "kind" in model else {}
    alone = RunSpec.model_validate({"model": model, "train": {"global_batch": 16, **corpus}})
    assert " and 100 % of " in picture(alone, 0).sentence


def test_places_have_as_many_cells_as_replicas() -> None:
    drawn = picture(spec(pp=2, replicas=(2, 1), micro_batches=4, schedule="1f1b"), 2)
    assert [[[cell.rank for cell in tensor] for tensor in row] for row in drawn.rows] == [[[0], [2]], [[1], []]]
    assert drawn.drawn == "" and {row.ranks for row in drawn.said} == {"0, 1"}


def test_places_have_as_many_cells_as_tensor_ranks() -> None:
    drawn = picture(spec(pp=2, replicas=(2, 1), widths=(1, 2), micro_batches=4, schedule="1f1b"), 0)
    assert [[[cell.rank for cell in tensor] for tensor in row] for row in drawn.rows] == [[[0], [2, 3]], [[1], []]]
    assert drawn.drawn == "" and {(row.what, row.ranks) for row in drawn.said if row.group == "next stage"} == {
        ("sends activations to stage 1", "2, 3"),
        ("receives gradients from stage 1", "2"),
    }


def test_hosts_are_marked_and_what_goes_between_them_is_said() -> None:
    run = spec(dp=2, tp=2)
    apart = picture(run, 0, hosts=Hosts(["a", "a", "b", "b"]))
    assert [cell.mark for row in apart.rows for cells in row for cell in cells] == ["A", "A", "B", "B"]
    assert "on b" in apart.rows[1][0][0].title
    assert {said.group: said.between for said in apart.said} == {"tensor group": False, "replicas": True}
    assert "of it between hosts" in apart.sentence
    assert [(host.mark, host.name, host.ranks) for host in apart.hosts.key()] == [
        ("A", "a", "ranks 0 and 1"),
        ("B", "b", "ranks 2 and 3"),
    ]
    together = picture(run, 0, hosts=Hosts(["a"] * 4))
    assert together.sentence == picture(run, 0).sentence
    assert not together.hosts.several and not any(said.between for said in together.said)


def test_a_plan_fills_its_hosts_in_order() -> None:
    hosts = even(64, 2)
    assert (hosts.mark(0), hosts.mark(2), hosts.mark(52), hosts.mark(63)) == ("A", "B", "AA", "AF")
    assert (len(hosts.key()), hosts.more) == (8, 24)
    assert not even(8, 8).several


def test_on_the_page_of_a_run_over_two_workers_its_ranks_are_where_they_were(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {"tp": 2})
    nodes = [{"worker": name, "devices": [0], "first_rank": rank, "address": ""} for rank, name in enumerate("ab")]
    run.attempts.update(devices=[{**node, "worker": f"box-{node['worker']}"} for node in nodes])
    SpanChunk.objects.filter(attempt__run=run, rank=1).update(clock_within=37_000)
    client.force_login(alice)
    drawn = client.get(f"/runs/{run.pk}/?tab=layout").content.decode()
    assert "B box-b: rank 1" in drawn and "between hosts" in drawn
    assert "box-b" in client.get(f"/runs/{run.pk}/?tab=ranks").content.decode()
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert "tensor 1, box-b" in page
    assert "clocks of the hosts compared to within 37" in page
