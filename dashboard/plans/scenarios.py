"""Ready cases: a question, the set-ups that answer it, and links to Judge and Planner with the fields filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.urls import reverse

from dashboard.plans import judge_page
from dashboard.plans.judge_forms import read_forms


@dataclass(frozen=True)
class Scenario:
    """`shared` = fields of every set-up, `setups` = the fields of each one."""

    key: str
    title: str
    question: str
    shared: dict[str, Any]
    setups: tuple[dict[str, Any], ...]

    def query(self) -> str:
        """The query for Judge."""
        fields = {
            f"{letter}-{name}": value
            for letter, own in zip("abcd", self.setups, strict=False)
            for name, value in {**self.shared, **own}.items()
        }
        return urlencode({"n": len(self.setups), **fields})

    def planner(self) -> str:
        """The query for Planner: job and cluster of the last set-up, without its plan."""
        fields = {**self.shared, **self.setups[-1]}
        fields.pop("plan")
        return urlencode({**fields, "offload": "yes"})


SCENARIOS = (
    Scenario(
        "200b",
        "200 B parameters on 40 GB",
        "Which plan trains 200 B parameters on 40 GB GPUs, and why does the other fail?",
        {"model": "gpt-200b", "cluster": "a100-40", "batch": 1024},
        ({"plan": "DP 1024"}, {"plan": "TP 8 x PP 16 x DP 8, ZeRO-1, SP"}),
    ),
    Scenario(
        "30b",
        "30 B on one host of 8",
        "Does 30 B train on eight 80 GB GPUs of one host?",
        {"model": "gpt-30b", "cluster": "selene", "devices": 8, "batch": 64},
        ({"plan": "DP 8, full recompute"}, {"plan": "DP 8, ZeRO-3, full recompute"}, {"plan": "TP 8, SP"}),
    ),
    Scenario(
        "70b",
        "70 B on 8 GPUs",
        "What does it take to train 70 B on eight GPUs?",
        {"model": "llama-70b", "cluster": "h100", "devices": 8, "batch": 64},
        (
            {"plan": "TP 8, SP, full recompute"},
            {"plan": "TP 8, SP, full recompute, offload"},
            {"plan": "TP 8, SP, full recompute", "cluster": "b200"},
        ),
    ),
    Scenario(
        "refresh",
        "A hardware refresh",
        "What would 256 H100s do that 1 024 A100s do today?",
        {"model": "gpt-175b", "batch": 1536},
        (
            {"cluster": "selene", "devices": 1024, "plan": "TP 8 x PP 8 x DP 16, interleaved 3, ZeRO-1, SP"},
            {"cluster": "h100", "devices": 256, "plan": "TP 8 x PP 8 x DP 4, interleaved 3, ZeRO-1, SP"},
        ),
    ),
    Scenario(
        "two",
        "One plan for two clusters",
        "Which plan runs on both clusters, and what does it cost each?",
        {"model": "gpt-175b", "batch": 1536},
        (
            {"cluster": "a100-40", "devices": 512, "plan": "TP 8 x PP 16 x DP 4, ZeRO-1, SP"},
            {"cluster": "h100", "devices": 256, "plan": "TP 8 x PP 16 x DP 2, ZeRO-1, SP"},
        ),
    ),
    Scenario(
        "8-32",
        "From 8 to 32 GPUs",
        "How much faster are 32 GPUs than 8 at the same batch?",
        {"model": "gpt-22b", "cluster": "selene", "batch": 256},
        (
            {"devices": 8, "plan": "TP 8, SP, micro-batch 2"},
            {"devices": 32, "plan": "TP 8 x DP 4, SP, micro-batch 2, ZeRO-1"},
        ),
    ),
)


@dataclass(frozen=True)
class Card:
    """A scenario with Judge's current verdict on it."""

    scenario: Scenario
    setups: list[tuple[str, str]]
    """(letter, description) of each set-up."""
    verdict: list[str]
    judge: str
    planner: str


def cards() -> list[Card]:
    out = []
    for scenario in SCENARIOS:
        forms = read_forms(dict(parse_qsl(scenario.query())))
        cases = judge_page.cases(forms) if all(f.is_valid() for f in forms) else []
        sentences = judge_page.verdict(cases) if cases else []
        judge = f"{reverse('plans:judge')}?{scenario.query()}"
        named = [(case.letter, _named(case, len({c.setup.cluster for c in cases}) > 1)) for case in cases]
        out.append(Card(scenario, named, sentences, judge, f"{reverse('plans:page')}?{scenario.planner()}"))
    return out


def _named(case: judge_page.JudgedSetup, with_cluster: bool) -> str:
    """The plan, and the cluster if the set-ups have different ones."""
    cluster = case.setup.cluster
    where = f" on {cluster.devices} x {cluster.device.name}" if with_cluster else ""
    return f"{case.judged.plan.label()}{where}"
