"""What the Celery task does with a StartMessage before the supervisor gets it: claims the attempt and checks it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from workers import ending
from workers.contract import Device
from workers.ending import Ending
from workers.folder import Folder, Meta
from workers.run_commands import Refused, RunCommand, attempt_number, read_command, with_beginning
from workers.settings import Settings

log = logging.getLogger(__name__)


def take(raw: Any, settings: Settings, devices: Sequence[Device]) -> tuple[Folder, RunCommand | Ending] | None:
    """Returns the attempt's new folder with its command, or with the end that refuses it.

    None if the message is to be ignored: its attempt is already known, or it has no attempt id.
    """
    try:
        number = attempt_number(raw)
    except Refused as error:
        log.error("start message dropped: %s", error)
        return None
    folder = Folder.claim(settings.attempts, number)
    if folder is None:
        log.info("attempt %d is known already; a second delivery is ignored", number)
        return None
    try:
        folder.save(Meta(message=raw))
        command = read_command(raw, settings.name, devices)
        log.info("attempt %d is attempt %d of run %d", number, command.message["number"], command.message["run"])
        return folder, with_beginning(command, settings)
    except Refused as error:
        return folder, ending.refused(str(error))
    except Exception as error:  # such as a full disk, or a folder of checkpoints that may not be read
        log.exception("attempt %d cannot be taken", number)
        return folder, ending.refused(f"Worker {settings.name} cannot take the run: {error}")
