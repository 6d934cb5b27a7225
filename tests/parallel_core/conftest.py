"""Shared fixtures of the engine tests: one fork server, because each takes time to import what ranks need, and trained
models.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel_core.local import LocalRunner


@pytest.fixture(scope="session")
def runner() -> Iterator[LocalRunner]:
    """Consecutive runs leave nothing behind in the fork server (`test_cli` and `test_launch` check that)."""
    with LocalRunner() as opened:
        yield opened


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each model of `generated_texts` after some steps of training, so that the most likely token is no
    tie.
    """
    from tests.parallel_core import generated_texts as texts  # here, as few tests need what it imports

    return {name: texts.train(texts.spec_of(name), tmp_path_factory.mktemp(name)) for name in texts.MODELS}
