"""Trains one model under two splits on a yard, compares both, and saves every number, with nothing but Python.

    export TOKEN=ty_…        # made under your name in the side bar, API tokens: it has to submit
    python examples/api_client.py http://127.0.0.1:8000 examples/pp2.json

The second split is a single device: the spec without its `parallel` section. docs/api.md explains each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

ENDED = {"succeeded", "failed", "cancelled", "lost"}


class Yard:
    """A yard and the token to use there."""

    def __init__(self, address: str, token: str) -> None:
        self.address, self.token = address.rstrip("/"), token

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request, again where the answer is lost, and returns what the answer holds as `data`."""
        key = uuid.uuid4().hex
        why = ""
        for wait in (0, 1, 5, 15):
            time.sleep(wait)
            try:
                with self._send(method, f"/api/v1{path}", body, key) as answer:  # with the same key: made only once
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as refused:
                why = self._why(refused)
                if refused.code < 500:
                    break
            except OSError as error:
                why = str(error)
        raise SystemExit(f"{method} {self.address}{path}: {why}")

    def save(self, path: str, name: str) -> None:
        """Saves a file that a page offers."""
        with self._send("GET", path) as answer:
            Path(name).write_bytes(answer.read())

    def _send(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", "Idempotency-Key": key}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        return urllib.request.urlopen(request, timeout=90)

    @staticmethod
    def _why(refused: urllib.error.HTTPError) -> str:
        try:
            error = json.load(refused)["error"]
        except (ValueError, KeyError):  # of a proxy before the yard
            return str(refused)
        return "\n  ".join([error["message"], *(f"{field}: {said}" for field, said in error["fields"].items())])


def followed(yard: Yard, number: int) -> dict[str, Any]:
    """Waits for the end of a run. Each answer comes when its state has changed, or after 30 seconds; that it has ended
    is told with its summary."""
    run: dict[str, Any] = {"state": "followed"}
    while run["state"] not in ENDED:
        print(f"run {number} is {run['state']}")
        run = yard.ask("GET", f"/runs/{number}?wait=30")
    print(f"run {number} {run['state']}: {run['name']}")
    return run


def main(address: str, path: str) -> None:
    yard, split = Yard(address, os.environ["TOKEN"]), json.loads(Path(path).read_text())
    single = {name: section for name, section in split.items() if name != "parallel"}
    asked = {"name": "from a script", "runs": [{"label": "single", "spec": single}, {"label": "split", "spec": split}]}
    study = yard.ask("POST", "/studies", asked)
    first, second = (followed(yard, run["id"]) for run in study["members"])
    yard.save(f"/studies/{study['id']}/table.csv", "study.csv")
    for run in (first, second):
        yard.save(f"/runs/{run['id']}/part/series-csv", f"run-{run['id']}.csv")
    timed = [run["summary"].get("timed") for run in (first, second)]
    if first["state"] == second["state"] == "succeeded" and all(timed):  # with more steps than it warms up
        times = [one["median"] for one in timed]
        print(f"{times[0] * 1e3:.1f} and {times[1] * 1e3:.1f} ms a step: {times[0] / times[1]:.2f}x")


if __name__ == "__main__":
    if len(sys.argv) != 3 or "TOKEN" not in os.environ:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2])
