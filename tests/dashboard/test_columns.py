"""The table of all numbers on a study's page and in Compare: its order, its columns, and the names of its rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.studies.overview import columns, few_rows, figures
from dashboard.studies.overview.names import in_order, shortened
from dashboard.studies.selectors import overview
from tests.dashboard import factory
from tests.dashboard.test_by_loss import told

STEPS = (0.3, 0.1, 0.2)


@pytest.fixture
def study(alice: Any, redis_url: str) -> Study:
    """Three runs done, the first as the baseline, and one that is queued between them in the alphabet."""
    made = Study.objects.create(name="Ways", owner=alice)
    for i, seconds in enumerate(STEPS):
        told(factory.finished(alice, study=made, position=i, name=f"way {10 * i}"), seconds)
    factory.queued(alice, study=made, position=9, name="way 9")
    return made


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row" class="name"><a [^>]*>(.*?)</a>', page)


def headings(page: str) -> dict[str, tuple[str, str]]:
    """By title: its aria-sort, and the order that a click asks for."""
    found = re.findall(r'aria-sort="(\w+)"><a class="sort" id="sort-\w+" href="(.*?)"[^>]*>(.*?)</a>', page)
    return {title: (aria, href) for aria, href, title in found}


def test_a_heading_sorts_and_what_has_no_number_is_last(reader: Client, study: Study) -> None:
    address = f"/studies/{study.pk}/"
    plain = reader.get(f"{address}?target=2").content.decode()
    assert names(plain) == ["way 10", "way 20", "way 0", "way 9"], "fastest first"
    assert set(headings(plain).values()) >= {("none", "?target=2&amp;sort=step#numbers")}
    assert headings(plain)["Speedup"] == ("none", "?target=2&amp;sort=-speedup#numbers"), "the greatest are best"
    up = reader.get(f"{address}?sort=step").content.decode()
    assert names(up) == ["way 10", "way 20", "way 0", "way 9"]
    assert headings(up)["Step"] == ("ascending", "?sort=-step#numbers")
    down = reader.get(f"{address}?sort=-step").content.decode()
    assert names(down) == ["way 0", "way 20", "way 10", "way 9"]
    assert headings(down)["Step"][0] == "descending" and "sort" not in headings(down)["Step"][1]
    assert down.count('aria-sort="descending"') == 1
    assert names(reader.get(f"{address}?sort=run").content.decode()) == ["way 0", "way 9", "way 10", "way 20"]
    assert names(reader.get(f"{address}?sort=state").content.decode())[0] == "way 9", "queued before succeeded"
    assert names(reader.get(f"{address}?sort=nothing").content.decode()) == names(plain)


def test_a_run_that_failed_is_not_the_fastest(reader: Client, study: Study) -> None:
    quick = factory.finished(study.owner, study=study, position=8, name="way 8")
    told(quick, 0.01)
    Run.objects.filter(pk=quick.pk).update(state="failed", cause="user_code", detail="It broke.")
    address = f"/studies/{study.pk}/"
    assert names(reader.get(f"{address}?sort=step").content.decode()) == ["way 10", "way 20", "way 0", "way 8", "way 9"]
    assert names(reader.get(f"{address}?sort=-step").content.decode())[:1] == ["way 0"]


def test_compare_and_live_updates_have_the_order_of_the_address(reader: Client, study: Study) -> None:
    runs = ",".join(str(run.pk) for run in study.runs.order_by("pk"))
    page = reader.get(f"/compare/?runs={runs}&sort=-step").content.decode()
    assert names(page) == ["way 0", "way 20", "way 10", "way 9"] and 'id="numbers"' in page
    assert f"?runs={runs.replace(',', '%2C')}#numbers" in headings(page)["Step"][1]
    for address in (f"/studies/{study.pk}/changes.json?sort=-step", f"/compare/changes.json?runs={runs}&sort=-step"):
        told_now = reader.get(address).json()
        assert names("".join(told_now["texts"][key] for key in told_now["parts"]["table"])) == names(page), address


def test_of_many_runs_the_first_of_the_order_are_shown(reader: Client, alice: Any, redis_url: str) -> None:
    many = Study.objects.create(name="Many", owner=alice)
    made = [factory.queued(alice, study=many, position=i, name=f"run {i}.") for i in range(few_rows.MOST + 2)]
    for i, run in enumerate(made):
        Run.objects.filter(pk=run.pk).update(loss=i / 10, step=3)
    shown = names(reader.get(f"/studies/{many.pk}/?sort=-loss").content.decode())
    last = [f"run {i}." for i in range(len(made) - 1, len(made) - 1 - few_rows.FIRST, -1)]
    assert shown == [*last, "run 0."], "and the baseline"
    every = names(reader.get(f"/studies/{many.pk}/?sort=-loss&rows=all").content.decode())
    assert every == [f"run {i}." for i in range(len(made) - 1, -1, -1)]


def test_an_empty_column_is_left_out(reader: Client, study: Study) -> None:
    view = overview(study.runs.all())
    assert {"ideal", "step", "memory"} <= {column.key for column in columns.with_values(view.rows)}
    for i, run in enumerate(study.runs.order_by("pk")):
        summary = {key: value for key, value in run.summary.items() if key != "memory"}
        Run.objects.filter(pk=run.pk).update(spec=factory.spec_of({}, global_batch=8 << i), summary=summary)
    page = reader.get(f"/studies/{study.pk}/").content.decode()
    shown = headings(page)
    assert "Step" in shown and not {"Of ideal", "Memory"} & shown.keys()
    assert {row.count("<td") for row in re.findall(r"<tr data-run.*?</tr>", page, re.S)} == {len(shown) - 1}


def test_every_column_has_its_cell_in_the_same_order() -> None:
    template = (settings.BASE_DIR / "templates/studies/parts/table.html").read_text()
    assert re.findall(r"{% if shown\.(\w+) %}<td", template) == [column.key for column in columns.COLUMNS]


def test_the_fields_of_a_sweep_are_said_once(reader: Client, alice: Any, redis_url: str) -> None:
    made = Study.objects.create(name="Rates", owner=alice, kind="sweep", base=factory.BASE)
    for i, rate in enumerate(("5e-4", "1e-2", "2e-3")):
        factory.queued(alice, study=made, position=i, name=f"Learning rate = {rate}, Global batch = 16")
    factory.queued(alice, study=made, position=8, name="Another")
    page = reader.get(f"/studies/{made.pk}/?sort=run").content.decode()
    assert [re.sub("<.*?>", "", name) for name in names(page)] == ["5e-4, 16", "2e-3, 16", "1e-2, 16", "Another"]
    assert page.count('title="Learning rate = 5e-4, Global batch = 16"') == 1
    assert page.count('<span class="small sub">Learning rate, Global batch</span>') == 1


def test_charts_say_the_fields_of_a_sweep_once(alice: Any, redis_url: str) -> None:
    made = Study.objects.create(name="Rates", owner=alice, kind="sweep", base=factory.BASE)
    for i, rate in enumerate(("5e-4", "1e-2", "2e-3")):
        factory.finished(alice, study=made, position=i, name=f"Learning rate = {rate}")
    view = overview(made.runs.all())
    charts = figures.of_overview(view)
    for key, chart in charts.items():
        assert chart.columns[0] == "run: Learning rate", key
        assert sorted(row[0] for row in chart.rows) == ["1e-2", "2e-3", "5e-4"], key
        assert chart.subtitle.endswith(f"; {'names' if key == 'tradeoff' else 'rows'}: Learning rate"), key
        assert "Learning rate" not in str(chart.figure["layout"]), key
    assert charts["speedup"].figure["layout"]["yaxis"]["ticktext"] == ["<b>5e-4</b>", "1e-2", "2e-3"]
    assert all(row.entry.label.startswith("Learning rate = ") for row in view.rows), "sentences name it whole"


def test_short_names() -> None:
    assert shortened(["a = 1", "a = 2"]).names == {}, "two names are read at once"
    some = shortened(["a = 1", "a = 2, 3", "a = none", "b = 1", "c", "x = 1, a = 4"])
    assert some.fields == "a" and some.names == {"a = 1": "1", "a = 2, 3": "2, 3", "a = none": "none"}
    assert shortened(["PP, m = 1", "PP, m = 2", "PP, m = 4"]).names == {}, "a strategy is no field"
    ordered = ["1e-4, 8", "5e-4, 8", "0.002, 4", "0.002, 16", "m9", "m10"]
    assert sorted([*ordered[3:], *ordered[:3]], key=in_order) == ordered
