"""`./run test`: ruff, mypy, then pytest. `--full` adds the long suite; other arguments go to pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def step(title: str, *command: str) -> int:
    print(f"== {title}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def bring_chromium() -> None:
    """Takes Chromium from apt where it is missing and we are root; otherwise browser tests are skipped, and say so."""
    if any(shutil.which(name) for name in CHROMIUM) or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    step("apt-get update", "apt-get", "update", "-q")
    step("apt-get install chromium", "apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium")


def main() -> int:
    arguments = sys.argv[1:]
    full = "--full" in arguments
    chosen = [a for a in arguments if a != "--full"]
    os.environ["TRAINYARD_TESTING"] = "1"
    bring_chromium()
    python = sys.executable
    failed = 0
    if not chosen:
        failed |= step("ruff check", python, "-m", "ruff", "check", ".")
        failed |= step("ruff format", python, "-m", "ruff", "format", "--check", ".")
        failed |= step("mypy", python, "-m", "mypy")
    marks = "not gpu" if full else "not gpu and not full"
    failed |= step("pytest", python, "-m", "pytest", "-m", marks, "--durations=15", *chosen)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
