"""Questions that the start page offers besides existing studies, each with a link to the page that answers it."""

from __future__ import annotations

from typing import NamedTuple

from django.urls import reverse

from dashboard.studies import scaling
from dashboard.studies.fitting import fit
from dashboard.studies.generating import generation
from dashboard.studies.overview import streams


class EntryPoint(NamedTuple):
    """`view` = name of the page's view, `place` = what follows its URL; `queues` = it is a form that queues runs, for
    those who may."""

    question: str
    answer: str
    view: str
    place: str = ""
    queues: bool = False

    @property
    def address(self) -> str:
        return reverse(self.view) + self.place


ENTRY_POINTS = (
    EntryPoint(
        "How would I split my model over a GPU cluster?",
        "The fastest of all plans that fit, what holds it back, and why any other one fails.",
        "plans:page",
    ),
    EntryPoint(
        "Which plan trains 200 B parameters on 40 GB GPUs?",
        "Ready cases, each with its verdict, and why the other set-up cannot.",
        "plans:scenarios",
        "#case-200b",
    ),
    EntryPoint(
        "Why did scaling get worse, or the loss diverge?",
        "Scenarios that break, run here: before, broken and proof, with the cause by name.",
        "plans:scenarios",
        "#breakages",
    ),
    EntryPoint(
        "Why is one of my runs faster than another?",
        "Compare: tick runs in the list to see what differs, where the time went, and their losses.",
        "runs:list",
    ),
    EntryPoint(
        "How many layers fit on my devices?",
        "The most that each strategy holds, found by real runs, next to the prediction.",
        "studies:new",
        f"?kind={fit.KIND}",
        queues=True,
    ),
    EntryPoint(
        "What do more devices bring?",
        "Speed against devices, strong and weak, and what of a step communication stalls.",
        "studies:new",
        f"?kind={scaling.KIND}",
        queues=True,
    ),
    EntryPoint(
        "What does weight stashing buy?",
        "Pipelines that never flush against 1F1B: time to a loss, and memory.",
        "studies:new",
        f"?kind={streams.KIND}",
        queues=True,
    ),
    EntryPoint(
        "Which split generates text fastest?",
        "And which needs least memory for its KV cache, by real runs.",
        "studies:new",
        f"?kind={generation.KIND}",
        queues=True,
    ),
    EntryPoint(
        "When is tensor parallelism faster than a pipeline?",
        "The sizes and links at which one overtakes the other, predicted.",
        "plans:crossover",
    ),
    EntryPoint(
        "Where does a pipeline's bubble come from?",
        "Two schedules side by side, played step by step; no run needed.",
        "schedules:page",
    ),
    EntryPoint(
        "What does each strategy hold, send and wait for?",
        "One card each, with its memory and traffic, and a run to try it.",
        "schedules:strategies",
    ),
    EntryPoint(
        "Why is a job of mine slow that ran elsewhere?",
        "Files of torch.profiler, one a rank, become a timeline with its accounts.",
        "traces:list",
    ),
)
