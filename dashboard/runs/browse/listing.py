"""The state of the runs list in the query string: filters, order, page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, time
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.core.paginator import Page, Paginator
from django.db.models import F, FloatField, Max
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.http import QueryDict

from dashboard.numbers import number
from dashboard.once import once
from dashboard.runs.browse import field_terms
from dashboard.runs.models import Run, State
from dashboard.runs.selectors import SORTS, Filters, list_runs
from dashboard.studies.models import Study
from parallel_core.analysis.quantities import listed_text

PER_PAGE = 50
MAX_TEXT = 200
DATES = ("created_after", "created_before")
EXAMPLE = "2026-11-27 or 2026-11-27T14:30Z"
HELD_OUT = "held_out"
OPTIONS_S = 30
"""How long a new tag of an old run may be missing among the filters."""


@dataclass(frozen=True)
class Column:
    """A column of the table; `sort` is a key of selectors.SORTS."""

    sort: str
    title: str
    numeric: bool = False
    hint: str = ""


COLUMNS = (
    Column("id", "#", True),
    Column("name", "Name"),
    Column("state", "State"),
    Column("model", "Model"),
    Column("strategy", "Strategy"),
    Column("devices", "Devices", True),
    Column("step", "Steps", True, "steps done"),
    Column("loss", "Loss", True),
    Column("held_out", "Held out", True, "newest loss of the held-out samples"),
    Column("step_time", "Step time", True, "median of the timed steps; ≈ where other processes used the devices, too"),
    Column("tokens_per_s", "Throughput", True, "of the median step; while it runs, of the newest; of a text, over all"),
    Column("memory", "Memory", True, "measured peak of the worst rank"),
    Column("owner", "Owner"),
    Column("created", "Age"),
)


@dataclass(frozen=True)
class Listing:
    """What to list and which page of it."""

    filters: Filters
    page: int = 1
    ignored: tuple[str, ...] = ()
    """A sentence on each value of the query that was ignored, with the values that would be right."""

    @classmethod
    def parse(cls, query: QueryDict) -> Listing:
        """Parses the query; invalid values are ignored and reported in `ignored`, not refused."""
        states = dict.fromkeys(clean_text(state) for state in query.getlist("state") if clean_text(state))
        asked = query.get("sort") or "-id"
        sort = asked if asked.lstrip("-") in SORTS and asked.count("-") < 2 else "-id"
        no_study = wrong_study(query)
        written = {name: clean_text(query.get(name, "")) for name in DATES}
        dates = {name: moment(text) for name, text in written.items()}
        filters = Filters(
            q=clean_text(query.get("q", "")),
            states=tuple(state for state in states if state in State.values),
            owner=clean_text(query.get("owner", "")),
            strategy=clean_text(query.get("strategy", "")),
            tag=clean_text(query.get("tag", "")),
            study=None if no_study else number(query.get("study")),
            sort=sort,
            **dates,
        )
        wrong = [(f"state={state}", "a state", State.values) for state in states if state not in State.values]
        wrong += [(f"sort={clean_text(asked)}", "an order", list(SORTS))] * (asked != sort)
        said = [_left_out(*one) for one in wrong] + field_terms.parse(filters.q).wrong + no_study
        undated = {name: text for name, text in written.items() if text and dates[name] is None}
        said += [f"{name}={text} was left out; write a date, such as {EXAMPLE}." for name, text in undated.items()]
        return cls(filters, number(query.get("page")) or 1, tuple(said))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The query string of this state as fields of a form."""
        return parse_qsl(self.query().removeprefix("?"))

    def query(self, **changes: Any) -> str:
        """The query string of this state with changes; defaults are left out. '?' for the plain list."""
        page = changes.pop("page", self.page)
        values = asdict(replace(self.filters, **changes))
        values["state"] = values.pop("states")
        values |= {name: date_text(values[name]) for name in DATES}
        if values["sort"] == "-id":
            del values["sort"]
        if page > 1:
            values["page"] = page
        text = urlencode({key: value for key, value in values.items() if value}, doseq=True)
        return f"?{text}" if text else "?"

    @property
    def before_page(self) -> str:
        """The query string to which `page=N` can be appended."""
        text = self.query(page=1)
        return text if text == "?" else f"{text}&"

    def held_out(self, rows: Iterable[Run]) -> bool:
        """Whether the column of the held-out loss is shown: one of the rows has one, or they are sorted by it."""
        return self.filters.sort.lstrip("-") == HELD_OUT or any(run.held_out is not None for run in rows)

    def headers(self, held_out: bool) -> Iterator[dict[str, Any]]:
        """Each column with the address that sorts by it, and its aria-sort value; that of the held-out loss only if
        asked for."""
        for column in (one for one in COLUMNS if held_out or one.sort != HELD_OUT):
            up, down = self.filters.sort == column.sort, self.filters.sort == f"-{column.sort}"
            first = f"-{column.sort}" if column.numeric or column.sort == "created" else column.sort
            turned = column.sort if down else f"-{column.sort}"
            yield {
                "column": column,
                "href": self.query(sort=turned if up or down else first, page=1),
                "aria": "ascending" if up else "descending" if down else "none",
            }

    @property
    def filtered(self) -> bool:
        f = self.filters
        return bool(f.q or f.states or f.owner or f.strategy or f.tag or f.study or any(self.dates.values()))

    @property
    def dates(self) -> dict[str, str]:
        """Filter of a date -> its text, '' if it is not set."""
        return {name: date_text(getattr(self.filters, name)) for name in DATES}

    def read(self) -> Page[Run]:
        """The page of runs; the last page if there are fewer. The ids are sorted first, as whole rows would make the
        sort slow."""
        extra = {
            "model": F("spec__model"),
            "precision": KT("spec__train__precision"),
            "others": Cast(KT("summary__cpu_others"), FloatField()),
        }
        page: Page[Any] = Paginator(list_runs(self.filters).values_list("pk", flat=True), PER_PAGE).get_page(self.page)
        listed = list(page.object_list)
        rows = Run.objects.select_related("owner", "study").annotate(**extra).defer("spec", "summary")
        found = rows.in_bulk(listed)
        page.object_list = [found[pk] for pk in listed if pk in found]
        return page


def wrong_study(query: QueryDict) -> list[str]:
    """A sentence on a study in the query that there is not; [] where there is, or none is named."""
    written = clean_text(query.get("study", ""))
    if not written or ((pk := number(written)) is not None and Study.objects.filter(pk=pk).exists()):
        return []
    return [f"study={written} was left out; there is no study of this number."]


def _left_out(asked: str, kind: str, known: Sequence[str]) -> str:
    return f"{asked} is not {kind} and was left out; there are {listed_text(known)}."


def moment(text: str) -> datetime | None:
    """A date or a date with a time, UTC unless it says otherwise, in ISO 8601; None for anything else."""
    try:
        found = datetime.fromisoformat(clean_text(text))
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def date_text(value: datetime | None) -> str:
    """The inverse of `moment`: only the date at midnight; '' for None."""
    if value is None:
        return ""
    return value.date().isoformat() if value.time() == time() else value.isoformat().replace("+00:00", "Z")


def clean_text(text: str) -> str:
    """The text of a filter in a query, without what no row can have. PostgreSQL refuses NUL in any text parameter."""
    return text.replace("\x00", "").strip()[:MAX_TEXT]


def options(filters: Filters) -> dict[str, list[str]]:
    """The values to filter by, with those of `filters`: owners, strategies, tags. All rows are read for them, so they
    are kept for OPTIONS_S, or until there is a new run."""
    newest = Run.objects.aggregate(newest=Max("pk"))["newest"]
    found = once(f"runs-list-options:{newest}", _options, OPTIONS_S)
    own = {"owners": filters.owner, "strategies": filters.strategy, "tags": filters.tag}
    return {name: sorted({*values, own[name]} - {""}) for name, values in found.items()}


def _options() -> dict[str, list[str]]:
    owners = Run.objects.order_by().values_list("owner__username", flat=True).distinct()
    labels = Run.objects.order_by().values_list("label", flat=True).distinct()
    tags = Run.objects.order_by().exclude(tags=[]).values_list("tags", flat=True).distinct()
    return {
        "owners": list(owners),
        "strategies": list(labels),
        "tags": list({tag for some in tags for tag in some}),
    }
