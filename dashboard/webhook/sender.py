"""Posts what is due, in a thread of the controller that holds the yard's lock: the controller itself never waits."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from django.db import connection
from django.db.models import Q
from django.utils import timezone

from dashboard.runs.models import ENDED, Attempt
from dashboard.webhook.models import Delivery, Webhook
from dashboard.webhook.outbox import SUMMARY_WITHIN, study_ended
from dashboard.webhook.posting import post
from parallel_core.analysis.quantities import plural_text

log = logging.getLogger(__name__)

EVERY_S = 2.0
AGAIN = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300))
"""Pauses before the second, third and fourth try, which is the last."""


def send_due() -> int:
    """Posts every delivery that is due, one after another; returns how many were tried. Due is also one that would be
    later than any pause: the clock was set back since."""
    tried, now = 0, timezone.now()
    due = Delivery.objects.filter(Q(due_at__lte=now) | Q(due_at__gt=now + AGAIN[-1]))
    for pk in list(due.order_by("pk").values_list("pk", flat=True)):
        webhook, delivery = Webhook.in_use(), Delivery.objects.filter(pk=pk).first()
        if webhook is None:
            Delivery.objects.all().delete()
            break
        if delivery is not None and _ready(delivery):
            _send(webhook, delivery)
            tried += 1
    return tried


def _ready(delivery: Delivery) -> bool:
    """Whether it can be posted now. Deletes it where it is void: its run was queued again, a run of its study has not
    ended, or a later run that ended noted the study anew."""
    run, study = delivery.run, delivery.study_id
    open_run = run is not None and run.state not in ENDED
    if open_run or (study is not None and (not study_ended(study) or _noted_anew(delivery))):
        delivery.delete()
        return False
    summarised = run is None or run.summary or not Attempt.objects.filter(run=run).exists()
    return bool(summarised) or abs(timezone.now() - delivery.ended_at) >= SUMMARY_WITHIN


def _noted_anew(delivery: Delivery) -> bool:
    """Whether its study has a newer note. Where all its runs have ended, the notes of all ends can be seen: each was
    committed with its end."""
    return Delivery.objects.filter(study=delivery.study_id, pk__gt=delivery.pk).exists()


def _send(webhook: Webhook, delivery: Delivery) -> None:
    from dashboard.webhook import notices  # imports the pages, which a start of the controller does without

    if delivery.study_id is not None:  # an earlier end of the study, if it is still tried again, is told by this one
        Delivery.objects.filter(study=delivery.study_id, pk__lt=delivery.pk).delete()
    try:
        posted = post(webhook.url, notices.of(delivery, webhook.origin))
    except Exception as error:  # such as a verdict that cannot be made: it must not keep back the others
        log.exception("the end of %s cannot be posted", delivery)
        webhook.note(f"The end of {delivery} cannot be posted: {error}")
        delivery.delete()
        return
    left = AGAIN[delivery.tries :]
    times = plural_text(len(left), "time")
    more = "" if posted.taken else f" It is tried again {times}." if left else " It is not tried again."
    webhook.note(f"{str(delivery).capitalize()}: {posted.result}{more}")
    if posted.taken or not left:
        delivery.delete()
    else:
        again = timezone.now() + left[0]
        Delivery.objects.filter(pk=delivery.pk).update(tries=delivery.tries + 1, due_at=again)


class Sender:
    """The thread. It sends only between `go` and `pause`, so that one controller of a yard does."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping, self._active = stopping, threading.Event()
        self._thread: threading.Thread | None = None

    def go(self) -> None:
        """Starts the thread, at the first call, and lets it send."""
        self._active.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="webhook", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        self._active.clear()

    def _live(self) -> None:
        said = ""
        while not self._stopping.wait(EVERY_S):
            try:
                if self._active.is_set():
                    send_due()
                said = ""
            except Exception as error:  # the database may be away; tried all the time, so logged once
                if str(error) != said:
                    log.warning("the webhook cannot be served: %s", error)
                said = str(error)
                connection.close()
        connection.close()
