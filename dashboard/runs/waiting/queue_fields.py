"""The form fields of a run's place in the queue: on which devices, and how soon."""

from __future__ import annotations

from typing import Any

from django import forms

from dashboard.begun import began, typed
from dashboard.fields import Choice, Form
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs.models import Run
from dashboard.runs.waiting import priority as levels
from dashboard.runs.waiting import run_on as places
from dashboard.runs.waiting.priority import Priority
from dashboard.studies.models import Study


class PriorityField(Choice):
    """A level; its value is a Priority, normal where nothing was sent."""

    def __init__(self, **more: Any) -> None:
        given = {"choices": [(word, word) for word in levels.WORDS], "initial": Priority.NORMAL.word, **more}
        super().__init__(label="Priority", required=False, help_text="in the queue; high: only by admins", **given)

    def clean(self, value: Any) -> Priority:
        return levels.read(super().clean(value) or Priority.NORMAL.word) or Priority.NORMAL


def run_on_field() -> Choice:
    """A field for the devices; `offer` gives it its choices."""
    return Choice(required=False, label="Run on", help_text="which devices of the fleet it may be placed on")


def offer(form: forms.Form, fleet: FleetSnapshot) -> None:
    """Gives the field its choices, with the form's own value, so that one that is no more gets its own message."""
    own = str(form[places.FIELD].value() or "")
    form.fields[places.FIELD].choices = places.choices(fleet, own)  # type: ignore[attr-defined]


class QueueForm(Form):
    """Where queued runs may be placed, and their priority: those of `of`, a run or a study."""

    run_on = run_on_field()
    priority = PriorityField()

    def __init__(self, of: Run | Study, *args: Any, **kwargs: Any) -> None:
        initial = {"run_on": of.run_on, "priority": Priority(of.priority).word}
        super().__init__(*args, **{"auto_id": "f-%s", "use_required_attribute": False, "initial": initial, **kwargs})
        offer(self, FleetSnapshot.now())
        for name, made in self.fields.items():
            made.widget.attrs["aria-describedby"] = f"help-{name} error-{name}"

    def asked(self) -> dict[str, Any]:
        """What was changed in a valid form: the other value stays as it is, also where somebody else has changed it."""
        return {name: value for name, value in self.cleaned_data.items() if typed(self.data, name) is not None}

    def began(self) -> dict[str, str]:
        """What each field began with: see `begun.began`."""
        now = {name: str(self.get_initial_for_field(made, name)) for name, made in self.fields.items()}
        return began(self.data, now)
