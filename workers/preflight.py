"""Tries to reach the yard before anything else of this worker starts.

If something prevents it, says so once in a sentence that names the setting to change, and tries again until it works.
"""

from __future__ import annotations

import http.client
import logging
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import redis
from redis.exceptions import NoPermissionError

from workers.contract import EVENTS, NO_SUCH_BLOB, control_stream, queue_of
from workers.settings import Settings, address_of
from workers.wire import connect

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Seconds between two tries."""
REMIND_S = 60.0
"""Seconds after which the same obstacle is named again."""
ANSWER_S = 10.0


def wait(settings: Settings, say: Callable[[str], None]) -> None:
    """Returns once this worker can reach its part of the broker. `say` gets what prevents it, then that it works."""
    barred, said_at = "", 0.0
    while found := barred_by(settings):
        if found != barred or time.monotonic() - said_at >= REMIND_S:
            say(f"{found} It is tried again every {AGAIN_S:.0f} s.")
            barred, said_at = found, time.monotonic()
        time.sleep(AGAIN_S)
    if barred:
        say("Redis answers now; the worker starts.")


def barred_by(settings: Settings) -> str:
    """Why this worker cannot use the broker, as a sentence; '' if it can."""
    there = address_of(settings.redis_url)
    if unread := _unread_certificate(settings.redis_url):
        return unread
    try:
        with connect(settings.redis_url) as client:
            client.ping()
            return _unreached(settings, client)
    except redis.AuthenticationError as error:
        return f"Redis at {there} refuses the user or the password in REDIS_URL: {_words(error, there)}"
    except redis.TimeoutError:
        return f"Redis at {there} (REDIS_URL) does not answer in time."
    except redis.ConnectionError as error:
        if isinstance(error.__cause__ or error.__context__, ssl.SSLError) or "certificate" in str(error).lower():
            why = _words(error, there)
            return f"The certificate of Redis at {there} is not trusted (ssl_ca_certs in REDIS_URL): {why}"
        return f"Redis at {there} (REDIS_URL) cannot be reached: {_words(error, there)}"
    except (redis.RedisError, OSError) as error:
        return f"Redis at {there} (REDIS_URL) does not serve this worker: {_words(error, there)}"


def _unread_certificate(url: str) -> str:
    """Names a certificate file that cannot be read; the client would only say "Permission denied", and not for which
    file."""
    for path in parse_qs(urlsplit(url).query).get("ssl_ca_certs", []):
        try:
            Path(path).open("rb").close()
        except OSError as error:
            return f"The file {path} (ssl_ca_certs in REDIS_URL) cannot be read: {error.strerror}."
    return ""


def _unreached(settings: Settings, client: redis.Redis) -> str:
    """Names the first key that this worker's Redis user may not access: a user has the keys of one worker
    (docs/deploy.md)."""
    name = settings.name
    for key, look in {queue_of(name): client.llen, control_stream(name): client.xlen, EVENTS: client.xlen}.items():
        try:
            look(key)
        except NoPermissionError:
            user = urlsplit(settings.redis_url).username or "default"
            return (
                f"The user {user} of Redis (REDIS_URL) may not reach {key}. TRAINYARD_WORKER_NAME is {name}: "
                f"its line in users.conf must name {name}."
            )
    return ""


def refused_token(settings: Settings) -> str:
    """Why the web refuses to give this worker uploaded texts, as a sentence; '' if it does not, or no web is
    configured."""
    if not settings.url:
        return ""
    asked = urllib.request.Request(f"{settings.url}/api/v1/blobs/{NO_SUCH_BLOB}", headers=bearer(settings))
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        return "" if error.code == http.client.NOT_FOUND else web_refusal(settings, error)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return web_refusal(settings, error)


def bearer(settings: Settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.token}"} if settings.token else {}


def web_refusal(settings: Settings, error: Exception) -> str:
    """What went wrong between this worker and the web, with the setting that is probably wrong."""
    code = error.code if isinstance(error, urllib.error.HTTPError) else None
    if code == http.client.UNAUTHORIZED:
        how = "is unknown there, expired or revoked" if settings.token else "is not set"
        return f"TRAINYARD_TOKEN {how}: {settings.url} hands out no uploaded text."
    if code == http.client.FORBIDDEN:
        return f"TRAINYARD_TOKEN is no worker's token: {settings.url} hands out no uploaded text."
    if code == http.client.BAD_REQUEST:
        name = urlsplit(settings.url).hostname
        return (
            f"TRAINYARD_URL={settings.url}: that web does not serve the name {name}. ALLOWED_HOSTS there must have it."
        )
    said = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(said, ssl.SSLCertVerificationError):
        return (
            f"TRAINYARD_URL={settings.url}: its certificate is not trusted ({said.verify_message}). SSL_CERT_FILE can "
            f"name a file with the certificate of the authority that signed it."
        )
    return f"TRAINYARD_URL={settings.url} does not answer as a yard does: {said}."


def _words(error: Exception, there: str) -> str:
    """The client's message, without the address that the sentence already has."""
    said = str(error) or type(error).__name__
    if "HELLO must be called" in said:
        said = "it asks for one, and the address has none"
    return f"{said.rpartition(f'connecting to {there}')[2].strip(' .:')}."
