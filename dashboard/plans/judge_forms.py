"""The set-ups that Judge compares: each a model, a cluster and a plan; its query fields begin with its letter."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms

from dashboard.plans.forms import SetupForm
from parallel_core.plan.cluster.plan_parser import read
from parallel_core.plan.cluster.plans import Plan
from parallel_core.plan.cluster.problems import MOST_SHOWN

LETTERS = "abcd"
LEAST = 2
"""The fewest set-ups that are compared."""
FIRST: dict[str, dict[str, Any]] = {
    "a": {"model": "gpt-200b", "cluster": "a100-40", "batch": 1024, "plan": "DP 1024"},
    "b": {"model": "gpt-200b", "cluster": "a100-40", "batch": 1024, "plan": "TP 8 x PP 16 x DP 8, ZeRO-1, SP"},
}
"""What the page shows without a query."""


class JudgeForm(SetupForm):
    """One set-up; a valid form has `asked`, its plan."""

    plan = forms.CharField(  # `read` says how long it may be
        label="Plan", error_messages={"required": "Plan must name a split, such as TP 8 x DP 4; got nothing."}
    )

    DEFAULTS = {**SetupForm.DEFAULTS, "batch": 1024, "plan": "TP 8 x PP 8 x DP 16, SP"}
    asked: Plan

    def clean(self) -> dict[str, Any]:
        values = super().clean()
        if not self.errors:
            try:
                self.asked = read(values["plan"])
            except ValueError as error:
                self.add_error("plan", str(error))
        return values

    @property
    def letter(self) -> str:
        return str(self.prefix).upper()

    @property
    def first(self) -> list[forms.BoundField]:
        return self.group("model", "batch", "cluster", "devices")


def wrong_count(given: dict[str, Any]) -> str:
    """What is wrong with the number of set-ups in `?n=`; '' if nothing."""
    asked = str(given.get("n", LEAST))
    if asked in map(str, range(LEAST, len(LETTERS) + 1)):
        return ""
    return f"n: {LEAST} to {len(LETTERS)} set-ups can be judged; got {asked[:MOST_SHOWN] or 'nothing'}."


def read_forms(given: dict[str, Any]) -> list[JudgeForm]:
    """The forms for `?n=3&a-model=…`: two to four set-ups. One without fields begins as a copy of the one before it."""
    asked = str(given.get("n", LEAST))
    count = LEAST if wrong_count(given) else int(asked)
    out: list[JudgeForm] = []
    values: dict[str, Any] = {}
    fresh = not any(name[:2] in ("a-", "b-") for name in given)
    for letter in LETTERS[:count]:
        mine = {name: value for name, value in given.items() if name.startswith(f"{letter}-")}
        if fresh and letter in FIRST:
            values = FIRST[letter]
        before = {f"{letter}-{name}": value for name, value in values.items()} if not mine else {}
        form = JudgeForm({**before, **mine}, prefix=letter)
        values = {name: form[name].value() for name in form.fields}
        out.append(form)
    return out


def query(forms_: list[JudgeForm], **changes: str) -> str:
    """The query of the set-ups; `changes` replace fields, by their full names."""
    given = {f"{form.prefix}-{name}": form[name].value() for form in forms_ for name in form.fields}
    kept = {name: value for name, value in {**given, **changes}.items() if value not in (None, "")}
    return urlencode({"n": len(forms_), **kept})
