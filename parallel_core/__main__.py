"""`python -m parallel_core train | schedule | calibrate | profile | predict | plan | bench`; see `cli`."""

from __future__ import annotations

import sys

from parallel_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
