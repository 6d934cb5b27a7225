"""A run over several hosts, which are represented by two fork servers that share no memory."""

from __future__ import annotations

import itertools
import queue
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch.distributed as dist

from parallel_core import processes
from parallel_core.analysis.meters import every_step, step_shares
from parallel_core.analysis.step_waits import StepWaits
from parallel_core.engine.clocks import (
    Clock,
    open_clock,
)
from parallel_core.engine.distributed import Rendezvous
from parallel_core.launch import Event, ForkServer, StartCommand
from parallel_core.layout import Layout
from parallel_core.local import LocalRunner
from parallel_core.observe.host import interface_of, listen_at
from parallel_core.observe.record_files import Frame, events_path
from parallel_core.observe.records import SPAN
from parallel_core.outcome import points, waits
from parallel_core.plan.units import unit_costs
from parallel_core.schedule.ir import Kind
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.frames import read_file

LIMIT_S = 120.0
ATTEMPTS = itertools.count(1)
SECOND = 1_000_000_000
IPV6 = any(one.address == "::1" for found in psutil.net_if_addrs().values() for one in found)


class Host:
    """A fork server that acts as one host of a run; its events arrive in order."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.server = ForkServer(self._events.put)
        self.exits: dict[int, int] = {}
        self._attempt = 0

    def start(self, order: StartCommand) -> None:
        self._attempt = order["attempt"]
        self.exits.clear()
        self.server.start(order)

    def until(self, event: str) -> Event:
        """Waits for an event of the attempt that was started last."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            got = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            assert got["event"] not in ("lost", "refused"), got
            if got.get("attempt") != self._attempt:
                continue  # the end of an attempt whose test failed
            if got["event"] == "exit":
                self.exits[got["rank"]] = got["code"]
            if got["event"] == event:
                return got


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    pair = (Host(), Host())
    yield pair
    for host in pair:
        host.server.close()


@pytest.fixture(scope="module")
def one_host() -> Iterator[LocalRunner]:
    with LocalRunner() as runner:
        yield runner


def spec_of(**parallel: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"layers": 2, "hidden": 32, "heads": 2, "seq": 16},
            "parallel": parallel,
            "train": {"global_batch": 8, "steps": 6, "warmup_steps": 2},
        }
    )


def over_two(
    hosts: tuple[Host, Host], spec: RunSpec, folder: Path, address: str = "127.0.0.1"
) -> dict[int, list[Frame]]:
    """Trains half of the ranks on each host; returns the records of every rank."""
    here, attempt = spec.parallel.world // 2, next(ATTEMPTS)
    orders = []
    for node in (0, 1):
        (folder / str(node)).mkdir(parents=True)
        order: StartCommand = {
            "attempt": attempt,
            "spec": spec.model_dump(mode="json"),
            "folder": str(folder / str(node)),
            "first_rank": node * here,
            "devices": list(range(here)),
            "device_kind": "cpu",
            "corpus_cache": str(folder),
            "address": address,
        }
        orders.append(order)
    hosts[0].start(orders[0])
    told = hosts[0].until("store")
    hosts[1].start({**orders[1], "store": {"host": told["host"], "port": told["port"]}})
    for host in hosts:
        host.until("gone")
        assert set(host.exits.values()) == {0}, (folder / "0" / "log-0.txt").read_text()
    return {rank: read_file(events_path(folder / str(rank // here), rank)) for rank in range(spec.parallel.world)}


@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
@pytest.mark.parametrize(
    "split", [{"dp": 2}, pytest.param({"tp": 2}, marks=pytest.mark.full), {"pp": 2, "dp": 2, "micro_batches": 4}]
)
def test_the_numbers_are_those_of_one_host(
    split: dict[str, int], hosts: tuple[Host, Host], one_host: LocalRunner, tmp_path: Path
) -> None:
    spec = spec_of(**split)
    apart = over_two(hosts, spec, tmp_path / "apart")
    together = one_host.run(spec, tmp_path / "together")
    assert together.ok, together.failure()
    losses = points(apart[0], "loss")["value"]
    assert len(losses) == spec.train.steps
    np.testing.assert_allclose(losses, together.series("loss")["value"], rtol=1e-6)
    spans = {rank: [frame for frame in frames if frame.kind == "spans"] for rank, frames in apart.items()}
    within = [[frame.header.get("clock_within") for frame in found] for found in spans.values()]
    half = len(apart) // 2
    assert all(value is None for told in within[:half] for value in told)
    assert all(value and 0 < value < SECOND for told in within[half:] for value in told)
    rows = {rank: np.frombuffer(found[-1].blob, SPAN) for rank, found in spans.items()}
    steps = [next(row for row in found if row["kind"] == Kind.STEP) for found in rows.values()]
    assert max(row["start"] for row in steps) < min(row["end"] for row in steps), (
        "both hosts trained the step at the same time"
    )
    layout = Layout.of(spec)
    every, values = every_step({rank: StepWaits.chain([*waits(apart[rank])]) for rank in apart}, layout)
    assert every.tolist() == together.shares(layout).steps.tolist() == list(range(spec.train.steps))
    assert "waits" not in {frame.kind for frame in together.frames[0]}, "only where they are asked for by name"
    told = {rank: {"clock_within" in f.header for f in found if f.kind == "waits"} for rank, found in apart.items()}
    assert told == {rank: {rank >= half} for rank in apart}
    traced = spans[0][-1].header["step"]
    for name, value in step_shares(rows, layout).items():
        # The clocks are compared again between the two conversions.
        assert values[name][traced] == pytest.approx(value, abs=0.01), name


@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
def test_sums_between_hosts_begin_while_backward_runs(
    hosts: tuple[Host, Host], one_host: LocalRunner, tmp_path: Path
) -> None:
    """With a model of several MiB, gradients are reduced in pieces, the first one before the last backward has
    ended.
    """
    model = {"layers": 2, "hidden": 192, "heads": 2, "seq": 16}
    spec = spec_of(dp=2).model_copy(update={"model": ModelSpec.model_validate(model)})
    apart = over_two(hosts, spec, tmp_path / "apart")
    together = one_host.run(spec, tmp_path / "together")
    assert together.ok, together.failure()
    np.testing.assert_allclose(points(apart[0], "loss")["value"], together.series("loss")["value"], rtol=1e-6)
    for frames in apart.values():
        rows = np.frombuffer([frame for frame in frames if frame.kind == "spans"][-1].blob, SPAN)
        sums, backward = rows[rows["kind"] == Kind.BUCKET], rows[rows["kind"] == Kind.BW]
        parameters = sum(sum(cost.parameters) for cost in unit_costs(spec))
        assert len(sums) > 2 and parameters * 4 <= sums["bytes"].sum() < parameters * 4 * 1.1
        assert sums["start"].min() < backward["end"].max()


@pytest.mark.skipif(not processes.LINUX or not IPV6, reason="reads /proc; a host without IPv6")
def test_hosts_that_know_each_other_by_ipv6_train(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    spec = spec_of(dp=2)
    assert len(points(over_two(hosts, spec, tmp_path, address="::1")[0], "loss")) == spec.train.steps


@pytest.mark.parametrize("address", ["", "127.0.0.1", "localhost", *(["::1"] if IPV6 else [])])
def test_what_listens_at_an_address_is_found_there(address: str) -> None:
    with listen_at(address) as listener:
        there = (address or "127.0.0.1", listener.getsockname()[1])
        with socket.create_connection(there, timeout=10), listener.accept()[0]:
            pass


def test_ranks_of_one_host_move_nothing() -> None:
    rows = np.zeros(1, SPAN)
    alone = open_clock(Rendezvous("", 0, 2, True), 0, dist.HashStore())
    beside = open_clock(Rendezvous("", 0, 2, False, node=0), 1, dist.HashStore())
    assert type(alone) is type(beside) is Clock
    assert alone.moved(rows, "start") is rows
    assert alone.within is None


def test_the_interface_of_an_address_is_found() -> None:
    loopback = next(
        name for name, found in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in found)
    )
    assert interface_of("127.0.0.1") == loopback
    assert interface_of("localhost") == loopback
    assert interface_of("") == interface_of("192.0.2.77") == interface_of("no.such.name.invalid") == ""
