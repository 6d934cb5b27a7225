"""Profiles of models on request, one at a time while no attempt runs: what their layers cost on this host."""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from parallel_core.launch import describe_exit
from parallel_core.spec import RunSpec
from workers.contract import PROFILE_LIMIT_S, ProfileBody
from workers.measurement import Ended, Measurement

log = logging.getLogger(__name__)

_SAID = 400
"""The most characters of a failure's cause."""
_LOGGED = 16_000
"""The most characters of a failed profile's output, from its end."""
_CAUSE = re.compile(r"^(?:profiling failed: (?P<said>.+)|(?P<raised>[\w.]+(?:Error|Exception)\b.*))$", re.MULTILINE)
"""The command's line about a failed rank, or the last line of its own traceback; other output may follow either."""


class Profiling:
    """Requests by id; one that is waiting, under way or answered is not taken again. Used by one thread."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        """`more` = further arguments of the command."""
        self._command = ["profile", "-", "--json", *more]
        self._measurement = Measurement(PROFILE_LIMIT_S)
        self._asked: deque[tuple[int, str]] = deque()
        self._known: set[int] = set()
        self._number = 0

    @property
    def running(self) -> bool:
        return self._measurement.running

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    def ask(self, number: int, spec: dict[str, Any]) -> ProfileBody | None:
        """Takes the request; returns the answer at once if the spec is invalid."""
        if number in self._known:
            return None
        self._known.add(number)
        try:
            checked = RunSpec.model_validate(spec)
        except ValueError as error:
            return ProfileBody(profile=number, error=f"The spec breaks a rule: {str(error)[:_SAID]}")
        self._asked.append((number, checked.model_dump_json()))
        return None

    def begin(self) -> None:
        """Starts the oldest request."""
        self._number, spec = self._asked.popleft()
        self._measurement.begin(self._command, spec)

    def poll(self) -> ProfileBody | None:
        """The answer, once, when a profile has ended, successfully or not; else None."""
        ended = self._measurement.poll()
        if ended is None:
            return None
        if ended.code == 0:
            return ProfileBody(profile=self._number, table=json.loads(ended.last))
        why = cause(ended)
        log.warning("profile %d failed: %s", self._number, why)
        return ProfileBody(profile=self._number, error=why, log=ended.text[-_LOGGED:])

    def stop(self) -> None:
        self._measurement.stop()


def cause(ended: Ended) -> str:
    """Why a profile that ended has no table, in one line."""
    if ended.code is None:
        return f"it took more than {PROFILE_LIMIT_S:.0f} s"
    found = list(_CAUSE.finditer(ended.text))
    said = next((match for match in found if match["said"]), found[-1] if found else None)
    if said is not None:
        return (said["said"] or said["raised"])[:_SAID]
    return f"it ended with {describe_exit(ended.code)}" if ended.code < 0 or not ended.last else ended.last[:_SAID]
