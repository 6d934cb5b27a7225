"""How true predictions are here: this host is profiled, then runs of every strategy are predicted and measured."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

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
    errors = np.array([row["error"] for row in rows])
    mean, bias, others = abs(errors).mean(), errors.mean(), np.mean([row["others"] for row in rows])
    above = int((errors > 0).sum())
    text = (
        f"step times off by {mean * 100:.1f} % on average, bias {bias * 100:+.1f} %, "
        f"{above} of {len(rows)} too slow; others used {percent_text(others)} of the devices; the host itself: "
        f"{label(spec_of(SAME))} took {', '.join(map(seconds_text, same))} at the beginning, in the middle, at the end"
    )
    lines = [
        f"  {row['label']:<32} predicted {seconds_text(row['predicted'])}, measured {seconds_text(row['measured'])}, "
        f"{row['error']:+.1%}"
        for row in rows
    ]
    return {
        "rows": rows,
        "mean_error": float(mean),
        "bias": float(bias),
        "above": above,
        "others": float(others),
        "same": same,
        "text": "\n".join([text, *lines]),
    }


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
    return {"label": label(spec), **held(predict_step(spec, table).seconds, *measured(yard, spec, folder, corpora))}


def _same(yard: LocalYard, folder: Path, corpora: Path) -> float:
    return measured(yard, spec_of(SAME), folder, corpora)[0]


def measured(yard: LocalYard, spec: RunSpec, folder: Path, corpora: Path) -> tuple[float, float]:
    """(median step in seconds, share of the devices that others used) of a run."""
    own = devices_of("cpu")
    outcome = yard.run(spec, folder, devices=[rank % own for rank in range(spec.parallel.world)], corpora=corpora)
    summary = outcome.last(0, "summary")
    if not outcome.ok or summary is None:
        raise RuntimeError(outcome.failure())
    return float(summary["timed"]["median"]), summary["cpu_others"] or 0.0


def held(predicted: float, seconds: float, others: float) -> dict[str, Any]:
    """A prediction against what was measured, as a row."""
    return {"predicted": predicted, "measured": seconds, "error": predicted / seconds - 1, "others": others}
