"""First paint and zoom of long steps in headless Chromium, against a real yard: a run's page and an imported trace.

The first paint is the time from the start of the navigation, including the server's work, until the bins of the
timeline are on the page; "with axes" is when the chart library has loaded and drawn them; a zoom takes from the change
of the axis to the end of the redraw. "Of all" marks a step that the server has never read before. Measuring begins
after the yard's worker and the browser have settled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product

from django.contrib.auth import get_user_model
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from dashboard.runs.models import SpanChunk
from dashboard.traces.models import Trace, TraceSpans, TraceState
from parallel_core.bench.analysis import made
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec
from tests import chromium
from tests.bench.numbers import Number, signed_in
from tests.browser.conftest import FLAGS
from tests.browser.observed_page import WIDE, sign_in
from tests.dashboard import factory
from tests.yard_process import YardProcess

COPIES = 3
"""Copies of each page, so that there are several first paints "of all"."""
COUNTS = {100_000: (1.0, 0.3), 1_000_000: (None, None)}
"""Spans in a step: the goals in seconds of its first paint and of a zoom; None: no goal, it only has to remain
usable.
"""
SPLIT = {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 4}
VIEWS = ((0.2, 0.6), (0.3, 0.4), (0.30, 0.319), (0.30, 0.31), (0.300, 0.3005), (0.0, 1.0))
"""Ranges of the axis that are zoomed to, one after the other; with 100 000 spans, the third shows nearly MAX_BARS
bars.
"""
STEP = 10
REST_MS = 2000
"""Wait after the sign-in, for work that a browser does once after its start."""
SEED = """
import json, django; django.setup()
from tests.bench.timeline import seed
print(json.dumps([seed({count}) for _ in range({copies})]))
"""
LISTEN = """document.addEventListener("chartdrawn", (event) => {
  if (event.target.dataset.chart === "gantt") (window.drawn ??= []).push(performance.now());
});"""
ZOOM = """([low, high]) => {
  const box = document.querySelector(".chart[data-chart='gantt'] .chart-box");
  window.full ??= box.layout.xaxis.range[1];
  const state = [performance.now(), window.drawn.length];
  window.Plotly.relayout(box, {"xaxis.range": [low * window.full, high * window.full]});
  return state;
}"""
PICTURE = "performance.getEntriesByName('picture')[0].startTime"
DRAWN = """(before) => new Promise((resolve) => {
  const look = () => (window.drawn?.length > before ? resolve(window.drawn[before]) : setTimeout(look, 5));
  look();
})"""


def seed(count: int) -> dict[str, str]:
    """Creates a run and an imported trace with a step of `count` spans on 8 ranks; returns their addresses."""
    owner = get_user_model().objects.filter(is_superuser=True).earliest("pk")
    run = factory.finished(owner, SPLIT)
    spans = made(Layout.of(RunSpec.model_validate(run.spec)), count)
    trace = Trace.objects.create(name=f"{count} spans", owner=owner, state=TraceState.READY)
    trace.ranks = {
        str(rank): {"file": f"{rank}.json", "device": "cuda", "raw": len(rows), "top": [], "steps": {STEP: len(rows)}}
        for rank, rows in spans.items()
    }
    trace.save()
    SpanChunk.objects.filter(attempt__run=run).exclude(step=STEP).delete()
    for rank, rows in spans.items():
        own = rows.copy()
        own["start"] *= 1000
        own["end"] *= 1000
        same = {"count": len(own), "data": own.tobytes()}
        SpanChunk.objects.filter(attempt__run=run, step=STEP, rank=rank).update(**same, total=len(own))
        TraceSpans.objects.create(trace=trace, rank=rank, step=STEP, **same)
    return {"a run": f"/runs/{run.pk}/", "a trace": f"/traces/{trace.pk}/"}


def seeded(yard: YardProcess, count: int, copies: int = 1) -> list[dict[str, str]]:
    """Calls `seed` in the yard `copies` times and returns the results."""
    done = yard.shell(SEED.format(count=count, copies=copies))
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def measure(rounds: int) -> Iterator[Number]:
    """First paint, repeated paint and zoom of both pages for every count."""
    yard = YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CPU_DEVICES="2")
    try:
        yard.up()
        with signed_in(yard), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium.found(), args=FLAGS)
            for count in COUNTS:
                copies = seeded(yard, count, COPIES)
                for name in copies[0]:
                    addresses = [copy[name] for copy in copies]
                    yield from _of_pages(browser, yard, f"{count:,} spans: {name}", addresses, count, rounds)
            browser.close()
    finally:
        yard.close()


def _of_pages(
    browser: Browser, yard: YardProcess, name: str, addresses: Sequence[str], count: int, rounds: int
) -> Iterator[Number]:
    paint, zoom = COUNTS[count]
    of_all, again, with_axes, zooms = (list[float]() for _ in range(4))
    with _signed_in(browser, yard) as context:
        for address, visit in product(addresses, range(max(2, rounds))):
            page = context.new_page()
            page.add_init_script(LISTEN)
            page.goto(yard.url + address)
            with_axes.append(page.evaluate(DRAWN, 0) / 1e3)
            (again if visit else of_all).append(page.evaluate(PICTURE) / 1e3)
            zooms += [_zoomed(page, view) for view in VIEWS]
            page.close()
    yield Number(f"{name}, the first paint of all", paint, of_all, "p95")
    yield Number(f"{name}, first paint", paint, again, "p95")
    yield Number(f"{name}, with axes", None, with_axes)
    yield Number(f"{name}, zoom", zoom, zooms, "p95")


def _zoomed(page: Page, view: tuple[float, float]) -> float:
    began, before = page.evaluate(ZOOM, view)
    return float(page.evaluate(DRAWN, before) - began) / 1e3


def _signed_in(browser: Browser, yard: YardProcess) -> BrowserContext:
    context = browser.new_context(base_url=yard.url, viewport=WIDE)
    page = context.new_page()
    page.goto("/accounts/login/")
    sign_in(page, "admin", yard.password)
    page.wait_for_url("**/studies/")
    page.wait_for_timeout(REST_MS)
    page.close()
    return context
