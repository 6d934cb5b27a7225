"""The memory meter, compared with allocations whose bytes are counted by hand (all tensors are float32)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Groups
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.memory import MemoryCapExceeded, MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import CATEGORIES
from parallel_core.spec import DeviceKind, RunSpec

BATCH, IN, HIDDEN, OUT = 16, 32, 64, 8
W1, W2 = 4 * HIDDEN * IN, 4 * OUT * HIDDEN
H, Y, SCALAR = 4 * BATCH * HIDDEN, 4 * BATCH * OUT, 4


def test_what_is_freed_is_taken_off() -> None:
    meter = MemoryMeter()
    with meter.measure(), meter.category("activations"):
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b * 2
    assert meter.peak_total == 8000 and meter.peak["activations"] == 8000
    assert meter.final["activations"] == 8000
    del b, c
    assert sum(meter.final.values()) == 0


def test_views_share_their_storage() -> None:
    meter = MemoryMeter()
    with meter.measure():
        a = torch.zeros(64, 10)
        views = [a[3], a.t(), a.view(-1)]
    assert len(views) == 3 and meter.peak_total == 2560
    del a
    assert meter.final["buffers"] == 2560


def test_in_place_and_resizing() -> None:
    meter = MemoryMeter()
    with meter.measure():
        a = torch.zeros(100)
        a.add_(1)
        assert meter.final["buffers"] == 400
        a.resize_(200)
    assert meter.final["buffers"] == 800


def test_registering_moves_a_storage_to_its_category() -> None:
    meter = MemoryMeter()
    with meter.measure():
        a = torch.zeros(100)
        meter.register(a, "optimizer")
        meter.register(a[:50], "optimizer")
    assert meter.final == dict.fromkeys(CATEGORIES, 0) | {"optimizer": 400}


def mlp_step(w1: torch.Tensor, w2: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    loss = (torch.relu(x @ w1.t()) @ w2.t()).sum()
    loss.backward()
    return loss.detach()


def parameters() -> tuple[torch.nn.Parameter, torch.nn.Parameter, torch.Tensor]:
    torch.manual_seed(0)
    made = torch.nn.Parameter(torch.randn(HIDDEN, IN)), torch.nn.Parameter(torch.randn(OUT, HIDDEN))
    return (*made, torch.randn(BATCH, IN))


def test_a_small_mlp_counted_by_hand() -> None:
    """relu saves its result, which the second matmul saves, too; nothing saves the result of the first matmul or y."""
    w1, w2, x = parameters()
    meter = MemoryMeter()
    meter.follow([w1, w2])
    with meter.measure(), meter.category("activations"):
        h = torch.relu(x @ w1.t())
        y = h @ w2.t()
        loss = y.sum()
        del h, y
        assert meter.final == {"params": W1 + W2, "grads": 0, "optimizer": 0, "activations": H + SCALAR, "buffers": 0}
        loss.backward()
        del loss
        assert meter.final == {"params": W1 + W2, "grads": W1 + W2, "optimizer": 0, "activations": 0, "buffers": 0}
    # At the peak: the gradients of h and of relu's input, the new gradient of w2, and relu's result, still saved.
    assert meter.peak["params"] == W1 + W2
    assert meter.peak_total >= W1 + W2 + W2 + 3 * H


def test_two_activations_live_at_the_peak_of_the_forward() -> None:
    w1, w2, x = parameters()
    meter = MemoryMeter()
    meter.follow([w1, w2])
    with meter.measure(), meter.category("activations"), torch.no_grad():
        (torch.relu(x @ w1.t()) @ w2.t()).sum()
    assert meter.peak == {"params": W1 + W2, "grads": 0, "optimizer": 0, "activations": 2 * H, "buffers": 0}
    assert meter.final["activations"] == 0


def test_recomputation_holds_fewer_activations() -> None:
    held = []
    for keep_all in (True, False):
        x = torch.randn(BATCH, IN, requires_grad=True)
        meter = MemoryMeter()
        with meter.measure(), meter.category("activations"):
            y = x
            for _ in range(6):
                y = torch.tanh(y.exp()) if keep_all else checkpoint(lambda t: t.exp().tanh(), y, use_reentrant=False)
            held.append(meter.final["activations"])
            y.sum().backward()
    assert held == [12 * x.nbytes, 6 * x.nbytes]


def test_the_numbers_are_the_same_bits() -> None:
    runs = []
    for metered in (False, True):
        w1, w2, x = parameters()
        meter = MemoryMeter()
        if metered:
            with meter.measure():
                loss = mlp_step(w1, w2, x)
        else:
            loss = mlp_step(w1, w2, x)
        assert w1.grad is not None and w2.grad is not None
        runs.append((loss, w1.grad, w2.grad))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_cap_names_what_holds_most() -> None:
    meter = MemoryMeter(cap=10_000)
    with (
        pytest.raises(MemoryCapExceeded, match="100 % of it activations"),
        meter.measure(),
        meter.category("activations"),
    ):
        kept = [torch.zeros(1000) for _ in range(3)]
    assert "kept" not in locals()


def test_an_optimizer_s_state_has_its_category() -> None:
    w = torch.nn.Parameter(torch.zeros(500))
    w.grad = torch.ones(500)
    optimizer = torch.optim.AdamW([w], foreach=False)
    meter = MemoryMeter()
    meter.follow([w])
    with meter.measure(), meter.category("optimizer"):
        optimizer.step()
    assert meter.final["params"] == meter.final["grads"] == 2000
    assert meter.final["optimizer"] == 2 * 2000 + SCALAR  # two moments and the step count


def test_the_curve_keeps_the_peak_when_thinned() -> None:
    meter = MemoryMeter()
    with meter.measure():
        small = [torch.zeros(10) for _ in range(500)]
        big = torch.zeros(10_000)
        del big
        small += [torch.zeros(10) for _ in range(500)]
    rows = meter.curve(points=50)
    assert len(rows) == 50 and list(rows["t"]) == sorted(rows["t"])
    assert max(sum(row[name] for name in CATEGORIES) for row in rows) == meter.peak_total == 40 * 500 + 40_000


def test_a_second_measurement_starts_from_what_lives() -> None:
    meter = MemoryMeter()
    with meter.measure():
        kept = torch.zeros(100)
        torch.zeros(10_000)
    with meter.measure():
        torch.zeros(50)
    assert kept.nbytes == 400 and meter.peak_total == 600


def test_freeing_in_another_thread_is_seen() -> None:
    meter = MemoryMeter()
    with meter.measure():
        held = [torch.zeros(1000)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    assert meter.final["buffers"] == 0


class OnGpu(CpuDevice):
    """A device that claims to be a GPU although its tensors are the host's."""

    kind: DeviceKind = "cuda"


def test_what_a_rank_makes_on_its_host_takes_no_memory_of_its_gpu(tmp_path: Path) -> None:
    """Gradients that ranks sharing a GPU exchange through the host, and the probabilities from which a token is drawn,
    must not count as memory of the GPU.
    """
    meter = MemoryMeter(kind="cuda")
    with meter.measure():
        kept = torch.zeros(1000)
    assert kept.nbytes and meter.peak_total == 0
    spec = RunSpec.model_validate({"model": {"layers": 1, "hidden": 16, "heads": 2, "seq": 8, "vocab": 16}})
    _, followed = Trainer(spec, 0, Groups(), OnGpu(), Progress(tmp_path, 0)).metered_step(0)
    assert followed.peak["activations"] == followed.peak["buffers"] == 0 < followed.peak["params"]


def test_the_sizes_in_the_message_of_a_cap_add_up() -> None:
    live = {"activations": 8_000_000, "params": 4_261_120}
    said = str(MemoryCapExceeded(live, 12_000_000))
    assert said == "11.69 MiB live, 255 KiB above the cap of 11.44 MiB; 65 % of it activations"
    small = str(MemoryCapExceeded({"params": 696_422}, 10_000))
    assert small.startswith("680 KiB live, 670 KiB above the cap of 9.77 KiB; ")
    assert str(MemoryCapExceeded(live, 3 << 20)).startswith("11.7 MiB live, 8.69 MiB above the cap of 3 MiB; ")
