"""`manage.py analyst`: the process that reads uploaded traces."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand

from dashboard.traces.reading import Analyst


class Command(BaseCommand):
    help = "Reads uploaded traces. A second one waits until the first ends."

    def handle(self, *args: Any, **options: Any) -> None:
        analyst = Analyst()

        def stop(number: int, frame: FrameType | None) -> None:
            analyst.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        analyst.run()
