"""What the Planner page shows of a search: sentences, tiles, ranked plans, pure strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from dashboard.plans.forms import PlannerForm
from dashboard.plans.setups import Setup, searched
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    figure_text,
    large_text,
    listed_text,
    percent_text,
    seconds_text,
    slower_text,
)
from parallel_core.plan.cluster import search
from parallel_core.plan.cluster.advice import Advice, advise
from parallel_core.plan.cluster.pure_strategies import pure_strategies
from parallel_core.plan.cluster.rules import Reason
from parallel_core.plan.cluster.search import SearchResult
from parallel_core.plan.cluster.verdict import Judged, judge, none_fits, utilisation

RANKED = 12
DAY = 86_400


@dataclass(frozen=True)
class View:
    """One planned page: the search, and the plan shown in detail (the best one, or the one in the query)."""

    form: PlannerForm
    setup: Setup
    found: SearchResult
    judged: Judged | None
    advice: Advice | None

    @property
    def best(self) -> int | None:
        return self.found.best()[0] if self.found.timed else None


def view(form: PlannerForm) -> View:
    """The page of a valid form. Searches, unless the same search is still cached."""
    job, cluster = form.setup
    found, judged = searched(job, cluster, form.space), looked_at(form)
    advice = advise(job, cluster, judged.plan) if judged and judged.fits else None
    return View(form, form.setup, found, judged, advice)


def looked_at(form: PlannerForm) -> Judged | None:
    """The plan in the query, which needs no search, or the best one; None if nothing fits."""
    plan = form.chosen
    if plan is None:
        found = searched(*form.setup, form.space)
        plan = found.plans.row(found.best()[0]) if found.timed else None
    return judge(*form.setup, plan) if plan else None


def verdict(made: View) -> list[str]:
    """The first sentences: what limits the plan and what to try; or why nothing fits."""
    judged = made.judged
    if judged is None:
        return _nothing(made) if made.found.too_large else _no_layout(made)
    if made.advice:
        return [made.advice.sentence]
    fix = judged.fix
    more = (
        f"Cheapest change: {fix.text}; then {bytes_text(fix.peak)}, {seconds_text(fix.seconds)} a step." if fix else ""
    )
    return [f"This plan cannot run. {' '.join(judged.sentences)}", more]


def _nothing(made: View) -> list[str]:
    offload = "" if any(made.found.space.offload) else " or allow offload"
    return [none_fits(*made.setup, made.found), f"Use more devices{offload}."]


def _no_layout(made: View) -> list[str]:
    """Where no plan can be built at all: what prevents the plan that has the fewest reasons against it."""
    (job, cluster), codes = made.setup, made.found.codes
    devices = f"{count_text(cluster.devices)} device{'s' * (cluster.devices > 1)}"
    if not len(codes):
        return [f"No plan cuts this model over {devices}.", "Try another number of devices."]
    nearest = judge(job, cluster, made.found.plans.row(int(np.argmin(np.bitwise_count(codes)))))
    why = nearest.sentences[1 if Reason.MEMORY in nearest.reasons else 0]
    more = f"Cheapest change: {nearest.fix.text}." if nearest.fix else "Try fewer devices or a larger batch."
    return [f"No plan cuts this model and batch over {devices}. {nearest.plan.label()}: {why}", more]


def standing(made: View) -> tuple[str, str]:
    """How the plan shown compares with all others, and the address of the fastest if that is another one."""
    judged, best = made.judged, made.best
    if judged is None:
        return "", ""
    fits = "the one plan that fits" if made.found.timed == 1 else f"{count_text(made.found.timed)} plans that fit"
    if best is not None and judged.plan == made.found.plans.row(best):
        return f"Fastest of {fits}", ""
    fastest = address(made.form, plan="") if best is not None else ""
    if best is None or not judged.fits or judged.seconds is None:
        return "Asked about: it cannot run", fastest
    slower = slower_text(judged.seconds / float(made.found.seconds[best]) - 1).removeprefix("+")
    return f"{slower} slower than the fastest of {fits}" if slower else f"As fast as the fastest of {fits}", fastest


def tiles(made: View) -> list[tuple[str, str, str]]:
    """(name, value, what it is made of) for the plan shown; a plan that cannot run says so at its times."""
    judged, (job, cluster) = made.judged, made.setup
    if judged is None or judged.seconds is None:
        return []
    seconds, values = judged.seconds, made.form.cleaned_data
    steps = values["tokens"] * 1e9 / job.tokens
    days = steps * seconds / DAY
    hours = days * 24 * judged.plan.devices
    rate = job.tokens / seconds
    share = utilisation(job, cluster, judged.plan, seconds)
    only = "" if judged.fits else ", if it fitted"
    return [
        (f"Step{only}", seconds_text(seconds), f"{count_text(job.tokens)} tokens"),
        (
            f"Tokens a second{only}",
            large_text(rate),
            f"{large_text(rate / judged.plan.devices)} a device",
        ),
        ("Of the peak (MFU)", percent_text(share), _in_use(judged.plan.devices)),
        ("Memory", judged.room, f"fullest is {judged.fullest}"),
        (f"Days{only}", figure_text(days), f"for {figure_text(values['tokens'])} billion tokens"),
        (
            f"Price{only}",
            _estimate(hours * values["price"]),
            f"in your currency: {_estimate(hours)} device-hours at {figure_text(values['price'])} each",
        ),
    ]


def _estimate(value: float) -> str:
    """To three digits, as a prediction is no better."""
    return large_text(round(value)) if value >= 1000 else figure_text(value)


def _in_use(devices: int) -> str:
    return f"{count_text(devices)} device{'' if devices == 1 else 's'} in use"


@dataclass(frozen=True)
class Ranked:
    """A row of the ranked table; `address` opens the page with this plan."""

    label: str
    seconds: float
    peak: float
    share: float
    slower: str
    best: bool
    chosen: bool
    address: str


def ranked(made: View) -> tuple[list[Ranked], int]:
    """The fastest plan of each layout, fastest first, of at most RANKED layouts; and how many layouts there are."""
    job, cluster = made.setup
    front, out, leaders = set(search.pareto(made.found)), [], made.found.leaders()
    for i in leaders[:RANKED]:
        plan, seconds = made.found.plans.row(i), float(made.found.seconds[i])
        slower = seconds / float(made.found.seconds[made.found.best()[0]]) - 1
        out.append(
            Ranked(
                made.found.label(i),
                seconds,
                float(made.found.peak[i]),
                utilisation(job, cluster, plan, seconds),
                slower_text(slower),
                i in front,
                made.judged is not None and plan == made.judged.plan,
                address(made.form, plan=plan.label()),
            )
        )
    return out, len(leaders)


def address(form: PlannerForm, **changes: str) -> str:
    """The page's query with some fields replaced; fields at their default are left out."""
    given = {name: form[name].value() for name in form.fields}
    given |= changes
    defaults = {name: str(value) for name, value in form.DEFAULTS.items()}
    kept = {
        name: value for name, value in given.items() if value not in (None, "") and str(value) != defaults.get(name)
    }
    return f"?{urlencode(kept)}"


def alone(made: View) -> list[dict[str, Any]]:
    """Rows of pure strategies, and of the best combination."""
    best = made.best
    together = float(made.found.seconds[best]) if best is not None else None
    found = pure_strategies(*made.setup, together, made.found.space)
    rows = [_strategy(made, one.word, one.judged, one.sentence) for one in found]
    if best is not None:
        judged = judge(*made.setup, made.found.plans.row(best), suggest=False)
        rows.append(_strategy(made, "Together", judged, "The best combination."))
    return rows


def not_alone(made: View, rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on which pure strategies of `rows` (from `alone`) do not fit, and by how much.

    '' if all fit, or if the plan shown cannot run.
    """
    failing = [f"{row['word']} ({row['room']})" for row in rows if not row["fits"]]
    if made.judged is None or not made.judged.fits or not failing:
        return ""
    do = "do" if len(failing) > 1 else "does"
    return f"On {'their' if len(failing) > 1 else 'its'} own {listed_text(failing)} {do} not fit."


def _strategy(made: View, word: str, judged: Judged, sentence: str) -> dict[str, Any]:
    label = judged.plan.label()
    return {
        "word": word,
        "label": label,
        "room": judged.room,
        "fits": judged.fits,
        "seconds": judged.seconds if judged.fits else None,
        "sentence": sentence,
        "address": address(made.form, plan=label),
    }
