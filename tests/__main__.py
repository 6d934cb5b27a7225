"""`./run test`: ruff, mypy, then pytest. `--full` adds the long suite; other arguments go to pytest.

Three parts go on at a time, and the first to end takes the next: whole yards (browser, kill and PostgreSQL tests, in
two parts) wait more than they compute, so that two cores have room for one beside the engine. What measures comes last
and alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests import chromium

ROOT = Path(__file__).resolve().parent.parent
ENGINE, PAGES, WORKERS = "tests/parallel_core", "tests/dashboard", "tests/workers"
BROWSER = "tests/browser"
KILLS = ("tests/faults", "tests/dashboard/test_postgres.py", "tests/workers/test_worker_faults.py")
SCHEMA = "tests/dashboard/test_api_schema.py"
PLUGINS = {"playwright": BROWSER, "schemathesis": SCHEMA}
"""Plugins of pytest that one path alone needs: every other part would take seconds to load them."""
ELSEWHERE = "not gpu and not docker"
"""What needs more than a machine with Python is asked for: `./run test -m docker tests/test_docker.py`."""
SLOWEST = "--durations=15"
AT_A_TIME = 3
LOOK_S = 0.2
LAST_LINES = 15

Step = tuple[str, Sequence[str]]
"""What it is called, and its command line."""


def step(title: str, command: Sequence[str]) -> int:
    """Runs it in the repository, its words under its title."""
    print(f"== {title}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def pytest_of(marks: str, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "pytest", "-m", marks, SLOWEST, *arguments]


def lint() -> list[Step]:
    python = sys.executable
    return [
        ("ruff check", [python, "-m", "ruff", "check", "."]),
        ("ruff format", [python, "-m", "ruff", "format", "--check", "."]),
        ("mypy", [python, "-m", "mypy"]),
    ]


def suite(wanted: str) -> list[Step]:
    """Every test that is `wanted`, each in one of these parts; the longest first, so that the last end together: as
    short as these are, none of them is left to go on alone while a core has nothing to do."""
    elsewhere = [f"--ignore={path}" for path in (ENGINE, PAGES, WORKERS, BROWSER, *KILLS)]
    engine, pages = files(ENGINE), files(PAGES)
    parts = [
        ("the engine", engine[::2]),
        ("kills and PostgreSQL", KILLS),
        ("more of the engine", engine[1::2]),
        ("browser", [BROWSER]),
        ("pages", pages[::3]),
        ("more pages", pages[1::3]),
        ("still more pages", pages[2::3]),
        ("the others", elsewhere),
        ("workers", files(WORKERS)),
    ]
    return [(f"pytest, {title}", pytest_of(wanted, *unneeded(paths), *paths)) for title, paths in parts]


def unneeded(paths: Sequence[str]) -> list[str]:
    """Options of pytest that leave out the PLUGINS of other paths."""
    return [f"-pno:{plugin}" for plugin, of_path in PLUGINS.items() if of_path not in paths]


def files(folder: str) -> list[str]:
    """Its test files but those of KILLS."""
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("test_*.py"))
    return [path for path in found if path not in KILLS]


def together(steps: Sequence[Step]) -> int:
    """Takes them in their order, AT_A_TIME of them at a time, and shows the words of each whole. How many failed."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_A_TIME) as pool:
        under_way = []
        for number, (title, command) in enumerate(steps):
            words = Path(folder, str(number))
            under_way.append((title, words, pool.submit(quietly, command, words)))
        failed = [(title, words) for title, words, status in under_way if show(title, words, status) != 0]
        for title, words in failed:  # once more at the end: above them stand thousands of lines
            print(f"== failed: {title}", *complaints(words), sep="\n", flush=True)
    return len(failed)


def complaints(words: Path) -> list[str]:
    """What pytest's summary names; of any other step its last lines."""
    lines = words.read_text(errors="replace").splitlines()
    return [line for line in lines if line.startswith(("FAILED ", "ERROR "))] or lines[-LAST_LINES:]


def quietly(command: Sequence[str], words: Path) -> int:
    with words.open("wb") as out:
        return subprocess.run(command, cwd=ROOT, check=False, stdout=out, stderr=subprocess.STDOUT).returncode


def show(title: str, words: Path, status: Future[int]) -> int:
    """Passes on what a step says, while it says it, to its end; returns its exit status."""
    print(f"== {title}", flush=True)
    words.touch()
    with words.open("rb") as said:
        while True:
            over = status.done()
            shutil.copyfileobj(said, sys.stdout.buffer)
            sys.stdout.flush()
            if over:
                return status.result()
            time.sleep(LOOK_S)


def main() -> int:
    arguments = sys.argv[1:]
    full = "--full" in arguments
    chosen = [a for a in arguments if a != "--full"]
    os.environ["TRAINYARD_TESTING"] = "1"
    # Hundreds of processes import the same sources: without their bytecode each would compile all of them again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chromium.bring()
    wanted = ELSEWHERE if full else f"{ELSEWHERE} and not full"
    if chosen:
        return int(step("pytest", pytest_of(wanted, *chosen)) != 0)
    wanted += " and not alone"
    failed = together([*lint(), *suite(wanted)])
    if full:
        failed += step("pytest, measuring", pytest_of(f"alone and {ELSEWHERE}", "-s")) != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
