"""`manage.py controller`: runs the controller, the one process that moves attempts from state to state."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand

from dashboard.control.controller import Controller


class Command(BaseCommand):
    help = "Consumes worker events, places queued runs and watches leases. A second one waits until the first ends."
    requires_system_checks = ()  # they import every page, which takes longer than the rest of a start; a test runs them

    def handle(self, *args: Any, **options: Any) -> None:
        controller = Controller()

        def stop(number: int, frame: FrameType | None) -> None:
            controller.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        controller.run()
