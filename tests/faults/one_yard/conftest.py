"""One real yard for all tests of this package; it restarts its killed processes itself, as in production."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.yard_process import YardProcess, wait_for


@pytest.fixture(scope="package")
def _hangup_is_not_ignored() -> Iterator[None]:
    """Under nohup a yard would inherit that SIGHUP is ignored. A handler is not inherited, and lets this process live
    on as nohup does.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="package")
def yard(_hangup_is_not_ignored: None) -> Iterator[YardProcess]:
    with closing(YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CPU_DEVICES="2")) as subject:
        yield subject.calibrated().up()


@pytest.fixture
def client(yard: YardProcess) -> Iterator[httpx.Client]:
    with yard.client() as client:
        wait_for("an online worker", lambda: any(not w["silent"] for w in client.get("/api/v1/workers").json()["data"]))
        yield client
