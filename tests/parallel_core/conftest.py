"""What tests of the engine share: one fork server, since each takes its time to import what ranks need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parallel_core.local import LocalYard


@pytest.fixture(scope="session")
def yard() -> Iterator[LocalYard]:
    """Runs one after the other leave nothing behind in it (`test_cli`, `test_launch`)."""
    with LocalYard() as opened:
        yield opened
