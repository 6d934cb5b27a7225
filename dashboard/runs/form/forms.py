"""The New run form, generated from RunSpec through `spec_fields`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from dashboard.fields import Choice, Form, WholeNumber
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.numbers import number
from dashboard.runs import resuming, weights
from dashboard.runs.form import relevance, spec_fields
from dashboard.runs.form.entry import Group
from dashboard.runs.form.form_words import in_form_words
from dashboard.runs.form.spec_groups import GROUPS
from dashboard.runs.name_tags_notes import MAX_TAG, MAX_TAGS, clean_tags
from dashboard.runs.services import MAX_RETRIES, WHEN_RETRIED, Invalid
from dashboard.runs.submission import Assessment, Submission, assess
from dashboard.runs.texts import corpora
from dashboard.runs.waiting.queue_fields import PriorityField, offer, run_on_field
from dashboard.runs.waiting.spreading import MOST_HOSTS
from parallel_core import limits
from workers.contract import ResumeFrom

USUAL_HOSTS = (0, 1, 2, 3, 4, 6, 8, 16, 32, 64)
"""The numbers of hosts that the form offers; 0 = as few as it takes."""


def _host_choices(own: int | None) -> list[tuple[str, str]]:
    """The usual numbers and `own`: a run that was queued by the API may be spread over any number."""
    words = {0: "as few as it takes", 1: "on one"}
    counts = {*USUAL_HOSTS, own} if own is not None and own <= MOST_HOSTS else set(USUAL_HOSTS)
    return [(str(count), words.get(count, f"evenly over {count}")) for count in sorted(counts)]


NAME_TOO_LONG = "A name has at most %(limit_value)d characters; this one has %(show_value)d."
ACCEPT = "text/*,.txt,.md,.py,.csv,.json,.jsonl"


def program_field(label: str, into: str, **attrs: str) -> forms.FileField:
    """A field for the file of a schedule; the browser reads it into the field `into` (static/js/schedule_file.js)."""
    accept = "text/csv,.csv,application/json,.json"
    given = {"accept": accept, "data-max": limits.MAX_PROGRAM, "data-into": into, **attrs}
    return forms.FileField(
        required=False,
        allow_empty_file=True,
        label=label,
        help_text=f"read into the field beside it; CSV or JSON, at most {limits.MAX_PROGRAM // 1024} KiB",
        widget=forms.FileInput(attrs=given),
    )


def program_text(upload: UploadedFile, field: str) -> str:
    """The text of an uploaded schedule. Raises Invalid at `field` as `uploaded_text`."""
    return uploaded_text(upload, field, "A schedule", limits.MAX_PROGRAM)


def uploaded_text(upload: UploadedFile, field: str, what: str, most: int) -> str:
    """The text of an uploaded file (`what` it should be, "A schedule") of at most `most` bytes. Raises Invalid at
    `field` if it is too large, empty or not UTF-8."""
    if not upload.size or upload.size > most:
        raise Invalid({field: f"{what} has 1 byte to {most // 1024} KiB; this file has {upload.size or 0} bytes."})
    try:
        return upload.read().decode()
    except UnicodeDecodeError as error:
        no = what.split(" ", 1)[1]
        raise Invalid({field: f"This is no {no}: byte {error.start} is not UTF-8 text."}) from error


@dataclass(frozen=True)
class Section:
    """A fieldset: its group and its bound fields."""

    group: Group
    fields: list[forms.BoundField]

    @property
    def open(self) -> bool:
        """Whether to show it open: not folded, or with a value that is not the default, or with an error."""
        usual = spec_fields.usual()
        return not self.group.folded or any(f.errors or f.value() != usual[f.html_name] for f in self.fields)


class RunForm(Form):
    """Passes its text to RunSpec, and RunSpec's messages back to the fields. `assessment` is set by validation."""

    name = forms.CharField(
        required=False,
        max_length=limits.MAX_NAME,
        help_text=spec_fields.NAME_HINT,
        error_messages={"max_length": NAME_TOO_LONG},
    )
    tags = forms.CharField(
        required=False, help_text=f"separated by commas; at most {MAX_TAGS}, of {MAX_TAG} characters each"
    )
    retries = WholeNumber(
        label="Retries",
        min_value=0,
        max_value=MAX_RETRIES,
        initial=0,
        help_text=f"{WHEN_RETRIED}, 0 to {MAX_RETRIES}",
    )
    run_on = run_on_field()
    priority = PriorityField()
    hosts = Choice(
        required=False,
        label="Hosts",
        help_text="ranks on several exchange through the network",
    )
    resume_from = forms.CharField(
        required=False, label="Resume from", help_text="run:step of a checkpoint; empty begins anew"
    )
    based_on = forms.CharField(required=False, widget=forms.HiddenInput)
    upload = forms.FileField(
        required=False,
        allow_empty_file=True,
        label="Your own text",
        widget=forms.FileInput(
            attrs={"accept": ACCEPT, **spec_fields.shown_while(relevance.of_kinds(relevance.takers("blob")))}
        ),
    )
    program_file = program_field("Schedule file", "parallel__program", **spec_fields.shown_for("parallel.program"))
    anyway = forms.BooleanField(required=False, label="Queue it although it is predicted not to fit")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"auto_id": "f-%s", "use_required_attribute": False, **kwargs})
        self.assessment = Assessment()
        self.fields["upload"].help_text = format_html(
            'instead of the corpus; UTF-8, at most {} MiB; <a href="{}">uploaded texts</a>',
            corpora.MAX_MIB,
            reverse("runs:texts"),
        )
        fleet = FleetSnapshot.now()
        offer(self, fleet)
        self.fields["hosts"].choices = _host_choices(number(self["hosts"].value()))  # type: ignore[attr-defined]
        for entry in spec_fields.ENTRIES.values():
            self.fields[entry.name] = spec_fields.form_field(entry)
        corpus = self.fields["train__corpus"].widget
        assert isinstance(corpus, forms.Select)
        corpus.choices = corpora.choices(fleet)
        self.fields["train__weights"].help_text += "; a checkpoint in Resume from comes first"
        begins = self.fields["train__weights"].widget
        assert isinstance(begins, forms.Select)
        begins.choices = weights.choices(fleet, str(self["train__weights"].value() or ""))
        self.models_of_weights = weights.fill(fleet)
        # Text inputs, like every number here: a number input of a browser drops what it does not understand. And no
        # maxlength: a name that is too long is kept whole and gets a message.
        self.fields["name"].widget.attrs.pop("maxlength")
        self.fields["retries"].widget = forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"})

    def clean_resume_from(self) -> ResumeFrom | None:
        try:
            return resuming.parse(self.cleaned_data["resume_from"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        self.assessment = assess(
            spec_fields.to_spec(cleaned),
            cleaned.get("resume_from"),
            int(cleaned.get("hosts") or 0),
            cleaned.get("run_on") or "",
        )
        self.show(self.assessment.errors)
        tags = clean_tags([cleaned.get("tags", "")])
        if len(tags) > MAX_TAGS:
            self.add_error("tags", f"At most {MAX_TAGS} tags; these are {len(tags)}.")
        elif any(len(tag) > MAX_TAG for tag in tags):
            self.add_error("tags", f"A tag has at most {MAX_TAG} characters.")
        return cleaned

    def show(self, errors: Mapping[str, str]) -> None:
        """Adds messages by dotted field to the form's fields; also to a form that is not bound."""
        if not self.is_bound and errors:
            self.full_clean()  # for an unbound form, this only creates the dict of errors
            self.cleaned_data = {}
        for path, message in errors.items():
            name = spec_fields.form_name(path)
            known = name in self.fields
            said = in_form_words(message)
            self.add_error(name if known else None, said if known else f"{path}: {said}")

    @classmethod
    def sent(cls, request: HttpRequest) -> RunForm:
        """The form as it was posted.

        An uploaded text is stored and chosen, so that an error in another field does not lose it; an uploaded schedule
        is put into its field.
        """
        form, errors = cls(request.POST, request.FILES), {}
        changes: dict[str, str] = {}
        upload, program = request.FILES.get("upload"), request.FILES.get("program_file")
        try:
            if program is not None:
                changes["parallel__program"] = program_text(program, "program_file")
            if upload is not None:
                changes["train__corpus"] = f"blob:{corpora.store(owner=request.user, upload=upload).sha256}"
        except Invalid as error:
            errors = error.field_errors
        if changes:
            form.data = {**request.POST.dict(), **changes}
        form.show(errors)
        return form

    def submission(self) -> Submission:
        """What the user asks for. Needs a valid form."""
        clean = self.cleaned_data
        return {
            "spec": spec_fields.to_spec(clean),
            "name": clean["name"],
            "tags": clean_tags([clean["tags"]]),
            "retries": clean["retries"],
            "anyway": clean["anyway"],
            "resume_from": clean["resume_from"],
            "based_on": number(clean["based_on"]),
            "host_count": int(clean["hosts"] or 0),
            "run_on": clean["run_on"],
            "priority": clean["priority"],
        }

    def sections(self) -> Iterator[Section]:
        for group in GROUPS:
            yield Section(group, [self[entry.name] for entry in group.entries])

    max_upload = limits.MAX_CORPUS_BYTES

    def words(self) -> list[forms.BoundField]:
        """The fields that are not part of the spec, but for those `in_queue`."""
        return [self[name] for name in ("name", "tags", "hosts", "retries", "resume_from")]

    def in_queue(self) -> list[forms.BoundField]:
        """The fields of its place in the queue, which a run of a study has from that."""
        return [self[name] for name in ("run_on", "priority")]
