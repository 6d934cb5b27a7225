"""The meanings of names in a torch.profiler trace: tables of patterns, of which the first match counts.

Sources: PyTorch's own annotations (`ProfilerStep#`, `Optimizer.step#`, `enumerate(DataLoader)`,
`autograd::engine::evaluate_function: `), NCCL's and Gloo's operation names, torch.distributed.pipelining's
`PP:<stage><F|B|I|W><micro-batch>`, `PP:(<forward>;<backward>)OVERLAP_F_B`, `PP:<stage><SEND|RECV>_<F|B><micro-batch>`
and `Forward <i>`, and this engine's operations as text (`1F3`, `1RECV_GRAD3`) with the annotations inside them (`NORM`,
`RECOMPUTE`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_COMPUTE, LANE_HOST, LANE_P2P
from parallel_core.schedule.ir import Kind

STEP = re.compile(r"ProfilerStep#(\d{1,9})(?!\d)")
"""The step number must fit a 32-bit database column: longer numbers do not match."""
_STAGE, _MICRO_BATCH = r"(\d{1,4})", r"(\d{1,9})"
"""Numbers that fit the columns of SPAN rows (16 and 32 bits): a name with longer ones has no meaning."""
_OWN = re.compile(rf"(?:PP:)?{_STAGE}(F|BW|B|I|W){_MICRO_BATCH}")
_MESSAGE = re.compile(rf"(?:PP:)?{_STAGE}(SEND|RECV)_(ACT|GRAD|F|B){_MICRO_BATCH}")
_UPDATE = re.compile(r"\d+OPT_STEP")
_SUMS = re.compile(r"\d+(ALLREDUCE|REDUCE_SCATTER|GATHER)|NORM|TP_COLLECTIVE|UNSHARD|BUCKET_WAIT|STATISTICS")
NORM = "NORM"
"""Annotation of the collective in which all ranks meet before an update."""
_PAIR = re.compile(rf"(?:PP:)?\({_STAGE}F{_MICRO_BATCH};{_STAGE}B{_MICRO_BATCH}\)OVERLAP_F_B")
_PASS = re.compile(rf"(Forward|Backward)(?:_| ){_MICRO_BATCH}")


class Meaning(NamedTuple):
    """The meaning of an event. `stage` and `micro_batch` are -1 where the name has none. A PAIR is the forward of these
    and the backward of `back_stage` and `back_micro_batch`."""

    kind: Kind
    lane: int
    stage: int = -1
    micro_batch: int = -1
    back_stage: int = -1
    back_micro_batch: int = -1


_COMMUNICATION = (
    (
        # First: the kernel SendRecv also carries out collectives, which then stand behind its name.
        re.compile(r"all_?reduce|all_?gather|all_?to_?all|broadcast|reduce|gather|scatter|barrier|wait_tensor", re.I),
        Meaning(Kind.BUCKET, LANE_COLLECTIVE),
    ),
    (re.compile(r"\b(i?send)\b|nccl:send|gloo:send|Send(?!Recv)", re.I), Meaning(Kind.SEND_ACT, LANE_P2P)),
    (
        re.compile(r"\b(i?recv(AnySource|_any_source)?)_?\b|nccl:recv|gloo:recv|SendRecv", re.I),
        Meaning(Kind.RECV_ACT, LANE_P2P),
    ),
)
_LIBRARY = re.compile(r"^(nccl|gloo|_?c10d|mpi|ucc)|^void nccl|record_param_comms", re.I)
GRAPH = "GraphLaunch"
"""Part of the names of calls that launch a graph of kernels."""
LAUNCH = re.compile(rf"Launch\w*Kernel|{GRAPH}")
_OPTIMIZER_KERNEL = re.compile(r"multi_tensor_apply|fused_?(adam|sgd|lamb(?!da))|(?<![a-z])lamb(?!da)", re.I)
"""Demangled names of other kernels are full of `{lambda()#1}`."""
GEMM = re.compile(
    r"gemm|cutlass|cublas|xmma|nvjet|wgmma|::(mm|bmm|addmm|baddbmm|matmul|linear)$|^(mm|addmm|bmm|baddbmm|linear)backward|^_(column|row)(backward)?$|convolution|cudnn",
    re.I,
)
ATTENTION = re.compile(r"flash|fmha|sdpa|scaled_dot_product|attention", re.I)


def communication(name: str) -> Meaning | None:
    """Returns the meaning of an operation or kernel of a communication library; None for any other."""
    if not _LIBRARY.search(name):
        return None
    return next((meaning for words, meaning in _COMMUNICATION if words.search(name)), None)


def marker(name: str) -> Meaning | None:
    """Returns what everything inside this event belongs to; None where the name has no meaning."""
    if name.startswith(("Optimizer.step", "Optimizer.zero_grad")):
        return Meaning(Kind.OPT_STEP if "step" in name else Kind.SETUP, LANE_HOST)
    if _UPDATE.fullmatch(name):
        return Meaning(Kind.OPT_STEP, LANE_HOST)
    if name.startswith("enumerate(DataLoader)"):
        return Meaning(Kind.DATA, LANE_HOST)
    if name.startswith("CheckpointFunctionBackward"):
        return Meaning(Kind.R, LANE_COMPUTE)
    if name.startswith("autograd::engine::evaluate_function"):
        return Meaning(Kind.BW, LANE_COMPUTE)
    return _annotation(name)


def _annotation(name: str) -> Meaning | None:
    if own := _OWN.fullmatch(name):
        kinds = {"F": Kind.F, "BW": Kind.BW, "B": Kind.BW, "I": Kind.B, "W": Kind.W}
        return Meaning(kinds[own[2]], LANE_COMPUTE, int(own[1]), int(own[3]))
    if pair := _PAIR.fullmatch(name):
        return Meaning(Kind.PAIR, LANE_COMPUTE, *map(int, pair.groups()))
    if sent := _MESSAGE.fullmatch(name):
        return Meaning(_SENT[sent[2], sent[3] in ("ACT", "F")], LANE_P2P, int(sent[1]), int(sent[4]))
    if _SUMS.fullmatch(name):
        return Meaning(Kind.BUCKET, LANE_COLLECTIVE)
    if half := _PASS.fullmatch(name):
        return Meaning(Kind.F if half[1] == "Forward" else Kind.BW, LANE_COMPUTE, -1, int(half[2]))
    if name.lower() in _PLAIN:
        kind = _PLAIN[name.lower()]
        return Meaning(kind, LANE_HOST if kind in _OF_HOST else LANE_COMPUTE)
    return None


_SENT = {
    ("SEND", True): Kind.SEND_ACT,
    ("SEND", False): Kind.SEND_GRAD,
    ("RECV", True): Kind.RECV_ACT,
    ("RECV", False): Kind.RECV_GRAD,
}
_PLAIN = {
    "forward": Kind.F,
    "backward": Kind.BW,
    "optimizer": Kind.OPT_STEP,
    "recompute": Kind.R,
    "data": Kind.DATA,
    "setup": Kind.SETUP,
}
_OF_HOST = (Kind.OPT_STEP, Kind.DATA, Kind.SETUP)


def of_kernel(name: str) -> Meaning | None:
    """Returns the meaning of a device kernel by its own name; None where it has none."""
    if _OPTIMIZER_KERNEL.search(name):
        return Meaning(Kind.OPT_STEP, LANE_HOST)
    return communication(name)


def family(name: str) -> str:
    """Returns the group that an operation counts to: communication, matrix products, attention, other."""
    own = _annotation(name)
    if communication(name) or (own and own.lane in (LANE_P2P, LANE_COLLECTIVE)):
        return "communication"
    if ATTENTION.search(name):  # before products: such kernels are made of parts of CUTLASS and cuDNN
        return "attention"
    return "matrix products" if GEMM.search(name) else "other"
