"""The fork server of the benchmarks with turns. What its ranks can run is fixed in code; a request only selects from
it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch.distributed as dist

from parallel_core.bench import duel, recompute, spans, whatif
from parallel_core.bench.turns import Contestant, take_turns
from parallel_core.engine.distributed import Groups, connect, disconnect
from parallel_core.launch.rank import RankArgs
from parallel_core.launch.server import main
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink

Field = Callable[[str, RankArgs, Groups, Progress], Mapping[str, Contestant]]
FIELDS: dict[str, tuple[Field, frozenset[str]]] = {
    "duel": (duel.contestants, frozenset()),
    "activations": (duel.pair, frozenset({"ours", "theirs"})),
    "spans": (spans.contestants, frozenset()),
    "whatif": (whatif.contestants, frozenset()),
    "recompute": (recompute.contestants, frozenset({"kept", "ours", "theirs"})),
}
"""Kind -> (function that builds the contestants, names of those whose memory is metered)."""


def be_rank(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Runs in a rank: builds all contestants in one process group, then takes turns."""
    asked = json.loads((Path(args.folder) / "field.json").read_text())
    made, meter = FIELDS[asked["kind"]]
    groups = connect(args.rendezvous(), args.rank, Layout.of(args.spec), "gloo")
    together = dist.barrier if dist.is_initialized() else lambda: None
    try:
        contestants = made(asked["name"], args, groups, page)
        sink.emit("turns", **take_turns(contestants, asked["rounds"], sink, meter, together))
    finally:
        disconnect()


if __name__ == "__main__":
    main(be_rank)
