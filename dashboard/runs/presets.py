"""Starting points of the New run form. Each is a valid RunSpec (a test checks all of them)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TINY = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 256}
GPT2_SMALL = {"layers": 12, "hidden": 768, "heads": 12, "seq": 1024, "vocab": 50304, "tied": True}
GPT2_MEDIUM = {"layers": 24, "hidden": 1024, "heads": 16, "seq": 1024, "vocab": 50304, "tied": True}
FAMILY = "Tiny GPT"


@dataclass(frozen=True)
class Preset:
    """`blurb` says in a few words why one would choose it."""

    key: str
    title: str
    blurb: str
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """What the title begins with where many presets have it in common; '' of the others."""
        return FAMILY if self.title.startswith(f"{FAMILY}, ") else ""

    @property
    def short(self) -> str:
        """The title below its family."""
        return self.title.removeprefix(f"{FAMILY}, ")


def _tiny(**parallel: Any) -> dict[str, Any]:
    return {"model": TINY, "parallel": parallel, "train": {"global_batch": 16}}


def _streamed(schedule: str, **more: Any) -> dict[str, Any]:
    """Stages update on their own, so each clips its own gradients."""
    tiny = _tiny(pp=2, schedule=schedule, micro_batches=8, **more)
    return tiny | {"train": tiny["train"] | {"clip": "stage"}}


def _llama(**parallel: Any) -> dict[str, Any]:
    llama = {"positions": "rope", "norm": "rmsnorm", "activation": "swiglu", "kv_heads": 2, "bias": False}
    return {"model": {**TINY, **llama}, "parallel": parallel, "train": {"global_batch": 16}}


def _gpt2(model: dict[str, Any], **parallel: Any) -> dict[str, Any]:
    return {"model": model, "parallel": parallel, "train": {"global_batch": 8, "device": "cuda"}}


def _digits(kind: str, model: dict[str, Any], **parallel: Any) -> dict[str, Any]:
    return {"model": {"kind": kind, **model}, "parallel": parallel, "train": {"global_batch": 32, "lr": 1e-3}}


GNMT = {
    "model": {"kind": "gnmt", "layers": 2, "hidden": 128, "seq": 24, "vocab": 2048},
    "parallel": {"pp": 2, "micro_batches": 4},
    "train": {"global_batch": 32, "lr": 1e-3},
}

PRESETS = (
    Preset("tiny", "Tiny GPT, 1 device", "0.8 M parameters; a step in well under a second", _tiny()),
    Preset("dp2", "Tiny GPT, DP 2", "two replicas, gradients all-reduced", _tiny(dp=2)),
    Preset("dp2-zero1", "Tiny GPT, DP 2 + ZeRO-1", "replicas share the optimizer's state", _tiny(dp=2, zero=1)),
    Preset(
        "dp2-zero2",
        "Tiny GPT, DP 2 + ZeRO-2",
        "and keep no more of the gradients than they update",
        _tiny(dp=2, zero=2, micro_batches=2),
    ),
    Preset(
        "dp2-zero3",
        "Tiny GPT, DP 2 + ZeRO-3",
        "and gather each layer's parameters only while it works",
        _tiny(dp=2, zero=3),
    ),
    Preset(
        "dp2-fully-shard",
        "Tiny GPT, DP 2 + ZeRO-3 by fully_shard",
        "the same sharding by PyTorch's FSDP2, to hold against ours",
        _tiny(dp=2, zero=3, zero_backend="fully_shard"),
    ),
    Preset("tp2", "Tiny GPT, TP 2", "every layer split over two devices", _tiny(tp=2)),
    Preset(
        "tp2-columns",
        "Tiny GPT, TP 2 by columns",
        "no layer split by rows: outputs are gathered, twice the bytes",
        _tiny(tp=2, tensor_split="columns"),
    ),
    Preset(
        "tp2-sp",
        "Tiny GPT, TP 2 + sequence parallel",
        "norms and residual sums split by rows, too",
        _tiny(tp=2, sequence=True),
    ),
    Preset("pp2", "Tiny GPT, PP 2 (1F1B)", "two stages, 8 micro-batches", _tiny(pp=2, micro_batches=8)),
    Preset(
        "pp2-interleaved",
        "Tiny GPT, interleaved 1F1B",
        "two stages on each rank, half the bubble",
        _tiny(pp=2, schedule="interleaved", micro_batches=8),
    ),
    Preset(
        "pp2-zb-h1",
        "Tiny GPT, zero bubble (ZB-H1)",
        "weight gradients put off into the bubble",
        _tiny(pp=2, schedule="zb-h1", micro_batches=8),
    ),
    Preset(
        "pp2-zb-v",
        "Tiny GPT, zero bubble (ZB-V)",
        "four stages laid as a V on two ranks",
        _tiny(pp=2, schedule="zb-v", micro_batches=8),
    ),
    Preset(
        "pp2-gpipe-ar",
        "Tiny GPT, GPipe + AR",
        "two stages, activations recomputed",
        _tiny(pp=2, schedule="gpipe", micro_batches=8, recompute="full"),
    ),
    Preset(
        "selective",
        "Tiny GPT, selective AR",
        "plain attention; its s × s matrices made again",
        _tiny(recompute="selective") | {"model": {**TINY, "attention": "plain"}},
    ),
    Preset(
        "pp2-stash",
        "Tiny GPT, PipeDream (1F1B, stashed)",
        "no flush; older weights kept for what is under way",
        _streamed("1f1b-stash"),
    ),
    Preset(
        "replicas21",
        "Tiny GPT, PipeDream 2-1",
        "two replicas of the first stage, one of the second",
        _streamed("1f1b-stash", replicas=(2, 1)),
    ),
    Preset(
        "pp2-2bw",
        "Tiny GPT, PipeDream-2BW",
        "no flush, two weight versions, one update a step",
        _streamed("1f1b-2bw"),
    ),
    Preset("naive2", "Tiny GPT, naive layer-wise", "two stages, one busy at a time", _tiny(pp=2, schedule="naive")),
    Preset("dp2tp2", "Tiny GPT, DP 2 × TP 2", "four devices", _tiny(dp=2, tp=2)),
    Preset(
        "meshes",
        "Tiny GPT, 2 × 1 then 1 × 2",
        "two replicas of the first stage, two tensor ranks of the second",
        _tiny(pp=2, replicas=(2, 1), widths=(1, 2), micro_batches=4),
    ),
    Preset("llama", "Tiny Llama, DP 2", "RoPE, RMSNorm, SwiGLU, shared keys, no biases", _llama(dp=2)),
    Preset("mlp", "MLP on digits, DP 2", "four layers of 512", _digits("mlp", {"hidden": 512}, dp=2)),
    Preset("vgg16", "VGG-16 on digits, PP 2", "two stages", _digits("vgg16", {}, pp=2, micro_batches=4)),
    Preset("resnet50", "ResNet-50 on digits, DP 2", "batch norm over both replicas", _digits("resnet50", {}, dp=2)),
    Preset("gnmt", "GNMT on Django, PP 2", "English to German, LSTMs in two stages", GNMT),
    Preset("gpt2-small", "GPT-2 small, 1 GPU", "124 M parameters, 12 × 768", _gpt2(GPT2_SMALL, micro_batches=2)),
    Preset(
        "gpt2-medium",
        "GPT-2 medium, PP 2 on GPUs",
        "355 M parameters, 24 × 1024, recomputed",
        _gpt2(GPT2_MEDIUM, pp=2, micro_batches=4, recompute="full"),
    ),
)
BY_KEY = {preset.key: preset for preset in PRESETS}
