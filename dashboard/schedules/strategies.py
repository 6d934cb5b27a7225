"""The Strategies page: a card for each way to split a model, with computed bars and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.charts.theme import LEGEND
from dashboard.runs.models import Run, State
from dashboard.schedules.cards import CARDS, Card
from dashboard.schedules.pictures import ROW, WIDE, Rect, picture
from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import bytes_text, percent_text
from parallel_core.observe.records import CATEGORIES
from parallel_core.plan.memory import worst_stage
from parallel_core.plan.traffic import most_sent
from parallel_core.spec import RunSpec

MODEL = {"layers": 24, "hidden": 1024, "heads": 16, "seq": 1024, "vocab": 32768}
TRAIN = {"global_batch": 32, "precision": "bf16"}
RUNS_SHOWN = 3


@dataclass(frozen=True)
class Bar:
    """One category of the worst device's memory. `width` in percent of the total of a single device."""

    category: str
    label: str
    text: str
    width: float


@dataclass(frozen=True)
class Predicted:
    """What the planner predicts for a strategy, with this page's model on four devices."""

    sentence: str
    bars: list[Bar]
    rects: list[Rect]
    height: int


@require_safe
def strategies(request: HttpRequest) -> HttpResponse:
    cards = [{"card": card, "predicted": predicted(card), "runs": _runs(card)} for card in CARDS]
    context = {"cards": cards, "model": spec_of(CARDS[0]).model, "wide": WIDE, "legend": LEGEND}
    return render(request, "schedules/strategies.html", context)


def spec_of(card: Card) -> RunSpec:
    """The strategy's run on four devices (one, if it splits nothing)."""
    return RunSpec.model_validate(
        {"model": {**MODEL, **card.model}, "parallel": card.split or {}, "train": {**TRAIN, **card.train}}
    )


@lru_cache(maxsize=64)
def _single(attention: str) -> int:
    return worst_stage(RunSpec.model_validate({"model": {**MODEL, "attention": attention}, "train": TRAIN})).total


def predicted(card: Card) -> Predicted | None:
    return _predicted(card.key) if card.split is not None else None


@lru_cache(maxsize=64)
def _predicted(key: str) -> Predicted:
    card = next(card for card in CARDS if card.key == key)
    spec = spec_of(card)
    memory, whole = worst_stage(spec), _single(spec.model.attention)
    bars = [
        Bar(name, CATEGORY_NAMES[name], bytes_text(size), round(100 * size / whole, 4))
        for name in CATEGORIES
        if (size := memory.as_dict()[name])
    ]
    rects = picture(spec)
    rows = max((rect.y for rect in rects), default=0)
    return Predicted(_sentence(spec, memory.total, whole), bars, rects, int(rows) + ROW)


def _sentence(spec: RunSpec, size: int, whole: int) -> str:
    sent = most_sent(spec)
    traffic = f"a device sends {bytes_text(sent)} a step" if sent else "nothing is sent"
    return f"{bytes_text(size)} on the worst device, {percent_text(size / whole)} of a single one's; {traffic}."


def _runs(card: Card) -> list[Run]:
    """The newest runs of the yard that used the strategy and were not broken on purpose."""
    if not card.seen:
        return []
    wanted, others = Q(), Q(pk__in=())
    for start in card.seen:
        wanted |= Q(label__startswith=start)
        for longer in (name for other in CARDS if other is not card for name in other.seen if name.startswith(start)):
            others |= Q(label__startswith=longer)
    return list(
        Run.objects.filter(wanted & ~others, state=State.SUCCEEDED, injected=[]).only("pk", "name")[:RUNS_SHOWN]
    )
