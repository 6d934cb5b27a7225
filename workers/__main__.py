"""`python -m workers`: a worker, as its environment describes it (see `settings`). Ends in order on TERM or INT."""

from __future__ import annotations

import os
import sys


def main() -> int:
    try:
        from workers.celery import app, settings
    except ValueError as error:  # a setting that cannot be used
        sys.stderr.write(f"{error}\n")
        return 2
    level = os.environ.get("LOG_LEVEL", "INFO")
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--disable-prefetch"]
    app.worker_main(["--quiet", "worker", "-P", "threads", "-c", "2", "-l", level, "-n", f"{settings.name}@%h", *quiet])
    return 0


if __name__ == "__main__":
    sys.exit(main())
