"""What a page shows for a search without an answer: its progress, or why there is no answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from dashboard.analyst.models import WAITING, Search, SearchState
from dashboard.analyst.services import may_stop
from parallel_core.analysis.quantities import plural_text, seconds_text

PATIENCE_S = 10
"""Seconds after which a waiting search, while no search is running, means that there is no analyst."""


@dataclass(frozen=True)
class Unanswered:
    """A search without an answer. `what` = the activity, such as `Simulating every split`; `part` = address of the part
    of the page that shows it, `page` = address of the page, `may_stop` = whether who looks at it may stop it."""

    search: Search
    what: str
    part: str
    page: str
    may_stop: bool

    @property
    def refused(self) -> bool:
        return self.search.state == SearchState.REFUSED

    def sentence(self) -> str:
        """The progress of the search as a sentence."""
        search = self.search
        if search.state == SearchState.RUNNING:
            return f"{self.what}: {search.done} of {search.of}." if search.of else f"{self.what}…"
        ahead = Search.objects.filter(state__in=WAITING, pk__lt=search.pk).count()
        if ahead:
            return f"{self.what}: waits for {plural_text(ahead, 'search')} asked before it."
        waited = (timezone.now() - search.asked_at).total_seconds()
        if waited > PATIENCE_S and not Search.objects.filter(state=SearchState.RUNNING).exists():
            return f"{self.what}: no analyst has taken it up for {seconds_text(waited)}; ./run starts one."
        return f"{self.what}: begins in a moment."


def unanswered(search: Search, what: str, part: str, page: str, user: Any) -> Unanswered | None:
    """What to show `user` for the search; None if it has an answer."""
    if search.state == SearchState.DONE:
        return None
    return Unanswered(search, what, part, page, may_stop(search, user))
