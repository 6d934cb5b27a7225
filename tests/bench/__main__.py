"""`./run bench`: the numbers of a real yard and of the engine, printed with their goals and written as JSON.

./run bench [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="how often each start, stop and run is measured")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the results go")
    chosen = parser.parse_args()

    import django

    django.setup()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from parallel_core.bench import spans
    from tests.bench import numbers

    before = numbers.machine()
    print(f"{before['cores']} cores, load {before['load_1min']:.1f}", flush=True)
    found = numbers.measure(chosen.rounds, lambda number: print(number.text, flush=True))
    recording = spans.run(chosen.rounds)
    met = "met" if recording["share"] < 0.01 else "MISSED"
    print(f"{'recording of spans, share of a step':<54} goal    1 %  {met:<6} {recording['text']}", flush=True)
    result = {"machine": before, "numbers": found, "recording": recording}
    chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"Written to {chosen.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
