"""Where the time of a token goes, from what the ranks reported, and whether late tokens take longer."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from parallel_core.analysis.generated import Parts, growth, joined, over_position, parts, rate, timing, whole_rate
from parallel_core.layout import Layout
from parallel_core.observe import host
from parallel_core.spec import RunSpec

MODEL = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}


def layout(**parallel: int) -> Layout:
    train = {"global_batch": parallel.get("dp", 1)}
    return Layout.of(RunSpec.model_validate({"model": MODEL, "parallel": parallel, "train": train}))


def rank(seconds: float, collective: float = 0.0, p2p: float = 0.0) -> dict[str, Any]:
    """What a rank reported of two tokens."""
    return {"seconds": [seconds / 2, 1.5 * seconds], "collective": [collective] * 2, "p2p": [p2p] * 2}


def test_one_device_only_computes() -> None:
    assert parts({0: rank(1.0)}, layout()) == Parts(1.0, 0.0, 0.0)


def test_collectives_are_the_mean_of_the_tensor_ranks() -> None:
    """The slower rank waits less: what it computes more, the other one waits for."""
    found = parts({0: rank(1.0, 0.2), 1: rank(1.0, 0.4)}, layout(tp=2))
    assert found and found == (pytest.approx(0.7), pytest.approx(0.3), 0.0)
    assert found.total == pytest.approx(1.0) and found.communication == pytest.approx(0.3)


def test_waiting_for_the_other_stage_s_work_is_no_communication() -> None:
    """Stages of 0.6 and 0.3 s, one after the other, and 0.1 s of messages, for which both wait."""
    found = parts({0: rank(1.0, p2p=0.4), 1: rank(1.0, p2p=0.7)}, layout(pp=2))
    assert found == (pytest.approx(0.9), 0.0, pytest.approx(0.1))


def test_the_slowest_replica_counts() -> None:
    assert parts({0: rank(1.0), 1: rank(2.0)}, layout(dp=2)) == Parts(2.0, 0.0, 0.0)


@pytest.mark.parametrize("told", [{0: rank(1.0)}, {0: rank(1.0), 1: {"seconds": [1.0]}}], ids=["missing", "earlier"])
def test_a_rank_that_has_not_told_leaves_it_unknown(told: dict[int, Any]) -> None:
    assert parts(told, layout(tp=2)) is None


def test_records_are_joined_token_by_token() -> None:
    first = {"first": 0, "tokens": [[1, 2]], "prefill": 0.1, "kv_bytes": 8}
    first |= {"seconds": [1.0], "collective": [0.5], "p2p": [0.25]}
    second = {**first, "first": 2, "tokens": [[3]], "seconds": [2.0], "collective": [0.75], "p2p": [0.0]}
    whole = joined(joined(None, first), second)
    assert (whole["seconds"], whole["collective"], whole["p2p"]) == ([1.0, 2.0], [0.5, 0.75], [0.25, 0.0])
    assert joined(whole, second) == whole, "a record that arrives again changes nothing"
    old = {name: value for name, value in first.items() if name not in ("collective", "p2p")}
    assert joined(None, old)["p2p"] == []


def test_stretches_cover_every_token_once() -> None:
    found = over_position([1.0 * n for n in range(30)], prompt=4)
    assert len(found) == 12 and (found[0].first, found[-1].last) == (6, 35)
    assert all(after.first == before.last + 1 for before, after in pairwise(found))
    assert found[-1].median == pytest.approx((found[-1].first + found[-1].last) / 2 - 6)
    assert over_position([], 4) == [] and [row.first for row in over_position([1.0, 2.0], 4)] == [6, 7]


def test_growth_is_of_the_last_quarter_over_the_first() -> None:
    found = growth([1.0] * 10 + [2.0] * 20 + [3.0] * 10, prompt=4)
    assert found is not None and (found.ratio, found.within_noise) == (3.0, False)
    assert (found.first.first, found.first.last, found.last.first, found.last.last) == (6, 15, 36, 45)
    noisy = growth([1.0, 1.5, 2.0, 2.5] * 5, prompt=4)
    assert noisy is not None and noisy.within_noise
    assert growth([1.0, 1.0, 1.0, 2.0] * 4 + [1.0] * 3, prompt=4) is None, "4 tokens of a quarter tell nothing"


@pytest.mark.parametrize(("lasted", "pids", "share"), [(0.1, 1, 0.3), (0.1, 2, 0.4), (2.0, 1, 0.02)])
def test_a_short_time_is_not_measured_by_ticks(
    lasted: float, pids: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ticks say that others had 40 ms, which may be rounding; our thread waited for 30 ms. Of several of ours there is
    no telling whom each waited for."""
    clock = {"now": 100.0, "waited": 1.0, "busy": 50.0}
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    monkeypatch.setattr(host, "_waited", lambda of: clock["waited"])
    monkeypatch.setattr(host, "_busy", lambda core: clock["busy"])
    monkeypatch.setattr(host, "cpu_seconds", lambda pid: 0.0)
    measured = host.CpuOthers(0, lambda: list(range(pids)))
    clock.update(now=100.0 + lasted, waited=1.03, busy=50.04)
    assert measured.share() == pytest.approx(share)


def test_the_wait_of_a_thread_is_unknown_without_the_kernel_s_statistics() -> None:
    assert math.isnan(host._waited("no-such-process"))
    assert host._waited("thread-self") >= 0 and host._waited(str(os.getpid())) >= 0


def test_the_rate_of_whole_texts_counts_the_prefill_and_slow_tokens() -> None:
    """Two replicas with two texts each: 12 tokens in the 4 s of the slower one. Three of its four later tokens took
    0.5 s, so that the median speaks of 2 x 2 tokens a half second."""
    slow = {"tokens": [[1] * 5] * 2, "prefill": 1.0, "seconds": [0.5, 0.5, 1.5, 0.5]}
    quick = {"tokens": [[1]] * 2, "prefill": 0.5, "seconds": []}
    told = [{**one, "kv_bytes": 0} for one in (slow, quick)]
    assert whole_rate(told) == pytest.approx(12 / 4.0) and whole_rate([]) is None
    assert rate(told[:1]) == (pytest.approx(0.5), pytest.approx(4.0))
    assert timing(told[:1], prompt=3).endswith("500 ms a token (median of 4), 4 tokens/s (2.5 overall)")
