"""Benchmark of predicted step times: profiles this host, then predicts and measures runs of every strategy."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_core.analysis.quantities import percent_text, seconds_text
from parallel_core.bench import goals
from parallel_core.local import LocalRunner
from parallel_core.plan.strategy import label
from parallel_core.profile.measure import devices_of, measure_for
from parallel_core.profile.table import CostTable
from parallel_core.schedule.traits import flushes
from parallel_core.simulate.device_drift import spells_beside
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
ROUNDS_A_TURN = 5
MOST = 0.05
"""Goal for the mean error."""
SAME: dict[str, Any] = {"dp": 2}
"""Run before, between and after the others, to show the drift of the host itself, which no profile can predict."""


def spec_of(split: dict[str, Any]) -> RunSpec:
    """Returns the run of a split: the default GPT, batch 16."""
    train: dict[str, Any] = {"global_batch": 16, "steps": STEPS, "warmup_steps": WARMUP}
    if not flushes(split.get("schedule", "1f1b")):
        train["clip"] = "stage"  # the only clipping possible without a flush
    return RunSpec.model_validate({"parallel": split, "train": train, "trace": {"memory": False}})


def run(rounds: int) -> dict[str, Any]:
    """Returns rows (one per strategy, over all turns), turns (the rows of each), and errors of the predictions.

    mean_error, bias, above (number of rows predicted too slow) of the rows; each_error: mean error of each turn by
    itself; paced_mean_error: at the devices' pace during each run; others: share of the devices used by other
    processes; inside: how many of `ranges` runs were in the range said for eight of ten (`simulate.likely`); same:
    seconds of one run, three times per turn.

    A run takes seconds, during which a shared host has one pace; the next run sees another. So everything takes
    turns, the profile too, and prediction and measurement of a strategy are means over all turns.
    """
    turns = [_turn(rounds) for _ in range(max(1, rounds // ROUNDS_A_TURN))]
    rows = [_over(of) for of in zip(*(turn.rows for turn in turns), strict=True)]
    errors, each = _errors(rows), [float(abs(_errors(turn.rows)).mean()) for turn in turns]
    own = [row for row in rows if row["paced"] is not None]
    others = float(np.mean([row["others"] for row in rows]))
    same = [seconds for turn in turns for seconds in turn.same]
    inside = [row["inside"] for turn in turns for row in turn.rows if row["inside"] is not None]
    text, mean = _text(rows, each, own, others, same, inside), float(abs(errors).mean())
    return {
        "rows": rows,
        "turns": [turn.rows for turn in turns],
        "mean_error": mean,
        "bias": float(errors.mean()),
        "above": int((errors > 0).sum()),
        "each_error": each,
        "paced_mean_error": float(np.mean([abs(row["paced_error"]) for row in own])) if own else None,
        "others": others,
        "inside": sum(inside),
        "ranges": len(inside),
        "same": same,
        "goals": [goals.at_most("mean error of the predicted step times", mean, MOST)],
        "text": "\n".join([text, *map(_line, rows)]),
    }


def _text(
    rows: Sequence[dict[str, Any]],
    each: Sequence[float],
    own: Sequence[dict[str, Any]],
    others: float,
    same: Sequence[float],
    inside: Sequence[bool],
) -> str:
    """Returns the summary in one line; `own`: the rows with predictions at the devices' own pace."""
    return (
        f"step times over {len(each)} turns {_off(rows, 'error')}; a turn by itself "
        f"{', '.join(f'{error:.1%}' for error in each)}; at the devices' own pace during each run "
        f"{_off(own, 'paced_error')}; others used {percent_text(others)} of the devices; the host itself: "
        f"{label(spec_of(SAME))} took {', '.join(map(seconds_text, same))}, three times a turn; "
        f"{sum(inside)} of {len(inside)} runs lay in the range said for eight of ten"
    )


class Turn(NamedTuple):
    """The results of one turn: `rows`, one per strategy, and `same`, the seconds of the repeated run."""

    rows: list[dict[str, Any]]
    same: list[float]


def _turn(rounds: int) -> Turn:
    """Profiles this host, then runs every strategy."""
    table = measure_for(spec_of({}), seconds=min(2.0, max(1.0, rounds / 2)), splits=("pairs", "columns", "sequence"))
    return _rows(table)


def _over(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of a strategy from its rows in each turn."""
    mean = {name: float(np.mean([row[name] for row in turns])) for name in ("predicted", "measured", "others")}
    paced = [row["paced"] for row in turns if row["paced"] is not None]
    slower = [row["slower"] for row in turns if row["slower"]]
    own = float(np.mean(paced)) if paced else None
    return {
        "label": turns[0]["label"],
        **mean,
        "error": mean["predicted"] / mean["measured"] - 1,
        "paced": own,
        "paced_error": own / mean["measured"] - 1 if own else None,
        "slower": tuple(np.mean(slower, axis=0).tolist()) if slower else (),
    }


def _errors(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    return np.array([row["error"] for row in rows])


def _off(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Summarizes the errors `name` of rows as text."""
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


def _rows(table: CostTable) -> Turn:
    """Runs every split and compares it with the prediction from `table`."""
    rows, same, middle = [], [], len(SPLITS) // 2
    with LocalRunner() as runner, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        root = Path(folder)
        for i, split in enumerate(SPLITS):
            if i in (0, middle):
                same.append(_same(runner, root / f"same-{i}", root))
            rows.append(_row(runner, table, split, root / str(i), root))
        same.append(_same(runner, root / "same", root))
    return Turn(rows, same)


def _row(runner: LocalRunner, table: CostTable, split: dict[str, Any], folder: Path, corpora: Path) -> dict[str, Any]:
    spec = spec_of(split)
    return {"label": label(spec), **held(spec, table, measured(runner, spec, folder, corpora))}


def _same(runner: LocalRunner, folder: Path, corpora: Path) -> float:
    return measured(runner, spec_of(SAME), folder, corpora).seconds


class Taken(NamedTuple):
    """Measurements of a run: median step in seconds, share of the devices used by other processes, and for each rank
    the seconds of the reference work, each time it was done (none where it was not)."""

    seconds: float
    others: float
    references: list[list[float]]


def measured(runner: LocalRunner, spec: RunSpec, folder: Path, corpora: Path) -> Taken:
    """Runs `spec` and returns its measurements. Raises RuntimeError where the run fails."""
    own = devices_of("cpu")
    outcome = runner.run(spec, folder, devices=[rank % own for rank in range(spec.parallel.world)], corpora=corpora)
    summary = outcome.last(0, "summary")
    if not outcome.ok or summary is None:
        raise RuntimeError(outcome.failure())
    references = [outcome.series("reference_time", rank)["value"].tolist() for rank in range(spec.parallel.world)]
    return Taken(float(summary["timed"]["median"]), summary["cpu_others"] or 0.0, references)


def held(spec: RunSpec, table: CostTable, taken: Taken) -> dict[str, Any]:
    """Returns the row that compares prediction and measurement of a run.

    `paced` is the prediction for devices as fast as the reference work found them during the run; None without that.
    """
    spells = spells_beside(taken.references, table.usual(spec.parallel.world))
    slower = (
        tuple(np.average([spell.slower for spell in spells], 0, [spell.share for spell in spells])) if spells else ()
    )
    said = predict_step(spec, table)
    predicted, likely = said.seconds, said.likely
    paced = predict_step(spec, table, spells=spells).seconds if spells else None
    return {
        "predicted": predicted,
        "measured": taken.seconds,
        "error": predicted / taken.seconds - 1,
        "others": taken.others,
        "inside": likely[0] <= taken.seconds <= likely[1] if likely else None,
        "paced": paced,
        "paced_error": paced / taken.seconds - 1 if paced else None,
        "slower": slower,
    }
