"""`python -m workers`: a worker, configured by its environment (see `settings`). Ends in order on TERM or INT."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from parallel_core.observe.gpus import gpus, open_nvml
from parallel_core.processes import die_with_told_parent
from workers import preflight
from workers.settings import Settings


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] = ()) -> int:
    what = "A worker of a yard. Its settings are variables of the environment: docs/deploy.md lists them."
    argparse.ArgumentParser("python -m workers", description=what).parse_args(arguments)  # none is ignored
    die_with_told_parent()
    try:
        settings = Settings.from_env()
        gpus(open_nvml())
        preflight.wait(settings, _say)
        from workers.celery import app
    except ValueError as error:  # a setting is invalid, also of CUDA
        _say(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    level = (os.environ.get("LOG_LEVEL") or "INFO").upper()
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--disable-prefetch"]
    app.worker_main(["--quiet", "worker", "-P", "threads", "-c", "2", "-l", level, "-n", f"{settings.name}@%h", *quiet])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
