"""The fork server of a profile whose ranks hang as they open their device. Started by test_profile_progress."""

from __future__ import annotations

import time
from typing import Any

from parallel_core.launch.server import main
from parallel_core.profile import ranks


def hang(*_: Any) -> None:
    """Sleeps for longer than any test."""
    time.sleep(600)


if __name__ == "__main__":
    ranks.open_device = hang  # type: ignore[assignment]
    main(ranks.be_rank)
