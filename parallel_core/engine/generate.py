"""Runs the text generation of one rank, from joining its groups to its last token, and reports it as records."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from parallel_core.analysis.generated import PER_TOKEN, Generated
from parallel_core.engine.device import disable_cudnn_attention, open_device
from parallel_core.engine.distributed import Rendezvous, awaited, connect, joined, wait_for_all
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.generator import Generator
from parallel_core.engine.inputs import generates_from, require_expected, require_same_weights
from parallel_core.engine.interference import Interference
from parallel_core.engine.reporter import Reporter
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Layout
from parallel_core.observe.progress import CONNECTING, Progress
from parallel_core.observe.record_files import Sink
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)

TELL_S = 0.2
"""Minimum interval between two records, in seconds: one per token would cost more than the token."""


class _RecordEmitter:
    """Emits new tokens as "generated" records, at most one every TELL_S, and reports each token as progress."""

    def __init__(self, sink: Sink, progress: Progress, new: int) -> None:
        self._sink, self._progress, self._new = sink, progress, new
        self._first, self._at = 0, -math.inf
        self._begins(0)

    def __call__(self, so_far: Generated) -> None:
        done, now = len(so_far["tokens"][0]), time.monotonic()
        self._begins(done)
        if now - self._at < TELL_S and done < self._new:
            return
        first = self._first
        seconds, collective, p2p = (so_far[name][max(first - 1, 0) :] for name in PER_TOKEN)
        self._sink.emit(
            "generated",
            first=first,
            tokens=[tokens[first:] for tokens in so_far["tokens"]],
            prefill=so_far["prefill"],
            seconds=seconds,
            collective=collective,
            p2p=p2p,
            kv_bytes=so_far["kv_bytes"],
        )
        self._first, self._at = done, now

    def _begins(self, done: int) -> None:
        """Reports what comes after so many tokens."""
        more = done < self._new
        self._progress.at(done, f"token {done + 1} of {self._new}" if more else "measuring memory")


def run_rank(
    spec: RunSpec,
    rank: int,
    sink: Sink,
    rendezvous: Rendezvous,
    progress: Progress,
    path: Path,
    request: GenerationRequest,
    expects: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Generates on one rank and emits the results; failures are reported by the caller. `expects`: what it has to
    generate from, where that is known (`inputs.require_expected`)."""
    disable_cudnn_attention()
    with awaited(rendezvous, rank):
        device = open_device(spec.train.device, rendezvous.sharing)
    progress.at(-1, CONNECTING)
    groups = connect(rendezvous, rank, Layout.of(spec), device.backend, generates=True)
    with joined():
        progress.at(-1, "building")
        read = generates_from(spec.train.weights, path) if rank == 0 else {}
        require_expected(spec.train, read, expects, generates=True)
        generator = Generator(spec, rank, groups, device, path, partial(progress.at, -1, "loading"), progress.moved)
        if spec.train.weights:
            require_same_weights(groups.store, rank, path)
        device.forget_memory_peak()  # what connecting took for a moment: first messages of every size
        report = Reporter(spec, rank, sink, device)
        report.hello(generator.flat, generator.units, Layout.of(spec), read)
        interference = Interference(device, Exchange(device, groups.world, spec.parallel.world), rendezvous.node or 0)
        interference.start()
        found = generator.generate(request, _RecordEmitter(sink, progress, request["new"]))
        others, processes = interference.own_share(), interference.own_processes()
        sink.emit("summary", cpu_others=others, other_processes=processes)
        report.memory(0, generator.metered(request))
        log.info("rank %d: %d tokens, %d bytes of keys and values", rank, len(found["tokens"][0]), found["kv_bytes"])
        progress.at(request["new"], "the end of the run")
        wait_for_all(groups.store, rank, spec.parallel.world)
