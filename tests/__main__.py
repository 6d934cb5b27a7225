"""`./run test`: ruff and mypy, then pytest. `--full` adds the tests marked "full"; other arguments are passed to
pytest.

The suite is split into parts, four of which run concurrently. The parts that start whole yards (browser, kill and
PostgreSQL tests) mostly wait, so two cores can run one of them next to engine tests. Tests that measure (marked
"alone") run last, with nothing else running.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tests import chromium

ROOT = Path(__file__).resolve().parent.parent
ENGINE, PAGES, WORKERS = "tests/parallel_core", "tests/dashboard", "tests/workers"
PAIRS = "tests/parallel_core/test_combinations.py"
BROWSER = "tests/browser"
KILLS = ("tests/faults", "tests/dashboard/test_postgres.py", "tests/workers/test_worker_faults.py")
SCHEMA = "tests/dashboard/test_api_schema.py"
PLUGINS = {"playwright": BROWSER, "schemathesis": SCHEMA}
"""Pytest plugins that only one path needs. They are disabled for all other parts, because loading them takes
seconds.
"""
ELSEWHERE = "not gpu and not docker"
"""Tests that need a GPU or Docker are excluded by default; run them with `./run test -m docker
tests/test_docker.py`.
"""
SLOWEST = "--durations=15"
AT_A_TIME = 4
LOOK_S = 0.2
LAST_LINES = 15

running: set[subprocess.Popen[bytes]] = set()
"""Steps that are under way."""
Step = tuple[str, Sequence[str]]
"""Title and command line."""


def run(command: Sequence[str], out: IO[bytes] | None = None) -> int:
    """Runs the command in the repository root; its output goes to `out`. Returns its exit status."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out and subprocess.STDOUT)
    running.add(process)
    try:
        return process.wait()
    except BaseException:  # Ctrl-C or SIGTERM
        process.terminate()
        process.wait()
        raise
    finally:
        running.discard(process)


def terminated(*_: object) -> None:
    """On SIGTERM, ends this process as Ctrl-C would."""
    sys.exit(128 + signal.SIGTERM)


def step(title: str, command: Sequence[str]) -> int:
    """Runs the command in the repository root, with its output below the title."""
    print(f"== {title}", flush=True)
    return run(command)


def pytest_of(marks: str, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "pytest", "-m", marks, SLOWEST, *arguments]


def lint() -> list[Step]:
    python = sys.executable
    return [
        ("ruff check", [python, "-m", "ruff", "check", "."]),
        ("ruff format", [python, "-m", "ruff", "format", "--check", "."]),
    ]


def suite(wanted: str, full: bool = False) -> list[Step]:
    """mypy, and the parts into which the tests that `wanted` selects are split. The longest begin first, so that the
    workers of the pool finish at about the same time. With `full`, the pairs of features are a part of their own, and
    they and the kills and PostgreSQL, where all pages are tested again, then take longest.
    """

    def part(title: str, paths: Sequence[str]) -> Step:
        return f"pytest, {title}", pytest_of(wanted, *unneeded(paths), *paths)

    elsewhere = [f"--ignore={path}" for path in (ENGINE, PAGES, WORKERS, BROWSER, *KILLS)]
    engine, pages = [path for path in files(ENGINE) if not full or path != PAIRS], files(PAGES)
    kills = part("kills and PostgreSQL", KILLS)
    return [
        *([part("pairs of features", [PAIRS]), kills] if full else []),
        part("the engine", engine[::3]),
        part("browser", [BROWSER]),
        part("more of the engine", engine[1::3]),
        *([] if full else [kills]),
        part("still more of the engine", engine[2::3]),
        part("still more pages", pages[2::3]),
        part("more pages", pages[1::3]),
        part("pages", pages[::3]),
        part("the others", elsewhere),
        part("workers", files(WORKERS)),
        ("mypy", [sys.executable, "-m", "mypy"]),
    ]


def unneeded(paths: Sequence[str]) -> list[str]:
    """Pytest options that disable each plugin in PLUGINS that none of `paths` needs."""
    return [f"-pno:{plugin}" for plugin, of_path in PLUGINS.items() if of_path not in paths]


def selects(chosen: Sequence[str], folder: str) -> bool:
    """Whether pytest with these arguments may run tests of `folder`: one of its files, a folder around it, or, where no
    path is among them, the whole suite.
    """
    wanted = [(ROOT / argument.partition("::")[0]).resolve() for argument in chosen]
    paths, own = [path for path in wanted if path.exists()], ROOT / folder
    return not paths or any(path.is_relative_to(own) or own.is_relative_to(path) for path in paths)


def files(folder: str) -> list[str]:
    """The test files in `folder`, without those listed in KILLS."""
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("test_*.py"))
    return [path for path in found if path not in KILLS]


def together(steps: Sequence[Step]) -> int:
    """Runs the steps in order, at most AT_A_TIME concurrently, and prints the output of each in one piece. Returns the
    number of failed steps.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_A_TIME) as pool:
        under_way = []
        for number, (title, command) in enumerate(steps):
            words = Path(folder, str(number))
            under_way.append((title, words, pool.submit(quietly, command, words)))
        try:
            failed = [(title, words) for title, words, status in under_way if show(title, words, status) != 0]
        except BaseException:  # Ctrl-C or SIGTERM: no other step begins, and those that run close what they started
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(running):
                process.terminate()
            raise
        for title, words in failed:  # repeated at the end, because thousands of lines were printed since
            print(f"== failed: {title}", *complaints(words), sep="\n", flush=True)
    return len(failed)


def complaints(words: Path) -> list[str]:
    """The FAILED and ERROR lines of pytest's summary; for any other step, its last lines."""
    lines = words.read_text(errors="replace").splitlines()
    return [line for line in lines if line.startswith(("FAILED ", "ERROR "))] or lines[-LAST_LINES:]


def quietly(command: Sequence[str], words: Path) -> int:
    with words.open("wb") as out:
        return run(command, out)


def show(title: str, words: Path, status: Future[int]) -> int:
    """Prints a step's output as it is written, until the step ends; returns its exit status."""
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
    signal.signal(signal.SIGTERM, terminated)
    arguments = sys.argv[1:]
    full = "--full" in arguments
    chosen = [a for a in arguments if a != "--full"]
    os.environ["TRAINYARD_TESTING"] = "1"
    # Hundreds of processes import the same sources; without cached bytecode each of them would compile all of it again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if selects(chosen, BROWSER):
        chromium.bring()
    wanted = ELSEWHERE if full else f"{ELSEWHERE} and not full"
    if chosen:
        return int(step("pytest", pytest_of(wanted, *chosen)) != 0)
    wanted += " and not alone"
    failed = together([*lint(), *suite(wanted, full)])
    if full:
        failed += step("pytest, measuring", pytest_of(f"alone and {ELSEWHERE}", "-s")) != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
