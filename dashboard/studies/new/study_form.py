"""What the forms of all kinds of study have in common.

`form.planned` is what would run, before anything is queued; `form.create(owner)` queues it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Self

from django import forms
from django.http import HttpRequest

from dashboard.fields import Form, WholeNumber
from dashboard.fleet.run_on import RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs.form.entry import html_name
from dashboard.runs.form.form_words import in_form_words
from dashboard.runs.form.forms import NAME_TOO_LONG
from dashboard.runs.form.spec_fields import form_name
from dashboard.runs.models import Run
from dashboard.runs.waiting import run_on as places
from dashboard.runs.waiting.queue_fields import PriorityField, offer, run_on_field
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new.estimate import Estimate, run_seconds
from dashboard.studies.new.feasible import previewed
from dashboard.studies.new.variants import Plan, Variant
from parallel_core import limits


class StudyForm(Form):
    """A name and repeats."""

    kind: ClassVar[str]
    title: ClassVar[str]
    """Name of the kind."""
    template_name_own: ClassVar[str] = "studies/new_own.html"
    """Shows the fields of the kind only: `own_group`."""
    template_name_base: ClassVar[str] = ""
    """Shows the fields of what all runs share, if there are any besides."""
    anew: str = ""
    """HTML of the inputs that the form has replaced, for an HTMX swap."""
    runs_note: str = ""
    """A sentence on the runs, for the preview."""

    name = forms.CharField(
        required=False,
        max_length=limits.MAX_NAME,
        help_text=f"such as what it is to find out, at most {limits.MAX_NAME} characters; empty: its kind and model",
        error_messages={"max_length": NAME_TOO_LONG},
    )
    repeats = WholeNumber(
        label="Repeats", min_value=1, max_value=services.MAX_REPEATS, initial=1, help_text="of the whole list, in turn"
    )

    run_on = run_on_field()
    priority = PriorityField()

    def __init__(self, *args: Any, fleet: FleetSnapshot | None = None, **kwargs: Any) -> None:
        """`fleet`: a snapshot to use instead of a new one, for everything that the form says about the fleet."""
        self.fleet = fleet or FleetSnapshot.now()
        super().__init__(*args, **{"auto_id": "f-%s", "use_required_attribute": False, **kwargs})
        self.complete()
        offer(self, self.fleet)
        self.fields["name"].widget.attrs.pop("maxlength")  # a name that is too long gets a message, and is not cut

    def complete(self) -> None:
        """Adds the fields, and the parts of fields, that are not known before."""

    @classmethod
    def sent(cls, request: HttpRequest) -> Self:
        """The form as it was posted."""
        return cls(request.POST)

    @classmethod
    def initial_of_run(cls, run: Run) -> dict[str, Any]:
        """Its first values if it is asked for from a run's page."""
        raise NotImplementedError

    @classmethod
    def initial_of_fleet(cls, fleet: FleetSnapshot) -> dict[str, Any]:
        """Its first values if nothing else is known."""
        raise NotImplementedError

    def group(self, names: tuple[str, ...]) -> Iterator[forms.BoundField]:
        return (self[html_name(name)] for name in names)

    def clean_run_on(self) -> RunOn:
        """From here on, `fleet` has only the chosen devices."""
        on, why = places.read(self.cleaned_data["run_on"])
        narrowed = self.fleet.narrowed(on)
        if why := why or places.unknown(narrowed):
            raise forms.ValidationError(why)
        self.fleet = narrowed
        return on

    def in_queue(self) -> services.InQueue:
        """Where its runs may be placed, and how soon. Needs a valid form."""
        return services.InQueue(self.cleaned_data["run_on"], self.cleaned_data["priority"])

    def queue_group(self) -> Iterator[forms.BoundField]:
        return self.group(("run_on", "priority"))

    def measure_group(self) -> Iterator[forms.BoundField]:
        return self.group(("repeats",))

    def own_group(self) -> Iterator[forms.BoundField]:
        """The fields of this kind only."""
        yield from ()

    def plan(self) -> Plan:
        """The runs that are asked for, whether or not they fit. Needs a valid form."""
        raise NotImplementedError

    @cached_property
    def planned(self) -> Plan:
        """What of `plan` would run on this fleet, found once: it takes long for many variants. Needs a valid form."""
        return previewed(self.plan(), self.fleet, self.cleaned_data.get("repeats") or 1)

    def create(self, owner: Any) -> Study:
        """Queues the study. Raises runs.services.Invalid and PermissionDenied."""
        raise NotImplementedError

    def named(self, about: str) -> str:
        """The study's name; without one, what it is called followed by `about`. Needs a valid form."""
        return (self.cleaned_data["name"] or f"{self.called}: {about}")[: limits.MAX_NAME]

    @property
    def called(self) -> str:
        """What a study without a name is called, before the name of its model. Needs a valid form."""
        return self.title

    def estimate(self) -> Estimate:
        """How long the study will take. Needs a valid form."""
        raise NotImplementedError

    def seconds_of(self, variant: Variant) -> float | None:
        """Expected seconds of one run; None if they are not known. Needs a valid form."""
        return run_seconds(variant.spec, self.calibration) if self.calibration else None

    def times_of(self, variant: Variant) -> str:
        """What the preview says of the times within a run; '' for nothing. Needs a valid form."""
        return ""

    @property
    def calibration(self) -> dict[str, Any] | None:
        """The calibration by which runs are timed beforehand; None if there is none. Needs a valid form."""
        return None

    def show(self, errors: dict[str, str]) -> None:
        """Adds messages by dotted field to the form's fields; those without a field are shown above the form."""
        for dotted, message in errors.items():
            names = (form_name(dotted), html_name(dotted))  # of `parallel.cuts.0`, the field of the cuts
            self.add_error(next((name for name in names if name in self.fields), None), in_form_words(message))
