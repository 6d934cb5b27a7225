"""`python -m parallel_core COMMAND`; see the package `cli` and `docs/command-line.md`.

COMMAND is train, schedule, calibrate, profile, predict, order, plan, partition, fit, import-llama, export-llama,
pack-tokens, generate or bench.
"""

from __future__ import annotations

import signal
import sys

from parallel_core.cli import main

if __name__ == "__main__":
    # A batch system sends SIGTERM before it kills: treated like Ctrl-C, so that ranks save and exit.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
