"""Fixtures that all suites share: a real broker, and three users, one for each role (member, viewer, admin)."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import traceback
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dashboard.yard import broker as embedded
from tests import scratch
from tests.yard_process import YardProcess

# A shell that starts the suite in the background leaves SIGINT ignored, and every child process would inherit that. The
# Ctrl-C tests need the default handler that a process in a terminal has.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _terminated(*_: object) -> None:
    """SIGTERM ends the session as Ctrl-C does: fixtures close what they started, and exit handlers run."""
    pytest.exit("terminated", returncode=128 + signal.SIGTERM)


signal.signal(signal.SIGTERM, _terminated)
scratch.remove_left()

# How long a Hypothesis example takes depends on the load of the machine, not on the tested code.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in each run of the short suite: it fails for what was changed, not by chance. The long one looks for
# new examples, and says how to repeat one that fails.
settings.register_profile("same", _UNTIMED, derandomize=True)
settings.register_profile("new", _UNTIMED, derandomize=False, print_blob=True)

NO_MISSING = "TRAINYARD_NO_MISSING"
MISSING = "missing:"
"""Prefix of the reason of every skip because a tool is missing that could be installed; if NO_MISSING is set in the
environment, such a skip fails the session. A skip for data that no clone contains begins with "optional:"; all other
reasons name what this system, processor or database cannot do.
"""
_missing: list[str] = []


COLLECT_AFTER = 200_000
"""New objects before Python looks for unused cycles among them (its default is 700). Building thousands of pages and
specs otherwise spends an eighth of the processor time on looking.
"""


def pytest_collection_finish() -> None:
    """Takes what the imports made out of every later search for unused cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def pytest_configure(config: pytest.Config) -> None:
    """Chooses Hypothesis' examples. Hides all GPUs when GPU tests are deselected: a yard that sees a GPU would offer no
    CPU devices.
    """
    marks = config.getoption("markexpr")
    settings.load_profile("same" if "not full" in marks else "new")
    if "not gpu" in marks:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Appends the yards' logs to the report of a failed test, since a yard's folder is deleted when the test ends; and
    makes each yard ready for the next test.
    """
    report = yield
    if report.failed:
        for yard in list(YardProcess.open):
            report.sections += [(f"the yard's {name}", text) for name, text in yard.tails()]
            try:
                yard.restore()
            except (Exception, pytest.fail.Exception):  # or its time limit; a hook that raises ends the whole session
                report.sections.append(("the yard could not be restored", traceback.format_exc()))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_missing(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A whole module that is skipped, e.g. by importorskip at its head."""
    _note_missing(report)


def _note_missing(report: pytest.TestReport | pytest.CollectReport) -> None:
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
    """URL of a real Valkey server that runs for this test session."""
    folder = scratch.fresh_folder("broker")
    process, url = embedded.start(folder)
    yield url
    process.terminate()
    process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_url(broker_url: str, settings: Any) -> str:
    """URL of the emptied broker, with Django's settings pointing at it."""
    import redis

    with redis.Redis.from_url(broker_url) as client:
        client.flushall()
    settings.REDIS_URL = broker_url
    settings.CELERY_BROKER_URL = broker_url.replace("unix://", "redis+socket://")
    return broker_url


@pytest.fixture
def alice(db: None, django_user_model: Any) -> Any:
    """A user with the member role: submits runs and cancels her own."""
    from dashboard.accounts.roles import make_member

    return make_member(django_user_model.objects.create_user("alice", password="alice-secret-1"))


@pytest.fixture
def bob(db: None, django_user_model: Any) -> Any:
    """A user with the viewer role: reads everything, changes nothing."""
    return django_user_model.objects.create_user("bob", password="bob-secret-1")


@pytest.fixture
def admin(db: None, django_user_model: Any) -> Any:
    """A superuser: changes everything, drains workers, creates users."""
    return django_user_model.objects.create_superuser("root", password="root-secret-1")
