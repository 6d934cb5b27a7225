"""How true predictions are here: this host is profiled, then runs of every strategy are predicted and measured."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_core.analysis.quantities import percent_text, seconds_text
from parallel_core.local import LocalYard
from parallel_core.plan.strategy import label
from parallel_core.profile.measure import devices_of, measure_for
from parallel_core.profile.table import CostTable
from parallel_core.schedule.traits import flushes
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

SPLITS: tuple[dict[str, Any], ...] = (
    {},
    {"micro_batches": 4},
    {"recompute": "full"},
    {"dp": 2},
    {"dp": 2, "zero": 1},
    {"dp": 2, "zero": 2},
    {"dp": 2, "zero": 3},
    {"dp": 2, "zero": 3, "zero_backend": "fully_shard"},
    {"tp": 2},
    {"tp": 2, "recompute": "full"},
    {"tp": 2, "sequence": True},
    {"tp": 2, "sequence": True, "recompute": "full"},
    {"tp": 2, "tensor_split": "columns"},
    {"pp": 2, "schedule": "gpipe", "micro_batches": 4},
    {"pp": 2, "schedule": "1f1b", "micro_batches": 4},
    {"pp": 2, "schedule": "1f1b", "micro_batches": 4, "recompute": "full"},
    {"pp": 2, "schedule": "interleaved", "micro_batches": 4},
    {"pp": 2, "schedule": "zb-v", "micro_batches": 4},
    {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 4},
    {"pp": 2, "schedule": "1f1b-2bw", "micro_batches": 4},
    {"dp": 2, "tp": 2},
    {"dp": 2, "pp": 2, "micro_batches": 4},
    {"tp": 2, "pp": 2, "micro_batches": 4},
    {"tp": 2, "pp": 2, "micro_batches": 4, "sequence": True},
    {"pp": 4, "schedule": "1f1b", "micro_batches": 8},
)
STEPS, WARMUP = 23, 3
SAME: dict[str, Any] = {"dp": 2}
"""Run before, amid and behind the others: what the host itself drifts by in that time, no profile can know."""


def spec_of(split: dict[str, Any]) -> RunSpec:
    """The default GPT, batch 16."""
    train: dict[str, Any] = {"global_batch": 16, "steps": STEPS, "warmup_steps": WARMUP}
    if not flushes(split.get("schedule", "1f1b")):
        train["clip"] = "stage"  # the only clipping that there is
    return RunSpec.model_validate({"parallel": split, "train": train, "trace": {"memory": False}})


def run(rounds: int) -> dict[str, Any]:
    """Results: rows (one a strategy), mean_error, bias, above (of all), others (share of the devices), same (seconds of
    one run at three times)."""
    table = measure_for(spec_of({}), seconds=max(1.0, rounds / 2), splits=("pairs", "columns", "sequence"))
    rows, same = _rows(table)
    own = [row for row in rows if row["paced"] is not None]
    others = float(np.mean([row["others"] for row in rows]))
    text = (
        f"step times {_off(rows, 'error')}; at the devices' own pace beside each run {_off(own, 'paced_error')}; "
        f"others used {percent_text(others)} of the devices; the host itself: "
        f"{label(spec_of(SAME))} took {', '.join(map(seconds_text, same))} at the beginning, in the middle, at the end"
    )
    errors = np.array([row["error"] for row in rows])
    return {
        "rows": rows,
        "mean_error": float(abs(errors).mean()),
        "bias": float(errors.mean()),
        "above": int((errors > 0).sum()),
        "paced_mean_error": float(np.mean([abs(row["paced_error"]) for row in own])) if own else None,
        "others": others,
        "same": same,
        "text": "\n".join([text, *map(_line, rows)]),
    }


def _off(rows: Sequence[dict[str, Any]], name: str) -> str:
    """How far the errors `name` of rows are off."""
    if not rows:
        return "unknown"
    errors = np.array([row[name] for row in rows])
    above = int((errors > 0).sum())
    return (
        f"off by {abs(errors).mean() * 100:.1f} % on average, bias {errors.mean() * 100:+.1f} %, "
        f"{above} of {len(rows)} too slow"
    )


def _line(row: dict[str, Any]) -> str:
    own = "not measured"
    if row["paced"] is not None:
        own = (
            f"{seconds_text(row['paced'])}, {row['paced_error']:+.1%} ({', '.join(f'{x:.2f}x' for x in row['slower'])})"
        )
    return (
        f"  {row['label']:<32} predicted {seconds_text(row['predicted'])}, measured {seconds_text(row['measured'])}, "
        f"{row['error']:+.1%}; at its own pace {own}"
    )


def _rows(table: CostTable) -> tuple[list[dict[str, Any]], list[float]]:
    """A row a split, and the seconds of the run that is made again and again."""
    rows, same, middle = [], [], len(SPLITS) // 2
    with LocalYard() as yard, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        root = Path(folder)
        for i, split in enumerate(SPLITS):
            if i in (0, middle):
                same.append(_same(yard, root / f"same-{i}", root))
            rows.append(_row(yard, table, split, root / str(i), root))
        same.append(_same(yard, root / "same", root))
    return rows, same


def _row(yard: LocalYard, table: CostTable, split: dict[str, Any], folder: Path, corpora: Path) -> dict[str, Any]:
    spec = spec_of(split)
    return {"label": label(spec), **held(spec, table, measured(yard, spec, folder, corpora))}


def _same(yard: LocalYard, folder: Path, corpora: Path) -> float:
    return measured(yard, spec_of(SAME), folder, corpora).seconds


class Taken(NamedTuple):
    """Of a run: its median step in seconds, the share of the devices that others used, and each rank's seconds of the
    reference work (none where it was not done)."""

    seconds: float
    others: float
    references: tuple[float, ...]


def measured(yard: LocalYard, spec: RunSpec, folder: Path, corpora: Path) -> Taken:
    """Runs it."""
    own = devices_of("cpu")
    outcome = yard.run(spec, folder, devices=[rank % own for rank in range(spec.parallel.world)], corpora=corpora)
    summary = outcome.last(0, "summary")
    if not outcome.ok or summary is None:
        raise RuntimeError(outcome.failure())
    ends = [outcome.last(rank, "summary") or {} for rank in range(spec.parallel.world)]
    references = tuple(end["reference"]["seconds"] for end in ends if "reference" in end)
    return Taken(float(summary["timed"]["median"]), summary["cpu_others"] or 0.0, references)


def held(spec: RunSpec, table: CostTable, taken: Taken) -> dict[str, Any]:
    """The prediction of a run against what was measured, as a row; `paced` is the one for devices as fast as the
    reference work found them beside the run, None where it was not done."""
    slower = table.slowness(taken.references)
    predicted = predict_step(spec, table).seconds
    paced = predict_step(spec, table, slower=slower).seconds if slower else None
    return {
        "predicted": predicted,
        "measured": taken.seconds,
        "error": predicted / taken.seconds - 1,
        "others": taken.others,
        "paced": paced,
        "paced_error": paced / taken.seconds - 1 if paced else None,
        "slower": slower,
    }
