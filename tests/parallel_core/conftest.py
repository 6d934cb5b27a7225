"""Shared fixture of the engine tests: one fork server, because each takes time to import what ranks need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parallel_core.local import LocalRunner


@pytest.fixture(scope="session")
def runner() -> Iterator[LocalRunner]:
    """Consecutive runs leave nothing behind in the fork server (`test_cli` and `test_launch` check that)."""
    with LocalRunner() as opened:
        yield opened
