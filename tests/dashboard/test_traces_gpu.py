"""Pages of traces of GPUs, written by hand in Kineto's format: comparison of ranks, and what-if by process groups."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard.traces.models import TraceSpans
from dashboard.traces.spans import world_of
from parallel_core.analysis.quantities import count_text
from parallel_core.traces.kineto import SEQUENCE
from tests.dashboard.test_traces import shown
from tests.parallel_core.test_traces_gpu import cpu, gpu, grouped

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_files")]
SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def launch(at: float, link: int, kernel: dict[str, Any], stream: int = 7) -> list[dict[str, Any]]:
    """A kernel launched at `at` us."""
    kernel["args"]["correlation"] = link
    return [cpu("cuda_runtime", "cudaLaunchKernel", at, 0.5, link=link), kernel | {"tid": stream}]


def file_of(rank: int, *events: dict[str, Any], world: int = 0) -> tuple[str, bytes]:
    """The file of a rank, with one step of 9 ms."""
    step = cpu("user_annotation", "ProfilerStep#1", 0, 9000)
    whole = {"distributedInfo": {"rank": rank, "world_size": world}, "host_name": "one", "traceEvents": [step, *events]}
    return f"rank{rank}.json", json.dumps(whole).encode()


def of_products(rank: int, count: int) -> tuple[str, bytes]:
    """Products, then a sum on another stream, which begins before the last products on rank 2."""
    products = [event for i in range(count) for event in launch(i, i + 1, gpu(f"gemm_{i}", 100 + i, 1))]
    return file_of(rank, *products, *launch(count, count + 1, gpu(SUM, 150 if rank == 2 else 4000, 50), 9))


def test_ranks_launch_the_same_kernels_however_streams_run_beside_each_other(member: Client) -> None:
    trace, _ = shown(member, *(of_products(rank, 300) for rank in range(3)))
    with CaptureQueriesContext(
        connection,
    ) as asked:
        side = member.get(f"{reverse('traces:operators', args=(trace.pk,))}?level=kernels&a=0&b=2").context["operators"]
    assert side.sentence == "The same 301 kernels in the same order on rank 0 and rank 2."
    assert side.ranks == [0, 1, 2] and list(side.levels) == ["kernels"]
    (fetched,) = (query["sql"] for query in asked if "begun" in query["sql"])
    assert '"rank" IN (0, 2)' in fetched
    assert not any('."names" FROM' in query["sql"] for query in asked), "the names of all ranks"


@pytest.mark.parametrize("known", [True, False])
def test_of_many_kernels_the_first_are_compared_and_that_is_said(member: Client, known: bool) -> None:
    trace, _ = shown(member, *(of_products(rank, SEQUENCE + 99 + rank) for rank in range(2)))
    if not known:  # as older versions stored them
        for row in TraceSpans.objects.all():
            del row.names["begun"]
            row.save()
    side = member.get(reverse("traces:operators", args=(trace.pk,))).context["operators"]
    same, cut = side.sentence.split(" in the same order on rank 0 and rank 1. ")
    of = f", of {count_text(SEQUENCE + 100)} on rank 0 and {count_text(SEQUENCE + 101)} on rank 1" if known else ""
    assert (same, cut) == (
        f"The same {SEQUENCE} kernels",
        f"These are the first {count_text(SEQUENCE)} of the step{of}.",
    )
    assert ("kernels as it launched them" in side.foot) == known != ("kernels as the device did" in side.foot)


@pytest.mark.parametrize(("named", "predicted"), [(True, 16_000_000), (False, 19_000_000)])
def test_what_if_joins_collectives_of_one_group(member: Client, named: bool, predicted: int) -> None:
    """Two groups of two sum at different times. Taken for one group of four, the first would wait for the second."""
    files = []
    for rank in range(4):
        group, late = rank // 2, 3000 * (rank // 2)
        args = (f"{group}", f"[{2 * group}, {2 * group + 1}]") if named else ("",)
        events = launch(1, 1, gpu("gemm", 100, 1000 + late)) + launch(2, 2, grouped(SUM, 1200 + late, *args))
        files.append(file_of(rank, *events, *launch(3, 3, gpu("gemm", 1300 + late, 1000 if group else 6000))))
    trace, _ = shown(member, *files)
    made = member.get(f"{reverse('traces:whatif', args=(trace.pk,))}?step=1&device=0.5").context["whatif"]
    assert made.known.startswith("Roughly: nothing names the process groups") != named
    if named:
        for row in TraceSpans.objects.filter(rank=1):  # as older versions stored them
            del row.names["groups"]
            row.save()
        old = member.get(f"{reverse('traces:whatif', args=(trace.pk,))}?step=1").context["whatif"]
        assert "groups of its collectives were not kept (upload it again" in old.known
    assert made.times.unchanged == made.times.measured == 9_000_000 and made.times.predicted == predicted


@pytest.mark.parametrize(("world", "missing"), [(64, "62 ranks"), (3, "1 rank"), (0, "1 rank")])
def test_time_of_collectives_is_not_blamed_on_links_where_a_rank_may_be_late(
    member: Client, world: int, missing: str
) -> None:
    """Ranks 0 and 2: without the number of ranks the highest one tells that rank 1 is missing."""
    events = [*launch(1, 1, gpu("gemm", 100, 1000)), *launch(2, 2, gpu(SUM, 1200, 7000), 9)]
    _, page = shown(member, *(file_of(rank, *events, world=world) for rank in (0, 2)))
    (one,) = (found for found, *_ in page.context["findings"].found if found.rule == "exposed_collectives")
    assert one.evidence.endswith(f"it may include waiting for {missing} without a trace of it.")


def test_what_an_older_version_read_tells_of_missing_ranks_by_the_highest(member: Client) -> None:
    trace, _ = shown(member, *(of_products(rank, 1) for rank in (0, 2)))
    for own in trace.ranks.values():
        del own["world"]
    assert world_of(trace) == 3
