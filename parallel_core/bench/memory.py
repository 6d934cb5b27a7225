"""Benchmark of predicted memory: each rank's metered peak against `plan.memory`, for runs of every strategy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.analysis.quantities import bytes_text
from parallel_core.bench import goals
from parallel_core.bench.random_specs import draw
from parallel_core.local import LocalRunner
from parallel_core.plan.peak import predict
from parallel_core.plan.strategy import label
from parallel_core.profile.measure import devices_of
from parallel_core.spec import RunSpec

GPT: dict[str, Any] = {"layers": 4, "hidden": 64, "heads": 4, "seq": 64, "vocab": 256}
PLAIN = {**GPT, "attention": "plain"}
LLAMA = {**GPT, "kv_heads": 2, "positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
PIPE: dict[str, Any] = {"pp": 2, "micro_batches": 4}
GNMT = {"kind": "gnmt", "layers": 2, "hidden": 64, "seq": 24, "vocab": 512}
COLUMNS: dict[str, Any] = {"tp": 2, "tensor_split": "columns"}
FULLY: dict[str, Any] = {"dp": 2, "zero": 3, "zero_backend": "fully_shard"}
STAGED = {"clip": "stage"}

_SEED, _DRAWN, _WORST = 2, 60, 10
"""Of the random runs: seed, number of runs, and number of ranks listed."""

MEAN, WORST = 0.01, 0.03
"""Goals for the mean and the largest error of the chosen runs."""

Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def cases() -> Iterator[Case]:
    """Yields (model, parallel, train) of every run."""
    yield from _splits()
    yield from _pipelines()
    yield from _precisions()
    yield from _cores()
    yield from _variants()
    yield from _other_models()
    yield from _sharded()
    yield from ((GPT, {"dp": 2, **PIPE}, {}), (GPT, {"tp": 2, **PIPE}, {}), (GPT, {**PIPE, "pp": 4}, {}))


def _splits() -> Iterator[Case]:
    """Yields runs on one device, with replicas, and with tensor-parallel ranks."""
    split: tuple[dict[str, Any], ...] = (
        {},
        {"micro_batches": 4},
        {"recompute": "full"},
        {"recompute": "selective"},
        *({"dp": 2, "zero": zero} for zero in (0, 1, 2, 3)),
        {"dp": 2, "zero": 2, "micro_batches": 4},
        {"dp": 2, "zero": 3, "micro_batches": 4},
        {"dp": 2, "zero": 3, "recompute": "full"},
        *({**FULLY, **more} for more in ({}, {"micro_batches": 4}, {"recompute": "full"})),
        *({"tp": 2, "sequence": sequence} for sequence in (False, True)),
        {"tp": 2, "sequence": True, "recompute": "selective"},
        {"tp": 2, "recompute": "full"},
    )
    for parallel in split:
        yield PLAIN if parallel.get("recompute") == "selective" else GPT, parallel, {}


def _pipelines() -> Iterator[Case]:
    """Yields every schedule, and recomputation under those where it is not equivalent to that under another."""
    recomputed = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min")
    for name in (*recomputed, "looped-bfs", "dualpipe-v"):
        yield GPT, {**PIPE, "schedule": name}, {}
    for name in recomputed:
        yield GPT, {**PIPE, "schedule": name, "recompute": "full"}, {}
    yield from (({"kind": "mlp"}, {**PIPE, "schedule": name}, {}) for name in ("zb-h1", "zb-h2", "v-min"))
    yield GPT, {**PIPE, "pp": 4, "schedule": "naive"}, {}
    yield PLAIN, {**PIPE, "recompute": "selective"}, {}
    for name in ("1f1b-naive", "1f1b-stash", "1f1b-vertical", "1f1b-2bw"):
        yield GPT, {**PIPE, "schedule": name}, STAGED


def _precisions() -> Iterator[Case]:
    for precision in ("bf16", "fp16"):
        for parallel in ({}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 2}, {"tp": 2}, PIPE):
            yield GPT, parallel, {"precision": precision}


def _cores() -> Iterator[Case]:
    """Yields attention with shared keys and rotary positions, fused and plain."""
    for more in ({"kv_heads": 2}, {"kv_heads": 1}, {"positions": "rope"}):
        for parallel in ({}, PIPE, {**PIPE, "schedule": "zb-h1"}):
            yield {**GPT, **more}, parallel, {}
            yield {**PLAIN, **more}, parallel, {}
    yield {**GPT, "kv_heads": 2}, {"tp": 2, "sequence": True}, {}


def _variants() -> Iterator[Case]:
    """Yields tied matrices, dropout, Llama's layers and column splits."""
    yield {**GPT, "tied": True}, PIPE, {}
    yield {**GPT, "dropout": 0.1}, PIPE, {}
    yield LLAMA, {"tp": 2}, {}
    for parallel in ({}, {"recompute": "full"}, {**PIPE, "recompute": "full"}, COLUMNS):
        yield {**GPT, "dropout": 0.1}, parallel, {}
    for model, recompute in ((GPT, "none"), (GPT, "full"), (PLAIN, "selective")):
        yield model, {**COLUMNS, **PIPE, "recompute": recompute}, {}


def _other_models() -> Iterator[Case]:
    images: tuple[dict[str, Any], ...] = ({"kind": "vgg16", "width": 8}, {"kind": "resnet50", "width": 8})
    for model in (*images, GNMT):
        yield model, {**PIPE, "schedule": "zb-h1"}, {}
    for parallel in ({}, PIPE, {**PIPE, "recompute": "full"}):
        for model in (*images, {"kind": "mlp"}, GNMT):
            yield model, parallel, {}


def _sharded() -> Iterator[Case]:
    """Yields sharded runs of a GNMT, whose layers are large relative to what they save."""
    for shards in ({"dp": 2, "zero": 2}, {"dp": 2, "zero": 3}, FULLY):
        for more in ({}, {"micro_batches": 4}, {"recompute": "full"}):
            yield GNMT, {**shards, **more}, {}
            yield {**GNMT, "hidden": 128}, {**shards, **more}, {}


def spec_of(case: Case) -> RunSpec:
    """Returns a spec of three steps, the second of which is metered."""
    model, parallel, train = case
    sizes = {"steps": 3, "warmup_steps": 2, "global_batch": 16}
    trace = {"fingerprint_every": 0}
    return RunSpec.model_validate({"model": model, "parallel": parallel, "train": {**sizes, **train}, "trace": trace})


def run(rounds: int) -> dict[str, Any]:
    """Returns rows (one per rank), mean_error, worst and bias (relative to the metered peak), above (number of ranks
    predicted too high), above_three_percent (number of ranks off by more), and the same for random runs in `drawn`.

    Memory does not vary between repetitions, so there is a single round.
    """
    del rounds
    with LocalRunner() as runner, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        root = Path(folder)
        rows = [row for i, case in enumerate(cases()) for row in _rows(runner, spec_of(case), root / str(i), root)]
        specs = enumerate(islice(draw(_SEED), _DRAWN))
        drawn = [row for i, spec in specs for row in _rows(runner, spec, root / f"drawn-{i}", root)]
    chosen, by_chance = _summary(rows), _summary(drawn)
    lines = [
        f"peak memory off by {_text(chosen)}",
        *map(_line, sorted(rows, key=_size)),
        f"of {_DRAWN} splits drawn at random off by {_text(by_chance)}",
        *map(_line, sorted(drawn, key=_size)[:_WORST]),
    ]
    judged = [
        goals.at_most("mean error of the predicted peaks", chosen["mean_error"], MEAN),
        goals.at_most("largest error of a rank's peak", chosen["worst"], WORST),
    ]
    return {"rows": rows, **chosen, "goals": judged, "drawn": {"rows": drawn, **by_chance}, "text": "\n".join(lines)}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = np.array([row["error"] for row in rows])
    return {
        "ranks": len(errors),
        "mean_error": float(abs(errors).mean()),
        "worst": float(abs(errors).max()),
        "bias": float(errors.mean()),
        "above": int((errors > 0).sum()),
        "above_three_percent": int((abs(errors) > 0.03).sum()),
    }


def _text(found: dict[str, Any]) -> str:
    return (
        f"{found['mean_error'] * 100:.2f} % on average over {found['ranks']} ranks, {found['worst'] * 100:.2f} % at "
        f"worst, bias {found['bias'] * 100:+.2f} %; {found['above_three_percent']} ranks by more than 3 %"
    )


def _size(row: dict[str, Any]) -> float:
    return -abs(row["error"])


def _rows(runner: LocalRunner, spec: RunSpec, folder: Path, corpora: Path) -> Iterator[dict[str, Any]]:
    own = devices_of("cpu")
    outcome = runner.run(spec, folder, devices=[rank % own for rank in range(spec.parallel.world)], corpora=corpora)
    if not outcome.ok:
        raise RuntimeError(f"{label(spec)}: {outcome.failure()}")
    for said in predict(spec):
        metered = outcome.last(said.rank, "memory")
        assert metered is not None
        total = metered["peak_total"]
        yield {
            "label": f"{spec.model.kind} {label(spec)} {spec.train.precision}",
            "rank": said.rank,
            "predicted": said.as_dict(),
            "metered": metered["peak"],
            "error": said.total / total - 1,
        }


def _line(row: dict[str, Any]) -> str:
    said, metered = row["predicted"], row["metered"]
    off = ", ".join(f"{name} {said[name] - metered[name]:+,}" for name in said if said[name] != metered[name])
    size = bytes_text(sum(metered.values()))
    return f"  {row['label']:<36} rank {row['rank']}  {size:>8} metered, {row['error']:+.2%}  {off}"
