"""Dependency rules between the packages: which imports each package must not make, and which modules must not load
torch.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "parallel_core": {"django", "celery", "redis", "dashboard", "workers", "kombu", "ninja"},
    "workers": {"django", "dashboard", "torch"},
    "dashboard": {"torch"},
}
TORCH_FREE = (
    "parallel_core.spec",
    "parallel_core.faults",
    "parallel_core.layout",
    "parallel_core.schedule",
    "parallel_core.schedule.check",
    "parallel_core.schedule.round_robin",
    "parallel_core.schedule.stream",
    "parallel_core.simulate",
    "parallel_core.plan.alpa.plans",
    "parallel_core.plan.chips",
    "parallel_core.plan.cluster.accuracy",
    "parallel_core.plan.crossover",
    "parallel_core.plan.cluster.fit",
    "parallel_core.plan.cluster.inference",
    "parallel_core.plan.cluster.questions",
    "parallel_core.plan.cluster.zero_bubble",
    "parallel_core.simulate.schedule_preview",
    "parallel_core.simulate.typed_stages",
    "parallel_core.simulate.imported",
    "parallel_core.analysis.diagnosis.place",
    "parallel_core.simulate.replay",
    "parallel_core.plan.fleet",
    "parallel_core.searches.__main__",
    "parallel_core.searches.alpa",
    "parallel_core.searches.bubbles",
    "parallel_core.searches.splits",
    "parallel_core.plan.memory",
    "parallel_core.plan.bubble_rates",
    "parallel_core.plan.orders.measured",
    "parallel_core.plan.orders.search",
    "parallel_core.plan.partition",
    "parallel_core.generation_request",
    "parallel_core.plan.pipedream",
    "parallel_core.profile.measure",
    "parallel_core.profile.table",
    "parallel_core.simulate.cost_requirements",
    "parallel_core.plan.graph_plan",
    "parallel_core.simulate.predict",
    "parallel_core.simulate.recalibrate",
    "parallel_core.simulate.recovered_replay",
    "parallel_core.zero_rules",
    "parallel_core.plan.strategy",
    "parallel_core.analysis.align",
    "parallel_core.analysis.bins",
    "parallel_core.analysis.breakdown",
    "parallel_core.analysis.critical",
    "parallel_core.analysis.diagnosis",
    "parallel_core.analysis.diagnosis.imported",
    "parallel_core.analysis.export",
    "parallel_core.analysis.generated",
    "parallel_core.analysis.lateness",
    "parallel_core.analysis.losses",
    "parallel_core.analysis.meters",
    "parallel_core.analysis.target",
    "parallel_core.analysis.versions",
    "parallel_core.analysis.stats",
    "parallel_core.observe.records",
    "parallel_core.traces.__main__",
    "workers.contract",
    "workers.supervisor",
    "workers.relay",
    "workers.__main__",
    "workers.celery",
)
WITH_DJANGO = (
    "dashboard.asgi",
    "dashboard.urls",
    "dashboard.control.management.commands.controller",
    "dashboard.analyst.management.commands.analyst",
)
"""What the web and the other processes of the dashboard load at their start, and every page."""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_follow_the_arrows(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in imported(path)
        if name in FORBIDDEN[package]
    ]
    assert not wrong


SET_UP = "import django; django.setup()\n"
EACH_ALONE = """
import importlib, json, os, sys
import numpy, scipy.optimize, parallel_core.spec  # most of them import these; of torch all would be found guilty
for module in sys.argv[1:]:
    if (child := os.fork()) == 0:
        importlib.import_module(module)
        os._exit("torch" in sys.modules)
    print(json.dumps([module, os.waitpid(child, 0)[1]]), flush=True)
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, int]:
    """For each module, the exit status of a child process that imported only that module: 0 if torch was not loaded."""
    out: dict[str, int] = {}
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    for code, modules in ((EACH_ALONE, TORCH_FREE), (SET_UP + EACH_ALONE, WITH_DJANGO)):
        command = [sys.executable, "-c", code, *modules]
        told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=env)
        out |= dict(json.loads(line) for line in told.stdout.splitlines())
    return out


@pytest.mark.parametrize("module", (*TORCH_FREE, *WITH_DJANGO))
def test_module_does_not_load_torch(module: str, loaded: dict[str, int]) -> None:
    assert loaded[module] == 0


def test_a_module_that_loads_torch_would_be_found() -> None:
    command = [sys.executable, "-c", EACH_ALONE, "parallel_core.engine.peak", "no.such.module"]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [json.loads(line)[1] != 0 for line in told] == [True, True]
