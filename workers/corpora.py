"""Uploaded corpora in this worker's cache: a file named by a sha256 there always has that sha256.

They are fetched when a run needs them. A web that restarts meanwhile costs no run: a transfer that breaks off goes on
where it stopped. Above the worker's limit, those used longest ago are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import os
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from parallel_core.limits import MAX_CORPUS_BYTES
from workers import preflight
from workers.settings import Settings
from workers.wire import Backoff

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
GIVE_UP_S = 20.0
"""Seconds without a new byte after which a transfer fails. Well below contract.START_LIMIT_S, so that the run says why
it has not started."""
PIECE = 1 << 20
IN_USE_S = 3600.0
"""Seconds for which a corpus is not removed after its last use: ranks that are about to start open it."""
BLOB = re.compile(r"^[0-9a-f]{64}$")
_RETRIED = (http.client.TOO_MANY_REQUESTS, http.client.REQUEST_TIMEOUT)
"""Answers below 500 after which it is worth asking again."""


class CorpusMissing(RuntimeError):
    """The corpus cannot be fetched; the message says why."""


class _BrokenOff(Exception):
    """The web did not answer, or not whole; the cause is chained."""


def have(settings: Settings, corpus: str) -> bool:
    """Whether nothing needs to be fetched for `corpus` ('stdlib' or 'blob:<sha256>'). Counts as a use of it."""
    if not corpus.startswith("blob:"):
        return True
    path = settings.corpora / corpus.removeprefix("blob:")
    with contextlib.suppress(OSError):
        os.utime(path)
    return path.is_file()


def fetch(settings: Settings, corpus: str) -> None:
    """Copies the corpus from the yard's data folder if that is on this host, else fetches it from the web server; then
    removes what is too much.

    Raises CorpusMissing; OSError if it cannot be stored.
    """
    sha256 = corpus.removeprefix("blob:")
    local = settings.shared / "files" / "corpora" / sha256
    if local.is_file():
        with local.open("rb") as source:
            _keep(iter(lambda: source.read(PIECE), b""), settings.corpora, sha256)
    elif settings.url:
        _keep(_transferred(settings, sha256), settings.corpora, sha256)
    else:
        raise CorpusMissing(f"The corpus {sha256[:12]} is not on this host, and TRAINYARD_URL names no web to ask.")
    evict(settings)


def drop(settings: Settings, sha256: str) -> None:
    """Deletes the copy of a text that was deleted in the yard, if there is one and its disk lets go of it."""
    if BLOB.match(sha256):  # never a path
        with contextlib.suppress(OSError):
            (settings.corpora / sha256).unlink()
            log.info("removed the corpus %s: it was deleted in the yard", sha256[:12])


def evict(settings: Settings) -> None:
    """Removes the corpora used longest ago until the rest takes at most `settings.corpora_bytes`. Those in use stay,
    and what the yard did not upload (files of tokens and images)."""
    kept = []
    for path in settings.corpora.iterdir():
        if BLOB.match(path.name):
            with contextlib.suppress(OSError):
                found = path.stat()
                kept.append((found.st_mtime, found.st_size, path))
    total = sum(size for _, size, _ in kept)
    for used_at, size, path in sorted(kept):
        if total <= settings.corpora_bytes or used_at > time.time() - IN_USE_S:
            return
        path.unlink(missing_ok=True)
        total -= size
        log.info("removed the corpus %s: TRAINYARD_CORPORA_BYTES is reached", path.name[:12])


def _transferred(settings: Settings, sha256: str) -> Iterator[bytes]:
    """The corpus from the web, in pieces. After a failure that may pass it is asked for again from where it broke off.

    Raises CorpusMissing if it is refused, or if nothing came for GIVE_UP_S seconds.
    """
    backoff, got, came_at = Backoff(), 0, time.monotonic()
    while True:
        try:
            for piece in _rest(settings, sha256, got, came_at + GIVE_UP_S - time.monotonic()):
                got, came_at = got + len(piece), time.monotonic()
                backoff.reset()
                yield piece
            return
        except _BrokenOff as error:
            wait = backoff.step()
            if time.monotonic() + wait > came_at + GIVE_UP_S:
                raise _missing(settings, sha256, error.__cause__) from error
            log.warning("corpus %s, %d bytes here: %s; next try in %.1f s", sha256[:12], got, error, wait)
            time.sleep(wait)


def _rest(settings: Settings, sha256: str, begin: int, limit_s: float) -> Iterator[bytes]:
    """The bytes from `begin` on, by one request. Raises CorpusMissing if the web refuses them; _BrokenOff if it does
    not answer within `limit_s` seconds, or not to the end."""
    headers = preflight.bearer(settings) | ({"Range": f"bytes={begin}-"} if begin else {})
    request = urllib.request.Request(f"{settings.url}/api/v1/blobs/{sha256}", headers=headers)
    try:
        with closing(urllib.request.urlopen(request, timeout=min(TIMEOUT_S, max(1.0, limit_s)))) as answer:
            skip = begin if answer.status != http.client.PARTIAL_CONTENT else 0
            while piece := answer.read(PIECE):
                if len(piece) > skip:
                    yield piece[skip:]
                skip = max(0, skip - len(piece))
            if answer.length:  # http.client raises nothing when a body ends early
                raise http.client.IncompleteRead(b"", answer.length)
    except urllib.error.HTTPError as error:
        if error.code < http.client.INTERNAL_SERVER_ERROR and error.code not in _RETRIED:
            raise _missing(settings, sha256, error) from error
        raise _BrokenOff(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOff(str(error)) from error


def _missing(settings: Settings, sha256: str, error: BaseException | None) -> CorpusMissing:
    refused = isinstance(error, urllib.error.HTTPError) and error.code in (
        http.client.UNAUTHORIZED,
        http.client.FORBIDDEN,
    )
    why = preflight.web_refusal(settings, error) if refused and isinstance(error, Exception) else str(error)
    return CorpusMissing(f"The corpus {sha256[:12]} could not be fetched: {why}")


def _keep(source: Iterator[bytes], folder: Path, sha256: str) -> None:
    """Writes a temporary file, checks and renames it, so that an incomplete corpus never has the name of a complete
    one."""
    folder.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    handle, made = tempfile.mkstemp(dir=folder, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as target:
            for piece in source:
                size += len(piece)
                if size > MAX_CORPUS_BYTES:
                    raise CorpusMissing(f"The corpus {sha256[:12]} is larger than {MAX_CORPUS_BYTES} bytes.")
                digest.update(piece)
                target.write(piece)
        if digest.hexdigest() != sha256:
            raise CorpusMissing(f"What came as corpus {sha256[:12]} has another sha256.")
        Path(made).replace(folder / sha256)
    finally:
        Path(made).unlink(missing_ok=True)
