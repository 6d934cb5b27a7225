"""Fixtures that every suite shares: a real broker, and the three people of the cast."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dashboard.yard import broker as embedded
from tests.yard_process import YardProcess

# A shell that starts the suite in the background leaves SIGINT ignored, and every child would inherit that:
# the tests of Ctrl-C need it as a terminal gives it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is, and nothing about what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

NO_MISSING = "TRAINYARD_NO_MISSING"
MISSING = "missing:"
"""How the reason of a skip for want of something begins; on a machine that has everything it is a failure."""
_missing: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Where tests of GPUs are left out, nobody sees one: a yard of tests that had any would offer no core."""
    if "not gpu" in config.getoption("markexpr"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure beside a real yard is told with what the yard wrote: its folder is gone afterwards."""
    report = yield
    if report.failed:
        for yard in YardProcess.open:
            report.sections += [(f"the yard's {name}", text) for name, text in yard.tails()]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple) and MISSING in report.longrepr[2]:
        _missing.append(f"{report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _missing and os.environ.get(NO_MISSING):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _missing and os.environ.get(NO_MISSING):
        terminalreporter.section("skipped for want of something, which fails here")
        for line in _missing:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def broker_url() -> Iterator[str]:
    """URL of a real Valkey server of this test session."""
    folder = Path(tempfile.mkdtemp(prefix="ty-broker-"))
    process, url = embedded.start(folder)
    yield url
    process.terminate()
    process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_url(broker_url: str, settings: Any) -> str:
    """An empty broker, and Django's settings pointing at it."""
    import redis

    with redis.Redis.from_url(broker_url) as client:
        client.flushall()
    settings.REDIS_URL = broker_url
    settings.CELERY_BROKER_URL = broker_url.replace("unix://", "redis+socket://")
    return broker_url


@pytest.fixture
def alice(db: None, django_user_model: Any) -> Any:
    """A member: submits runs and cancels her own."""
    from dashboard.accounts.roles import make_member

    return make_member(django_user_model.objects.create_user("alice", password="alice-secret-1"))


@pytest.fixture
def bob(db: None, django_user_model: Any) -> Any:
    """A viewer: reads everything, changes nothing."""
    return django_user_model.objects.create_user("bob", password="bob-secret-1")


@pytest.fixture
def admin(db: None, django_user_model: Any) -> Any:
    """Staff: changes everything, drains workers, makes users."""
    return django_user_model.objects.create_superuser("root", password="root-secret-1")
