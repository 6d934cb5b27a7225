"""The fork server of a profile. What its ranks run is fixed in code; a request cannot run anything else."""

from __future__ import annotations

from parallel_core.launch.server import main
from parallel_core.profile.ranks import be_rank

if __name__ == "__main__":
    main(be_rank)
