"""The page Generate text…: the form of a run that generates text from another run's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.guards import member_required
from dashboard.fields import Choice
from dashboard.fleet.run_on import RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.numbers import number
from dashboard.runs import resuming, services
from dashboard.runs.damaged import damaged
from dashboard.runs.form.form_words import in_form_words
from dashboard.runs.form.panel import Panel
from dashboard.runs.generation import generate_panel, generating
from dashboard.runs.generation.text_fields import NUMBER, TextFields
from dashboard.runs.models import Run
from dashboard.runs.waiting import run_on as places
from dashboard.runs.waiting.queue_fields import PriorityField, offer, run_on_field
from parallel_core import limits
from parallel_core.analysis.generated import text
from parallel_core.analysis.quantities import step_text
from parallel_core.generation_request import read_request

NO_TEXT = "\N{REPLACEMENT CHARACTER}"
"""What stands for a byte that is no text."""


class GenerateForm(TextFields):
    """A checkpoint of a run, the text to generate from it, and the devices to use."""

    step = Choice(label="Checkpoint")
    tp = forms.CharField(
        label="Tensor parallel", initial="1", required=False, help_text="devices for each layer; divides the heads"
    )
    pp = forms.CharField(
        label="Pipeline stages", initial="1", required=False, help_text="they work in turn: saves memory, not time"
    )
    dp = forms.CharField(
        label="Data parallel", initial="1", required=False, help_text="replicas that share out the texts"
    )
    run_on = run_on_field()
    priority = PriorityField()
    like = forms.CharField(required=False, widget=forms.HiddenInput)
    field_order = ("step",)

    def __init__(self, run: Run, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"auto_id": "f-%s", "use_required_attribute": False, **kwargs})
        self.run, self.vocab = run, run.spec["model"]["vocab"]
        step = self.fields["step"]
        assert isinstance(step, forms.ChoiceField)
        bad, weights = damaged(run), generating.weights_of(run)
        ordered = sorted(resuming.steps(run), key=lambda n: (n in bad, -n))  # the first is the default
        doubts = {n: f", which run {one.by} found damaged" for n, one in bad.items()}
        best = resuming.best(run)
        said = {n: ", ".join(filter(None, (f"{step_text(n)}", resuming.remark(best, n)))) for n in ordered}
        step.choices = [(str(n), f"{said[n]}{doubts.get(n, '')}") for n in ordered if n or not weights]
        if weights:
            step.choices = [*step.choices, ("0", f"the weights {weights}, before the first step")]
        if not step.choices:
            raise Http404("the checkpoints of this run have just been deleted")
        self.suit(run.spec["model"])
        if NO_TEXT in str(self.initial.get("prompt", "")):
            kept = f"; what shows as {NO_TEXT} is kept as it was while nothing is changed here"
            kept += f", else each becomes the {len(NO_TEXT.encode())} bytes of that character"
            self.fields["prompt"].help_text = f"{self.fields['prompt'].help_text}{kept}"
        offer(self, FleetSnapshot.now())
        for name, made in self.fields.items():
            if isinstance(made, forms.CharField) and name != "prompt":
                made.widget.attrs |= NUMBER

    def request(self, vocab: int) -> dict[str, Any]:
        """As of any text, but the very tokens of the run that it is `like` while the prompt is that one's: a form can
        neither show nor send bytes that are no text."""
        asked = super().request(vocab)
        like = _like(self.run, self.cleaned_data["like"])
        if like and _as_sent(text(like.task["prompt"], vocab)) == _as_sent(self.cleaned_data["prompt"]):
            asked["prompt"] = like.task["prompt"]
        return asked

    def shown(self) -> dict[str, Any]:
        """The values of its fields before anybody typed."""
        return {name: self.get_initial_for_field(made, name) or "" for name, made in self.fields.items()} | {
            "step": self.initial.get("step") or self.fields["step"].choices[0][0]  # type: ignore[attr-defined]
        }

    def queue(self, owner: Any) -> Run | None:
        """Queues the run and returns it; None if something is wrong, with the message at its field."""
        if not self.is_valid():
            return None
        try:
            step, request, split = self._asked()
            asked: dict[str, Any] = {"on": self._chosen(), "priority": self.cleaned_data["priority"]}
            return generating.submit(owner=owner, run=self.run, step=step, request=request, split=split, **asked)
        except services.Invalid as error:
            self._show(error.field_errors)
        except ValueError as error:
            self._show({"prompt": str(error)})
        return None

    def panel(self) -> Panel:
        """Predicted memory of each rank, or the errors to correct first, which are then also at their fields."""
        if not self.is_valid():
            return self._refused({name: " ".join(map(str, said)) for name, said in self.errors.items()})
        if not self.cleaned_data["prompt"]:
            return Panel(memory="Memory depends on the length of the prompt: type one.")
        try:
            (step, request, split), on = self._asked(), self._chosen()
            spec = generating.spec_of(self.run, split, step)
        except services.Invalid as error:
            return self._refused(error.field_errors)
        except ValueError as error:
            return self._refused({"prompt": str(error)})
        found = read_request(request, spec)
        check = generating.fleet_check(spec, generating.begins_from(self.run, step), on)
        errors = {**found.errors, **generating.lost_weights(spec), **generating.crowded(split, check)}
        if found.request is None or errors:
            return self._refused(errors)
        return generate_panel.panel(spec, found.request, check)

    def _refused(self, errors: Mapping[str, str]) -> Panel:
        """A panel with the errors, each with the label of its field."""
        if self.is_valid():
            self._show(errors)
        labels = {name: str(made.label) for name, made in self.fields.items()}
        return Panel(errors=[_named(labels.get(name, ""), in_form_words(said)) for name, said in errors.items()])

    def _asked(self) -> tuple[int, dict[str, Any], generating.Split]:
        """Returns (step, request, split) of a valid form. Raises services.Invalid by field, ValueError for a prompt."""
        asked = self.cleaned_data
        degrees = {name: _degree(name, asked[name].strip() or "1") for name in generating.Split._fields}
        return int(asked["step"]), self.request(self.vocab), generating.Split(**degrees)

    def _chosen(self) -> RunOn:
        """The devices that were chosen in a valid form. Raises services.Invalid at `run_on`."""
        on, unread = places.read(self.cleaned_data["run_on"])
        if unread:
            raise services.Invalid({places.FIELD: unread})
        return on

    def _show(self, errors: Mapping[str, str]) -> None:
        for path, message in errors.items():
            name = path.partition(".")[0]
            self.add_error(name if name in self.fields else None, in_form_words(message))


def _named(label: str, said: str) -> str:
    """A message that is not shown at its field, preceded by the field's label."""
    return f"{label}: {said}" if label else said


def _degree(name: str, given: str) -> int:
    """Parses a degree of parallelism. Raises services.Invalid if it is not a number in range."""
    degree = number(given)
    if degree is None or not 1 <= degree <= limits.MAX_DEGREE:
        what = {"tp": "devices", "pp": "stages", "dp": "replicas"}[name]
        wanted = f"A whole number of {what} from 1 to {limits.MAX_DEGREE} is needed"
        raise services.Invalid({name: f"{wanted}; got {given[:40]!r}."})
    return degree


def _source(pk: int, weights: str) -> Run:
    """The run to generate text from: that number, or 0 with the name of `weights` that a worker has."""
    run = generating.of_weights(weights) if weights else get_object_or_404(Run, pk=pk)
    if run is None:
        raise Http404("no worker that reports has these weights, in words of this version")
    if not generating.able(run):
        raise Http404("no worker has a checkpoint of this run that text could be generated from")
    return run


@require_http_methods(["GET", "HEAD", "POST"])
@member_required
def generate(request: HttpRequest, pk: int = 0, weights: str = "") -> HttpResponse:
    """GET: the form; `?like=` filled with the request of another run that generated, `?step=` at a checkpoint.

    POST: queue it, or show what is wrong (422) with everything kept.
    """
    run = _source(pk, weights)
    if request.method == "POST":
        form = GenerateForm(run, request.POST)
        made = form.queue(request.user)
        if made is not None:
            return redirect("runs:page", made.pk)
        panel = GenerateForm(run, request.POST).panel()
    else:
        form = GenerateForm(run, initial=_initial(run, request.GET))
        panel = GenerateForm(run, form.shown()).panel()
    status = 422 if form.is_bound else 200
    return render(request, "runs/generate.html", {"run": run, "form": form, "panel": panel}, status=status)


@require_POST
@member_required
def check(request: HttpRequest, pk: int = 0, weights: str = "") -> HttpResponse:
    """The panel for what has been typed so far. Queues nothing."""
    form = GenerateForm(_source(pk, weights), request.POST)
    return render(request, "runs/form_check.html", {"form": form, "panel": form.panel()})


def _like(run: Run, given: Any) -> Run | None:
    """The run of that number if it generated from `run`, or is `run` and did."""
    asked = number(given)
    of_run = Q(resume_run=run) | Q(pk=run.pk)
    like = Run.objects.filter(of_run, pk=asked).first() if asked is not None else None
    return like if like is not None and like.generates else None


def _as_sent(prompt: str) -> str:
    """The prompt as it comes back from a form, with lines that end as in a corpus: HTML has no NUL, and one end of
    lines."""
    return prompt.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", NO_TEXT)


def _initial(run: Run, given: Mapping[str, Any]) -> dict[str, Any]:
    like = _like(run, given.get("like"))
    step = str(given.get("step", ""))
    if like is None:
        return {"step": step} if step else {}
    prompt = text(like.task["prompt"], run.spec["model"]["vocab"])
    split = {name: str(like.spec["parallel"][name]) for name in generating.Split._fields}
    numbers = {name: str(like.task.get(name, 0)) for name in ("new", "samples", "temperature", "top_k", "seed")}
    return {
        "like": str(like.pk),
        "step": str(like.resume_step or 0),
        "prompt": prompt,
        "run_on": like.run_on,
        **split,
        **numbers,
    }
