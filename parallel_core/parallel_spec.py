"""ParallelSpec: how a run is split over devices. Rules between its fields are in `rules`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from parallel_core import limits
from parallel_core.outline.recompute import Recompute
from parallel_core.outline.splits import Cut, TensorSplit
from parallel_core.schedule.custom import read
from parallel_core.schedule.traits import TRAITS, ScheduleName, flushes
from parallel_core.spec_part import NotNegative, SpecPart

ZeroBackend = Literal["own", "fully_shard"]
Positive = Annotated[int, Field(ge=1)]
Degree = Annotated[int, Field(ge=1, le=limits.MAX_DEGREE)]
ByStage = Annotated[
    Annotated[tuple[Degree, ...], Field(max_length=limits.MAX_STAGES)] | None,
    BeforeValidator(lambda value: None if value in ([], ()) else value),  # an empty list counts as not given
]


class ParallelSpec(SpecPart):
    """How the run is split: dp x tp x pp ranks, with one device each. Where stages differ, `replicas` and `widths` give
    the number of replicas of each, and of tensor ranks of each replica."""

    dp: Degree = 1
    """Data-parallel replicas; divides `train.global_batch`."""
    tp: Degree = 1
    """Tensor-parallel ranks that share each layer."""
    pp: Degree = 1
    """Pipeline ranks, each with a stage or several."""
    schedule: ScheduleName = "1f1b"
    """Order of a pipeline's forwards and backwards."""
    micro_batches: Annotated[int, Field(ge=1, le=limits.MAX_MICRO_BATCHES)] = 1
    """Micro-batches of a step for each replica."""
    chunks: Annotated[int, Field(ge=1, le=limits.MAX_LAYERS)] | None = None
    """Stages ("model chunks", "virtual stages") on each pipeline rank; None = the schedule's default."""
    program: Annotated[str, Field(max_length=limits.MAX_PROGRAM)] | None = None
    """CSV or JSON of schedule "custom" (`schedule.table`), for one replica."""
    early_gradients: bool = False
    """Stages send input gradients before they compute weight gradients (`schedule.passes.early_gradients`)."""
    tensor_split: TensorSplit = "pairs"
    """How linear layers of a block are split over a tensor-parallel group: in Megatron's column-row pairs, or all by
    columns with gathered outputs (`tensor.columns`)."""
    sequence: bool = False
    """Sequence parallelism (Korthikanti et al. 2022): what tensor parallelism replicates is split by rows."""
    recompute: Recompute = "none"
    """What of a block's activations is computed again in its backward instead of kept."""
    recompute_layers: Annotated[tuple[NotNegative, ...], Field(max_length=limits.MAX_STAGES)] | None = None
    """Indices of the blocks that recompute, from 0; None = all. (A GPT's blocks are its layers.)"""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO stage (Rajbhandari et al. 2020): 1 shards optimizer states and master weights over the replicas, 2
    gradients, 3 parameters, too."""
    zero_backend: ZeroBackend = "own"
    """What shards parameters under zero=3: this engine, or torch.distributed.fsdp.fully_shard (FSDP2)."""
    cuts: Annotated[tuple[Positive, ...], Field(max_length=limits.MAX_STAGES)] | None = None
    """Indices of layers (`ModelSpec.units`) at which the stages 1, 2, .. begin; None = balanced by FLOPs."""
    replicas: ByStage = None
    """Number of replicas of each stage, where they differ (`schedule.round_robin`); then `dp` is 1, and `micro_batches`
    counts over all of them. None = `dp` for every stage."""
    widths: ByStage = None
    """Number of tensor ranks of each pipeline place, where they differ; then `tp` is 1. None = `tp` for every place."""

    @property
    def copies(self) -> tuple[int, ...]:
        """Number of data-parallel replicas of each place of the pipeline."""
        return self.replicas if self.replicas is not None else (self.dp,) * self.pp

    @property
    def tensor_ranks(self) -> tuple[int, ...]:
        """Number of tensor ranks of each replica of each place of the pipeline."""
        return self.widths if self.widths is not None else (self.tp,) * self.pp

    @property
    def per_step(self) -> int:
        """Number of micro-batches of a step over all replicas."""
        return self.dp * self.micro_batches

    @property
    def cut(self) -> Cut:
        """How a layer is split over a tensor-parallel group."""
        return "sequence" if self.sequence else self.tensor_split

    def updates(self, place: int) -> int:
        """Returns the number of updates per step of the weights at `place`: one, or one per round of its replicas."""
        if TRAITS[self.schedule].sync in ("flush", "2bw") or self.pp == 1:
            return 1
        return -(-self.per_step // self.copies[place])

    @property
    def world(self) -> int:
        """Number of ranks (= devices)."""
        return sum(copies * width for copies, width in zip(self.copies, self.tensor_ranks, strict=True))

    @property
    def chunks_per_rank(self) -> int:
        """Number of stages on each pipeline rank: `chunks`, or the schedule's default; 1 without a pipeline."""
        if self.pp == 1:
            return 1
        if self.program is not None:
            return read(self.program).stages // self.pp
        return self.chunks or TRAITS[self.schedule].chunks

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is flushed in every step (see `schedule.traits.Sync`)."""
        return flushes(self.schedule)

    @property
    def stages(self) -> int:
        """Number of stages over all places of the pipeline."""
        return self.pp * self.chunks_per_rank
