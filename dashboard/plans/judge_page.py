"""What Judge says: which set-ups work, why the others cannot, and what one plan for several clusters would cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from dashboard.charts import plans as charts
from dashboard.charts.chart import Chart
from dashboard.plans.judge_forms import JudgeForm, query
from dashboard.plans.setups import Setup
from parallel_core.analysis.quantities import bytes_text, count_text, percent_text, ratio_text, seconds_text
from parallel_core.plan.cluster.common import Shared, shared
from parallel_core.plan.cluster.search import Space
from parallel_core.plan.cluster.verdict import Judged, judge, time_sentence


@dataclass(frozen=True)
class JudgedSetup:
    """One set-up, judged. `fixed` = address of Judge with its cheapest change, `planned` = query for Planner."""

    letter: str
    setup: Setup
    judged: Judged
    fixed: str
    planned: str

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.setup.job.tokens / self.judged.seconds if self.judged.seconds else 0.0

    @property
    def why(self) -> str:
        """The first reason, written to stand after a colon."""
        text = self.judged.sentences[0] if self.judged.sentences else ""
        return text[:1].lower() + text[1:] if text[:2] not in ("TP", "PP") else text

    @property
    def speed(self) -> str:
        return time_sentence(self.setup.job, self.setup.cluster, self.judged) if self.judged.fits else ""


def cases(forms: list[JudgeForm]) -> list[JudgedSetup]:
    """Judges the set-ups of valid forms."""
    out = []
    for form in forms:
        judged = judge(*form.setup, form.asked)
        mended = {f"{form.prefix}-plan": judged.fix.plan.label()} if judged.fix else {}
        own = {name: form[name].value() for name in form.fields}
        planned = urlencode({name: value for name, value in own.items() if value not in (None, "")})
        out.append(
            JudgedSetup(form.letter, form.setup, judged, f"?{query(forms, **mended)}" if mended else "", planned)
        )
    return out


def verdict(found: list[JudgedSetup]) -> list[str]:
    """The set-ups that work first, and which of several is fastest; then why the others cannot."""
    works = sorted((case for case in found if case.judged.fits), key=lambda case: -case.rate)
    out = [f"{case.letter} works: {case.judged.room}." for case in works]
    if len(works) > 1:
        first, second = works[:2]
        ratio = first.rate / second.rate
        if ratio < 1.005:
            out.append(f"{first.letter} and {second.letter} are as fast.")
        else:
            times = (
                f"{seconds_text(first.judged.seconds or 0)} against {seconds_text(second.judged.seconds or 0)} a step"
            )
            out.append(f"{first.letter} trains {ratio_text(ratio)} the tokens a second of {second.letter}: {times}.")
    out += [f"{case.letter} cannot: {case.why}" for case in found if not case.judged.fits]
    return out


def bars(found: list[JudgedSetup]) -> Chart:
    """Bytes on the fullest rank of each set-up."""
    rows = [(f"{case.letter}: {case.judged.plan.label()}", case.judged.parts) for case in found]
    limits = [case.judged.capacity for case in found]
    fits = sum(case.judged.peak <= case.judged.capacity for case in found)
    what = "fits into the memory of its devices" if fits == 1 else "fit into the memory of their devices"
    title = f"{fits} of {len(found)} set-ups {what}."
    return charts.memory(rows, limits, title, key="judge")


@dataclass(frozen=True)
class Common:
    """One plan for the clusters of several set-ups; `rows` = (letter, what it costs there)."""

    sentence: str
    rows: list[tuple[str, Shared]]


def several_clusters(found: list[JudgedSetup]) -> list[JudgedSetup]:
    """The set-ups that train the first one's job, one for each different cluster; [] unless there are at least two."""
    first = found[0].setup.job
    out: dict[object, JudgedSetup] = {}
    for case in found:
        if case.setup.job == first:
            out.setdefault(case.setup.cluster, case)
    return list(out.values()) if len(out) > 1 else []


def common(found: list[JudgedSetup]) -> Common | None:
    """The plan whose largest price is lowest; None if the set-ups have only one cluster."""
    same = several_clusters(found)
    if not same:
        return None
    made = shared(same[0].setup.job, [case.setup.cluster for case in same], _space(same))
    letters = [case.letter for case in same]
    if made is None:
        return Common(f"No single plan trains it on the clusters of {_listed(letters)}.", [])
    prices = [f"{letter} {_price(one)}" for letter, one in zip(letters, made, strict=True)]
    split = made[0].plan
    text = f"One split serves {_listed(letters)}: TP {split.tp} x PP {split.pp}, micro-batch {split.micro_batch}. "
    text += f"Against each one's own best: {', '.join(prices)}."
    return Common(text, list(zip(letters, made, strict=True)))


def _space(found: list[JudgedSetup]) -> Space:
    """The Planner's default search space, with the precisions, bytes a parameter and offload of these plans."""
    plans = [case.judged.plan for case in found]
    return Space(
        precisions=tuple(sorted({plan.precision for plan in plans})),
        states=tuple(sorted({plan.state for plan in plans})),
        offload=(False, True) if any(plan.offload for plan in plans) else (False,),
    )


def _price(one: Shared) -> str:
    return f"{percent_text(one.price)} longer" if one.price > 0.0005 else "nothing"


def _listed(letters: list[str]) -> str:
    return f"{', '.join(letters[:-1])} and {letters[-1]}"


def facts(case: JudgedSetup) -> list[tuple[str, str]]:
    """(name, value) of each line on a set-up's card."""
    job, cluster = case.setup
    rows: list[tuple[str, Any]] = [
        ("Model", f"{job.model.name}, batch {count_text(job.batch)}"),
        ("Cluster", f"{count_text(cluster.devices)} x {cluster.device.name}"),
        ("Plan", case.judged.plan.label()),
        ("Memory", case.judged.room),
        ("Parameters and optimizer", bytes_text(case.judged.instants["built"])),
    ]
    if case.judged.seconds and case.judged.fits:
        rows.append(("Step", case.speed))
    return rows
