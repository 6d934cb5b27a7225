"""Text generation from a checkpoint: prefill of the prompt, then one token at a time with a key-value cache.

The ranks of a tensor-parallel group each hold the cache of their own heads, gather the logits (one vector per sample),
and draw the same token from the same random numbers. In a pipeline each stage holds the caches of its own layers; the
last stage sends the tokens to the others (`relay`). One stage works at a time, so more stages add memory, not speed.
Replicas share out the samples and never communicate: a sample's text does not depend on which replica generates it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from parallel_core.analysis.generated import PER_TOKEN, Generated
from parallel_core.checkpoint import manifest as manifests
from parallel_core.engine import checkpoint, llama, storage
from parallel_core.engine.device import Device, disable_cudnn_attention, open_device
from parallel_core.engine.distributed import Groups, Rendezvous, awaited, connect, joined, wait_for_all
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.inputs import generates_from, require_expected, require_same_weights
from parallel_core.engine.interference import Interference
from parallel_core.engine.precision import DTYPES, LossScale
from parallel_core.engine.relay import Relay
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.stage import Stage
from parallel_core.generation_request import texts_of
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Coords, Layout
from parallel_core.models.attention import Core
from parallel_core.models.cache import KvCache
from parallel_core.models.layers import Positions
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_P2P
from parallel_core.observe.records import Sink
from parallel_core.observe.scope import Scope
from parallel_core.outline.gpt import GptOutline
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.weights import WeightGradients

log = logging.getLogger(__name__)

TELL_S = 0.2
"""Minimum interval between two records, in seconds: one per token would cost more than the token."""


class _Drawn(NamedTuple):
    """One token for each sample, the seconds that it took, and those of them that this rank spent in collectives of its
    tensor-parallel group and waiting for messages of its pipeline."""

    tokens: list[int]
    seconds: float
    collective: float
    p2p: float


class _Holds(NamedTuple):
    """What `checkpoint.State` needs to know of the holder of the parameters."""

    spec: RunSpec
    flat: FlatParameters
    place: Coords
    units: tuple[str, ...]


class Generator:
    """One rank's part of a GPT with the values of the checkpoint at `path`, or of the weights there if `spec` names
    any. `spec` has one stage per pipeline rank.

    Raises CheckpointError where these are damaged.
    """

    def __init__(
        self,
        spec: RunSpec,
        rank: int,
        groups: Groups,
        device: Device,
        path: Path,
        tell: Callable[[], None] = storage.no_progress,
        moved: Callable[[], None] = storage.no_progress,
    ) -> None:
        """`tell` is called repeatedly while `path` is read, `moved` when a layer begins."""
        self.spec, self._device = spec, device
        self._recorder, self._moved = device.recorder(0, 0), moved
        layout, scope = Layout.of(spec), Scope(self._recorder)
        place = layout.coords(rank)
        self._replica, self._alone = place.replica, spec.parallel.tp * spec.parallel.pp == 1
        self._group = TensorGroup(place.tensor, spec.parallel.tp, groups.tensor, scope)
        self._relay = Relay(layout.pipeline_of(rank), place.place, groups, device, scope)
        self.units = tuple(spec.model.units()[i] for i in layout.stage_units[place.place])
        stage = Stage(spec, self.units, self._group, WeightGradients(scope), LossScale(spec.train), scope)
        self.flat = FlatParameters(stage.places(), DTYPES[spec.train.precision], device, trains=False)
        self._first = stage.is_first
        self._layers, self._head = stage.layers, stage.layers[-1] if stage.is_last else None
        if self._head is not None:
            self._layers = stage.layers[:-1]
        modules = [module for layer in self._layers for module in layer.modules()]
        self._cores = [module for module in modules if isinstance(module, Core)]
        self._positions = [module for module in modules if isinstance(module, Positions)]
        shares = checkpoint.State(_Holds(spec, self.flat, place, self.units)).shares(
            {"value": ((0, self.flat.values),)}
        )
        if spec.train.weights:
            llama.load(shares, path, spec.model, tell)
        else:
            storage.load(shares, path, manifests.read(path), tell)

    @torch.no_grad()
    def generate(
        self, request: GenerationRequest, on_progress: Callable[[Generated], None] = lambda so_far: None
    ) -> Generated:
        """Returns the generated tokens with their times. Prompt and new tokens together must not exceed the model's
        sequence.

        `on_progress` is called after each token with everything generated so far.
        """
        prompt = self._prompts(request)
        self._begin(request, prompt.shape[1] + request["new"])
        turns = self._token_steps(prompt, request)
        first = next(turns)
        kept = sum(core.cache.nbytes for core in self._cores if core.cache is not None)
        begun = [[token] for token in first.tokens]
        out = Generated(tokens=begun, prefill=first.seconds, seconds=[], collective=[], p2p=[], kv_bytes=kept)
        on_progress(out)
        for drawn in turns:
            for tokens, token in zip(out["tokens"], drawn.tokens, strict=True):
                tokens.append(token)
            out["seconds"].append(drawn.seconds)
            out["collective"].append(drawn.collective)
            out["p2p"].append(drawn.p2p)
            on_progress(out)
        return out

    @torch.no_grad()
    def metered(self, request: GenerationRequest) -> MemoryMeter:
        """Repeats the prefill and the next token under a memory meter: weights count as "params", keys and values as
        "activations"."""
        for core in self._cores:
            core.cache = None
        prompt = self._prompts(request)
        meter = MemoryMeter(kind=self._device.kind)
        meter.register(self.flat.values, "params")
        with meter.measure():
            with meter.category("activations"):
                self._begin(request, prompt.shape[1] + request["new"])
            for _ in zip(range(2), self._token_steps(prompt, request), strict=False):
                pass
        return meter

    def _mine(self, request: GenerationRequest) -> range:
        """Returns the numbers of the samples that this replica generates."""
        return texts_of(request["samples"], self.spec.parallel.dp, self._replica)

    def _prompts(self, request: GenerationRequest) -> Tensor:
        return torch.tensor([request["prompt"]] * len(self._mine(request)), device=self._device.torch)

    def _begin(self, request: GenerationRequest, capacity: int) -> None:
        """Creates empty caches with room for `capacity` tokens; none where the request wants every token computed from
        the whole text."""
        outline = GptOutline(self.spec.model)
        heads = outline.kv_heads // self.spec.parallel.tp
        like = {"dtype": self.flat.values.dtype, "device": self._device.torch}
        for core in self._cores:
            core.cache = None
            if request["cached"]:
                core.cache = KvCache(len(self._mine(request)), heads, capacity, outline.head_dim, **like)

    def _token_steps(self, text: Tensor, request: GenerationRequest) -> Iterator[_Drawn]:
        """Yields what is drawn, token by token."""
        fresh = text
        for number in range(request["new"]):
            self._recorder.begin_step(number)  # discards the spans of the last token
            began = time.perf_counter()
            logits = self.logits(fresh, text.shape[1] - fresh.shape[1])
            tokens = None if logits is None else draw(logits, number, request, self._mine(request))
            drawn = self._relay.tokens(tokens, len(text))
            token = torch.tensor(drawn, device=text.device)[:, None]
            text = torch.cat([text, token], 1)
            fresh = token if request["cached"] else text
            took = time.perf_counter() - began
            yield _Drawn(drawn, took, *self._waits())

    def _waits(self) -> tuple[float, float]:
        """Returns the seconds of the token in (collectives of the tensor-parallel group, messages of the pipeline)."""
        if self._alone:
            return 0.0, 0.0
        rows = self._recorder.end_step()
        took = 1e-9 * (rows["end"] - rows["start"])
        return float(took[rows["kind"] == Kind.TP_COLLECTIVE].sum()), float(took[rows["lane"] == LANE_P2P].sum())

    @torch.no_grad()
    def logits(self, tokens: Tensor, first: int = 0) -> Tensor | None:
        """Returns the logits of the token that follows `tokens` [samples, n] at positions `first` on: [samples,
        vocabulary].

        None on ranks of a stage that is not the last.
        """
        for positions in self._positions:
            positions.first = first
        shape = (*tokens.shape, self.spec.model.hidden)
        x = tokens if self._first else self._relay.receive(shape, self.flat.values.dtype)
        for layer in self._layers:
            self._moved()
            x = layer(x)
        if self._head is None:
            self._relay.hand_on(x)
            return None
        self._moved()
        mine: Tensor = self._output(self._head, x[:, -1])
        if self._group.size == 1:
            return mine
        rows = self._group.gather(mine.t().contiguous()[None])
        return rows[0].t()

    @staticmethod
    def _output(head: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = head.get_submodule("output")(head.get_submodule("norm")(x))
        return out


def draw(logits: Tensor, number: int, request: GenerationRequest, samples: range) -> list[int]:
    """Returns one token for each of the `samples` with these logits [samples, vocabulary]: a function of the logits and
    of (seed, number of the token, sample).

    Raises FloatingPointError where no token is the likeliest: a logit is not a number, or infinite.
    """
    top = logits.amax(-1, keepdim=True)  # not a number if any is none
    if wrong := torch.isfinite(top).logical_not().flatten().nonzero().flatten().tolist():
        raise FloatingPointError(
            f"Token {number + 1} of text {samples[wrong[0]] + 1} cannot be chosen: the model's logits are not finite."
        )
    if request["temperature"] == 0:
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest
    below = _keep_top_k(logits, request.get("top_k", 0)).double() - top.double()
    key = np.array([request["seed"], number], np.uint64)
    every = np.random.Generator(np.random.Philox(key=key)).random(request["samples"])
    at = torch.from_numpy(every[samples])[:, None]
    # Divided after the subtraction: the largest one is 0 at any temperature, where a quotient may overflow.
    sums = torch.softmax(below.cpu() / request["temperature"], -1).cumsum(-1)
    found: list[int] = torch.searchsorted(sums, at * sums[:, -1:], right=True).squeeze(1).tolist()
    return [min(token, logits.shape[1] - 1) for token in found]


def _keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Sets all but the k largest logits of each row to minus infinity; k = 0 keeps all."""
    if not 0 < k < logits.shape[1]:
        return logits
    least = logits.topk(k, -1).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


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
    progress.at(-1, "connecting")
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
        interference = Interference(device, groups.world, spec.parallel.world, rendezvous.node or 0)
        interference.start()
        found = generator.generate(request, _RecordEmitter(sink, progress, request["new"]))
        others, processes = interference.own_share(), interference.own_processes()
        sink.emit("summary", cpu_others=others, other_processes=processes)
        report.memory(0, generator.metered(request))
        log.info("rank %d: %d tokens, %d bytes of keys and values", rank, len(found["tokens"][0]), found["kv_bytes"])
        progress.at(request["new"], "the end of the run")
        wait_for_all(groups.store, rank, spec.parallel.world)
