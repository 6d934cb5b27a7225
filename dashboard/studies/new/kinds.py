"""The kinds of study that New study offers. Another kind takes one more `register`: its form has the rest."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse

from dashboard.studies.fitting.fit_form import FitForm
from dashboard.studies.generating.generation_form import GenerationForm
from dashboard.studies.models import Study
from dashboard.studies.new.matrix_form import MatrixForm
from dashboard.studies.new.scaling_form import ScalingForm
from dashboard.studies.new.stashing_form import StashingForm
from dashboard.studies.new.study_form import StudyForm
from dashboard.studies.new.sweep_form import SweepForm


@dataclass(frozen=True)
class StudyKind:
    """`sentence` says what the kind is for; its key and title are those of its form."""

    sentence: str
    form: type[StudyForm]

    @property
    def key(self) -> str:
        """The kind in the URL and in the study's row."""
        return self.form.kind

    @property
    def title(self) -> str:
        return self.form.title


KINDS: dict[str, StudyKind] = {}


def register(kind: StudyKind) -> StudyKind:
    """Adds a kind. Raises ValueError if there is one with the same key."""
    if kind.key in KINDS:
        raise ValueError(f"a study kind '{kind.key}' exists already")
    KINDS[kind.key] = kind
    return kind


MATRIX = register(StudyKind("Strategies x recomputation x precision x micro-batches, all else equal.", MatrixForm))
register(StudyKind("One field of the run over several values, or two fields crossed, all else equal.", SweepForm))
register(
    StudyKind(
        "1F1B with its flush against pipelines that stay full on older weights, and DP: time to a loss, and memory.",
        StashingForm,
    )
)
register(
    StudyKind(
        "Speed against devices, strong and weak, and the share of a step that communication stalls.",
        ScalingForm,
    )
)
register(
    StudyKind(
        "The most layers that each strategy can hold, found by real runs, next to what the memory model says.",
        FitForm,
    )
)
register(
    StudyKind(
        "One checkpoint generates the same text on several splits: tokens a second, and memory of a rank.",
        GenerationForm,
    )
)


UNOFFERED = ("starter", "listed", "postmortem")
"""The kinds of studies that New study does not make."""
MADE_BY = {"starter": MATRIX.key}
"""The kind whose form makes a study that was created without one, from its settings."""


def clone_address(study: Study) -> str:
    """The address of New study with what this study was created from; '' where no form would make the same runs (those
    of a study of kind listed came one by one, those of a postmortem from its scenario)."""
    key = MADE_BY.get(study.kind, study.kind)
    return f"{reverse('studies:new')}?kind={key}&clone={study.pk}" if key in KINDS else ""
