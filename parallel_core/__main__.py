"""`python -m parallel_core COMMAND`; see the package `cli` and `docs/command-line.md`.

COMMAND is train, spec, schedule, calibrate, profile, predict, order, plan, partition, fit, import-llama, export-llama,
pack-tokens, pack-images, generate or bench.
"""

from __future__ import annotations

import sys

from parallel_core.cli import main, stop

if __name__ == "__main__":
    stop.listen()
    sys.exit(main())
