"""PipeDream's own layer profiles. They are not kept in this project, but a checkout may have them beside it.

Without them, `test_pipedream` checks the same cost model on a small graph whose optimum is worked out by hand.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "pipedream_profiles"
VARIABLE = "TRAINYARD_PIPEDREAM_PROFILES"
SOURCE = "https://github.com/msr-fiddle/pipedream, profiler/image_classification/profiles"


def released(name: str) -> Path:
    """The file of the profile of a model, such as vgg16; skips the test where there is none."""
    path = Path(os.environ.get(VARIABLE, FOLDER)) / f"{name}.graph.txt"
    if not path.exists():
        pytest.skip(
            f"optional: no {path.name} (= {name}/graph.txt of {SOURCE}) in {path.parent}, or where {VARIABLE} says"
        )
    return path
