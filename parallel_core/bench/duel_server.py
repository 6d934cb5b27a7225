"""The fork server of a duel. What its ranks run is named here, in code: no order can ask for anything else."""

from __future__ import annotations

import sys

from parallel_core import processes
from parallel_core.bench.duel import be_rank
from parallel_core.launch_server import serve


def main() -> None:
    parent = int(sys.argv[sys.argv.index("--parent") + 1])
    processes.die_with(parent)
    serve(parent, be_rank)


if __name__ == "__main__":
    main()
