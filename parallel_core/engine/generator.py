"""Text generation from a checkpoint: prefill of the prompt, then one token at a time with a key-value cache.

The ranks of a tensor-parallel group each hold the cache of their own heads, gather the logits (one vector per sample),
and draw the same token from the same random numbers. In a pipeline each stage holds the caches of its own layers; the
last stage sends the tokens to the others (`relay`). One stage works at a time, so more stages add memory, not speed.
Replicas share out the samples and never communicate: a sample's text does not depend on which replica generates it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parallel_core.analysis.generated import Generated
from parallel_core.checkpoint import manifest as manifests
from parallel_core.engine import llama, storage
from parallel_core.engine.checkpoint_state import State
from parallel_core.engine.device import Device
from parallel_core.engine.distributed import Groups
from parallel_core.engine.drawing import draw
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.precision import DTYPES, LossScale
from parallel_core.engine.relay import Relay
from parallel_core.engine.stage import Stage
from parallel_core.generation_request import texts_of
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Coords, Layout
from parallel_core.models.attention import Core
from parallel_core.models.cache import KvCache
from parallel_core.models.layers import Positions
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.recorder import LANE_P2P
from parallel_core.observe.scope import Scope
from parallel_core.outline.gpt import GptOutline
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.weights import WeightGradients


class _Drawn(NamedTuple):
    """One token for each sample, the seconds that it took, and those of them that this rank spent in collectives of its
    tensor-parallel group and waiting for messages of its pipeline."""

    tokens: list[int]
    seconds: float
    collective: float
    p2p: float


class _Holds(NamedTuple):
    """What `State` needs to know of the holder of the parameters."""

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
        self._load(place, path, tell)

    def _load(self, place: Coords, path: Path, tell: Callable[[], None]) -> None:
        holder = _Holds(self.spec, self.flat, place, self.units)
        shares = State(holder).shares({"value": ((0, self.flat.values),)})
        if self.spec.train.weights:
            llama.load(shares, path, self.spec.model, tell)
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
