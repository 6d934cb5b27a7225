"""Studies of text generation: a checkpoint, the form, and runs that generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.test import Client

from dashboard.runs.models import Run, State
from dashboard.studies.models import Study
from parallel_core.layout import Layout
from parallel_core.observe.record_files import encode
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import NEW

MIB = 1 << 20
NAMES = ["Single", "TP 2", "PP 2", "DP 2"]
TEXTS = [list(b"sum(xs):"), list(b"max(xs):")]


def saved(client: Client, alice: Any) -> Run:
    """A run that succeeded, with a checkpoint at step 20; alice is signed in."""
    client.force_login(alice)
    run = factory.finished(alice, {"dp": 2}, name="Trained")
    kept = {"kind": "checkpoint", "rank": 0, "t": 1.0, "step": 20, "bytes": 1000, "seconds": 0.1, "kept": [20]}
    factory.feed(run.attempts.get(), 0, encode(kept))
    return run


def asked(source: Run, **change: str) -> dict[str, str]:
    form = {"kind": "generation", "name": "Splits", "run": str(source.pk), "step": "", "prompt": "def ", "new": "8"}
    form |= {"samples": "2", "temperature": "0", "top_k": "0", "seed": "7", "repeats": "1"}
    return {**form, "degrees": "2x1x1, 1x2x1, 1x1x2", **change}


def queued(client: Client, source: Run) -> Study:
    """A study that was queued through the form: a single device and three splits."""
    answer = client.post(NEW, asked(source))
    assert answer.status_code == 302, answer.content.decode()
    return Study.objects.get()


def run_of(study: Study, name: str) -> Run:
    return study.runs.get(name=name)


def finish(
    run: Run, token: float, peak: int, texts: Sequence[Sequence[int]] = TEXTS, others: float | None = None
) -> None:
    """The run generates the texts, `token` seconds each, with `peak` bytes on its worst rank, and succeeds.

    A quarter of a token is collectives where it has tensor ranks; each of two stages waits for the other for half of
    it, and for a message of a tenth. `others`: the share of a device that other processes used.
    """
    attempt, layout = factory.start(run), Layout.of(RunSpec.model_validate(run.spec))
    each = len(texts) // layout.dp
    for rank in range(layout.world):
        first = layout.coords(rank).replica * each
        mine = [list(text) for text in texts[first : first + each]]
        made = {"kind": "generated", "rank": rank, "t": 1.0, "first": 0, "tokens": mine, "prefill": 0.01}
        count, inside, waits = len(mine[0]) - 1, token / 4 * (layout.tp > 1), token * 0.55 * (layout.pp > 1)
        made |= {"seconds": [token] * count, "collective": [inside] * count, "p2p": [waits] * count, "kv_bytes": 4096}
        told = {"kind": "summary", "rank": rank, "t": 1.0, "cpu_others": others}
        held = {"params": peak - MIB - rank, "grads": 0, "optimizer": 0, "activations": MIB, "buffers": 0}
        memory = {"kind": "memory", "rank": rank, "t": 1.0, "step": 0, "peak": held, "peak_total": peak - rank}
        factory.feed(attempt, rank, encode(made) + encode(told) + encode({**memory, "rss_delta": 0, "final": held}))
    factory.end(run, State.SUCCEEDED)


def finish_all(study: Study) -> None:
    for name, token, peak in (
        ("Single", 2e-3, 9 * MIB),
        ("TP 2", 1e-3, 6 * MIB),
        ("PP 2", 3e-3, 5 * MIB),
        ("DP 2", 1.6e-3, 9 * MIB),
    ):
        finish(run_of(study, name), token, peak)


def verdict(client: Client, study: Study) -> list[str]:
    said: list[str] = client.get(f"/studies/{study.pk}/").context["verdict"]
    return said
