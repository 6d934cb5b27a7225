"""One real yard and one headless Chromium for all browser tests; every test gets a new browser context whose errors are
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests import chromium
from tests.browser.observed_page import HOSTILE, LIVE_MS, WIDE, Troubles, sign_in
from tests.yard_process import YardProcess, tiny, wait_for

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DONE_S = 240.0


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The system's Chromium. The scope is this package only: Playwright's event loop would get in the way of the ORM in
    other tests.
    """
    path = chromium.found()
    if path is None:
        pytest.skip(f"missing: none of {', '.join(chromium.NAMES)} on the PATH")
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield one
        one.close()


@pytest.fixture(scope="package")
def yard(browser: Browser) -> Iterator[YardProcess]:
    subject = YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CPU_DEVICES="2")
    try:
        yield subject.up()
    finally:
        subject.close()


@pytest.fixture(scope="package")
def client(yard: YardProcess) -> Iterator[httpx.Client]:
    """The API, signed in as the admin; ready once a worker is online."""
    with yard.client() as client:
        wait_for("an online worker", lambda: any(not w["silent"] for w in client.get("/api/v1/workers").json()["data"]))
        yield client


@pytest.fixture(scope="package")
def session(browser: Browser, yard: YardProcess) -> Any:
    """Cookies of a signed-in user."""
    with browser.new_context(base_url=yard.url) as context:
        page = context.new_page()
        page.goto("/accounts/login/")
        sign_in(page, "admin", yard.password)
        page.wait_for_url("**/studies/")
        return context.storage_state()


@pytest.fixture
def troubles() -> Iterator[Troubles]:
    """Everything the browser complained about during the test; the test fails if any of it was not expected."""
    troubles = Troubles()
    yield troubles
    assert not troubles.unexpected


@pytest.fixture
def window(browser: Browser, yard: YardProcess, troubles: Troubles) -> Iterator[Callable[..., Page]]:
    """Opens recorded browser windows: `window(storage_state=..., viewport=..., color_scheme=...)`."""
    opened: list[BrowserContext] = []

    def open_one(**options: Any) -> Page:
        context = browser.new_context(base_url=yard.url, **{"viewport": WIDE, "reduced_motion": "reduce", **options})
        context.set_default_timeout(LIVE_MS)
        opened.append(context)
        page = context.new_page()
        troubles.watch(page)
        return page

    expect.set_options(timeout=LIVE_MS)
    yield open_one
    for context in opened:
        context.close()


@pytest.fixture
def page(window: Callable[..., Page], session: Any, client: httpx.Client) -> Page:
    """A signed-in window, 1 440 px wide, on a yard whose worker is online."""
    return window(storage_state=session)


@pytest.fixture
def cancel_after(client: httpx.Client) -> Iterator[Callable[[int], int]]:
    """Remembers a run, returns it, and cancels it when the test has ended, whatever happened in it: one that goes on
    would hold the devices that all later tests need.
    """
    runs: list[int] = []

    def remember(run: int) -> int:
        runs.append(run)
        return run

    yield remember
    for run in reversed(runs):  # those that wait first, or they would start
        client.post(f"/api/v1/runs/{run}/cancel")


@pytest.fixture(scope="package")
def stocked(yard: YardProcess, client: httpx.Client) -> dict[str, Any]:
    """Ended runs and an ended study, with names that are HTML: {single, dp, hostile, failed: run ids, study, runs}."""
    single = yard.submit(client, tiny(micro_batches=2), name="Small single", tags=["alpha"])
    dp = yard.submit(client, tiny(dp=2), name="Small DP", tags=["alpha", "pair"])
    hostile = yard.submit(client, tiny(), name=HOSTILE, tags=["<b>tag</b>"])
    capped = {**tiny(), "trace": {"memory_cap": 10_000}}
    failed = yard.submit(client, capped, name="Too large", anyway=True)
    study, runs = yard.query(MAKE_STUDY.format(name=HOSTILE))
    for run in (single, dp, hostile, *runs):
        yard.wait_state(client, run, "succeeded", limit=DONE_S)
    yard.wait_state(client, failed, "failed", limit=DONE_S)
    return {"single": single, "dp": dp, "hostile": hostile, "failed": failed, "study": study, "runs": runs}


MAKE_STUDY = """(lambda made: [made.pk, list(made.runs.values_list("pk", flat=True))])(
    __import__("dashboard.studies.services", fromlist=["create_matrix"]).create_matrix(
        owner=__import__("django.contrib.auth", fromlist=["x"]).get_user_model().objects.get(username="admin"),
        name={name!r}, timed_steps=10,
        axes=__import__("dashboard.studies.new.axes", fromlist=["Axes"]).Axes(
            ["single", "dp"], recompute=["none"], micro_batches=[2]),
        base=dict(model=dict(layers=2, hidden=32, heads=2, seq=32), train=dict(global_batch=8))))"""
