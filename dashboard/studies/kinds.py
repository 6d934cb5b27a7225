"""The kinds of study that New study offers. Another kind is one more `register`: its form brings everything."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.studies import fit, scaling
from dashboard.studies.fit_form import FitForm
from dashboard.studies.forms import MatrixForm, StudyForm, SweepForm
from dashboard.studies.scaling_form import ScalingForm
from dashboard.studies.stashing_form import StashingForm


@dataclass(frozen=True)
class StudyKind:
    """`key` is the kind in the URL and on the row, `sentence` what the kind is for."""

    key: str
    sentence: str
    form: type[StudyForm]

    @property
    def title(self) -> str:
        return self.form.title


KINDS: dict[str, StudyKind] = {}


def register(kind: StudyKind) -> StudyKind:
    """Adds a kind; a second one of the same key is a mistake (ValueError)."""
    if kind.key in KINDS:
        raise ValueError(f"a study kind '{kind.key}' exists already")
    KINDS[kind.key] = kind
    return kind


MATRIX = register(
    StudyKind("matrix", "Strategies x recomputation x precision x micro-batches, all else equal.", MatrixForm)
)
SWEEP = register(StudyKind("sweep", "One field of the run over several values, all else equal.", SweepForm))
STASHING = register(
    StudyKind(
        "stashing",
        "1F1B with its flush against pipelines that stay full on older weights, and DP: time to a loss, and memory.",
        StashingForm,
    )
)
SCALING = register(
    StudyKind(
        scaling.KIND,
        "Speed against devices, strong and weak, and the share of a step that communication stalls.",
        ScalingForm,
    )
)
FIT = register(
    StudyKind(
        fit.KIND,
        "The most layers that each strategy can hold, found by real runs, beside what the memory model says.",
        FitForm,
    )
)
