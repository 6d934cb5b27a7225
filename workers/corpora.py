"""Fetches uploaded corpora into this worker's cache; a file named by a sha256 there always has that sha256."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import IO

from parallel_core.limits import MAX_CORPUS_BYTES
from workers import preflight
from workers.settings import Settings

TIMEOUT_S = 30.0
PIECE = 1 << 20


class CorpusMissing(RuntimeError):
    """The corpus cannot be fetched; the message says why."""


def have(settings: Settings, corpus: str) -> bool:
    """Whether nothing needs to be fetched for `corpus` ('stdlib' or 'blob:<sha256>')."""
    return not corpus.startswith("blob:") or (settings.corpora / corpus.removeprefix("blob:")).is_file()


def fetch(settings: Settings, corpus: str) -> None:
    """Copies the corpus from the yard's data folder if that is on this host, else fetches it from the web server.

    Raises CorpusMissing.
    """
    sha256 = corpus.removeprefix("blob:")
    try:
        with closing(_open(settings, sha256)) as source:
            _keep(source, settings.corpora, sha256)
    except urllib.error.HTTPError as error:
        refused = error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
        why = preflight.web_refusal(settings, error) if refused else str(error)
        raise CorpusMissing(f"The corpus {sha256[:12]} could not be fetched: {why}") from error
    except (OSError, http.client.HTTPException) as error:
        raise CorpusMissing(f"The corpus {sha256[:12]} could not be fetched: {error}") from error


def _open(settings: Settings, sha256: str) -> IO[bytes]:
    local = settings.shared / "files" / "corpora" / sha256
    if local.is_file():
        return local.open("rb")
    if not settings.url:
        raise CorpusMissing(f"The corpus {sha256[:12]} is not on this host, and TRAINYARD_URL names no web to ask.")
    address = f"{settings.url}/api/v1/blobs/{sha256}"
    request = urllib.request.Request(address, headers=preflight.bearer(settings))
    answer: IO[bytes] = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    return answer


def _keep(source: IO[bytes], folder: Path, sha256: str) -> None:
    """Writes a temporary file, checks and renames it, so that an incomplete corpus never has the name of a complete
    one."""
    folder.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    handle, made = tempfile.mkstemp(dir=folder, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as target:
            while piece := source.read(PIECE):
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
