"""Writes the page of combinations: `python -m parallel_core.combinations docs/combinations.md`."""

import sys
from pathlib import Path

from parallel_core.combinations.page import page

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
