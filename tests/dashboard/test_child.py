"""The analyst's subprocesses: their memory is limited where the system can do that."""

from __future__ import annotations

import resource

import pytest

from dashboard.analyst import child

LOOK = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0])"


@pytest.mark.skipif(not child.LINUX, reason="only Linux has such a limit")
@pytest.mark.parametrize("linux", [True, False])
def test_the_memory_limit_is_set_on_linux_alone(linux: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the system refuses it, and the process would not start at all."""
    monkeypatch.setattr(child, "LINUX", linux)
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    with child.Child("timeit", ["-n1", "-r1", LOOK], 3 << 30) as subject:
        first = next(line for line in subject.lines() if line is not None)
    assert int(first) == (3 << 30 if linux else own)
