"""Benchmark of "what if" predictions: the step time of each schedule predicted from traced steps of every other one.

All schedules train in the same ranks and take turns step by step, so that both sides of a prediction see the same
pace of the host, which may change within a second. A step is predicted from the one step of another schedule in the
same turn, however typical that was; the result for two schedules is the median over all their steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.bench import goals, turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups, groups_of
from parallel_core.launch.rank import RankArgs
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import SPAN
from parallel_core.outcome import Outcome
from parallel_core.schedule import build
from parallel_core.simulate.measured import Measured, measure
from parallel_core.simulate.replay import Change, changed, replay
from parallel_core.simulate.schedule_preview import EARLY
from parallel_core.spec import RunSpec

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", f"1f1b{EARLY}")
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128}
STEPS = 4
"""Steps of every schedule per round."""
SAME, OTHER = 0.03, 0.08
"""Goals for the error of an unchanged replay, and of another schedule."""
Steps = Mapping[str, list[Measured]]
"""Schedule -> measured costs of each of its traced steps, in order."""


def run(rounds: int) -> dict[str, Any]:
    """Returns errors {"from -> to": relative error, median of all steps}, their worst and median; rounds {"from -> to":
    median of each round}; steps {schedule: seconds of each}; replay: the worst error of an unchanged replay."""
    with turns.held("whatif", "", spec_of(SCHEDULES[0]), max(1, rounds) * STEPS) as outcome:
        steps = _steps(outcome)
    return against(steps)


def against(steps: Steps) -> dict[str, Any]:
    """Returns the results of `run` for these steps."""
    took = {name: np.array([one.step for one in own]) for name, own in steps.items()}
    each = {
        f"{a} -> {b}": _predicted(a, b, steps[a]) / took[b] - 1
        for a in steps
        for b in steps
        if a != b and changed(spec_of(a), _change(b)) == spec_of(b)
    }
    errors = {pair: float(np.median(own)) for pair, own in each.items()}
    by_round = {
        pair: np.median(own[: len(own) // STEPS * STEPS].reshape(-1, STEPS), axis=1) for pair, own in each.items()
    }
    sizes, same = np.abs(list(errors.values())), _unchanged(steps)
    worst, median = float(sizes.max()), float(np.median(sizes))
    many = len(next(iter(took.values())))
    text = f"another schedule within {worst:.1%} (median {median:.1%}), {many} steps of each in turns; "
    text += f"{_rounds_text(by_round)}; an unchanged replay within {same:.2%}{_lines(errors, by_round)}"
    return {
        "errors": errors,
        "worst": worst,
        "median": median,
        "rounds": {pair: own.tolist() for pair, own in by_round.items()},
        "steps": {name: (own / 1e9).tolist() for name, own in took.items()},
        "replay": same,
        "goals": [
            goals.at_most("largest error of an unchanged replay", same, SAME),
            goals.at_most("largest error of another schedule", worst, OTHER),
        ],
        "text": text,
    }


def _rounds_text(by_round: Mapping[str, NDArray[np.float64]]) -> str:
    single = np.abs(list(by_round.values()))
    return f"90 % of rounds of {STEPS} steps within {np.percentile(single, 90):.1%}, all within {single.max():.1%}"


def contestants(name: str, args: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns one traced contestant per schedule."""
    del name
    from parallel_core.bench import own_engine

    assert groups.store is not None
    made = {}
    for schedule in SCHEDULES:
        spec = spec_of(schedule)
        own = groups_of(args.rank, Layout.of(spec), groups.store)
        made[schedule] = own_engine.build(spec, args.rank, own, page, args.folder, traced=True)
    return made


def spec_of(schedule: str) -> RunSpec:
    """Returns the run of a schedule of SCHEDULES."""
    return RunSpec.model_validate(
        {
            "model": MODEL,
            "parallel": {"pp": 2, "micro_batches": 4, **_schedule(schedule)},
            "train": {"global_batch": 16, "steps": 1_000},
        }
    )


def _schedule(name: str) -> dict[str, Any]:
    """Returns the fields of a split, or of a change, for a schedule."""
    return {"schedule": name.removesuffix(EARLY), "early_gradients": name.endswith(EARLY)}


def _change(to: str) -> Change:
    """Returns the change to another schedule. Early gradients are set as the target has them."""
    return Change(**_schedule(to))


def _steps(outcome: Outcome) -> Steps:
    found: dict[tuple[str, int], dict[int, np.ndarray]] = {}
    for rank, frames in outcome.frames.items():
        for frame in frames.of("spans"):
            at = frame.header["contestant"], int(frame.header["step"])
            found.setdefault(at, {})[rank] = np.frombuffer(frame.blob, SPAN)
    out: dict[str, list[Measured]] = {}
    for (name, _), spans in sorted(found.items()):
        spec = spec_of(name)
        out.setdefault(name, []).append(measure(build(spec), spans, Layout.of(spec), one_host=True))
    return out


def _predicted(a: str, b: str, steps: list[Measured]) -> NDArray[np.float64]:
    """Returns the predicted ns of each step of `b`, from those of `a`."""
    return np.array([replay(spec_of(a), one, _change(b)).step for one in steps])


def _unchanged(steps: Steps) -> float:
    """Returns the worst error of replaying a step unchanged."""
    return max(abs(replay(spec_of(name), one, Change()).step / one.step - 1) for name in steps for one in steps[name])


def _lines(errors: Mapping[str, float], by_round: Mapping[str, NDArray[np.float64]]) -> str:
    """Returns a line for every pair of schedules: their error, and that of each round."""
    return "".join(
        f"\n  {pair:<22} {errors[pair]:+6.1%}: " + " ".join(f"{error:+.1%}" for error in own)
        for pair, own in by_round.items()
    )
