"""`python -m parallel_core train | schedule | calibrate | profile | predict | plan | bench`; see `cli`."""

from __future__ import annotations

import signal
import sys

from parallel_core.cli import main

if __name__ == "__main__":
    # What a batch system sends before it kills is what a person means with Ctrl-C: ranks save and leave.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
