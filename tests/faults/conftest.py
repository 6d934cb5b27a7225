"""One real yard for the kill tests; it restarts its killed processes itself, as in production."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.yard_process import YardProcess, wait_for


@pytest.fixture(scope="module")
def yard() -> Iterator[YardProcess]:
    with closing(YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CPU_DEVICES="2")) as subject:
        yield subject.calibrated().up()


@pytest.fixture
def client(yard: YardProcess) -> Iterator[httpx.Client]:
    with yard.client() as client:
        wait_for("an online worker", lambda: any(not w["silent"] for w in client.get("/api/v1/workers").json()["data"]))
        yield client
