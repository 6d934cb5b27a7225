"""`./run test`: ruff, mypy, then pytest. `--full` adds the long suite; other arguments go to pytest.

Whole yards (browser, kill and PostgreSQL tests), which wait more than they compute, go on beside everything else; what
measures comes last and alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
YARDS = "(browser or faults or postgres)"
SLOWEST = "--durations=15"

Step = tuple[str, Sequence[str]]
"""What it is called, and its command line."""


def step(title: str, command: Sequence[str], out: IO[bytes] | None = None) -> int:
    """Runs it in the repository; its words go to `out`, or straight to the terminal."""
    print(f"== {title}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False, stdout=out, stderr=out and subprocess.STDOUT).returncode


def bring_chromium() -> None:
    """Takes Chromium from apt where it is missing and we are root; otherwise browser tests are skipped, and say so."""
    if any(shutil.which(name) for name in CHROMIUM) or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    step("apt-get update", ["apt-get", "update", "-q"])
    step("apt-get install chromium", ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"])


def pytest_of(marks: str, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "pytest", "-m", marks, SLOWEST, *arguments]


def lint() -> list[Step]:
    python = sys.executable
    return [
        ("ruff check", [python, "-m", "ruff", "check", "."]),
        ("ruff format", [python, "-m", "ruff", "format", "--check", "."]),
        ("mypy", [python, "-m", "mypy"]),
    ]


def beside(apart: Step, here: Sequence[Step]) -> int:
    """`apart` beside the others, its words behind theirs."""
    with ThreadPoolExecutor(1) as pool, tempfile.TemporaryFile() as words:
        other = pool.submit(step, *apart, words)
        failed = sum(step(*each) != 0 for each in here)
        failed += other.result() != 0
        words.seek(0)
        print(f"== {apart[0]}, from its begin", flush=True)
        shutil.copyfileobj(words, sys.stdout.buffer)
        sys.stdout.flush()
    return failed


def main() -> int:
    arguments = sys.argv[1:]
    full = "--full" in arguments
    chosen = [a for a in arguments if a != "--full"]
    os.environ["TRAINYARD_TESTING"] = "1"
    bring_chromium()
    wanted = "not gpu" if full else "not gpu and not full"
    if chosen:
        return int(step("pytest", pytest_of(wanted, *chosen)) != 0)
    wanted += " and not alone"
    yards: Step = ("pytest, whole yards", pytest_of(f"{wanted} and {YARDS}"))
    failed = beside(yards, [*lint(), ("pytest, the rest", pytest_of(f"{wanted} and not {YARDS}"))])
    if full:
        failed += step("pytest, measuring", pytest_of("alone and not gpu", "-s")) != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
