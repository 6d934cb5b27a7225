"""The state of the list of studies in the query string: what is searched for, and the filters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from django.conf import settings
from django.db.models import Q, QuerySet
from django.http import QueryDict

from dashboard.numbers import number
from dashboard.runs.browse.listing import clean_text
from dashboard.runs.models import Run
from dashboard.studies.models import Once, Study


@dataclass(frozen=True)
class Listing:
    """What to list: studies with `q` in their name or notes, or as their number, of the owner and the kind; an empty
    filter matches all."""

    q: str = ""
    owner: str = ""
    kind: str = ""

    @classmethod
    def parse(cls, query: QueryDict) -> Listing:
        return cls(*(clean_text(query.get(name, "")) for name in ("q", "owner", "kind")))

    @property
    def filtered(self) -> bool:
        return bool(self.q or self.owner or self.kind)

    @property
    def before_page(self) -> str:
        """The query string to which `page=N` can be appended."""
        text = urlencode({name: value for name, value in asdict(self).items() if value})
        return f"?{text}&" if text else "?"

    def studies(self) -> QuerySet[Study]:
        """The studies that match, newest first."""
        found = Study.objects.order_by("-pk")
        if self.q:
            matches = Q(name__icontains=self.q) | Q(notes__icontains=self.q)
            if (pk := number(self.q)) is not None:
                matches |= Q(pk=pk)
            found = found.filter(matches)
        if self.owner:
            found = found.filter(owner__username=self.owner)
        return found.filter(kind=self.kind) if self.kind else found

    def options(self) -> dict[str, list[str]]:
        """The values to filter by, with those of this list: owners and kinds."""
        every = Study.objects.order_by()
        owners = {*every.values_list("owner__username", flat=True).distinct(), self.owner}
        kinds = {*every.values_list("kind", flat=True).distinct(), self.kind}
        return {"owners": sorted(owners - {""}), "kinds": sorted(kinds - {""})}


def awaits_the_first() -> bool:
    """Whether the controller is to queue a study by itself, as in a new yard until a worker has calibrated."""
    return bool(settings.STARTER_STUDY) and not (
        Once.objects.filter(what=Once.STARTER).exists() or Run.objects.exists()
    )
