"""A snapshot of the CUDA allocator: analysed, packed and unpacked, and read by torch's own tools."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from torch.cuda import _memory_viz
from torch.profiler import ProfilerActivity, profile

from parallel_core.analysis.allocations import Frame, allocations, place
from parallel_core.observe import snapshot as packing
from parallel_core.observe.snapshot import for_viewer, packed, unpacked
from tests.parallel_core.cuda_snapshot import KIB, UPDATE, snapshot


def test_bytes_over_time_and_what_was_alive_at_the_peak() -> None:
    found = allocations(snapshot())
    assert found.us.tolist() == [0, 10, 30, 40, 50, 60]
    assert (found.bytes // KIB).tolist() == [700, 1100, 700, 300, 100, 350]
    assert (found.before, found.peak, found.peak_us) == (300 * KIB, 1100 * KIB, 10)
    attention, before = found.alive
    assert (attention.bytes, attention.blocks) == (800 * KIB, 2), "allocations with the same stack share a row"
    assert place(attention.frames) == Frame("/yard/parallel_core/models/attention.py", 83, "forward")
    assert (before.bytes, before.blocks, before.frames) == (300 * KIB, 2, ())
    assert place(before.frames) is None
    assert found.rounded == (512 - 100 + 512 - 250) * KIB


def test_a_step_that_only_frees_has_its_peak_before_the_first_event() -> None:
    given = snapshot()
    # keeps the last events: free a block, allocate a larger one, snapshot
    given["device_traces"][0] = given["device_traces"][0][-4:]
    given["device_traces"][0][2]["size"] = 10 * KIB
    given["segments"][0]["blocks"][1]["requested_size"] = 10 * KIB
    found = allocations(given)
    assert (found.before, found.peak, found.peak_us) == (300 * KIB, 300 * KIB, 0)
    assert [(alive.bytes, alive.blocks) for alive in found.alive] == [(300 * KIB, 2)]


def test_a_block_that_another_stream_still_uses_counts() -> None:
    given = snapshot()
    trace = given["device_traces"][0]
    waiting = next(e for e in trace if e["action"] == "free_completed")
    trace.remove(waiting)
    given["segments"][0]["blocks"][3] |= {"state": "active_pending_free", "requested_size": 400 * KIB}
    assert allocations(given).bytes[-1] == (350 + 400) * KIB


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: s.pop("segments"), "segments"),
        (lambda s: s["device_traces"].clear(), "out of range"),
        (lambda s: s["device_traces"][0].clear(), "nothing was allocated"),
        (lambda s: s["device_traces"][0][1].pop("time_us"), "time_us"),
        (lambda s: s["device_traces"][0][1].pop("addr"), "addr"),
        (lambda s: s["segments"][0]["blocks"][0].pop("requested_size"), "requested_size"),
    ],
)
def test_what_is_missing_is_named(spoil: Any, words: str) -> None:
    given = snapshot()
    spoil(given)
    with pytest.raises(ValueError, match=words):
        allocations(given)


def test_packed_and_back_is_the_same_to_torch() -> None:
    """torch's text views, which read every field, are the same for the original and for the unpacked copy; the file for
    the public viewer holds the same data.
    """
    given, back = snapshot(), unpacked(packed(snapshot()))
    assert _memory_viz.trace(back) == _memory_viz.trace(given)
    assert _memory_viz.segsum(back) == _memory_viz.segsum(given)
    assert back == given
    assert pickle.loads(for_viewer(back)) == back  # safe: this test has just written it
    assert allocations(back).peak == allocations(given).peak


def test_the_same_stack_is_stored_once() -> None:
    many = snapshot()
    many["device_traces"][0] *= 200
    assert zlib.decompress(packed(many), 31).count(b"attention.py") == 1


def test_what_is_no_snapshot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = packed(snapshot())
    bad = zlib.compress(b'{"frames": [], "stacks": [[3]], "snapshot": {}}', wbits=31)
    empty = zlib.compress(b'{"frames": [], "stacks": [], "snapshot": {}}', wbits=31)
    for data in (b"", b"not gzip", bad, empty, zlib.compress(b"[]", wbits=31), good[: len(good) // 2]):
        with pytest.raises(ValueError, match="no snapshot"):
            unpacked(data)
    monkeypatch.setattr(packing, "MAX_JSON_BYTES", 100)
    with pytest.raises(ValueError, match="when unpacked"):
        unpacked(good)


def test_a_real_training_step_in_torchs_own_shape() -> None:
    """torch converts its profiler's record of a CPU step into the same format. Addresses are reused in it and
    parameters are older than the record; the result must agree with torch's own totals.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
    x = torch.randn(64, 256)
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        model(x).square().sum().backward()
    given = _memory_viz._profile_to_snapshot(profiler)
    trace = given["device_traces"][0]
    for i, entry in enumerate(trace):
        entry["time_us"] = i  # the profiler's record has no times here
    for segment in given["segments"]:
        at = segment["address"]
        for one in segment["blocks"]:
            one["address"], at = at, at + one["size"]
            one.setdefault("requested_size", one["size"])
    found = allocations(given)
    parameters = sum(p.numel() * 4 for p in model.parameters())
    gradients = sum(p.grad.numel() * 4 for p in model.parameters() if p.grad is not None)
    assert found.before >= parameters
    assert found.bytes[-1] >= parameters + gradients
    assert found.peak >= found.bytes[-1] and found.peak == max(found.before, int(found.bytes.max()))
    running = found.before + np.cumsum(_changes(trace))
    assert found.bytes.tolist() == running.tolist()
    assert sum(alive.bytes for alive in found.alive) <= found.peak
    assert len(found.alive) == found.places and sum(a.bytes for a in found.alive) == found.peak


def _changes(trace: list[dict[str, Any]]) -> list[int]:
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[e["action"]] * e["size"] for e in trace if e["action"] in signs]


def test_a_block_of_an_earlier_recording_keeps_its_stack() -> None:
    given = snapshot()
    late = next(e for e in given["device_traces"][0] if e["action"] == "free_completed" and e["size"] == 200 * KIB)
    late["frames"] = UPDATE
    found = allocations(given)
    sizes = [(alive.bytes // KIB, len(alive.frames)) for alive in found.alive]
    assert sizes == [(800, 3), (200, 1), (100, 0)]
