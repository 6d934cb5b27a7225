"""Text generation: its form, its run, its page, and the same through the API."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.api.models import Scope
from dashboard.control.dispatch import start_message
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import hosts
from dashboard.placement.assignments import plan
from dashboard.runs import states
from dashboard.runs.generation.generated_text import measured
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.page.fix import fix
from dashboard.runs.waiting import asking, queue, turns
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from tests.dashboard.plain import error_at, plain, unmarked
from tests.dashboard.test_api import bearer

pytestmark = pytest.mark.django_db
FORM = {"step": "20", "prompt": "def ", "new": "8", "samples": "1", "temperature": "0", "top_k": "0"}
FORM |= {"seed": "7", "tp": "1", "pp": "1", "dp": "1"}


@pytest.fixture
def source(client: Client, alice: Any) -> Run:
    """A run that succeeded, with a checkpoint at step 20; alice is signed in."""
    client.force_login(alice)
    run = factory.finished(alice, {"dp": 2})
    frame = {"kind": "checkpoint", "rank": 0, "t": 1.0, "step": 20, "bytes": 1000, "seconds": 0.1, "kept": [20]}
    factory.feed(run.attempts.get(), 0, encode(frame))
    return run


@pytest.fixture
def made(client: Client, source: Run) -> Run:
    answer = client.post(f"/runs/{source.pk}/generate", FORM)
    assert answer.status_code == 302, answer.content.decode()
    return Run.objects.latest("pk")


def tell(attempt: Attempt, first: int, tokens: bytes, done: bool = False, rank: int = 0) -> None:
    """Feeds one "generated" record of a rank with one text; `done` also ends the run."""
    seconds = [0.002] * (len(tokens) - (first == 0))
    header = {"kind": "generated", "rank": rank, "t": 1.0, "first": first, "tokens": [list(tokens)], "prefill": 0.01}
    factory.feed(attempt, rank, encode({**header, "seconds": seconds, "kv_bytes": 4096}))
    if done:
        factory.end(attempt.run, State.SUCCEEDED)


def test_it_is_queued_for_the_host_that_has_the_checkpoint(client: Client, source: Run, made: Run) -> None:
    assert f"/runs/{source.pk}/generate" in client.get(f"/runs/{source.pk}/").content.decode()
    assert (made.label, made.devices, made.state, made.name) == ("Generate, single", 1, "queued", "Generate: def")
    assert (made.resume_run_id, made.resume_step, made.task["prompt"]) == (source.pk, 20, list(b"def "))
    request = next(found for found in asking.requests(asking.queued_runs(turns.queue_order())) if found.run == made.pk)
    assert request.needs == ("yard-a",)
    attempt = states.place(made, source.attempts.get().devices, Worker.objects.get(name="yard-a"))
    message = start_message(attempt)
    assert message["task"] == made.task and message["resume"] == {"run": source.pk, "step": 20}


def test_one_that_was_queued_before_its_strategy_said_the_split_says_it_too(made: Run, source: Run) -> None:
    """The list showed "Generate" beside "Generate, TP 2"."""
    wide = Run.objects.get(pk=made.pk)
    wide.pk, wide.uid, wide.spec = None, "", made.spec | {"parallel": {"tp": 2, "dp": 3}}
    wide.save()
    Run.objects.filter(pk__in=(made.pk, wide.pk, source.pk)).update(label="Generate")
    import_module("dashboard.runs.migrations.0035_text_labels").fill(apps, None)
    said = [Run.objects.get(pk=run.pk).label for run in (made, wide, source)]
    assert said == ["Generate, single", "Generate, DP 3 x TP 2", "Generate"], "the last one trains"


def test_its_page_shows_the_text_as_it_grows(client: Client, made: Run) -> None:
    page = client.get(f"/runs/{made.pk}/").content.decode()
    assert '<span class="prompt">def </span></pre>' in page and "0 of 8 tokens" in page
    attempt = factory.start(made)
    tell(attempt, 0, b"sum")
    page = plain(client.get(f"/runs/{made.pk}/").content.decode())
    assert '<span class="prompt">def </span>sum</pre>' in page
    assert "3 of 8 tokens: the first after 10 ms, then 2 ms each (median), 500 tokens/s; 214 tokens/s overall." in page
    tell(attempt, 3, b"(xs):", done=True)
    tell(attempt, 3, b"(xs):")  # a repeated record changes nothing
    part = plain(client.get(f"/runs/{made.pk}/part/text").content.decode())
    assert '<span class="prompt">def </span>sum(xs):</pre>' in part and "4 KiB" in part
    page = plain(client.get(f"/runs/{made.pk}/").content.decode())
    assert "8 tokens: the first after 10 ms" in page and "Generate again…" in page
    assert "/clone" not in page and "Timeline" not in page
    ranks = client.get(f"/runs/{made.pk}/?tab=ranks").content.decode()
    assert ">Place</th>" in ranks and ">Phase</th>" not in ranks and "at step</th>" not in ranks, "it has no steps"
    for tab in ("ranks", "logs", "spec", "events", "timeline"):
        assert client.get(f"/runs/{made.pk}/?tab={tab}").status_code == 200
    assert client.get("/runs/").status_code == 200


def test_the_spread_of_its_tokens_is_that_of_the_api(client: Client, made: Run) -> None:
    seconds = [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.02]
    header = {"kind": "generated", "rank": 0, "t": 1.0, "first": 0, "tokens": [list(b"sum(xs):")], "prefill": 0.01}
    factory.feed(factory.start(made), 0, encode({**header, "seconds": seconds, "kv_bytes": 4096}))
    token = (measured(made) or {})["token"]
    assert (token["p10"], token["p90"]) == (pytest.approx(0.0016), pytest.approx(0.0116))
    assert "median; 80 % within 1.6 ms to 11.6 ms" in plain(client.get(f"/runs/{made.pk}/").content.decode())


def test_a_text_of_white_space_is_told_from_none(client: Client, source: Run) -> None:
    client.post(f"/runs/{source.pk}/generate", FORM | {"prompt": " \n "})
    run = Run.objects.latest("pk")
    tell(factory.start(run), 0, b"\n\n")
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert "2 of 8 tokens; the prompt is white space alone; what was generated is white space alone." in page


@pytest.mark.parametrize(
    ("made", "temperature", "said"),
    [
        (b" \n" * 4, "0", "white space alone: generate at a temperature such as 0.8, or from a model that was trained"),
        (b"eeeeeeee", "0.5", "one token, repeated: generate at a temperature above 0.5, or from a model that was"),
        (b"eeee", "0.5", ""),
        (b"eeeeeeel", "0", ""),
    ],
)
def test_a_text_that_says_nothing_has_a_sentence_on_what_to_try(
    client: Client, source: Run, made: bytes, temperature: str, said: str
) -> None:
    client.post(f"/runs/{source.pk}/generate", FORM | {"temperature": temperature})
    run = Run.objects.latest("pk")
    tell(factory.start(run), 0, made)
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert f"All that was generated is {said}" in page if said else "All that was generated" not in page


def test_replicas_share_the_texts_out(client: Client, source: Run) -> None:
    """Texts of both replicas are listed in order, as far as the slower one has come; their tokens/s are summed."""
    answer = client.post(f"/runs/{source.pk}/generate", FORM | {"samples": "2", "dp": "2"})
    assert answer.status_code == 302, answer.content.decode()
    run = Run.objects.latest("pk")
    assert (run.devices, run.spec["parallel"]["dp"], run.task["samples"]) == (2, 2, 2)
    attempt = factory.start(run)
    tell(attempt, 0, b"one", rank=1)
    assert "No token is there yet." in client.get(f"/runs/{run.pk}/").content.decode()
    tell(attempt, 0, b"zero(x)", rank=0)
    page = plain(client.get(f"/runs/{run.pk}/").content.decode())
    assert page.index('<span class="prompt">def </span>zero(x)</pre>') < page.index("</span>one</pre>")
    assert (
        "3 of 8 tokens in each of 2 texts" in page
        and "1 k tokens/s" in page
        and "at the median token (455 tokens/s overall), 2 at a time" in page
        and "over 2 replicas" in page
    )
    again = client.get(f"/runs/{source.pk}/generate?like={run.pk}").content.decode()
    assert re.search(r'name="dp" value="2"', again)


def test_pages_that_show_steps_bear_a_run_without_any(client: Client, made: Run) -> None:
    tell(factory.start(made), 0, b"sum(xs):", done=True)
    own = ("report/", "part/head", "part/tiles", "part/findings", "part/tab", "part/series-csv", "edit")
    for path in (*own, *(f"data/{name}.json" for name in ("gantt", "metrics", "points", "series", "spec", "log"))):
        assert client.get(f"/runs/{made.pk}/{path}").status_code == 200, path
    for path in (
        f"{reverse('studies:compare')}?runs={made.pk}",
        "/runs/?state=succeeded",
        "/runs/export.csv",
        "/fleet/",
    ):
        assert client.get(path, follow=True).status_code == 200, path


def test_the_form_says_that_no_worker_takes_it_now(client: Client, source: Run) -> None:
    def said() -> str:
        return str(client.post(f"/runs/{source.pk}/generate/check", FORM).context["panel"].waits)

    assert said() == ""
    Worker.objects.update(tasks=[], version="0.0.1")
    old = "Needs a newer worker: yard-a runs version 0.0.1, which does not announce that it can generate text."
    assert said() == old
    page = client.post(f"/runs/{source.pk}/generate/check", FORM).content.decode()
    assert f"It would wait.</strong> {old}" in page
    made = client.post(
        f"/api/v1/runs/{source.pk}/generate", {"prompt": "def ", "new": 8}, content_type="application/json"
    )
    assert (made.status_code, made.json()["data"]["waits_for"]) == (201, old), "it may be queued all the same"
    Worker.objects.update(draining=True)
    assert said() == "Too few such devices take runs now: yard-a is draining."


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": "def ", "ids": [1]}, "ids"),
        ({"ids": [256]}, "ids"),
        ({"prompt": "x" * 32}, "prompt"),
        ({}, "prompt"),
    ],
)
def test_the_api_blames_what_was_sent(client: Client, source: Run, body: dict[str, Any], field: str) -> None:
    answer = client.post(f"/api/v1/runs/{source.pk}/generate", body, content_type="application/json")
    assert (answer.status_code, list(answer.json()["error"]["fields"])) == (422, [field])


@pytest.mark.parametrize("body", [{}, {"prompt": "def "}])
def test_the_api_asks_for_numbers_where_a_model_takes_no_text(
    client: Client, source: Run, body: dict[str, Any]
) -> None:
    """Who sent nothing was to write a prompt, and who then did to send ids instead."""
    source.spec["model"]["vocab"] = 1000
    source.save()
    answer = client.post(f"/api/v1/runs/{source.pk}/generate", body, content_type="application/json")
    (said,) = answer.json()["error"]["fields"].items()
    field = "prompt" if body else "ids"
    assert answer.status_code == 422 and said[0] == field and ("as ids" in said[1]) is bool(body)


def test_a_worker_that_has_the_task_but_takes_no_runs_is_named_before_the_old_ones(source: Run, made: Run) -> None:
    """Its return is enough; a newer worker is needed only where none that is known could take the run."""
    factory.worker("yard-b")
    Worker.objects.filter(name="yard-b").update(tasks=[], version="0.0.1")
    old = "yard-b runs version 0.0.1, which does not announce that it can generate text."
    wrote = source.attempts.get()
    wrote.devices = [{**node, "shares": True} for node in wrote.devices]
    wrote.save()
    Worker.objects.update(shared_checkpoints=True)

    def said() -> str:
        made.refresh_from_db()
        return queue.waiting(made).sentence

    Worker.objects.filter(name="yard-a").update(draining=True)
    assert said() == f"Too few such devices take runs now: yard-a is draining. {old}"
    Worker.objects.filter(name="yard-a").update(draining=False, heartbeat_at=timezone.now() - timedelta(hours=1))
    assert said() == f"Too few such devices take runs now: yard-a is silent. {old}"
    Worker.objects.filter(name="yard-a").update(devices=[])
    assert said() == f"Needs a newer worker: {old}"


def test_again_is_filled_with_what_was_asked(client: Client, source: Run, made: Run) -> None:
    assert client.get(f"/runs/{made.pk}/clone").headers["Location"].endswith(f"generate?like={made.pk}")
    form = client.get(f"/runs/{source.pk}/generate?like={made.pk}").content.decode()
    assert ">\ndef </textarea>" in form and 'value="8"' in form
    assert client.get(f"/runs/{made.pk}/generate").status_code == 404, "this run has no checkpoint"


@pytest.mark.parametrize(("seq", "asked"), [(1024, "64"), (32, "16"), (1, "1")])
def test_what_it_asks_for_at_first_leaves_room_for_a_prompt(client: Client, source: Run, seq: int, asked: str) -> None:
    source.spec["model"]["seq"] = seq
    source.save()
    form = client.get(f"/runs/{source.pk}/generate").content.decode()
    field = re.search(r'<input[^>]*name="new"[^>]*>', form)
    assert field and f'value="{asked}"' in field[0]


def test_again_keeps_the_bytes_of_a_prompt_that_are_no_text(client: Client, source: Run) -> None:
    """Each became three: the form shows a mark for it, and sent the mark."""
    prompt = [*b"caf", 0xE9, 0, *b"\r\n", 0xFF]
    sent = {"ids": prompt, "new": 8}
    made = client.post(f"/api/v1/runs/{source.pk}/generate", sent, content_type="application/json").json()["data"]
    page = client.get(f"/runs/{source.pk}/generate?like={made['id']}")
    kept = "is kept as it was while nothing is changed here, else each becomes the 3 bytes of that character"
    assert kept in page.content.decode()
    form = page.context["form"]
    posted = {name: form[name].value() or "" for name in form.fields}
    posted["prompt"] = "caf\ufffd\ufffd\r\n\ufffd"  # as a browser has it
    assert "Yes." in client.post(f"/runs/{source.pk}/generate/check", posted).content.decode()
    client.post(f"/runs/{source.pk}/generate", posted)
    assert Run.objects.latest("pk").task["prompt"] == prompt
    client.post(f"/runs/{source.pk}/generate", {**posted, "prompt": "caf"})
    assert Run.objects.latest("pk").task["prompt"] == list(b"caf")


def test_a_cancelled_one_says_how_far_it_came(client: Client, made: Run) -> None:
    attempt = factory.start(made)
    tell(attempt, 0, b"su")
    factory.end(made, State.CANCELLED)
    assert "Cancelled after 2 of 8 tokens." in client.get(f"/runs/{made.pk}/").content.decode()


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("prompt", "", "The prompt is empty"),
        ("prompt", "a" * 4000, "tokens and the prompt has 4000; use at most"),
        ("new", "9999", "tokens and the prompt has 4; at most"),
        ("new", "many", "A whole number is needed; got 'many'."),
        ("samples", "65", "Must be at most 64; got 65."),
        ("temperature", "-1", "Must be at least 0; got -1."),
        ("tp", "3", "Tensor parallel = 3 does not divide"),
        ("tp", "4", "need 4 CPU devices on one host, because its checkpoints lie on one"),
        ("tp", "x", "A whole number of devices from 1 to"),
        ("pp", "x", "A whole number of stages from 1 to"),
        ("pp", "4", "need 4 CPU devices on one host, because its checkpoints lie on one"),
        ("pp", "99", "Pipeline stages = 99 is more than the model"),
        (
            "dp",
            "2",
            "each needs one; use Data parallel = 1, or more texts.",
        ),
        ("dp", "x", "A whole number of replicas from 1 to"),
        ("step", "21", "Checkpoint must be 20; got 21."),
    ],
)
def test_what_is_wrong_is_said_at_its_field(client: Client, source: Run, field: str, value: str, told: str) -> None:
    answer = client.post(f"/runs/{source.pk}/generate", {**FORM, field: value})
    assert answer.status_code == 422
    assert told in error_at(answer.content.decode(), field)
    assert Run.objects.count() == 1


def test_only_devices_where_the_checkpoint_is_count(client: Client, source: Run) -> None:
    """Two devices there, four elsewhere, of which each has room for a thousand times as much."""
    worker = factory.worker("yard-b", devices=4)
    for device in worker.devices:
        device["memory_total"] *= 1000
    worker.save()
    wide = {**FORM, "pp": "4"}
    assert client.post(f"/runs/{source.pk}/generate", wide).status_code == 422
    said = client.post(f"/runs/{source.pk}/generate/check", wide).content.decode()
    assert "the largest worker that has its files (yard-a) has 2." in said
    said = client.post(f"/runs/{source.pk}/generate/check", FORM).content.decode()
    assert "A device has 4 GiB less" in unmarked(said)


def test_it_goes_to_the_devices_that_were_chosen_for_it(client: Client, alice: Any, source: Run) -> None:
    """Of a worker with two types of them; the panel judges for the chosen ones, and so does the API."""
    worker = Worker.objects.get()
    old, new = worker.devices
    new["memory_total"] = old["memory_total"] // 2
    worker.devices = [{**old, "name": "old, core 0"}, {**new, "name": "new, core 1"}]
    worker.save()
    address = f"/runs/{source.pk}/generate"
    assert '<option value="type:new">new: 1 device of 1 worker</option>' in client.get(address).content.decode()
    rooms = [
        re.search(r"A device has ([^.]+)", client.post(f"{address}/check", {**FORM, "run_on": on}).content.decode())
        for on in ("type:old", "type:new")
    ]
    assert rooms[0] and rooms[1] and rooms[0][1] != rooms[1][1]
    for on, told in (
        ("type:new", "Of new the fleet has 1 CPU device for one run; 2 are needed."),
        ("worker:x", "no worker “x”"),
    ):
        refused = client.post(address, {**FORM, "pp": "2", "run_on": on})
        assert refused.status_code == 422 and told in error_at(refused.content.decode(), "run_on")
        assert told in html.unescape(
            client.post(f"{address}/check", {**FORM, "pp": "2", "run_on": on}).content.decode()
        )
    assert client.post(address, {**FORM, "priority": "high"}).status_code == 422
    assert client.post(address, {**FORM, "run_on": "type:new", "priority": "low"}).status_code == 302
    made = Run.objects.latest("pk")
    assert (made.run_on, made.priority_word) == ("type:new", "low priority")
    (request,) = asking.requests([made])
    ((_, (share,)),) = plan([request], hosts()).placed
    assert share.devices == (1,)
    assert '<option value="type:new" selected>' in client.get(f"{address}?like={made.pk}").content.decode()
    sent = {"prompt": "def ", "new": 5, "run_on": "type:new", "priority": "low"}
    headers = bearer(alice, Scope.SUBMIT)
    answer = client.post(f"/api/v1{address}", json.dumps(sent), content_type="application/json", headers=headers)
    assert answer.status_code == 201 and answer.json()["data"]["run_on"] == "type:new"
    assert answer.json()["data"]["priority"] == "low"
    for field, value in (("run_on", "worker:x"), ("run_on", "x"), ("priority", "high")):
        body = json.dumps({**sent, field: value})
        answer = client.post(f"/api/v1{address}", body, content_type="application/json", headers=headers)
        assert answer.status_code == 422 and set(answer.json()["error"]["fields"]) == {field}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("pp", "4", "Pipeline stages: 4 pipeline stages need 4 CPU devices on one host"),
        ("temperature", "-1", "Temperature: Must be at least 0; got -1."),
        ("new", "0", "Tokens to generate: Must be at least 1; got 0."),
    ],
)
def test_the_panel_says_no_to_what_would_be_refused_and_names_the_field(
    client: Client, source: Run, field: str, value: str, told: str
) -> None:
    said = client.post(f"/runs/{source.pk}/generate/check", {**FORM, field: value}).content.decode()
    assert "Not like this." in said and told in said and "Yes." not in said
    at_field = re.findall(r'id="error-(\w+)" hx-swap-oob="innerHTML">([^<]+)</p>', said)
    assert [name for name, _ in at_field] == [field]


def test_the_api_queues_and_shows_it(client: Client, alice: Any, source: Run) -> None:
    def post(body: Any) -> Any:
        path, headers = f"/api/v1/runs/{source.pk}/generate", bearer(alice, Scope.SUBMIT)
        return client.post(path, json.dumps(body), content_type="application/json", headers=headers)

    answer = post({"prompt": "def ", "new": 5, "temperature": 0.8, "top_k": 5})
    assert answer.status_code == 201, answer.content
    data = answer.json()["data"]
    assert data["task"]["new"] == 5 and data["generated"] is None
    run = Run.objects.get(pk=data["id"])
    tell(factory.start(run), 0, b"sum", done=True)
    found = client.get(f"/api/v1/runs/{run.pk}", headers=bearer(alice, Scope.READ)).json()["data"]
    assert found["generated"]["texts"] == ["def sum"]
    assert found["generated"]["kv_bytes"] == [4096]
    assert "The prompt is empty" in post({}).json()["error"]["fields"]["prompt"]
    assert "no checkpoint at step 3" in post({"prompt": "a", "step": 3}).json()["error"]["fields"]["step"]
    answer = post({"prompt": "a", "new": 5, "pp": 2})
    assert answer.status_code == 201, answer.content
    two = Run.objects.get(pk=answer.json()["data"]["id"])
    assert (two.devices, two.spec["parallel"]["pp"]) == (2, 2)
    again = client.get(f"/runs/{source.pk}/generate?like={two.pk}").content.decode()
    assert re.search(r'name="pp" value="2"', again) and re.search(r'name="tp" value="1"', again)
    assert "use at most" in post({"prompt": "a", "new": 5, "pp": 99}).json()["error"]["fields"]["pp"]


def test_memory_is_told_before_it_is_queued(client: Client, source: Run) -> None:
    """Weights, keys and values, and the activations of the current layer: more texts need more, two ranks share it."""
    page = client.get(f"/runs/{source.pk}/generate").content.decode()
    assert "Memory depends on the length of the prompt" in page and "hx-post" in page
    needs = [_needs(client, source, change) for change in ({}, {"samples": "8"}, {"samples": "8", "tp": "2"})]
    assert needs[0] < needs[1] and needs[2] < needs[1]


@pytest.mark.parametrize(("samples", "fewer"), [(1, "tokens"), (8, "texts")])
def test_what_helps_a_run_that_ran_out_of_memory_is_something_that_it_has(
    client: Client, source: Run, samples: int, fewer: str
) -> None:
    """Not recomputation, nor other micro-batches, which help a run that trains."""
    client.post(f"/runs/{source.pk}/generate", FORM | {"samples": str(samples)})
    run = Run.objects.latest("pk")
    factory.start(run)
    factory.end(run, State.FAILED, "Rank 0 ran out of memory.", "out_of_memory")
    said = f"Generate again with more tensor ranks or stages, or fewer {fewer}: rank 0 is predicted to need "
    assert fix(run).startswith(said) and fix(run) in plain(client.get(f"/runs/{run.pk}/").content.decode())


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("user_code", "Generate again once what the traceback names is mended"),
        (
            "killed_by_signal",
            "Generate again as it is: the signal came from outside; if it returns, see the kernel log.",
        ),
        ("worker_lost", "Generate again once its worker reports."),
        ("no_progress", "See the table of ranks below for the one that stood still, then generate again."),
    ],
)
def test_what_helps_is_the_button_that_its_page_has(client: Client, made: Run, cause: str, said: str) -> None:
    """It has none to clone it, and its form asks for no retries."""
    factory.start(made)
    factory.end(made, State.FAILED, "Rank 0 ended.", cause)
    page = client.get(f"/runs/{made.pk}/").content.decode()
    assert fix(made).startswith(said) and 'id="again">Generate again…' in page and 'id="clone"' not in page


def _needs(client: Client, source: Run, change: dict[str, str]) -> float:
    told = unmarked(client.post(f"/runs/{source.pk}/generate/check", FORM | change).content.decode())
    for word in ("weights", "keys and values", "layer at work"):
        assert word in told
    found = re.search(r"Needs ([\d.]+) ([KM])iB on rank 0", told)
    assert found, told
    return float(found[1]) * {"K": 1, "M": 1024}[found[2]]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"new": "9999"}, "Tokens to generate: the model&#x27;s sequence"), ({"tp": "x"}, "A whole number of devices")],
)
def test_the_panel_says_what_is_wrong(client: Client, source: Run, change: dict[str, str], said: str) -> None:
    assert said in client.post(f"/runs/{source.pk}/generate/check", FORM | change).content.decode()
    assert not Run.objects.exclude(pk=source.pk).exists()


def test_its_page_settles_the_prediction(client: Client, made: Run) -> None:
    assert "Memory of a rank" in client.get(f"/runs/{made.pk}/").content.decode()
    attempt = factory.start(made)
    peak = {"params": 3 * 2**20, "grads": 0, "optimizer": 0, "activations": 2**20, "buffers": 0}
    header = {"kind": "memory", "rank": 0, "t": 1.0, "step": 0, "peak": peak, "peak_total": 4 * 2**20}
    factory.feed(attempt, 0, encode({**header, "rss_delta": 0, "final": peak}))
    page = plain(client.get(f"/runs/{made.pk}/").content.decode())
    assert "4 MiB" in page and re.search(r"measured; [\d.]+ [KM]iB predicted, [+−]\d[\d.]* % off", page)
