"""Benchmarks of the engine: `python -m parallel_core bench [name ...]`.

    spans    what always-on recording adds to a step, and the cost of a span
    start    time from submitting a run to the start of its step 1 on two warm ranks
    predict  step times of runs of every strategy, predicted from a profile of this host, against measured ones
    memory   peak memory of runs of every strategy, predicted, against the meter's, rank by rank
    alpa     plans of Alpa's two levels, with equal meshes and with others, against measured steps
    analysis accounts, critical path and comparison with the plan for a traced step of a million spans
    simulate a step of a trillion parameters on 3 072 GPUs, by its operations
    whatif   schedules predicted from the traced steps of runs under other ones, against measured ones
    mfu      the share of one device's peak that a GPT reaches: on a GPU where there is one
    single   plain PyTorch on one device
    ddp      torch.nn.parallel.DistributedDataParallel on two
    fully_shard  torch.distributed.fsdp.fully_shard on two, against this engine's ZeRO-3
    tensor   DTensor tensor parallelism on two; tensor-wide: of a model twice as deep and wide
    gpipe    torch.distributed.pipelining's GPipe on two
    1f1b ... and its 1F1B, interleaved, looped-bfs, zb-h1, zb-v and dualpipe-v; gpipe-early and 1f1b-early: ours with
             early gradients
    activations  bytes that 1F1B keeps live, in this engine and in PyTorch's
    recompute  torch.utils.checkpoint on one device, at two depths: remaining activations, and their price in time

From `single` on all are duels: the same model, batch, initial weights and fused AdamW, with both contestants in the
*same* processes taking turns step by step, in an order that changes every round, so that disturbances by other
processes affect both. Above 1 this engine is the faster one. The machine's limits take part in the same turns (see
`limits`), and what each contestant reaches of them is printed.

A result that has a goal is followed by a line with the goal and "met" or "missed"; in the JSON file it is in `goals`.
While benchmarks are missing from that file, it has `"incomplete": true`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parallel_core.atomic_file import write_text
from parallel_core.bench import (
    alpa,
    analysis,
    duel,
    goals,
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
"""Number of rounds -> results, which can be written as JSON; `text` is what is printed, and `goals` (goals.Judged; none
for some) below it."""
ROUNDS = 20
"""Rounds unless others are asked for: the fewest over which a median is called a result."""

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
}


def run(names: Sequence[str], rounds: int, out: Path | None = None) -> int:
    """Runs the named benchmarks (default: all) and prints their results; "list" only prints their names.

    Returns the exit code: 2 for unknown names, 0 whether goals are met or not. `out`: a file to which the results are
    written as JSON, anew after each benchmark, with `"incomplete": true` until the last one is there. A benchmark that
    fails, or Ctrl-C, ends all: its exception is raised, after the goals of the benchmarks before it and their number
    were printed.
    """
    if list(names) == ["list"]:
        print("\n".join(BENCHES))
        return 0
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"benchmarks are {', '.join(BENCHES)}; there is no {', '.join(unknown)}", file=sys.stderr)
        return 2
    _measure(list(dict.fromkeys(names or BENCHES)), rounds, out)
    return 0


Results = dict[str, dict[str, Any]]
"""Name of a benchmark -> what it returned."""


def _measure(names: Sequence[str], rounds: int, out: Path | None) -> None:
    results: Results = {}
    _write(results, out, whole=False)  # results of an earlier call must not pass for these
    try:
        for name in names:
            results[name] = BENCHES[name](rounds)
            _write(results, out, whole=False)
            _print(name, results[name])
        if (best := duel.best(results)) is not None:
            results["best"] = best
            _print("best", best)
        _write(results, out, whole=True)
    except BaseException:
        with contextlib.suppress(Exception):  # the first exception is the one to see
            _print_goals(results, rounds)
            ran = len(results.keys() & set(names))
            print(f"{'incomplete':<11} {ran} of {len(names)} benchmarks ran", flush=True)
        raise
    _print_goals(results, rounds)


def _write(results: Results, out: Path | None, *, whole: bool) -> None:
    if out is not None:
        told = results if whole else {**results, "incomplete": True}
        write_text(out, f"{json.dumps(told, indent=1)}\n")


def _print(name: str, found: Mapping[str, Any]) -> None:
    print(f"{name:<11} {found['text']}")
    for judged in found.get("goals", ()):
        print(goals.line(judged))
    sys.stdout.flush()


def _print_goals(results: Results, rounds: int) -> None:
    if (summary := goals.summary(results)) is not None:
        few = f"; a result needs {ROUNDS} rounds, and these are {rounds}" if rounds < ROUNDS else ""
        print(f"{'goals':<11} {summary}{few}", flush=True)
