"""Static files are sent compressed, and only once: their address changes with their content, so browsers may cache
them.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from asyncio import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.loader import render_to_string
from django.test import Client, RequestFactory, override_settings
from django.urls import reverse
from django.utils.module_loading import import_string
from plotly.offline import get_plotlyjs_version

from dashboard.accounts.middleware import CompressedPagesMiddleware
from dashboard.static_middleware import StaticMiddleware
from dashboard.static_version import static_version
from dashboard.studies.models import Study
from dashboard.yard.prepare import STATIC_STAMP, collect_static
from tests.dashboard import factory

PLOTLY = f"plotly-cartesian-{get_plotlyjs_version()}.min.js"
"""The bundle of exactly the version that the plotly package generates figures for."""
PACKED = {"accept-encoding": "gzip"}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Static files as collected at a start."""
    root = tmp_path_factory.mktemp("static")
    with override_settings(STATIC_ROOT=root):
        collect_static()
    return root


def answer(root: Path, name: str) -> Any:
    request = RequestFactory().get(settings.STATIC_URL + name, headers=PACKED)
    with override_settings(STATIC_ROOT=root):
        return StaticMiddleware(lambda _: None, settings)(request)


@pytest.mark.parametrize("name", [f"vendor/{PLOTLY}", "css/trainyard.css", "js/charts.js"])
def test_a_file_is_sent_compressed_and_may_be_kept(name: str, collected: Path) -> None:
    response = answer(collected, name)
    assert response.headers["Content-Encoding"] == "gzip"
    assert "immutable" in response.headers["Cache-Control"]
    source = Path(settings.BASE_DIR, "dashboard/static", name)
    assert gzip.decompress(b"".join(response)) == source.read_bytes()


def test_the_address_changes_with_a_byte_and_with_a_name(tmp_path: Path) -> None:
    file = tmp_path / "a.js"
    file.write_text("one")
    first = static_version(tmp_path)
    assert static_version(tmp_path) == first
    file.write_text("two")
    second = static_version(tmp_path)
    file.rename(tmp_path / "b.js")
    assert len({first, second, static_version(tmp_path)}) == 3


def test_a_page_names_its_files_by_their_version(client: Client) -> None:
    page = client.get(reverse("accounts:login")).content.decode()
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert files and all(file.startswith(f"/static/{static_version()}/") for file in files)


def test_files_of_another_version_are_replaced_even_where_they_are_newer(tmp_path: Path) -> None:
    stale = tmp_path / "css" / "trainyard.css"
    stale.parent.mkdir()
    stale.write_text("/* of yesterday's version, collected today */")
    (tmp_path / STATIC_STAMP).write_text("/static/older/")
    with override_settings(STATIC_ROOT=tmp_path):
        collect_static()
    assert "of yesterday" not in stale.read_text()
    made = stale.stat().st_mtime_ns
    with override_settings(STATIC_ROOT=tmp_path):
        collect_static()
    assert stale.stat().st_mtime_ns == made  # nothing to do


@pytest.mark.django_db
def test_a_page_is_sent_compressed_and_a_stream_is_not(admin_client: Client) -> None:
    page = admin_client.get("/runs/new/", headers=PACKED)
    assert page.headers["Content-Encoding"] == "gzip"
    assert b"<h1" in gzip.decompress(page.content)
    stream = CompressedPagesMiddleware(lambda _: StreamingHttpResponse(["event: hello\n\n"] * 99))
    request = RequestFactory().get("/live/stream", headers=PACKED)
    answered = stream(request)
    assert isinstance(answered, StreamingHttpResponse) and "Content-Encoding" not in answered.headers


def test_a_page_with_charts_fetches_what_its_chart_module_imports_at_once() -> None:
    scripts = Path(settings.BASE_DIR, "dashboard/static/js")
    wanted, found = ["charts.js"], set[str]()
    while wanted:
        imported = set(re.findall(r'^import (?:.+ from )?"\./(.+?)";', (scripts / wanted.pop()).read_text(), re.M))
        wanted += imported - found
        found |= imported
    page = render_to_string("parts/chart_assets.html")
    assert {Path(address).name for address in re.findall(r'"modulepreload" href="([^"]+)"', page)} == found


LIBRARY = re.compile(r'<meta name="plotly-src" content="([^"]+)">')
PRELOADED = re.compile(r'<link rel="preload" as="script" fetchpriority="low" href="([^"]+)">')


@pytest.mark.django_db
def test_the_chart_library_is_on_its_way_before_the_scripts_that_ask_for_it(member: Client, alice: Any) -> None:
    """It was asked for when the last module had run: on a line of 8 Mbit/s, the first chart came 0.7 s later. Where no
    chart is drawn, the browser would complain about half a megabyte for nothing."""
    study = factory.study(alice, splits=({},), recompute=False)
    empty = Study.objects.create(name="empty", owner=alice, kind="matrix", base={})
    run = study.runs.get()
    for address in (f"/studies/{study.pk}/", f"/runs/{run.pk}/", f"/compare/?runs={run.pk}"):
        page = member.get(address).content.decode()
        assert PRELOADED.findall(page) == LIBRARY.findall(page) != []
    for address in (f"/studies/{empty.pk}/", "/compare/"):
        page = member.get(address).content.decode()
        assert LIBRARY.search(page) and not PRELOADED.search(page)


def test_no_middleware_keeps_a_thread_while_an_answer_waits() -> None:
    """One that is not a coroutine would run on a thread, with all that follows in it: pages that stay open, and
    requests of the API that wait."""
    classes = {name: import_string(name) for name in settings.MIDDLEWARE}
    assert [name for name, kind in classes.items() if not getattr(kind, "async_capable", False)] == []


def test_a_static_file_is_sent_to_a_coroutine_too(collected: Path) -> None:
    async def other(request: HttpRequest) -> HttpResponse:
        return HttpResponse(b"a page")

    async def answers() -> list[Any]:
        middleware = StaticMiddleware(other, settings)
        assert iscoroutinefunction(middleware)
        paths = settings.STATIC_URL + "css/trainyard.css", "/runs/"
        return [await middleware(RequestFactory().get(path, headers=PACKED)) for path in paths]

    with override_settings(STATIC_ROOT=collected):
        file, page = asyncio.run(answers())
    assert file.headers["Content-Encoding"] == "gzip" and page.content == b"a page"
