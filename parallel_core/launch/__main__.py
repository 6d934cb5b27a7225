"""`python -m parallel_core.launch serve --parent <pid>`: the process that `launch.ForkServer` starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """`serve --parent <pid>`: runs as the fork server of that process; returns the exit code."""
    from parallel_core import processes

    if len(arguments) != 3 or arguments[:2] != ["serve", "--parent"] or not arguments[2].isdigit():
        print("usage: python -m parallel_core.launch serve --parent <pid>", file=sys.stderr)  # noqa: T201
        return 2
    processes.die_with(int(arguments[2]))
    from parallel_core.launch.server import serve

    serve(parent=int(arguments[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
