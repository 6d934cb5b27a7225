"""The schedule as a value: `Op`, `Schedule` and the keys that planned and measured spans share.

A `Schedule` holds one program (a tuple of `Op`s) for each *pipeline rank*; a tensor-parallel group walks one program
together, and each data-parallel replica has its own pipeline ranks. Structural edges (which F needs which RECV) are
derived, never stored. A pipeline rank may hold several stages (model chunks, "virtual stages"); between two stages of
the same rank the tensor is handed over in place, without SEND and RECV. Micro-batch ids are global: with plain data
parallelism replica r of dp owns the ids congruent to r modulo dp, and pipeline rank `replica * pp + place` walks that
replica's program of that place (`traits.place` gives the place of each stage). Where stages have different numbers of
replicas, micro-batch i of a step goes to replica i modulo r of every stage with r (`round_robin`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from parallel_core.schedule.traits import Sync


class Kind(IntEnum):
    """What an operation does. The number is stored in span columns: never renumber, only append."""

    F = 0  # forward
    R = 1  # recompute the forward from the kept stage input, just before BW
    B = 2  # gradient of the input only
    W = 3  # gradient of the weights only
    BW = 4  # both
    SEND_ACT = 5
    RECV_ACT = 6
    SEND_GRAD = 7
    RECV_GRAD = 8
    ALLREDUCE = 9  # gradients over the replicas of a stage
    REDUCE_SCATTER = 10  # the same, each replica gets its shard (ZeRO)
    GATHER = 11  # parameters that the other replicas updated (ZeRO)
    STASH = 12
    DROP = 13
    OPT_STEP = 14
    OFFLOAD = 15
    RELOAD = 16
    FREE = 17
    PAIR = 18  # a forward and a backward walked together (DualPipe)
    # Kinds below occur in measured spans only, never in a program.
    STEP = 32  # the whole step, from the first to the last instant
    DATA = 33  # reading the batch
    TP_COLLECTIVE = 34  # child of a compute operation: a tensor-parallel collective
    NORM = 35  # the global gradient norm and the loss: a collective
    SETUP = 36  # zeroing gradients and the like
    BUCKET = 37  # one asynchronous gradient bucket in flight, overlapping backward
    UNSHARD = 38  # child of a compute operation: a layer's parameters gathered from the replicas (ZeRO-3)
    STATISTICS = 39  # child of a compute operation: batch-norm statistics over all replicas
    TP_FLIGHT = 40  # a TP_COLLECTIVE behind computation: from its begin to where the wait for it starts
    UNSHARD_FLIGHT = 41  # an UNSHARD behind computation, likewise; one on a stream of its own as a whole
    BUCKET_WAIT = 42  # child of a compute operation: the wait for a gradient bucket (ZeRO-2, ZeRO-3)
    BUCKET_FLIGHT = 43  # a gradient bucket behind computation: from its begin to where the BUCKET_WAIT starts


MEASURED_ONLY = frozenset(kind for kind in Kind if kind >= Kind.STEP)
"""Kinds of measured spans that are no operation of a program."""
COMPUTE = frozenset({Kind.F, Kind.R, Kind.B, Kind.W, Kind.BW, Kind.PAIR})
SENDS = frozenset({Kind.SEND_ACT, Kind.SEND_GRAD})
RECVS = frozenset({Kind.RECV_ACT, Kind.RECV_GRAD})
P2P = SENDS | RECVS
REPLICA_COLLECTIVES = frozenset({Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.GATHER})
INSIDE = frozenset({Kind.TP_COLLECTIVE, Kind.UNSHARD, Kind.STATISTICS, Kind.BUCKET_WAIT})
"""Collectives inside a compute operation."""
FLIGHT = {
    Kind.TP_COLLECTIVE: Kind.TP_FLIGHT,
    Kind.UNSHARD: Kind.UNSHARD_FLIGHT,
    Kind.BUCKET_WAIT: Kind.BUCKET_FLIGHT,
}
"""Collectives inside a compute operation that may run behind computation -> their flights."""
FLIGHTS = frozenset({Kind.BUCKET, *FLIGHT.values()})
"""Collectives in flight while their rank computes."""
COLLECTIVES = REPLICA_COLLECTIVES | INSIDE | FLIGHTS | {Kind.NORM}


AHEAD = 2
"""Receives that the engine posts at once on each link: all it needs to hide transfers behind computation."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of one pipeline rank. `micro_batch` = -1 for operations of the whole step.

    `stage` is the stage the operation belongs to; `peer` is the pipeline rank at the other end of a SEND/RECV.
    `version` identifies a weight version by the number of micro-batches whose gradients it holds (0 under flush): the
    one that compute uses, that ALLREDUCE and OPT_STEP make, that STASH keeps or DROP frees. A PAIR is the forward of
    (`stage`, `micro_batch`) and the BW of `partner` = (stage, micro-batch), a different micro-batch, so that neither
    depends on the other.
    """

    kind: Kind
    stage: int
    micro_batch: int = -1
    replica: int = 0
    version: int = 0
    peer: int = -1
    partner: tuple[int, int] | None = None

    def parts(self) -> tuple[Op, ...]:
        """The forward and the backward of a PAIR, which can run in this order; of any other operation itself."""
        if self.partner is None:
            return (self,)
        stage, micro_batch = self.partner
        forward = Op(Kind.F, self.stage, self.micro_batch, self.replica, self.version)
        return forward, Op(Kind.BW, stage, micro_batch, self.replica, self.version)

    def __str__(self) -> str:
        """Stage, kind, micro-batch, e.g. `2F0`, `3SEND_ACT1`; a PAIR is `(0F5;3BW1)PAIR`."""
        if self.partner is not None:
            return f"({';'.join(map(str, self.parts()))})PAIR"
        tail = "" if self.micro_batch < 0 else str(self.micro_batch)
        return f"{self.stage}{self.kind.name}{tail}"


def other_end(op: Op) -> tuple[Kind, int, int]:
    """(kind, stage, micro-batch) of the RECV for a SEND, of the SEND for a RECV."""
    step = 1 if op.kind in (Kind.SEND_ACT, Kind.RECV_GRAD) else -1
    kind = {
        Kind.SEND_ACT: Kind.RECV_ACT,
        Kind.RECV_ACT: Kind.SEND_ACT,
        Kind.SEND_GRAD: Kind.RECV_GRAD,
        Kind.RECV_GRAD: Kind.SEND_GRAD,
    }[op.kind]
    return kind, op.stage + step, op.micro_batch


Program = tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline schedule for one step, or for a stream of several. `programs[q]` is walked by pipeline rank q.

    `placement[s]` lists the pipeline ranks that hold a replica of stage s, in replica order. `micro_batches` counts
    over all replicas and steps; a step has `per_step` of them (0: all of them are one step).
    """

    name: str
    stages: int
    micro_batches: int
    placement: tuple[tuple[int, ...], ...]
    programs: tuple[Program, ...]
    sync: Sync = "flush"
    vertical: bool = False
    per_step: int = 0

    @property
    def pipeline_ranks(self) -> int:
        return len(self.programs)

    @property
    def replicas(self) -> int:
        """Replicas of the first stage (every stage has as many in a rectangular layout)."""
        return len(self.placement[0])

    def home(self, stage: int, micro_batch: int) -> int:
        """The replica of `stage` that runs `micro_batch`, forward and backward: in turn, restarting with each step."""
        return self.in_step(micro_batch)[1] % len(self.placement[stage])

    def in_step(self, micro_batch: int) -> tuple[int, int]:
        """(first micro-batch of its step, its number within that step); also for a version."""
        own = micro_batch % (self.per_step or max(self.micro_batches, 1))
        return micro_batch - own, own
