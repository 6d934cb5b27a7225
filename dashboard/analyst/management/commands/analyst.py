"""`manage.py analyst`: the process that searches and reads uploaded traces."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand

from dashboard.analyst import searching
from dashboard.analyst.process import Analyst, Lane
from dashboard.traces import reading


class Command(BaseCommand):
    help = "Answers searches and reads uploaded traces. A second one waits until the first ends."

    def handle(self, *args: Any, **options: Any) -> None:
        analyst = Analyst([Lane(lane.recover, lane.take) for lane in (searching, reading)])

        def stop(number: int, frame: FrameType | None) -> None:
            analyst.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        analyst.run()
