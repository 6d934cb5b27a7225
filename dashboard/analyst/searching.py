"""The lane of searches: the engine answers each in a process of its own, and the answer is stored.

The database row holds the state. A search that was running when the analyst died is claimed again (`claims`), at most
MAX_TRIES times.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from django.utils import timezone

from dashboard.analyst.child import Child
from dashboard.analyst.claims import claim
from dashboard.analyst.models import Search, SearchState
from dashboard.analyst.process import Work
from dashboard.live.announce import announce_search
from parallel_core.processes import EXIT_MEMORY

log = logging.getLogger(__name__)
MEMORY_BYTES = 3 << 30
"""Limit of the address space of the process that searches."""
LIMIT_S = 900.0
LOOK_S = 0.5
"""Interval in seconds of checking whether a running search was stopped."""
MAX_WORDS = 500


def recover() -> None:
    """Queues again the searches that another analyst was working on."""
    Search.objects.filter(state=SearchState.RUNNING).update(state=SearchState.QUEUED)


def take() -> Work | None:
    """Claims the oldest search and returns its work; None if no search is queued."""
    queued = Search.objects.filter(state=SearchState.QUEUED)
    return claim(queued, {"state": SearchState.RUNNING, "done": 0, "of": 0}, _begin, _give_up)


def _begin(search: Search) -> Work:
    announce_search(search.pk)
    return _work(search)


def _give_up(search: Search, why: str) -> None:
    _end(search, SearchState.FAILED, detail=f"It was {why}")


def _work(search: Search) -> Work:
    given = json.dumps(search.question).encode()
    with Child("parallel_core.searches", [search.kind], MEMORY_BYTES, given) as child:
        started = looked = time.monotonic()
        for line in child.lines():
            if line is not None:
                _hear(search, json.loads(line))
            elif time.monotonic() > started + LIMIT_S:
                _end(search, SearchState.FAILED, detail=f"It took longer than {LIMIT_S / 60:.0f} minutes.")
                return
            elif time.monotonic() > looked + LOOK_S:
                looked = time.monotonic()
                if not _under_way(search).exists():
                    return
            yield
        _ended(search, child)


def _hear(search: Search, line: dict[str, Any]) -> None:
    """Stores what one line of the process says (parallel_core.searches.__main__)."""
    if "answer" in line:
        _end(search, SearchState.DONE, answer=line["answer"])
    elif "refused" in line:
        _end(search, SearchState.REFUSED, detail=line["refused"])
    elif _under_way(search).update(done=line["done"], of=line["of"]):
        announce_search(search.pk)


def _ended(search: Search, child: Child) -> None:
    """Handles the end of the process: if it did not answer, stores the reason, or queues the search again if it was
    killed."""
    code = child.wait()
    if code == EXIT_MEMORY:
        words = f"It needs more than the {MEMORY_BYTES >> 30} GiB of memory that a search may take."
        _end(search, SearchState.FAILED, detail=words)
    elif code < 0:  # killed; the next try may succeed
        _under_way(search).update(state=SearchState.QUEUED)
    elif _under_way(search).exists():
        log.warning("search %s: %s", search.pk, child.last_words())
        _end(search, SearchState.FAILED, detail=f"It broke off: {child.last_words()}"[:MAX_WORDS])


def _under_way(search: Search) -> Any:
    """A query set with the search's row; empty if it was stopped or has ended."""
    return Search.objects.filter(pk=search.pk, state=SearchState.RUNNING)


def _end(search: Search, state: SearchState, **what: Any) -> None:
    if state != SearchState.FAILED:  # a failed search can be queued again and needs its question
        what["question"] = {}
    if _under_way(search).update(state=state, ended_at=timezone.now(), **what):
        announce_search(search.pk)
