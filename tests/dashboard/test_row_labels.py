"""Labels of rows: no two runs of a chart are mistaken for each other, however long their names are."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
from django.test import Client

from dashboard.charts import gantt, tradeoff, waterfall
from dashboard.charts.chart import MAX_TICK, WHOLE_TICK, Entry, cut, ticks
from dashboard.runs.models import Run
from dashboard.studies.overview.labels import readable
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Stats
from parallel_core.observe.records import SPAN
from tests.dashboard import factory

LONG = "Single x4 micro-batches + AR"


def test_a_long_label_keeps_the_end_in_which_it_differs() -> None:
    names = [f"PP-1F1B asynchronous, no stash, {tail}" for tail in ("m = 4, bf16", "m = 8, bf16")]
    made = ticks([Entry(name) for name in names])
    assert made == ["PP-1F1B asynch…, m = 4, bf16", "PP-1F1B asynch…, m = 8, bf16"]
    assert all(len(text) <= MAX_TICK for text in made)


def test_labels_that_would_be_cut_to_the_same_are_whole() -> None:
    one, other = (f"PP-1F1B asynchronous, {middle} stashes, m = 4, fp32" for middle in ("few", "many"))
    short = Entry("DP <2>", baseline=True)
    assert ticks([Entry(one), Entry(other), short]) == [one, other, "<b>DP &lt;2&gt;</b>"]


def test_a_label_is_cut_only_where_that_saves_more_than_a_few_characters() -> None:
    whole = f"{LONG}, m2"
    assert len(whole) == WHOLE_TICK > MAX_TICK and ticks([Entry(whole)]) == [whole]
    (short,) = ticks([Entry(f"{whole}4")])
    assert len(short) == MAX_TICK and "…" in short


def test_a_name_without_an_end_leaves_room_for_what_is_drawn() -> None:
    """A name has up to 120 characters, and bars begin where the longest label ends."""
    name, spans = "x" * 120, {0: np.ones(1, SPAN)}
    drawn = gantt.figure_of([(name, spans), ("y", spans)])
    stairs = waterfall.chart(Breakdown(compute=2), Breakdown(compute=1), (name, "y"), "measured").figure
    result = Result(name, Stats(0.06, 0.06, 0.06, 0.06, 9), memory={"params": 9})
    dots = tradeoff.chart([Entry(name, result=result)], "measured").figure["data"][-1]
    [wide], [narrow] = dots["text"], dots["meta"]["narrow"]["text"]
    assert len(wide) == len(narrow) == MAX_TICK and dots["customdata"] == [name]
    for figure in (drawn, stairs):
        labels = figure["layout"]["yaxis"]["ticktext"]
        assert any("xx…xx" in label for label in labels)
        assert max(map(len, labels)) <= MAX_TICK + len("<b></b><br>rank 0")


WORD = "experiment_2026-11-30_gpt_mini_lr3e-4_warmup200_cosine_decay_batch16_seed7_number_"


def test_a_sentence_leaves_out_the_middle_of_a_word_that_fills_a_line(client: Client, alice: Any) -> None:
    """A verdict with three such names was seven lines; a table and the CSV have them whole."""
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    named = (f"{WORD}07", f"With short words, and {WORD}08")
    for run, name in zip(study.runs.all(), named, strict=True):
        Run.objects.filter(pk=run.pk).update(name=name)
    client.force_login(alice)
    page = client.get(f"/studies/{study.pk}/")
    verdict, names = page.context["view"].verdict, [row.entry.label for row in page.context["view"].rows]
    assert sorted(names) == [f"With short words, and {cut(WORD + '08')}", cut(WORD + "07")]
    assert verdict[0].startswith(names[0]) and WORD not in "".join(verdict)
    html = page.content.decode()
    assert f">{WORD}07</a>" in html
    assert f">{WORD}07</a>" in client.get(f"/studies/{study.pk}/report/").content.decode(), "it is read without a page"
    for key in ("speedup", "breakdown", "memory", "loss"):
        assert sorted(row[0] for row in page.context["charts"][key].rows) == sorted(named), key
    table = csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines())
    assert sorted(row["label"] for row in table) == sorted(named)


def test_names_that_would_be_one_stay_whole() -> None:
    alike = {1: f"{WORD}a_{'x' * 20}", 2: f"{WORD}b_{'x' * 20}", 3: f"{WORD}c"}
    assert readable(alike) == {1: alike[1], 2: alike[2], 3: cut(alike[3])}
