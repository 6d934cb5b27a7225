"""Stores records of a file whose later records are there already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from django.db.models import Q

from dashboard.control import multi_host
from dashboard.control.frames import Decoded
from dashboard.control.step_shares import Points
from dashboard.control.store import FILLED, FileKey, Store, fill
from dashboard.fleet.dead_letters import DISCARDED
from dashboard.runs.models import Attempt, Checkpoint, DeadLetter, Event, RankInfo, SeriesChunk
from parallel_core.analysis.generated import inserted
from parallel_core.observe.records import POINT


class LateStore(Store):
    """A Store for one record that was set aside: the cursor of its file is behind it and stays there.

    What is measured finds its place among the rest. What a later record has told since (the newest values, a rank's
    phase, its checkpoints, how it failed) stays as told. Steps that the other ranks have passed get no shares any more.
    """

    def __init__(self, start: int) -> None:
        """`start` = its first byte in the file."""
        super().__init__()
        self._start = start

    def offset(self, key: FileKey) -> int:
        return self._start

    def advance(self, key: FileKey, to: int) -> None:
        pass

    def _add_points(self, attempt: int, series: Points) -> None:
        for (rank, name), parts in series.items():
            found = SeriesChunk.objects.filter(attempt=attempt, rank=rank, name=name)
            if chunks := list(found.defer("data").order_by("first_step", "id")):
                _insert(chunks, np.concatenate(parts))
            else:
                super()._add_points(attempt, {(rank, name): parts})

    def _show_newest(self, attempt: Attempt, series: Points, metered: bool) -> None:
        shown = attempt.run.step if attempt.run.step is not None else -1
        newer = {key: parts for key, parts in series.items() if parts[-1][-1]["step"] > shown}
        super()._show_newest(attempt, newer, metered)

    def _keep_told(self, attempt: Attempt, rank: int, records: Decoded) -> None:
        """Raises ValueError for generated text whose place is not known."""
        row = RankInfo.objects.filter(attempt=attempt, rank=rank).first() or RankInfo(attempt=attempt, rank=rank)
        rest = replace(
            records,
            info={name: told for name, told in records.info.items() if not getattr(row, name)},
            fault=None if str(rank) in attempt.report.get("faults", {}) else records.fault,
            checkpoints=[header for header in records.checkpoints if not _superseded(attempt, rank, header)],
            left_out=[header for header in records.left_out if not _superseded(attempt, rank, header)],
            generated=[],
        )
        super()._keep_told(attempt, rank, rest)
        if records.generated:
            self._insert_text(attempt, rank, records.generated)

    def _insert_text(self, attempt: Attempt, rank: int, headers: list[dict[str, Any]]) -> None:
        """Text has no numbers of its own for its tokens: nothing in front of it may be missing."""
        before = DeadLetter.objects.filter(attempt=attempt, rank=rank, channel="events", start__lt=self._start)
        if before.exists():
            raise ValueError("records of this rank in front of it are set aside, too: store those first")
        if Event.objects.filter(run=attempt.run_id, kind=DISCARDED).exists():
            raise ValueError("records of its run were discarded, so its place in the text is not known")
        row, _ = RankInfo.objects.get_or_create(attempt=attempt, rank=rank)
        for header in headers:
            row.generated = dict(inserted(row.generated or None, header))
        row.save(update_fields=("generated",))


def _insert(chunks: list[SeriesChunk], points: np.ndarray) -> None:
    """Adds each point to the chunk that covers its step, in step order; that one may then have more than CHUNK_POINTS.

    `chunks` in step order, at least one.
    """
    firsts = [chunk.first_step for chunk in chunks]
    places = np.maximum(np.searchsorted(firsts, points["step"], side="right") - 1, 0)
    for place in np.unique(places):
        chunk = chunks[int(place)]
        both = np.concatenate([np.frombuffer(bytes(chunk.data), POINT), points[places == place]])
        fill(chunk, both[np.argsort(both["step"], kind="stable")])
        chunk.save(update_fields=FILLED)


def _superseded(attempt: Attempt, rank: int, header: dict[str, Any]) -> bool:
    """Whether a later checkpoint of the run has told since which ones its worker keeps, and that it had room."""
    later = Q(attempt__number__gt=attempt.number) | Q(attempt=attempt, step__gt=header["step"])
    worker = multi_host.worker_of(attempt.devices, rank)
    return Checkpoint.objects.filter(later, run=attempt.run_id, worker=worker).exists()
