"""Labels of rows: no two runs of a chart are mistaken for each other, however long their names are."""

from __future__ import annotations

import numpy as np

from dashboard.charts import gantt, tradeoff, waterfall
from dashboard.charts.chart import MAX_TICK, WHOLE_TICK, Entry, ticks
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Stats
from parallel_core.observe.records import SPAN

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
    (cut,) = ticks([Entry(f"{whole}4")])
    assert len(cut) == MAX_TICK and "…" in cut


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
