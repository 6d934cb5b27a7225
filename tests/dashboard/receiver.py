"""A real receiver of a webhook, on a free port of this host."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """Answers with `status` what is posted to it, and keeps it."""

    status: int = 200
    location: str = ""
    got: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    address: str = ""


@contextmanager
def listening() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.got.append((self.path, json.loads(body)))
            self.send_response(kept.status)
            if kept.location:
                self.send_header("Location", kept.location)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
