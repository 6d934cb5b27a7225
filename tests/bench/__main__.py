"""`./run bench`: measures a real yard and the engine, prints the numbers with their goals and writes them as JSON.

./run bench [yard] [recording] [timeline] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parallel_core.cli.numbers import target, whole

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHES)}; all where none is named")
    rounds_help = "how often each start, stop and run is measured (default: 3)"
    parser.add_argument("--rounds", type=whole(1), default=3, help=rounds_help)
    json_help = "file for the results (default: bench.json)"
    parser.add_argument("--json", type=target, metavar="FILE", default=Path("bench.json"), help=json_help)
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(BENCHES):
        parser.error(f"benchmarks are {', '.join(BENCHES)}; there is no {', '.join(sorted(unknown))}")

    import django

    django.setup()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from tests.bench import numbers

    before = numbers.machine()
    print(f"{before['cores']} cores, load {before['load_1min']:.1f}", flush=True)
    result: dict[str, Any] = {"machine": before}
    for name in chosen.names or BENCHES:
        result |= BENCHES[name](chosen.rounds)
    chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"Written to {chosen.json}")
    return 0


def _yard(rounds: int) -> dict[str, Any]:
    from tests.bench import numbers

    return {"numbers": numbers.measure(rounds, lambda number: print(number.text, flush=True))}


def _recording(rounds: int) -> dict[str, Any]:
    from parallel_core.bench import goals, spans

    found = spans.run(rounds)
    print("\n".join([found["text"], *map(goals.line, found["goals"])]), flush=True)
    return {"recording": found}


def _timeline(rounds: int) -> dict[str, Any]:
    from tests.bench import timeline

    out = []
    for number in timeline.measure(rounds):
        print(number.text, flush=True)
        out.append(asdict(number) | {"text": number.text})
    return {"timeline": out}


BENCHES: dict[str, Callable[[int], dict[str, Any]]] = {"yard": _yard, "recording": _recording, "timeline": _timeline}
"""Each benchmark prints its lines and returns what is written to the JSON file."""


if __name__ == "__main__":
    sys.exit(main())
