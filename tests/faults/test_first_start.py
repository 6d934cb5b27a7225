"""What a newcomer meets, on a real yard: the starter study runs to its end by itself and answers its questions, so do
studies of other kinds, and each scenario that breaks ends with its cause and its proof.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from dashboard.studies.breakages import BREAKAGES, Breakage
from tests.dashboard import test_scaling_study, test_stashing_study
from tests.dashboard.new_study import SWEEP
from tests.yard_process import LIVE, YardProcess, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
STRATEGIES = 14
"""Seven, and each with recomputation."""
KINDS: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "sweep": ({**SWEEP, "values": "4, 8, 16"}, 3, ('id="chart-swept"',)),
    "stashing": (test_stashing_study.ASKED, 6, ('id="chart-target"', 'id="chart-versions"', " reaches loss ")),
    "scaling": (test_scaling_study.ASKED, 5, ('id="chart-scaling"', 'id="chart-stalls"')),
}
"""Kind of study -> what its form is sent, how many runs that queues, and what its page then has of its own."""
RULE = re.compile(r'data-rule="(\w+)"')


@pytest.fixture(scope="module")
def yard() -> Iterator[YardProcess]:
    """A new yard, on a host so slow by its calibration that the starter study times as few steps as it ever does."""
    with closing(YardProcess(TRAINYARD_STARTER="1", TRAINYARD_CPU_DEVICES="2")) as subject:
        subject.calibrated()
        (file,) = subject.home.rglob("calibration.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"step_time": 2.0}))
        yield subject.up()


@pytest.fixture
def client(yard: YardProcess) -> Iterator[httpx.Client]:
    with yard.client() as client:
        yield client


def ended(client: httpx.Client, study: int) -> list[dict[str, Any]]:
    """The runs of a study once all have ended."""

    def probe() -> list[dict[str, Any]] | None:
        runs = client.get("/api/v1/runs", params={"study": study}).json()["data"]
        return None if not runs or any(run["state"] in LIVE for run in runs) else list(runs)

    return wait_for(f"the end of study {study}", probe, 420)


def test_the_starter_study_comes_by_itself_and_answers_its_questions(client: httpx.Client) -> None:
    (study,) = wait_for("the starter study", lambda: client.get("/api/v1/studies").json()["data"])
    runs = ended(client, study["id"])
    assert [run["state"] for run in runs] == ["succeeded"] * STRATEGIES, [run["detail"] for run in runs]
    rows = list(csv.DictReader(io.StringIO(client.get(f"/studies/{study['id']}/table.csv").text)))
    assert len(rows) == STRATEGIES and "Single" in {row["label"] for row in rows}
    for row in rows:
        assert float(row["step_median_s"]) > 0 and int(row["memory_bytes"]) > 0 and int(row["timed_steps"]) >= 10
        parts = [int(row[name]) for name in row if name.endswith("_ns") and name != "forward_ns" and row[name]]
        assert sum(parts) > 0, "a traced step says where the time went"
    others = [float(row["largest_loss_difference"]) for row in rows if row["label"] != "Single"]
    assert len(others) == STRATEGIES - 1 and max(others) <= 1e-6, "all compute what the single device does"
    asked = client.get(f"/studies/{study['id']}/questions/").text
    assert asked.count("<dt>") == 7 and "No traced step" not in asked


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_of_each_kind_goes_from_its_form_to_its_answers(client: httpx.Client, kind: str) -> None:
    asked, count, own = KINDS[kind]
    shown = client.post("/studies/new/", data=asked)
    study = int(shown.url.path.strip("/").split("/")[-1])
    runs = ended(client, study)
    assert [run["state"] for run in runs] == ["succeeded"] * count, [run["detail"] for run in runs]
    page = client.get(f"/studies/{study}/").text
    assert not [words for words in own if words not in page]
    for part in ("findings/", "questions/", "report/", "gantt.json", "table.csv"):
        answer = client.get(f"/studies/{study}/{part}")
        assert answer.status_code == 200 and answer.text.strip(), part


@pytest.mark.full
@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: one.key)
def test_a_scenario_reproduces_its_symptom_and_proves_the_change(client: httpx.Client, breakage: Breakage) -> None:
    shown = client.post(f"/studies/break/{breakage.key}")
    study = int(shown.url.path.strip("/").split("/")[-1])
    assert [run["state"] for run in ended(client, study)] == ["succeeded"] * 3
    told = wait_for("the postmortem", lambda: client.get(f"/studies/{study}/findings/").text)
    assert tuple(RULE.findall(told)[: len(breakage.about)]) == breakage.about, told
    assert "Evidence:" in told and "the speed of the broken run" in told
