"""Proves that a schedule is valid; an invalid one is rejected with its grid and the wrong cell marked.

Done for a custom schedule where a spec is read (`schedule.custom`), for one that a trace is recovered as, and by the
command `schedule`. Those that `schedule` makes by name are proven by the tests, on drawn sizes; a run does not check
them again.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator

from parallel_core.schedule.check_versions import check_versions
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import COMPUTE, P2P, REPLICA_COLLECTIVES, SENDS, Kind, Op, Program, Schedule

_AT_THE_END = REPLICA_COLLECTIVES | {Kind.OPT_STEP}
Link = tuple[int, int, bool]
"""Sending and receiving pipeline rank, and whether activations (or gradients) are sent."""


def check(schedule: Schedule) -> None:
    """Raises ScheduleError unless the schedule is valid:

    1. every operation is on the pipeline rank that holds its stage and replica;
    2. every (stage, micro-batch) has one forward and one backward, forward first; B comes before W;
    3. the input of a compute operation is received (or made on the same rank) before it, its output sent after it;
    4. sends and receives match one to one and in the same order on both ends of every link;
    5. under flush all weight versions are 0, gradients are reduced and the optimizer steps once, at the end; otherwise
       as in `check_versions`;
    6. it has no deadlock.

    What the engine must do for 4 and 6 to hold: activations and gradients from one rank to another are two links, each
    first in, first out (where stages go there and back, as in a V, the order between the two differs at both ends). A
    rank blocks only in RECV and in replica collectives. SEND returns at once, and its tensor is kept until the receive
    is posted, however many are in flight: a transfer may be a rendezvous, as with gloo. Receives are posted in program
    order, each at the latest when the rank reaches it.
    """
    for prove in (_placed, _once, _fed, _paired, _ends, check_versions):
        prove(schedule)
    terminates(schedule, Walk(schedule))


def _parts(program: Program) -> Iterator[tuple[int, Op]]:
    """Every operation with its position; the two halves of a PAIR one after the other."""
    return ((i, part) for i, op in enumerate(program) for part in op.parts())


def _placed(schedule: Schedule) -> None:
    """Point 1 of `check`."""
    for rank, program in enumerate(schedule.programs):
        for i, op in _parts(program):
            if not 0 <= op.stage < schedule.stages or not 0 <= op.replica < len(schedule.placement[op.stage]):
                raise ScheduleError(f"{op} names a stage or replica that does not exist.", schedule, rank, i)
            home = schedule.placement[op.stage][op.replica]
            if home != rank:
                raise ScheduleError(f"{op} of replica {op.replica} belongs on rank {home}.", schedule, rank, i)


def _once(schedule: Schedule) -> None:
    """Point 2 of `check`."""
    for stage, ranks in enumerate(schedule.placement):
        for replica, rank in enumerate(ranks):
            wanted = [i for i in range(schedule.micro_batches) if schedule.home(stage, i) == replica]
            _once_on(schedule, stage, rank, dict.fromkeys(wanted))


def _once_on(schedule: Schedule, stage: int, rank: int, wanted: Collection[int]) -> None:
    program = schedule.programs[rank]
    state: dict[int, set[Kind]] = defaultdict(set)
    forwards = {op.micro_batch for _, op in _parts(program) if (op.kind, op.stage) == (Kind.F, stage)}
    for i, op in _parts(program):
        if op.stage != stage or op.kind not in COMPUTE:
            continue
        seen = state[op.micro_batch]
        if op.micro_batch not in wanted:
            raise ScheduleError(f"{op} is not a micro-batch of this replica.", schedule, rank, i)
        if op.kind in seen:
            raise ScheduleError(f"{op} happens twice.", schedule, rank, i)
        if Kind.BW in {op.kind, *seen} and {Kind.B, Kind.W} & {op.kind, *seen}:
            whole, *parts = (f"{stage}{kind.name}{op.micro_batch}" for kind in (Kind.BW, Kind.B, Kind.W))
            why = f"{whole} is the whole backward; write it alone, or {parts[0]} and {parts[1]} instead."
            raise ScheduleError(why, schedule, rank, i)
        if op.kind is not Kind.F and Kind.F not in seen:
            why = "comes before its forward" if op.micro_batch in forwards else "has no forward"
            raise ScheduleError(f"{op} {why}.", schedule, rank, i)
        if op.kind is Kind.W and Kind.B not in seen:
            raise ScheduleError(f"{op} comes before the gradient of its input.", schedule, rank, i)
        seen.add(op.kind)
    for micro_batch in wanted:
        seen = state[micro_batch]
        if Kind.F not in seen:
            raise ScheduleError(f"{stage}F{micro_batch} is missing.", schedule, rank, len(program))
        if Kind.BW not in seen and not {Kind.B, Kind.W} <= seen:
            missing = Kind.W if Kind.B in seen else Kind.BW
            raise ScheduleError(f"{stage}{missing.name}{micro_batch} is missing.", schedule, rank, len(program))


def _fed(schedule: Schedule) -> None:
    """Point 3 of `check`: every edge between stages has its RECV (on the same rank: its producer) before its consumer,
    and its SEND after its producer."""
    for rank, program in enumerate(schedule.programs):
        at = {(op.kind, op.stage, op.micro_batch): i for i, op in _parts(program)}
        for i, op in _parts(program):
            if op.kind not in (Kind.F, Kind.B, Kind.BW):
                continue
            forward = op.kind is Kind.F
            step = 1 if forward else -1
            recv, send = (Kind.RECV_ACT, Kind.SEND_ACT) if forward else (Kind.RECV_GRAD, Kind.SEND_GRAD)
            if _local(schedule, op, -step) and _made_at(at, op, -step) >= i:
                raise ScheduleError(f"{op} comes before stage {op.stage - step} made its input.", schedule, rank, i)
            if _remote(schedule, op, -step) and at.get((recv, op.stage, op.micro_batch), i) >= i:
                raise ScheduleError(f"{op} has no {recv.name} before it.", schedule, rank, i)
            if _remote(schedule, op, step) and at.get((send, op.stage, op.micro_batch), i) <= i:
                raise ScheduleError(f"{op} has no {send.name} after it.", schedule, rank, i)


def _remote(schedule: Schedule, op: Op, step: int) -> bool:
    """Whether the stage `step` away exists and is on another rank."""
    return 0 <= op.stage + step < schedule.stages and not _local(schedule, op, step)


def _local(schedule: Schedule, op: Op, step: int) -> bool:
    """Whether the stage `step` away exists and is on the same rank."""
    stage = op.stage + step
    if not 0 <= stage < schedule.stages:
        return False
    home = schedule.placement[stage][schedule.home(stage, op.micro_batch)]
    return home == schedule.placement[op.stage][op.replica]


def _made_at(at: dict[tuple[Kind, int, int], int], op: Op, step: int) -> int:
    """Position at which the stage `step` away makes the input of `op`; beyond all positions if it does not."""
    makers = (Kind.F,) if op.kind is Kind.F else (Kind.B, Kind.BW)
    return min((at[key] for kind in makers if (key := (kind, op.stage + step, op.micro_batch)) in at), default=1 << 60)


def _paired(schedule: Schedule) -> None:
    """Point 4 of `check`."""
    sent, received = _traffic(schedule, sends=True), _traffic(schedule, sends=False)
    for link in sorted({*sent, *received}):
        ours, theirs = sent.get(link, []), received.get(link, [])
        for (i, what), (j, expected) in zip(ours, theirs, strict=False):
            if what != expected:
                send, recv = schedule.programs[link[0]][i], schedule.programs[link[1]][j]
                text = f"{recv} on rank {link[1]} meets {send} of rank {link[0]}: sends and receives differ in order."
                raise ScheduleError(text, schedule, link[1], j)
        if len(ours) > len(theirs):
            i = ours[len(theirs)][0]
            raise ScheduleError(f"{schedule.programs[link[0]][i]} is never received.", schedule, link[0], i)
        if len(theirs) > len(ours):
            j = theirs[len(ours)][0]
            raise ScheduleError(f"{schedule.programs[link[1]][j]} is never sent.", schedule, link[1], j)


def _traffic(schedule: Schedule, sends: bool) -> dict[Link, list[tuple[int, tuple[int, int]]]]:
    """For each link the (position, (receiving stage, micro-batch)) of its messages in program order, at one end."""
    out: dict[Link, list[tuple[int, tuple[int, int]]]] = defaultdict(list)
    for rank, program in enumerate(schedule.programs):
        for i, op in enumerate(program):
            if op.kind not in P2P or (op.kind in SENDS) != sends:
                continue
            if not 0 <= op.peer < schedule.pipeline_ranks:
                raise ScheduleError(f"{op} names rank {op.peer}, which does not exist.", schedule, rank, i)
            forward = op.kind in (Kind.SEND_ACT, Kind.RECV_ACT)
            target = op.stage + (1 if forward else -1) if sends else op.stage
            ends = (rank, op.peer) if sends else (op.peer, rank)
            out[*ends, forward].append((i, (target, op.micro_batch)))
    return out


def _ends(schedule: Schedule) -> None:
    """Point 5 of `check`, under flush: ALLREDUCE if there are replicas, then OPT_STEP, once a stage, after all its
    compute.

    A stage with REDUCE_SCATTER has a GATHER after OPT_STEP, on all replicas; without a pipeline possibly on none, where
    layers gather when they run (ZeRO-3).
    """
    if schedule.sync != "flush":
        return
    everywhere = {op.kind for program in schedule.programs for op in program}
    for rank, program in enumerate(schedule.programs):
        _unversioned(schedule, rank)
        last = {op.stage: i for i, op in _parts(program) if op.kind in COMPUTE}
        count = Counter((op.kind, op.stage) for op in program)
        for stage, after in last.items():
            wanted = [Kind.ALLREDUCE, Kind.OPT_STEP] if len(schedule.placement[stage]) > 1 else [Kind.OPT_STEP]
            if count[Kind.REDUCE_SCATTER, stage]:
                wanted = [Kind.REDUCE_SCATTER, Kind.OPT_STEP, Kind.GATHER]
                wanted = wanted if schedule.stages > 1 or Kind.GATHER in everywhere else wanted[:2]
            found = [op.kind for op in program[after:] if op.stage == stage and op.kind in _AT_THE_END]
            if found != wanted or any(count[kind, stage] != 1 for kind in wanted):
                names = " then ".join(kind.name for kind in wanted)
                raise ScheduleError(f"stage {stage} must end with {names}, once.", schedule, rank, after)


def _unversioned(schedule: Schedule, rank: int) -> None:
    for i, op in _parts(schedule.programs[rank]):
        if op.version:
            raise ScheduleError(f"{op} uses weight version {op.version} under flush.", schedule, rank, i)


def terminates(schedule: Schedule, walk: Walk) -> None:
    """Raises ScheduleError if `walk` deadlocks."""
    if stuck := walk.stuck():
        waits = "; ".join(map(walk.waiting, stuck))
        raise ScheduleError(f"deadlock: {waits}.", schedule, stuck[0], walk.at[stuck[0]])


class Walk:
    """All ranks walking their programs under the rules of `check`, point 6."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.at = [0] * schedule.pipeline_ranks
        self.sent: Counter[Link] = Counter()
        self.received: Counter[Link] = Counter()
        self.reached: dict[tuple[Kind, int, int], set[int]] = defaultdict(set)
        self._ready = deque(range(schedule.pipeline_ranks))
        self._stopped = set[int]()

    def stuck(self) -> list[int]:
        """Walks until no rank can advance; returns the ranks that are not at their end."""
        while self._ready:
            rank = self._ready.popleft()
            self.advance(rank)
            self._stopped.add(rank)
        return [rank for rank, program in enumerate(self.schedule.programs) if self.at[rank] < len(program)]

    def waiting(self, rank: int) -> str:
        """What a blocked rank waits for, in words."""
        op = self.schedule.programs[rank][self.at[rank]]
        others = self.schedule.placement[op.stage] if op.kind in REPLICA_COLLECTIVES else [op.peer]
        return f"rank {rank} waits in {op} for rank {', '.join(str(other) for other in others if other != rank)}"

    def advance(self, rank: int) -> None:
        """Walks `rank` until it has to wait."""
        program = self.schedule.programs[rank]
        while self.at[rank] < len(program) and self.may_pass(rank, program[self.at[rank]]):
            self.at[rank] += 1

    def may_pass(self, rank: int, op: Op) -> bool:
        """Whether `rank` can go on beyond `op`; records what `op` sends, receives or joins, and resumes the ranks that
        may have waited for that."""
        forward = op.kind in (Kind.SEND_ACT, Kind.RECV_ACT)
        if op.kind in SENDS:
            self.sent[rank, op.peer, forward] += 1
            self.resume((op.peer,))
        elif op.kind in P2P:
            link = (op.peer, rank, forward)
            if self.received[link] >= self.sent[link]:
                return False
            self.received[link] += 1
        elif op.kind in REPLICA_COLLECTIVES:
            return self._joined(rank, op)
        return True

    def _joined(self, rank: int, op: Op) -> bool:
        """Whether all replicas have reached the collective `op`; the last to reach it resumes the others."""
        here, group = self.reached[op.kind, op.stage, op.version], self.schedule.placement[op.stage]
        if rank not in here:
            here.add(rank)
            if len(here) == len(group):
                self.resume(group)
        return len(here) == len(group)

    def resume(self, ranks: Iterable[int]) -> None:
        """Lets those of `ranks` that have stopped try again."""
        again = self._stopped.intersection(ranks)
        self._stopped -= again
        self._ready.extend(again)
