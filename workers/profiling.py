"""Profiles of models on request, one at a time while no attempt runs: what their layers cost on this host."""

from __future__ import annotations

import logging
import re
import time
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
_AGAIN_S = 10.0
"""Seconds after which an answer is given again, if it is still asked for: the first one was lost on its way."""
_KEPT = 8
"""How many of the newest answers are kept for that."""
_CAUSE = re.compile(r"^(?:profiling failed: (?P<said>.+)|(?P<raised>[\w.]+(?:Error|Exception)\b.*))$", re.MULTILINE)
"""The command's line about a failed rank, or the last line of its own traceback; other output may follow either."""


class Profiling:
    """Requests by id; one that is waiting, under way or answered is not measured again. Used by one thread."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        """`more` = further arguments of the command."""
        self._command = ["profile", "-", "--json", *more]
        self._measurement = Measurement(PROFILE_LIMIT_S)
        self._asked: deque[tuple[int, str]] = deque()
        self._known: set[int] = set()
        self._answers: dict[int, tuple[ProfileBody, float]] = {}  # oldest first, each with when it was last given
        self._number = 0

    @property
    def running(self) -> bool:
        return self._measurement.running

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    @property
    def pending(self) -> list[int]:
        """Requests without an answer, the one under way first. May be read from any thread."""
        waiting = [number for number, _ in list(self._asked)]
        return [self._number, *waiting] if self.running else waiting

    def ask(self, number: int, spec: dict[str, Any]) -> ProfileBody | None:
        """Takes the request. Returns the answer at once if the spec is invalid, or if the request was answered a while
        ago."""
        if number in self._known:
            return self._again(number)
        self._known.add(number)
        try:
            checked = RunSpec.model_validate(spec)
        except ValueError as error:
            return self._answered(ProfileBody(profile=number, error=f"The spec breaks a rule: {str(error)[:_SAID]}"))
        self._asked.append((number, checked.model_dump_json()))
        return None

    def cancel(self, number: int) -> None:
        """Drops a request, also one under way; one that was answered, or is not known, changes nothing."""
        if number not in self.pending:
            return
        log.info("profile %d is not wanted any more", number)
        if self.running and number == self._number:
            self._measurement.stop()
        self._asked = deque(one for one in self._asked if one[0] != number)
        self._known.discard(number)

    def begin(self) -> ProfileBody | None:
        """Starts the oldest request. Returns the answer at once if the host has no disk space or process left for
        it."""
        self._number, spec = self._asked.popleft()
        try:
            self._measurement.begin(self._command, spec)
        except OSError as error:
            return self._answered(self._failed(f"it could not be started: {error}"))
        return None

    def poll(self) -> ProfileBody | None:
        """The answer, once, when a profile has ended, successfully or not; else None."""
        ended = self._measurement.poll()
        if ended is None:
            return None
        return self._answered(self._answer(ended))

    def _answer(self, ended: Ended) -> ProfileBody:
        if ended.code == 0 and (table := ended.result) is not None:
            return ProfileBody(profile=self._number, table=table)
        return {**self._failed(cause(ended)), "log": ended.text[-_LOGGED:]}

    def _failed(self, why: str) -> ProfileBody:
        log.warning("profile %d failed: %s", self._number, why)
        return ProfileBody(profile=self._number, error=why)

    def _answered(self, body: ProfileBody) -> ProfileBody:
        """Keeps the answer; a request whose answer is not kept any more would be measured again."""
        self._answers[body["profile"]] = body, time.monotonic()
        while len(self._answers) > _KEPT:
            oldest = next(iter(self._answers))
            del self._answers[oldest]
            self._known.discard(oldest)
        return body

    def _again(self, number: int) -> ProfileBody | None:
        body, given_at = self._answers.get(number, (None, 0.0))
        if body is None or time.monotonic() - given_at < _AGAIN_S:
            return None
        log.warning("profile %d is still asked for: its answer is given again", number)
        self._answers[number] = body, time.monotonic()
        return body

    def stop(self) -> None:
        self._measurement.stop()


def cause(ended: Ended) -> str:
    """Why a profile that ended has no table, in one line."""
    if ended.code is None:
        return f"it took more than {PROFILE_LIMIT_S:.0f} s"
    if ended.code == 0:
        return "its output has no cost table"
    found = list(_CAUSE.finditer(ended.text))
    said = next((match for match in found if match["said"]), found[-1] if found else None)
    if said is not None:
        return (said["said"] or said["raised"])[:_SAID]
    return f"it ended with {describe_exit(ended.code)}" if ended.code < 0 or not ended.last else ended.last[:_SAID]
