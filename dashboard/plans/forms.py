"""Forms of the planner's pages: a model, a cluster and a batch. All fields are in the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from dashboard.fields import Choice, Form, Number, TypedChoice, WholeNumber
from dashboard.ledger.fleet_page import LEAST_MIB, MIB, MOST_MIB, least_memory
from dashboard.ledger.models import Profile
from dashboard.plans.setups import RATES, SIZES, Setup, cluster_of, model_of
from parallel_core.plan.cluster.hardware import GIB, clusters
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plan_parser import read
from parallel_core.plan.cluster.plans import PRECISIONS, STATES, Plan, State
from parallel_core.plan.cluster.problems import Problems
from parallel_core.plan.cluster.search import Space
from parallel_core.plan.fleet import MOST_DEVICES

SCHEDULES_OF = {
    "all": Space().schedules,
    "plain": ("1f1b", "interleaved"),
    "async": (*Space().schedules, "1f1b-stash", "1f1b-2bw"),
}
MOST_TOKENS = 1e6
FLEET = "fleet:"
"""Prefix of the name of a cluster that is this yard, as one of its profiles measured it."""


def said(form: forms.Form) -> str:
    """The errors of a form in one line, each after the name of its field: for responses that have no fields."""
    return " ".join(
        f"{form.add_prefix(field)}: {' '.join(map(str, messages))}" for field, messages in form.errors.items()
    )


class SetupForm(Form):
    """A model, a batch and a cluster. A valid form has `setup`."""

    model = Choice(label="Model")
    batch = WholeNumber(label="Batch", min_value=1, help_text="sequences a step")
    cluster = Choice(label="Cluster")
    devices = WholeNumber(label="Devices", min_value=1, required=False)

    hidden = WholeNumber(label="Hidden size", required=False)
    layers = WholeNumber(label="Layers", required=False)
    heads = WholeNumber(label="Heads", required=False)
    kv_heads = WholeNumber(label="Key and value heads", required=False)
    ffn = WholeNumber(label="MLP width", required=False)
    vocab = WholeNumber(label="Vocabulary", required=False)
    seq = WholeNumber(label="Sequence length", required=False)

    per_host = WholeNumber(label="Devices a host", required=False)
    memory = Number(label="Memory, GiB", required=False)
    reserved = Number(label="Of it kept free, GiB", required=False)
    half = Number(label="Peak in 16 bits, TFLOP/s", required=False)
    bandwidth = Number(label="Memory bandwidth, GB/s", required=False)
    link = Number(label="Link inside a host, GB/s", required=False)
    network = Number(label="Network a device, GB/s", required=False)

    DEFAULTS: dict[str, Any] = {"model": "gpt-175b", "cluster": "selene", "batch": 1536}
    setup: Setup

    def __init__(self, given: dict[str, Any], prefix: str | None = None) -> None:
        known = {self._name(prefix, name): value for name, value in self.DEFAULTS.items()}
        super().__init__({**known, **given}, prefix=prefix, auto_id="f-%s", use_required_attribute=False)
        self.fields["model"].choices = [(key, one.name) for key, one in presets().items()]  # type: ignore[attr-defined]
        self.fields["cluster"].choices = [(key, one.name) for key, one in clusters().items()]  # type: ignore[attr-defined]
        self._describe()

    @staticmethod
    def _name(prefix: str | None, name: str) -> str:
        return f"{prefix}-{name}" if prefix else name

    def _describe(self) -> None:
        """Sets placeholders of empty fields to the preset's values."""
        base, machine = presets().get(str(self["model"].value())), clusters().get(str(self["cluster"].value()))
        shown: dict[str, Any] = {name: getattr(base, name) for name in SIZES} if base else {}
        if machine:
            parts = {n: getattr(machine, n, getattr(machine.device, n, 0)) / unit for n, unit in RATES.items()}
            shown |= {n: f"{value:g}" for n, value in parts.items()}
            shown |= {"devices": machine.devices, "per_host": machine.per_host}
        for name, field in self.fields.items():
            if name in shown:
                field.widget.attrs["placeholder"] = shown[name]

    def clean(self) -> dict[str, Any]:
        values = dict(super().clean() or {})
        if self.errors:
            return values
        job = Job(model_of(values), values.get("batch", 1), adapters=values.get("adapters") or 0)
        cluster = cluster_of(values)
        wrong = {**cluster.problems(), **job.problems()}
        if "hidden" in wrong and values["ffn"] is None:
            wrong.pop("ffn", None)  # derived from the hidden size: nobody entered it
        for field, message in wrong.items():
            self.add_error(field if field in self.fields else None, message)
        self.setup = Setup(job, cluster)
        return values

    def group(self, *names: str) -> list[forms.BoundField]:
        return [self[name] for name in names]

    @property
    def first(self) -> list[forms.BoundField]:
        return self.group("model", "batch", "cluster", "devices")

    @property
    def own_model(self) -> list[forms.BoundField]:
        return self.group(*SIZES)

    @property
    def own_cluster(self) -> list[forms.BoundField]:
        return self.group("per_host", *RATES)

    @property
    def own(self) -> bool:
        """Whether a field that replaces a value of a preset is filled or wrong."""
        return any(field.errors or field.value() for field in [*self.own_model, *self.own_cluster])


def _bytes_text(key: int, state: State) -> str:
    """`14 = 2+4+8, SGD`, which the narrow choice shows whole."""
    which = "" if state.optimizer_name == "Adam" else ", SGD"
    return f"{key} = {state.weights}+{state.gradients}+{state.optimizer}{which}"


class PlannerForm(SetupForm):
    """The planner's search space as well. A valid form also has `space` and `chosen` (None = the best plan)."""

    state = TypedChoice(
        label="Bytes a parameter",
        coerce=int,
        choices=[(key, _bytes_text(key, state)) for key, state in STATES.items()],
        help_text="weights + gradients + optimizer: Adam, or SGD with momentum (14) or without (10)",
    )
    precision = Choice(label="Precision", choices=[(word, word) for word in PRECISIONS])
    schedules = Choice(
        label="Schedules",
        choices=[
            ("all", "all, zero bubble too"),
            ("plain", "1F1B and interleaved"),
            ("async", "all, stale weights too"),
        ],
    )
    offload = Choice(label="Optimizer offload", choices=[("no", "no"), ("yes", "may be used")])
    columns = Choice(
        label="Tensor split",
        choices=[("no", "column-row pairs"), ("yes", "all by columns, too")],
        help_text="by columns gathers every output: more bytes, rarely the fastest",
    )
    adapters = WholeNumber(
        label="Adapters, rank", min_value=1, required=False, help_text="frozen base; empty: all is trained"
    )
    tokens = Number(label="Tokens wanted, billions", min_value=0, max_value=MOST_TOKENS)
    price = Number(label="Price of a device-hour", min_value=0, max_value=1e6, help_text="in your currency")
    plan = forms.CharField(
        label="Why not this one?",
        required=False,  # `read` says how long it may be
        help_text="empty shows the fastest; a point of the chart below can be clicked, too",
    )

    DEFAULTS = {
        **SetupForm.DEFAULTS,
        "state": 18,
        "precision": "16-bit",
        "schedules": "all",
        "offload": "no",
        "columns": "no",
        "tokens": 300,
        "price": 2,
    }
    space: Space
    chosen: Plan | None = None

    def __init__(self, given: dict[str, Any], measured: Sequence[tuple[str, str]] = ()) -> None:
        """`measured` = (id, name) of each profile of this fleet, which can be chosen as clusters like the presets."""
        super().__init__(given)
        self.measured = bool(measured)
        self.fields["plan"].widget.attrs["placeholder"] = "TP 8 x PP 16 x DP 8, 1f1b, ZeRO-1, SP"
        if measured:
            own = [(f"{FLEET}{number}", name) for number, name in measured]
            listed = self.fields["cluster"].choices  # type: ignore[attr-defined]
            self.fields["cluster"].choices = [("This fleet, measured", own), ("Presets", listed)]  # type: ignore[attr-defined]

    @property
    def fleet(self) -> str | None:
        """Id of the profile if this fleet is chosen: another page plans it, from measured costs."""
        asked = str(self["cluster"].value())
        number = asked.removeprefix(FLEET)
        return number if asked.startswith(FLEET) and number.isdecimal() else None

    def clean(self) -> dict[str, Any]:
        if (profile := self.fleet) is not None:
            return self._clean_fleet(profile)
        values = super().clean()
        if self.errors:
            return values
        self.space = Space(
            schedules=SCHEDULES_OF[values["schedules"]],
            precisions=(values["precision"],),
            states=(values["state"],),
            offload=(False, True) if values["offload"] == "yes" else (False,),
            by_columns=(False, True) if values["columns"] == "yes" else (False,),
        )
        if values["plan"]:
            try:
                self.chosen = read(values["plan"])
            except ValueError as error:
                self.add_error("plan", str(error))
        return values

    def _clean_fleet(self, number: str) -> dict[str, Any]:
        """Checks what the fleet's own page would refuse, in the units of this form; `number` is the profile's id."""
        values, found = dict(self.cleaned_data), Problems()
        if (devices := values.get("devices")) is not None:
            found.whole("devices", devices, 1, MOST_DEVICES)
        if (memory := values.get("memory")) is not None:
            profile = Profile.objects.filter(pk=number).defer("table").first() if "cluster" in values else None
            least = least_memory(profile) if profile else LEAST_MIB
            found.number("memory", memory, least * MIB / GIB, MOST_MIB * MIB / GIB, " GiB")
        for field, message in found.messages.items():
            self.add_error(field, message)
        return values

    def is_valid(self) -> bool:
        """Whether the search over presets can answer."""
        return super().is_valid() and self.fleet is None

    @property
    def more(self) -> list[forms.BoundField]:
        return self.group("state", "precision", "schedules", "offload", "columns", "adapters", "tokens", "price")

    @property
    def asks_more(self) -> bool:
        """Whether one of `more` is not at its default, or wrong."""
        return any(f.errors or str(f.value() or "") != str(self.DEFAULTS.get(f.name, "")) for f in self.more)
