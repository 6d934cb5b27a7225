"""`manage.py controller`: runs the controller, the one process that moves attempts from state to state."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from dashboard.fleet.listening import is_at_work


class Command(BaseCommand):
    help = "Consumes worker events, places queued runs and watches leases. A second one waits until the first ends."
    requires_system_checks = ()  # they import every page, which takes longer than the rest of a start; a test runs them

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="only tell, by the exit code, whether one is at work")
        how = "only make the broker this yard's, although it is another's"
        parser.add_argument("--take-over", action="store_true", help=how)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["check"] or options["take_over"]:
            try:
                (self._check if options["check"] else self._take_over)()
            except Error as error:
                raise CommandError(f"The database cannot be asked: {error}") from None
            return
        from dashboard.control.claim import Claimed
        from dashboard.control.controller import Controller  # most of a second, which the health check does without

        controller = Controller()

        def stop(number: int, frame: FrameType | None) -> None:
            controller.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        try:
            controller.run()
        except Claimed as error:  # what keeps it running starts it again
            controller.stop()  # the thread that serves the webhook ends, too
            raise CommandError(str(error)) from None

    def _check(self) -> None:
        if not is_at_work():
            raise CommandError("The controller has not listened to the workers of late.")

    def _take_over(self) -> None:
        import redis
        from django.conf import settings

        from dashboard.control.claim import Claim
        from workers.wire import connect

        try:
            said = Claim(connect(settings.REDIS_URL)).take_over()
        except redis.RedisError as error:
            raise CommandError(f"The broker does not answer: {error} With ./run, the yard must be up.") from None
        self.stdout.write(said)
