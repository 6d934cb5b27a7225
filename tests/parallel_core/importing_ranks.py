"""A fork server whose ranks train and record which modules they had to import themselves (see test_prewarm)."""

from __future__ import annotations

import sys

from parallel_core import processes
from parallel_core.launch.rank import RankArgs, engine
from parallel_core.launch.server import serve
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink

train = engine()


def run(args: RankArgs, sink: FileSink, page: Progress) -> None:
    before = set(sys.modules)
    train(args, sink, page)
    (args.folder / f"imported-{args.rank}").write_text("\n".join(sorted(set(sys.modules) - before)))


if __name__ == "__main__":
    parent = int(sys.argv[2])
    processes.die_with(parent)
    serve(parent, run)
