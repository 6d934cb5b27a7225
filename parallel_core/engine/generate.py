"""Text generation from a checkpoint: one prefill of the prompt, then a token at a time from cached keys and values.

The ranks of a tensor-parallel group each hold the cache of their own heads, gather the logits (one vector a sample),
and draw the same token from the same numbers. Of a pipeline each stage holds the caches of its own layers; the last one
sends the tokens to the others (`relay`), and one stage works at a time: more stages make room, not speed. Replicas
share out the texts and never talk: a text is the same whoever generates it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from parallel_core.checkpoint import manifest as manifests
from parallel_core.engine import checkpoint, storage
from parallel_core.engine.device import Device, be_ready_for_any_length, open_device
from parallel_core.engine.distributed import Groups, Rendezvous, connect, joined
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.precision import DTYPES, LossScale
from parallel_core.engine.relay import Relay
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.stage import Stage
from parallel_core.generation_request import texts_of
from parallel_core.launch import Wish
from parallel_core.layout import Coords, Layout
from parallel_core.models.attention import Core
from parallel_core.models.cache import KvCache
from parallel_core.models.layers import Positions
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import Sink
from parallel_core.observe.scope import Scope
from parallel_core.outline.gpt import GptOutline
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.weights import WeightGradients

log = logging.getLogger(__name__)

TELL_S = 0.2
"""A record a token would cost more than the token."""


@dataclass
class Generated:
    """`tokens` of each sample of this replica, without the prompt; seconds of the prefill and of each token behind the
    first."""

    tokens: list[list[int]]
    prefill: float
    seconds: list[float] = field(default_factory=list)
    kv_bytes: int = 0
    """Of this rank's caches."""


class _Holds(NamedTuple):
    """What `checkpoint.State` asks of a trainer."""

    spec: RunSpec
    flat: FlatParameters
    place: Coords
    units: tuple[str, ...]


class Generator:
    """What one rank has of a GPT, with the values of the checkpoint `path`. `spec` has one stage a place.

    Raises CheckpointError where the checkpoint is damaged.
    """

    def __init__(
        self,
        spec: RunSpec,
        rank: int,
        groups: Groups,
        device: Device,
        path: Path,
        tell: Callable[[], None] = storage.nobody,
    ) -> None:
        """`tell` is called as the checkpoint is read."""
        self.spec, self._device = spec, device
        self._recorder = device.recorder(0, 0)
        layout, scope = Layout.of(spec), Scope(self._recorder)
        place = layout.coords(rank)
        self._replica = place.replica
        self._group = TensorGroup(place.tensor, spec.parallel.tp, groups.tensor, scope)
        self._relay = Relay(layout.pipeline_of(rank), place.place, groups, device)
        self.units = tuple(spec.model.units()[i] for i in layout.stage_units[place.place])
        stage = Stage(spec, self.units, self._group, WeightGradients(scope), LossScale(spec.train), scope)
        self.flat = FlatParameters(stage.places(), DTYPES[spec.train.precision], device)
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
        storage.load(shares, path, manifests.read(path), tell)

    @torch.no_grad()
    def generate(self, wish: Wish, told: Callable[[Generated], None] = lambda so_far: None) -> Generated:
        """The tokens, and what they cost. Prompt and new tokens together are at most the model's sequence.

        `told` hears of each token as it comes.
        """
        prompt = self._prompts(wish)
        self._begin(wish, prompt.shape[1] + wish["new"])
        turns = self._turns(prompt, wish)
        drawn, prefill = next(turns)
        kept = sum(core.cache.nbytes for core in self._cores if core.cache is not None)
        out = Generated([[token] for token in drawn], prefill, kv_bytes=kept)
        told(out)
        for drawn, seconds in turns:
            for tokens, token in zip(out.tokens, drawn, strict=True):
                tokens.append(token)
            out.seconds.append(seconds)
            told(out)
        return out

    @torch.no_grad()
    def metered(self, wish: Wish) -> MemoryMeter:
        """The prefill and the token behind it once more, with live memory followed: weights are "params", keys and
        values "activations"."""
        for core in self._cores:
            core.cache = None
        prompt = self._prompts(wish)
        meter = MemoryMeter(kind=self._device.kind)
        meter.register(self.flat.values, "params")
        with meter.measure():
            with meter.category("activations"):
                self._begin(wish, prompt.shape[1] + wish["new"])
            for _, _ in zip(range(2), self._turns(prompt, wish), strict=False):
                pass
        return meter

    def _mine(self, wish: Wish) -> range:
        """The texts of this replica."""
        return texts_of(wish["samples"], self.spec.parallel.dp, self._replica)

    def _prompts(self, wish: Wish) -> Tensor:
        return torch.tensor([wish["prompt"]] * len(self._mine(wish)), device=self._device.torch)

    def _begin(self, wish: Wish, capacity: int) -> None:
        """Empty caches; none where the wish wants every token made from the whole text again."""
        outline = GptOutline(self.spec.model)
        heads = outline.kv_heads // self.spec.parallel.tp
        like = {"dtype": self.flat.values.dtype, "device": self._device.torch}
        for core in self._cores:
            core.cache = None
            if wish["cached"]:
                core.cache = KvCache(len(self._mine(wish)), heads, capacity, outline.head_dim, **like)

    def _turns(self, text: Tensor, wish: Wish) -> Iterator[tuple[list[int], float]]:
        """(a token for each sample, seconds that it took), one after the other."""
        fresh = text
        for number in range(wish["new"]):
            self._recorder.begin_step(number)  # nobody asks for spans: those of the token before are let go
            began = time.perf_counter()
            logits = self.logits(fresh, text.shape[1] - fresh.shape[1])
            drawn = self._relay.tokens(None if logits is None else self._draw(logits, number, wish), len(text))
            token = torch.tensor(drawn, device=text.device)[:, None]
            text = torch.cat([text, token], 1)
            fresh = token if wish["cached"] else text
            yield drawn, time.perf_counter() - began

    @torch.no_grad()
    def logits(self, tokens: Tensor, first: int = 0) -> Tensor | None:
        """Of what follows `tokens` (samples, n), which stand at places `first` ..: (samples, vocabulary), whole.

        None on the ranks of a stage that hands on to another.
        """
        for positions in self._positions:
            positions.first = first
        shape = (*tokens.shape, self.spec.model.hidden)
        x = tokens if self._first else self._relay.receive(shape, self.flat.values.dtype)
        for layer in self._layers:
            x = layer(x)
        if self._head is None:
            self._relay.hand_on(x)
            return None
        mine: Tensor = self._output(self._head, x[:, -1])
        if self._group.size == 1:
            return mine
        rows = self._group.end(self._group.begin_gather(mine.t().contiguous()[None]))
        return rows[0].t()

    @staticmethod
    def _output(head: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = head.get_submodule("output")(head.get_submodule("norm")(x))
        return out

    def _draw(self, logits: Tensor, number: int, wish: Wish) -> list[int]:
        """One token a sample: a function of (seed, number of the token, sample) and the logits."""
        if wish["temperature"] == 0:
            likeliest: list[int] = logits.argmax(-1).tolist()
            return likeliest
        logits = _likeliest(logits, wish.get("top_k", 0))
        key = np.array([wish["seed"], number], np.uint64)
        every = np.random.Generator(np.random.Philox(key=key)).random(wish["samples"])
        at = torch.from_numpy(every[self._mine(wish)])[:, None]
        sums = torch.softmax(logits.double().cpu() / wish["temperature"], -1).cumsum(-1)
        found: list[int] = torch.searchsorted(sums, at * sums[:, -1:], right=True).squeeze(1).tolist()
        return [min(token, logits.shape[1] - 1) for token in found]


def _likeliest(logits: Tensor, k: int) -> Tensor:
    """All but the k greatest of each row at minus infinity; k = 0 leaves them as they are."""
    if not 0 < k < logits.shape[1]:
        return logits
    least = logits.topk(k, -1).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


class _Teller:
    """Emits what is new, every TELL_S at most, and tells the page which token the rank is at."""

    def __init__(self, sink: Sink, progress: Progress, new: int) -> None:
        self._sink, self._progress, self._new = sink, progress, new
        self._first, self._at = 0, -math.inf

    def __call__(self, so_far: Generated) -> None:
        done, now = len(so_far.tokens[0]), time.monotonic()
        self._progress.at(done, f"token {done} of {self._new}")
        if now - self._at < TELL_S and done < self._new:
            return
        first = self._first
        self._sink.emit(
            "generated",
            first=first,
            tokens=[tokens[first:] for tokens in so_far.tokens],
            prefill=so_far.prefill,
            seconds=so_far.seconds[max(first - 1, 0) :],
            kv_bytes=so_far.kv_bytes,
        )
        self._first, self._at = done, now


def run_rank(
    spec: RunSpec, rank: int, sink: Sink, rendezvous: Rendezvous, progress: Progress, path: Path, wish: Wish
) -> None:
    """Generates on one rank and emits what came out; whoever started the rank reports what goes wrong."""
    be_ready_for_any_length()
    device = open_device(spec.train.device, rendezvous.sharing)
    progress.at(-1, "connecting")
    groups = connect(rendezvous, rank, Layout.of(spec), device.backend)
    with joined():
        generator = Generator(spec, rank, groups, device, path, partial(progress.at, -1, "loading"))
        report = Reporter(spec, rank, sink, device)
        report.hello(generator.flat, generator.units, Layout.of(spec))
        progress.at(0, "generating")
        found = generator.generate(wish, _Teller(sink, progress, wish["new"]))
        report.memory(0, generator.metered(wish))
        log.info("rank %d: %d tokens, %d bytes of keys and values", rank, len(found.tokens[0]), found.kv_bytes)
