"""The starter study: queued once, when the first calibrated worker appears in a yard that never had a run or study."""

from __future__ import annotations

import logging

from django.conf import settings
from django.contrib.auth import get_user_model

from dashboard.fleet.models import Worker
from dashboard.runs.models import Run
from dashboard.studies.models import Once, Study

log = logging.getLogger(__name__)


class Starter:
    """Called on every tick; costs nothing once it is settled."""

    def __init__(self) -> None:
        self._settled = not settings.STARTER_STUDY

    def consider(self) -> None:
        """Creates the starter study once there are an admin and a calibrated worker.

        A yard that has ever had a run or a study gets none, and remembers that.
        """
        if self._settled:
            return
        if Once.objects.filter(what=Once.STARTER).exists():
            self._settled = True
            return
        if Run.objects.exists() or Study.objects.exists():
            self._settled = True
            _remember()
            return
        owner = get_user_model().objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
        worker = next((worker for worker in Worker.objects.filter(draining=False) if worker.calibration), None)
        if owner is None or worker is None:
            return
        self._settled = True
        _create(owner, worker)


def _remember() -> None:
    Once.objects.get_or_create(what=Once.STARTER)


def _create(owner: object, worker: Worker) -> None:
    from dashboard.studies.starter import create_starter

    try:
        study = create_starter(owner=owner, worker=worker)
    except Exception:
        # The yard works without its starter study: a wrong calibration must not stop the controller.
        log.exception("could not create the starter study for %s", worker)
    else:
        _remember()
        log.info("queued the starter study %s for %s", study, worker)
