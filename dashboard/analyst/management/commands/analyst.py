"""`manage.py analyst`: the process that searches, reads uploaded traces and replays runs for the ledger."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError

from dashboard.analyst import searching
from dashboard.analyst.child import give_way
from dashboard.analyst.process import Analyst, Lane
from dashboard.ledger import replays
from dashboard.traces import reading


class Command(BaseCommand):
    help = "Answers searches, reads uploaded traces, replays runs for the record. A second one waits for the first."
    requires_system_checks = ()  # they import every page, which takes longer than all else of a start; a test runs them

    def handle(self, *args: Any, **options: Any) -> None:
        analyst = Analyst([Lane(lane.recover, lane.take) for lane in (searching, reading, replays)])

        def stop(number: int, frame: FrameType | None) -> None:
            analyst.stop()

        give_way()
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        try:
            analyst.run()
        except (OperationalError, InterfaceError) as error:  # what keeps it running starts it again
            raise CommandError(f"The database does not answer: {error}") from None
