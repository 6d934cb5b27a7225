"""The Inference page: its sentences follow from the numbers, and bad values are reported at their fields."""

from __future__ import annotations

import re

from django.test import Client

from parallel_core.analysis.quantities import percent_text, seconds_text

PAGE = "/planner/inference/"


def test_the_best_way_within_the_limit(reader: Client) -> None:
    page = reader.get(PAGE)
    made, best = page.context["form"].served, page.context["form"].served.best()
    after_prefill = made.replicas[best] * made.batch[best] / made.token[best]
    assert made.throughput[best] < 0.5 * after_prefill, "so the sentence has to say what its rate counts"
    first = page.context["verdict"][0]
    assert " tokens a second, prefill included, at " in first
    most = first.partition(" tokens")[0]
    assert page.context["chart"].title.endswith(f" {most} tokens a second at the most."), "one rate, written once"
    assert "with its prefill" in page.context["chart"].subtitle
    assert any(row.chosen for row in page.context["rows"])
    quick = reader.get(PAGE, {"limit": 9}).context["rows"]
    assert next(row for row in quick if row.chosen) != next(row for row in page.context["rows"] if row.chosen)
    assert page.context["chart"].figure["data"][1]["cliponaxis"] is False, (
        "dots at few tokens a second would be cut in half"
    )
    (_, told, _), *_ = page.context["chart"].rows
    first, unit, *_ = page.context["chart"].title.split()
    assert (float(told.split()[0]), told.split()[1]) == (float(first), unit), "the quickest comes first in the table"
    assert "No way is that quick" in reader.get(PAGE, {"limit": "0.01"}).content.decode()


def test_a_way_that_answers_sooner_and_is_nearly_as_fast_is_named(reader: Client) -> None:
    """The last 3 % of the rate take 1.8 times as long for a token."""
    page = reader.get(PAGE)
    made, best = page.context["form"].served, page.context["form"].served.best()
    quick = {i: made.token[i] for i in range(len(made.token)) if made.fits[i]}
    near = min((i for i in quick if made.throughput[i] >= 0.95 * made.throughput[best]), key=lambda i: quick[i])
    assert made.token[near] < 0.6 * made.token[best]
    share, token = made.throughput[near] / made.throughput[best], seconds_text(made.token[near])
    said = f"{percent_text(share)} of that rate comes at {token} a token: {made.label(near)}."
    assert page.context["verdict"][1] == said
    limited = reader.get(PAGE, {"limit": "25"})
    assert "of that rate" not in limited.content.decode(), "of those within the limit none is much sooner"


def test_numbers_of_a_column_have_equally_many_digits(reader: Client) -> None:
    """A row of 8.6 ms among 8.56 ms and 8.68 ms looked less exact."""
    rows = reader.get(PAGE).context["rows"]
    assert len(rows) > 5
    cells = [cell for row in rows for cell in (row.prefill, row.token, row.latency, row.throughput)]
    assert [cell for cell in cells if len(re.findall(r"\d", cell)) != 3] == []


def test_a_rate_below_one_token_a_second_is_no_zero(reader: Client) -> None:
    """100 000 tokens of a prompt take 10 s a sequence and more, and one token follows."""
    page = reader.get(PAGE, {"model": "llama-405b", "devices": "16", "prompt": "100000", "output": "1"})
    rate = float(page.context["verdict"][0].split()[0])
    made, best = page.context["form"].served, page.context["form"].served.best()
    assert 0 < rate < 0.5 and abs(rate / made.throughput[best] - 1) < 0.01
    assert all(0 < float(row.throughput) < 0.5 for row in page.context["rows"])


def test_what_does_not_fit_says_so(reader: Client) -> None:
    page = reader.get(PAGE, {"devices": 1})
    assert page.context["verdict"][0].startswith("0 ways fit: the weights alone take")
    assert page.context["chart"] is None


def test_where_the_weights_fit_and_the_cache_does_not_both_are_said(reader: Client) -> None:
    page = reader.get(PAGE, {"devices": 2, "prompt": 1 << 20})
    said = page.context["verdict"][0]
    found = re.fullmatch(r"0 ways fit: weights and cache take at least (\d+) GiB of (\d+) GiB a device\.", said)
    assert found is not None and int(found[1]) > int(found[2])
    assert page.context["form"].served.weights.min() < page.context["form"].served.cluster.capacity


def test_bad_values_are_told_at_their_fields(reader: Client) -> None:
    for field in ("prompt", "network"):
        page = reader.get(PAGE, {field: 0}, headers={"HX-Request": "true"})
        text = page.content.decode()
        assert "cannot be planned" in text and "<html" not in text
        assert set(page.context["form"].errors) == {field}


def test_what_is_wrong_is_said_at_the_fields_that_the_page_has(reader: Client) -> None:
    whole = reader.get(PAGE, {"devices": 0}).content.decode()
    part = reader.get(PAGE, {"devices": "0", "batch": "x"}, headers={"HX-Request": "true"}).content.decode()
    said = re.findall(r'id="(error-\w+)" hx-swap-oob', part)
    assert said and all(f'id="{name}"' in whole for name in said)
