"""The fork server of a duel. What its ranks run is named here, in code: no order can ask for anything else."""

from __future__ import annotations

from parallel_core.bench.duel import be_rank
from parallel_core.launch_server import main

if __name__ == "__main__":
    main(be_rank)
