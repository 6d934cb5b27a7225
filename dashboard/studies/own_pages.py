"""The kinds of study that have a page of their own, because their runs are not compared step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from django.http import HttpRequest, HttpResponse

from dashboard.runs.models import Run
from dashboard.runs.places import Place
from dashboard.studies.fitting import fit, fit_views
from dashboard.studies.generating import generation, generation_views
from dashboard.studies.models import Study


class OwnPage(Protocol):
    """A module of views."""

    LIVE_PARTS: dict[str, str]
    """Id of an element that changes while runs go on -> its template."""

    def page(self, request: HttpRequest, study: Study) -> HttpResponse: ...

    def live_context(self, request: HttpRequest, study: Study, runs: Sequence[Run]) -> dict[str, Any]:
        """The context of LIVE_PARTS, with the charts as `charts`."""

    def verdict(self, runs: Sequence[Run], places: Mapping[int, Place], /) -> list[str]:
        """What the list of studies shows of the sentences of the page, computed only from the runs' rows and places."""

    def rows(self, study: Study) -> Iterator[Sequence[Any]]:
        """Rows of the CSV: the names of the columns, then the values; unknown ones are empty."""


OWN_PAGES: dict[str, OwnPage] = {fit.KIND: fit_views, generation.KIND: generation_views}
"""By kind."""
