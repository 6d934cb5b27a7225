"""Benchmarks of the engine: `python -m parallel_core bench [name ...]`.

    spans    what recording costs, and its share of a step
    start    from submitting a run to the start of its step 1 on two warm ranks
    predict  step times of runs of every strategy, predicted from a profile of this host, against measured ones
    memory   peak memory of runs of every strategy, predicted, against the meter's, rank by rank
    alpa     plans of Alpa's two levels, with equal meshes and with others, against measured steps
    analysis accounts, critical path and plan of a traced step of a million spans
    simulate a step of a trillion parameters on 3 072 GPUs, by its operations
    whatif   schedules predicted from the traced steps of runs under other ones, against measured ones
    mfu      the share of one device's peak that a GPT gets: on a GPU where there is one
    single   plain PyTorch on one device
    ddp      torch.nn.parallel.DistributedDataParallel on two
    fully_shard  torch.distributed.fsdp.fully_shard on two, against this engine's ZeRO-3
    tensor   DTensor tensor parallelism on two; tensor-wide: of a model twice as deep and wide
    gpipe    torch.distributed.pipelining's GPipe on two
    1f1b ... and its 1F1B, interleaved, looped-bfs, zb-h1, zb-v and dualpipe-v; gpipe-early and 1f1b-early: ours with
             early gradients
    activations  bytes that 1F1B keeps live, here and there
    recompute  torch.utils.checkpoint on one device, at two depths: what is left of the activations, and its price
    limits   the engine's share of what two processes of this machine can do at most

From `single` on all are duels: the same model, batch, first weights and fused AdamW, both contestants in the *same*
processes and taking turns, so that whatever else the machine does meets both. Above 1 this engine is the faster one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parallel_core.bench import (
    alpa,
    analysis,
    duel,
    limits,
    memory,
    mfu,
    predict,
    recompute,
    simulated,
    spans,
    start,
    whatif,
)

Bench = Callable[[int], dict[str, Any]]
"""Rounds -> results, JSON-able, with the printed line under `text`."""

BENCHES: dict[str, Bench] = {
    "spans": spans.run,
    "start": start.run,
    "predict": predict.run,
    "memory": memory.run,
    "alpa": alpa.run,
    "analysis": analysis.run,
    "simulate": simulated.run,
    "whatif": whatif.run,
    "mfu": mfu.run,
    **duel.benches(),
    "recompute": recompute.run,
    "limits": limits.run,
}


def run(names: Sequence[str], rounds: int, out: Path | None = None) -> int:
    """Run and print the named benchmarks: all of them where none is named, their names alone for "list".

    The exit code is 2 for unknown names.
    """
    if list(names) == ["list"]:
        print("\n".join(BENCHES))
        return 0
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"benchmarks are {', '.join(BENCHES)}; there is no {', '.join(unknown)}", file=sys.stderr)
        return 2
    results = {}
    for name in names or BENCHES:
        results[name] = BENCHES[name](rounds)
        print(f"{name:<11} {results[name]['text']}", flush=True)
    if (summary := duel.best(results)) is not None:
        print(f"{'best':<11} {summary}")
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n")
    return 0
