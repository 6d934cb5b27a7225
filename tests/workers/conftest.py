"""One worker serves all tests; one that ends it starts it again. A module with an environment of its own, WORKER, has a
worker of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.scratch import fresh_folder
from tests.workers.harness import Bench


@pytest.fixture(scope="package")
def plain_bench() -> Iterator[Bench]:
    with opened() as bench:
        yield bench


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if (env := getattr(request.module, "WORKER", None)) is None:
        yield request.getfixturevalue("plain_bench")
        return
    with opened(**env) as bench:
        yield bench


@contextmanager
def opened(**env: str) -> Iterator[Bench]:
    home = fresh_folder("worker")  # short: a unix socket's path is limited
    bench = Bench(home)
    bench.folder.mkdir(parents=True)
    # Calibrated in advance; the measurement has a test of its own.
    (bench.folder / "calibration.json").write_text(json.dumps({"device": "cpu", "step_time": 0.1}))
    bench.start_worker(**env)
    try:
        yield bench
    finally:
        bench.close()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def _nothing_stays_under_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails in the middle of an attempt would leave no device to those behind it."""
    bench = request.getfixturevalue("bench") if "bench" in request.fixturenames else None
    yield
    if bench is not None:
        bench.restore()
