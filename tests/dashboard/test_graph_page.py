"""A graph from PipeDream's profiler in the browser: its partition, and errors shown at their field."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils.html import escape

from dashboard.analyst import searching
from dashboard.analyst.models import Search, SearchState
from dashboard.ledger import graphs
from dashboard.ledger.models import Graph
from parallel_core.plan import graph_plan
from tests.dashboard.plain import plain
from tests.dashboard.run_analyst import search_next

pytestmark = pytest.mark.django_db
HX = {"HX-Request": "true"}
ADDRESS = "/partition/graph/"
GRAPH = (Path(__file__).parent.parent.parent / "examples" / "branches.graph.txt").read_text()
NO_WORK = "forward_compute_time=0, backward_compute_time=0, activation_size=8, parameter_size=8"
ASKED = {"text": GRAPH, "workers": "4", "bandwidth": "1", "form": "released"}


def _errors(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 422
    return dict(answer.context["form"].errors)


def test_a_pasted_graph_is_partitioned(reader: Client) -> None:
    answer = reader.post(ADDRESS, ASKED)
    text = plain(answer.content.decode())
    assert answer.status_code == 200
    assert "3-1: 36 ms a micro-batch with 2 stages on 4 workers, 3.08x of one worker." in text
    assert "Data parallelism alone takes 195 ms, 5.42x as long." in text
    assert "Conv2d(3, 64) to AdaptiveAvgPool2d" in text and "111 ms a micro-batch; Conv2d(64, 128) takes most" in text
    assert "node9 -- Linear(4096, 1000)" in text  # the input stays in the form


def test_a_pasted_text_may_be_as_long_as_a_form(reader: Client) -> None:
    answer = reader.post(ADDRESS, {**ASKED, "text": ASKED["text"] + " " * (6 * 2**20)})
    assert answer.status_code == 200 and "Too large" not in answer.content.decode()
    assert answer.context["plan"] is not None


def test_a_file_takes_the_place_of_the_text(reader: Client) -> None:
    file = SimpleUploadedFile("graph.txt", GRAPH.encode())
    answer = reader.post(ADDRESS, {**ASKED, "text": "nonsense", "groups": "2", "outer": "0.2", "file": file})
    assert answer.status_code == 200 and "on 8 workers" in answer.content.decode()


def test_a_member_gets_an_address_that_everybody_can_open(member: Client, reader: Client) -> None:
    pasted = member.post(ADDRESS, {**ASKED, "text": GRAPH.replace("\n", "\r\n"), "groups": "2", "outer": "0.2"})
    file = SimpleUploadedFile("graph.txt", GRAPH.encode())
    sent = member.post(ADDRESS, {**ASKED, "groups": "2", "outer": "0.2", "file": file})
    assert pasted.status_code == sent.status_code == 302
    assert pasted.headers["Location"] == sent.headers["Location"] and Graph.objects.count() == 1
    page = reader.get(sent.headers["Location"])
    text = page.content.decode()
    assert "on 8 workers" in text and 'name="outer" value="0.2"' in text and "Copy address" in text
    address = sent.headers["Location"].partition("?")[0]
    assert "on 4 workers" in reader.get(address).content.decode()
    assert "36 ms" in reader.get(f"{address}?workers=4&bandwidth=1").content.decode()
    other = reader.get(f"{address}?workers=0")
    assert other.status_code == 200 and list(other.context["form"].errors) == ["workers"]


@pytest.mark.full
def test_one_that_takes_long_is_left_to_the_analyst(
    member: Client, reader: Client, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page waits, shows progress, and ends with the same answer as a graph that is partitioned at once."""
    asked = {**ASKED, "groups": "2", "outer": "0.2"}
    quick = reader.post(ADDRESS, asked).content.decode()
    monkeypatch.setattr(graph_plan, "AT_ONCE", 0)
    page = member.post(ADDRESS, asked).headers["Location"]
    address, _, query = page.partition("?")
    part = f"{address}found?{query}"
    waiting = reader.get(page).content.decode()
    search = Search.objects.get()
    assert search.asker == bob
    assert f'data-search="{search.pk}"' in waiting and "Partitioning the graph: begins in a moment." in waiting
    assert f'hx-get="{escape(part)}"' in waiting and 'name="outer" value="0.2"' in waiting
    Search.objects.filter(pk=search.pk).update(state=SearchState.RUNNING, done=3, of=4)
    assert "Partitioning the graph: 3 of 4." in reader.get(part, headers=HX).content.decode()
    searching.recover()
    assert search_next()
    shown = reader.get(part, headers=HX).content.decode()
    verdict = quick[quick.index('id="verdict"') : quick.index("</p>", quick.index('id="verdict"'))]
    assert verdict in shown and "data-search" not in shown and "<form" not in shown
    assert verdict in reader.get(page).content.decode()
    assert reader.get(part).headers["Location"] == page
    assert member.get(f"{address}?{query}&memory=0.001").status_code == 200
    assert search_next()
    assert "no partition fits" in reader.get(f"{address}?{query}&memory=0.001").content.decode()


def test_a_viewer_may_ask_for_a_long_one_but_takes_nobodys_place(
    reader: Client, member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_plan, "AT_ONCE", 0)
    monkeypatch.setattr(graphs, "MOST_KEPT", 2)
    members = member.post(ADDRESS, ASKED).headers["Location"]
    for name in ("first", "second"):
        own = reader.post(ADDRESS, {**ASKED, "text": GRAPH.replace("-- Add", f"-- {name}")})
        assert own.status_code == 302
    assert "data-search" in reader.get(own.headers["Location"]).content.decode()
    assert search_next()
    assert "with 2 stages on 4 workers" in reader.get(own.headers["Location"]).content.decode()
    # only the newest of the viewer's own graphs is kept
    assert Graph.objects.count() == 2 and reader.get(members).status_code == 200
    assert reader.post(ADDRESS, ASKED).headers["Location"] == members  # a known graph needs no room
    member.post(ADDRESS, {**ASKED, "text": GRAPH.replace("-- Add", "-- third")})
    full = reader.post(ADDRESS, {**ASKED, "text": GRAPH.replace("-- Add", "-- fourth")})
    assert full.status_code == 422 and "takes the place of none" in full.content.decode()
    assert Graph.objects.count() == 2


def test_what_a_member_keeps_no_viewer_takes_away(alice: Any, bob: Any) -> None:
    """A viewer sent the graph first; later the viewer's newest graph replaces only those that nobody else keeps."""
    assert graphs.lend(GRAPH, bob)
    assert graphs.keep(GRAPH, alice).owner == alice
    assert graphs.lend(f"{GRAPH}\n#", bob) and graphs.lend(f"{GRAPH}\n##", bob)
    kept = [graphs.text_of(graphs.digest(f"{GRAPH}{more}")) is not None for more in ("", "\n#", "\n##")]
    assert kept == [True, False, True]


def test_who_becomes_a_viewer_loses_no_graph(bob: Any) -> None:
    """What was kept as a member stays."""
    graphs.keep(GRAPH, bob)
    assert graphs.lend(f"{GRAPH}\n#", bob)
    assert graphs.text_of(graphs.digest(GRAPH)) == GRAPH


def test_what_viewers_stored_before_there_were_lent_graphs_is_lent(alice: Any, bob: Any, admin: Any) -> None:
    bob.groups.clear()
    bob.groups.add(Group.objects.create(name="others"))
    texts = {owner: f"{GRAPH}\n# {owner}" for owner in (alice, bob, admin, None)}
    for owner, text in texts.items():
        graphs.keep(text, owner)
    import_module("dashboard.ledger.migrations.0012_graph_lent").lend(apps, None)
    assert [own.owner for own in Graph.objects.filter(lent=True)] == [bob]
    Graph.objects.update(lent=False)
    graphs.keep(f"{GRAPH}\n# another", bob)
    import_module("dashboard.ledger.migrations.0012_graph_lent").lend(apps, None)
    assert not Graph.objects.filter(lent=True).exists(), "viewers had one each: two were kept as a member"
    Graph.objects.filter(sha256=graphs.digest(f"{GRAPH}\n# another")).delete()
    Graph.objects.filter(owner=bob).update(lent=True)
    assert graphs.lend(GRAPH, bob) and graphs.text_of(graphs.digest(texts[bob])) is None


def test_graphs_that_are_not_kept_are_not_found(reader: Client, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader.get(f"{ADDRESS}{'0' * 64}/").status_code == 404
    monkeypatch.setattr(graphs, "MOST_KEPT", 2)
    hashes = [graphs.keep(f"{GRAPH}\n{'#' * n}", alice).sha256 for n in range(4)]
    assert [graphs.text_of(one) is not None for one in hashes] == [False, False, True, True]


def test_the_empty_form_asks_for_a_graph(reader: Client) -> None:
    assert reader.get(ADDRESS).status_code == 200
    assert _errors(reader.post(ADDRESS, {**ASKED, "text": ""})) == {"text": ["Choose a graph.txt, or paste its text."]}


@pytest.mark.parametrize(
    ("changed", "field", "said"),
    [
        ({"text": GRAPH.replace("25.000", "-1")}, "text", "Line 3: backward_compute_time must be from 0 to 1e+18"),
        ({"text": GRAPH + "\tnode9 -- node2\n"}, "text", "the layers go round in a circle"),
        ({"text": GRAPH.replace("-- Add", "-- A\0d", 1)}, "text", "a null character, which is no text."),
        ({"text": "a -- A -- " + NO_WORK}, "text", "are 0 in all 1 layers: no stage has any work."),
        ({"memory": "0.001"}, "memory", "no partition fits"),
        ({"workers": "0"}, "workers", "Workers must be a whole number from 1 to 4 096; got 0."),
        ({"bandwidth": "nan"}, "bandwidth", "number"),
        ({"groups": "3"}, "outer", "3 groups need the bandwidth between them."),
        ({"groups": "4096", "outer": "1"}, "workers", "16384 workers; at most 4096"),
        ({"form": "own"}, "form", "own"),
    ],
)
def test_what_cannot_be_stands_at_its_field(reader: Client, changed: dict[str, str], field: str, said: str) -> None:
    found = _errors(reader.post(ADDRESS, {**ASKED, **changed}))
    assert set(found) == {field} and said in found[field][0]


def test_what_is_wrong_with_a_file_stands_at_the_file_and_its_text_is_not_sent_back(reader: Client) -> None:
    for content, said in (
        (bytes(range(256)) * 4, "Line 1: neither a layer"),
        ((GRAPH + "what\n").encode(), "neither a layer"),
    ):
        answer = reader.post(ADDRESS, {**ASKED, "file": SimpleUploadedFile("graph.txt", content)})
        assert _errors(answer) == {} and said in answer.context["refused"][0]
        page = answer.content.decode()
        assert escape(answer.context["refused"][0]) in page and "Put right what is marked below" in page
        assert "Conv2d" not in page
        assert [field.value() for field in answer.context["form"]][:2] == ["4", "1"], "the other input stays"


def test_layers_that_are_not_drawn_are_summed(reader: Client) -> None:
    fields = "forward_compute_time=1, backward_compute_time=2, activation_size=1048576, parameter_size=0"
    lines = [f"node{n} -- Conv2d(3, 64, bias=False) -- {fields}\n" for n in range(50)]
    edges = [f"node{n} -- node{n + 1}\n" for n in range(49)]
    answer = reader.post(ADDRESS, {**ASKED, "text": "".join([*lines, *edges])})
    text = answer.content.decode()
    assert (
        "10 others" in text and "150 ms a micro-batch; Conv2d(3, 64) takes most" in text and "40 of 50 layers" in text
    )
