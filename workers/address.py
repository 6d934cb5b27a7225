"""Where other hosts reach this one, looked up in a thread of its own because a name server may not answer."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from workers.periodic import Periodic
from workers.settings import Settings


class Address(Periodic):
    """`known` = the address as last found; before that, the host name."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("address")
        self.known = settings.address or socket.gethostname()
        self._settings = settings

    def look(self) -> None:
        """Looks the address up now; while that fails, the last one stays."""
        with contextlib.suppress(OSError):
            self.known = own_address(self._settings)


def own_address(settings: Settings) -> str:
    """The configured address, else the address from which this host reaches a Redis on another host, else its host
    name. Raises OSError if the name of that host cannot be resolved now, or there is no route to it."""
    there = urlsplit(settings.redis_url)
    if settings.address or not there.hostname:
        return settings.address or socket.gethostname()
    found = socket.getaddrinfo(there.hostname, there.port or 6379, type=socket.SOCK_DGRAM)[0]
    with socket.socket(found[0], socket.SOCK_DGRAM) as towards:
        towards.connect(found[4])  # a datagram socket: nothing is sent, only the route is looked up
        mine = str(towards.getsockname()[0])
    return socket.gethostname() if ip_address(mine.partition("%")[0]).is_loopback else mine
