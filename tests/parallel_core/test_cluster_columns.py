"""Linear layers split by columns in the planner: gathered inputs are stored and paid for; optional in the search."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dashboard.plans.launch import run_of
from parallel_core.cli import main
from parallel_core.plan.cluster import activations, search, step, verdict, work
from parallel_core.plan.cluster.arguments import megatron
from parallel_core.plan.cluster.efficiency import Machine, fitted
from parallel_core.plan.cluster.hardware import Cluster, clusters
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plan_parser import read
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.plan.cluster.rules import Reason

SELENE = clusters()["selene"]
JOB = Job(presets()["gpt-22b"], 64)
SMALL = replace(SELENE, devices=64)
PAIRS = Plan(dp=8, tp=8)
COLUMNS = replace(PAIRS, by_columns=True)


def both(cluster: Cluster = SMALL) -> list[work.Seconds]:
    made = (Plans.of([plan]) for plan in (PAIRS, COLUMNS))
    return [work.layer(JOB, plans, Machine(cluster, fitted(), plans)) for plans in made]


def test_so_many_bytes_are_gathered_as_the_engine_gathers() -> None:
    """In units of (t - 1)/t bsh, the 8 of a layer split in pairs become 5 of attention and 3 + 2 f/h of an MLP
    (tensor.columns). Links are made so slow that neither latency nor compute matters.
    """
    pairs, columns = both(replace(SMALL, link=1e6))
    ratio = JOB.model.ffn / JOB.model.hidden
    exposed = [float(each.collective_forward[0] + each.collective_backward[0]) for each in (pairs, columns)]
    assert exposed[1] / exposed[0] == pytest.approx((8 + 2 * ratio) / 8, rel=0.01)
    assert float(columns.collective_forward[0] / pairs.collective_forward[0]) == pytest.approx(
        (3 + ratio) / 4, rel=0.01
    )


def test_the_products_are_as_large_and_what_is_gathered_is_put_side_by_side() -> None:
    pairs, columns = both()
    assert float(columns.forward[0]) > float(pairs.forward[0])
    assert float(columns.weights[0]) == pytest.approx(float(pairs.weights[0]), rel=0.2)


@pytest.mark.parametrize("flash", [False, True])
def test_inputs_of_second_layers_are_kept_whole(flash: bool) -> None:
    job = replace(JOB, software=replace(JOB.software, flash=flash))
    pairs, columns = (activations.of_layer(job, Plans.of([plan])).kept[0] for plan in (PAIRS, COLUMNS))
    rows, h, f = 2 * job.model.seq, job.model.hidden, job.model.ffn
    own = h / 8 if flash else 0.0
    assert columns - pairs == pytest.approx(rows * ((h + f) * 7 / 8 + own))


def test_a_search_tries_them_when_asked_and_leaves_all_others_as_they_are() -> None:
    plain, asked = (search.search(JOB, SMALL, search.Space(by_columns=kinds)) for kinds in ((False,), (False, True)))
    kinds = asked.plans.by_columns
    assert not plain.plans.by_columns.any() and kinds.any()
    assert not (kinds & asked.plans.sequence_parallel).any() and (asked.plans.tp[kinds] > 1).all()
    assert np.array_equal(asked.codes[~kinds], plain.codes)
    assert np.array_equal(asked.seconds[~kinds], plain.seconds, equal_nan=True)
    unsplit = (plain.plans.tp > 1) & ~plain.plans.sequence_parallel
    assert np.count_nonzero(kinds) == np.count_nonzero(unsplit)
    refused = np.flatnonzero(kinds & (asked.codes > 0))
    assert len(refused) and all(
        verdict.judge(JOB, SMALL, asked.plans.row(int(i)), suggest=False).sentences for i in refused[:5]
    )


def test_it_is_typed_judged_launched_and_no_argument_of_megatron() -> None:
    assert COLUMNS.label() == "TP 8 x DP 8, micro-batch 1, by columns" and read(COLUMNS.label()) == COLUMNS
    judged = verdict.judge(JOB, SMALL, replace(COLUMNS, sequence_parallel=True))
    assert judged.reasons & Reason.COLUMNS and any("without SP" in told for told in judged.sentences)
    assert judged.fix is not None and not (judged.fix.plan.by_columns and judged.fix.plan.sequence_parallel)
    assert verdict.judge(JOB, SMALL, replace(COLUMNS, tp=1, dp=64), suggest=False).reasons & Reason.COLUMNS
    assert run_of(JOB, COLUMNS, "cuda").parallel.tensor_split == "columns"
    assert any("column-row pairs" in missing for missing in megatron(JOB, SMALL, COLUMNS)[1])
    assert step.of(JOB, SMALL, Plans.of([COLUMNS])).tensor[0] > step.of(JOB, SMALL, Plans.of([PAIRS])).tensor[0]


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "gpt-22b", "--cluster", "selene", "--devices", "16", "--json", "--top", "40"]
    told = []
    for more in ([], ["--columns"]):
        assert main([*command, *more]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert "by_columns" in told[0][0] and not any(row["by_columns"] for row in told[0])
    assert told[1][0]["step_s"] <= told[0][0]["step_s"]
