"""`python -m parallel_core.searches KIND < question.json`: one search, in a process of its own.

Prints lines of JSON: {"done": n, "of": m} now and then, and last {"answer": ...}, or {"refused": why} where the
question has no answer. Exit code EXIT_MEMORY: memory ran out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from parallel_core.processes import EXIT_MEMORY, die_with_told_parent
from parallel_core.searches import KINDS

EVERY_S = 0.3
"""Minimum interval between two progress lines, in seconds."""

Say = Callable[[dict[str, Any]], None]


class Progress:
    """Forwards the progress of a search, at most once every EVERY_S; always when it is done."""

    def __init__(self, say: Say) -> None:
        self._say, self._said = say, time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        if done == of or time.monotonic() - self._said > EVERY_S:
            self._said = time.monotonic()
            self._say({"done": done, "of": of})


def work(kind: str, question: str, say: Say) -> int:
    """Answers the question; returns the exit code. Raises pydantic's ValidationError where the question is not valid
    for `kind`."""
    module = import_module(f"parallel_core.searches.{kind}")
    asked = module.Question.model_validate_json(question)
    try:
        found = module.answer(asked, Progress(say))
    except MemoryError:
        return EXIT_MEMORY
    except ValidationError:  # also a ValueError, but a bug of ours, not an answer
        raise
    except ValueError as error:
        say({"refused": str(error)})
    else:
        say({"answer": found.model_dump(mode="json")})
    return 0


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m parallel_core.searches", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    return work(parser.parse_args().kind, sys.stdin.read(), _say)


if __name__ == "__main__":
    die_with_told_parent()
    sys.exit(main())
