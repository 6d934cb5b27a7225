"""The program of a profiling rank: measures layers on single devices and on all at once, then links."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import product

import torch
import torch.distributed as dist

from parallel_core.engine.collectives import Group
from parallel_core.engine.device import Device, open_device, use_deterministic_algorithms
from parallel_core.engine.distributed import connect, joined
from parallel_core.engine.near_groups import own_group
from parallel_core.launch.rank import RankArgs
from parallel_core.layout import Layout
from parallel_core.observe.progress import NO_STEPS, Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.observe.reference import Reference
from parallel_core.outline.recompute import Recompute
from parallel_core.outline.splits import Cut
from parallel_core.plan.grad_buckets import GATHERS_AHEAD
from parallel_core.profile import fully_shard, links, own_shards
from parallel_core.profile.fixed import FixedBench
from parallel_core.profile.layer_pair import LayerPair, Paced
from parallel_core.profile.layers import LayerBench, draw, layer_bytes, spec_of
from parallel_core.profile.oversubscription import MEETINGS, ratio
from parallel_core.profile.pace_probe import PaceProbe
from parallel_core.profile.request import ProfileRequest
from parallel_core.profile.table import Level, OwnShards
from parallel_core.spec import RunSpec

LEAST_REPEATS, MOST_REPEATS = 3, 25


def be_rank(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Measures as requested by `request.json` in the folder and emits the results as records of kind 'profile'.

    Their `about` is device, layers, bytes, fixed, crowd, own_shards, link or fully_sharded.
    """
    request = ProfileRequest(**json.loads((args.folder / "request.json").read_text()))
    if args.spec.train.deterministic:
        use_deterministic_algorithms()
    at = args.rendezvous()
    device = open_device(args.spec.train.device, at.sharing)
    groups = connect(at, args.rank, Layout.of(args.spec), device.backend)
    with joined():
        _Rank(args, sink, page, device, request, groups.store).measure()


class _Rank:
    """One rank of `world`; those below `request.devices` have a device of their own and measure layers."""

    def __init__(
        self,
        args: RankArgs,
        sink: FileSink,
        page: Progress,
        device: Device,
        request: ProfileRequest,
        store: dist.Store | None,
    ) -> None:
        self.rank, self.world, self.spec = args.rank, args.spec.parallel.world, args.spec
        self.sink, self.page, self.device, self.request, self.store = sink, page, device, request, store
        self.reference = Reference() if device.kind == "cpu" else None
        self._place = ""

    def measure(self) -> None:
        self.sink.emit("profile", about="device", name=self.device.name, torch=torch.__version__)
        for recompute in self.request.recompute:
            for tp in self.request.tps:
                for split in self._splits(tp, recompute):
                    self._begin(f"layers tp={tp} recompute={recompute} split={split}")
                    rows = self._layers(tp, recompute, split, first=(tp, recompute) == (1, self.request.recompute[0]))
                    for found in rows + self._joined(tp, recompute, split):
                        found_row, took = found.row.model_dump(mode="json"), found.reference
                        self.sink.emit("profile", about="layers", row=found_row, reference=took, paces=found.paces)
        for tp in self.request.tps:
            self._begin(f"shared devices tp={tp}")
            if (longer := self._crowded(tp)) is not None:
                self.sink.emit("profile", about="crowd", tp=tp, ratio=longer)
        self._own_shards()
        self._begin("links")
        if self.store is not None:
            meeting = links.Meeting(self.rank, self.world, self.store, self.device, self.page.moved)
            for link in links.measure(meeting, self.request.sizes or links.SIZES):
                self.sink.emit("profile", about="link", row=link.model_dump(mode="json"))
            self._fully_sharded(meeting)

    def _own_shards(self) -> None:
        """Measures this engine's ZeRO. Only on CPUs: on CUDA the code between operations runs ahead of the device."""
        if self.device.kind != "cpu":
            return
        self._begin("ZeRO")
        for recompute in (how for how in self.request.recompute if how != "selective"):
            for level, samples in product(own_shards.LEVELS, own_shards.sizes(self.spec.model, self.request.samples)):
                self._together()
                if self.rank < self.request.devices:
                    self._own_shard(self._spec(1, recompute, samples), level)
        self._together()

    def _own_shard(self, plain: RunSpec, level: Level) -> None:
        """Measures ZeRO `level` for the passes of `plain`, on as many devices at once as there are."""
        pacer = PaceProbe(self.reference)
        found = own_shards.measure(plain, self.device, pacer, level, self.request.seconds, self.page.moved)
        row = OwnShards(
            zero=level,
            recompute=plain.parallel.recompute,
            samples=plain.train.global_batch,
            forward=found.forward,
            backward=found.backward,
        )
        told = row.model_dump(mode="json")
        self.sink.emit("profile", about="own_shards", row=told, busy=self.request.devices, reference=found.pace)

    def _fully_sharded(self, meeting: links.Meeting) -> None:
        self._begin("fully_shard")
        samples = self.request.samples[-1 if GATHERS_AHEAD[self.device.kind] else 0]
        specs = [self._spec(tp, "none", samples) for tp in self.request.tps]
        if "full" in self.request.recompute:  # recomputation is measured for the first width only
            specs.append(self._spec(self.request.tps[0], "full", samples))
        for found in fully_shard.measure(meeting, specs, self.request.devices, self.request.seconds / 2):
            self.sink.emit("profile", about="fully_sharded", row=found.model_dump(mode="json"))

    def _splits(self, tp: int, recompute: Recompute) -> Sequence[Cut]:
        """Returns the tensor splits that are measured under this condition."""
        if tp == 1 or recompute == "full":
            return ("pairs",)
        return [split for split in self.request.splits if self._samples(tp, split)]

    def _samples(self, tp: int, split: Cut) -> list[int]:
        """The micro-batch sizes that allow this split: sequence parallelism needs rows that are divisible by `tp`."""
        seq = self.spec.model.seq
        return [n for n in self.request.samples if split != "sequence" or n * seq % tp == 0]

    def _layers(self, tp: int, recompute: Recompute, split: Cut, first: bool) -> list[Paced]:
        """Measures one condition for every number of samples and of busy devices; with `first`, also fixed costs and
        bytes."""
        specs = [self._spec(tp, recompute, samples, split) for samples in self._samples(tp, split)]
        levels = sorted({min(tp, self.request.devices), self.request.devices})  # a group keeps one device per rank busy
        if self.rank >= self.request.devices:
            self._turns([], levels)
            return []
        bench = LayerPair(specs, self.device, self.reference, self.page.moved)
        fixed = FixedBench(specs[-1], self.device, self.page) if first else None
        if first and self.rank == 0:
            rows = layer_bytes(specs[-1], bench.each, bench.saved())
            self.sink.emit("profile", about="bytes", rows=[r.model_dump() for r in rows])
        self._turns([bench, fixed] if fixed else [bench], levels)
        for busy in levels:
            if fixed and self.rank < busy:
                curves = {name: curve.model_dump() for name, curve in fixed.curves(busy).items()}
                took = bench.reference(busy)
                self.sink.emit("profile", about="fixed", busy=busy, curves=curves, reference=took)
        return bench.rows(tp)

    def _joined(self, tp: int, recompute: Recompute, split: Cut) -> list[Paced]:
        """Measures a tensor-parallel group that communicates, each of whose ranks has its own device."""
        if not 1 < tp <= self.request.devices:
            return []
        group = own_group([range(tp)], self.rank, self.store) if self.store is not None else None
        if group is None:
            self._turns([], [tp])
            return []
        specs = [self._spec(tp, recompute, samples, split) for samples in self._samples(tp, split)]
        bench = LayerPair(specs, self.device, self.reference, self.page.moved, group)
        self._turns([bench], [tp])
        return bench.rows(tp, joined=True)

    def _crowded(self, tp: int) -> float | None:
        """Returns what ranks in groups of `tp` lose by sharing devices; None except on one rank per device."""
        devices, ranks = self.request.devices, self.world - self.world % self.request.devices
        if ranks == devices or devices % tp or (tp > 1 and self.store is None):
            return None
        group: Group = None
        if tp > 1 and self.store is not None:
            group = own_group([range(first, first + tp) for first in range(0, ranks, tp)], self.rank, self.store)
        if self.rank >= ranks:  # a surplus rank: only takes part in the barriers
            for _ in range(MEETINGS * self._agree(0) + 1):
                self._together()
            return None
        spec = self._spec(tp, self.request.recompute[0], self._middle)
        bench = LayerBench(spec, [spec.model.units()], self.device, group, moved=self.page.moved)
        bench.read(draw(spec, self.device))
        pacer = PaceProbe(self.reference, group)
        return ratio(bench, pacer, ranks // devices, self.rank < devices, self._together, self._agree)

    def _turns(self, benches: Sequence[LayerPair | FixedBench], levels: Sequence[int]) -> None:
        """Repeats until the time is up: single devices and all at once alternate, so that disturbances affect both.

        Before that everything runs once, just as much as allocates every buffer that the repeats use.
        """
        until = time.monotonic() + self.request.seconds
        self._together()
        if self.rank < max(levels):
            for bench in benches:
                bench.warm(max(levels))
        for turn in range(1, MOST_REPEATS):
            for busy in levels:
                self._together()
                self.page.at(NO_STEPS, self._place)  # the bench of fixed costs writes places, too
                if self.rank < busy:
                    for bench in benches:
                        bench.once(busy)
            if turn >= LEAST_REPEATS and self._agree(time.monotonic() > until):
                break
        self._together()

    def _begin(self, place: str) -> None:
        self._place = place
        self.page.at(NO_STEPS, place)

    def _spec(self, tp: int, recompute: Recompute, samples: int, split: Cut = "pairs") -> RunSpec:
        train = self.spec.train
        return spec_of(self.spec.model, train.precision, tp, recompute, samples, train.device, split)

    @property
    def _middle(self) -> int:
        """The number of samples of measurements that are made with a single one."""
        return self.request.samples[len(self.request.samples) // 2]

    def _together(self) -> None:
        if self.world > 1:
            dist.barrier()

    def _agree(self, mine: int) -> int:
        """Returns rank 0's number."""
        if self.world == 1:
            return mine
        common = torch.tensor([float(mine)], device=self.device.torch)
        dist.broadcast(common, 0)
        return int(common.item())
