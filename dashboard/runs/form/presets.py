"""Starting points of the New run form. Each is a valid RunSpec (a test checks all of them)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parallel_core.schedule.custom import EXAMPLE

TINY = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 256}
GPT2_SMALL = {"layers": 12, "hidden": 768, "heads": 12, "seq": 1024, "vocab": 50304, "tied": True}
GPT2_MEDIUM = {"layers": 24, "hidden": 1024, "heads": 16, "seq": 1024, "vocab": 50304, "tied": True}
FAMILY = "Tiny GPT"
ONE, DATA, TENSOR = "One device", "Data parallel", "Tensor parallel"
PIPELINE, STREAM, PRODUCT = "Pipeline", "Pipeline, no flush", "Products"
"""Families of a tiny GPT, whose name the page shows once."""
OTHERS = "Other models"


@dataclass(frozen=True)
class Preset:
    """`blurb` says in a few words why one would choose it; presets of one `family` are shown together."""

    key: str
    family: str
    title: str
    blurb: str
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def begin(self) -> str:
        """The first part of the title, which the page shows once for a family; '' for other models."""
        return self.title[: -len(self.short)]

    @property
    def short(self) -> str:
        """The title among presets of the same model."""
        return self.title.removeprefix(f"{FAMILY}, ")


def _tiny(**parallel: Any) -> dict[str, Any]:
    return {"model": TINY, "parallel": parallel, "train": {"global_batch": 16}}


def _pipelined(schedule: str, **more: Any) -> dict[str, Any]:
    return _tiny(pp=2, schedule=schedule, micro_batches=8, **more)


def _in(precision: str) -> dict[str, Any]:
    return {"model": TINY, "parallel": {}, "train": {"global_batch": 16, "precision": precision}}


def _streamed(schedule: str, **more: Any) -> dict[str, Any]:
    """Without a flush stages update by themselves, so each clips its own gradients."""
    tiny = _pipelined(schedule, **more)
    return tiny | {"train": tiny["train"] | {"clip": "stage"}}


def _llama(**parallel: Any) -> dict[str, Any]:
    llama = {"positions": "rope", "norm": "rmsnorm", "activation": "swiglu", "kv_heads": 2, "bias": False}
    return {"model": {**TINY, **llama}, "parallel": parallel, "train": {"global_batch": 16}}


def _gpt2(model: dict[str, Any], **parallel: Any) -> dict[str, Any]:
    return {"model": model, "parallel": parallel, "train": {"global_batch": 8, "device": "cuda"}}


def _digits(kind: str, model: dict[str, Any], train: dict[str, Any], **parallel: Any) -> dict[str, Any]:
    return {"model": {"kind": kind, **model}, "parallel": parallel, "train": {"global_batch": 32, **train}}


def _sgd(lr: float, weight_decay: float, **more: Any) -> dict[str, Any]:
    """SGD with momentum 0.9, as in the papers of both models, and in PipeDream's runs of them."""
    return {"optimizer": "sgd", "lr": lr, "weight_decay": weight_decay, **more}


VGG16 = _digits("vgg16", {}, _sgd(1e-2, 5e-4), pp=2, micro_batches=4)
"""Rate and decay as in Simonyan and Zisserman 2015, section 3.1."""
RESNET50 = _digits("resnet50", {}, _sgd(1e-2, 1e-4, clip_norm=None), dp=2)
"""He et al. 2016 begin at a rate of 0.1 with 256 samples, which is about a hundredth with 32. It is not clipped, as
there: within a norm of 1, as with AdamW, its loss hardly falls in these few steps."""


GNMT = {
    "model": {"kind": "gnmt", "layers": 2, "hidden": 128, "seq": 24, "vocab": 2048},
    "parallel": {"pp": 2, "micro_batches": 4},
    "train": {"global_batch": 32, "lr": 1e-3},
}

PRESETS = (
    Preset("tiny", ONE, "Tiny GPT, 1 device", "0.9 M parameters; a step in well under a second", _tiny()),
    Preset("recompute", ONE, "Tiny GPT, full AR", "activations of every block recomputed", _tiny(recompute="full")),
    Preset(
        "selective",
        ONE,
        "Tiny GPT, selective AR",
        "plain attention; its s × s matrices recomputed",
        _tiny(recompute="selective") | {"model": {**TINY, "attention": "plain"}},
    ),
    Preset(
        "some-layers",
        ONE,
        "Tiny GPT, AR of layers 0, 2",
        "every other block recomputed: half of the saving and of the cost",
        _tiny(recompute="full", recompute_layers=(0, 2)),
    ),
    Preset("fp64", ONE, "Tiny GPT, fp64", "64 bits, to compare splits with hardly any rounding", _in("fp64")),
    Preset("bf16", ONE, "Tiny GPT, bf16", "16-bit activations, fp32 master weights", _in("bf16")),
    Preset(
        "fp16", ONE, "Tiny GPT, fp16", "16-bit activations, fp32 master weights, a loss scale that adapts", _in("fp16")
    ),
    Preset("dp2", DATA, "Tiny GPT, DP 2", "two replicas, gradients all-reduced", _tiny(dp=2)),
    Preset("dp2-zero1", DATA, "Tiny GPT, DP 2 + ZeRO-1", "replicas share the optimizer's state", _tiny(dp=2, zero=1)),
    Preset(
        "dp2-zero2",
        DATA,
        "Tiny GPT, DP 2 + ZeRO-2",
        "replicas share the gradients, too: each keeps what it updates",
        _tiny(dp=2, zero=2, micro_batches=2),
    ),
    Preset(
        "dp2-zero3",
        DATA,
        "Tiny GPT, DP 2 + ZeRO-3",
        "replicas share the parameters, too, gathered while a layer works",
        _tiny(dp=2, zero=3),
    ),
    Preset(
        "dp2-fully-shard",
        DATA,
        "Tiny GPT, DP 2 + ZeRO-3 by fully_shard",
        "the same sharding by PyTorch's FSDP2, to compare with ours",
        _tiny(dp=2, zero=3, zero_backend="fully_shard"),
    ),
    Preset("tp2", TENSOR, "Tiny GPT, TP 2", "every layer split over two devices", _tiny(tp=2)),
    Preset(
        "tp2-columns",
        TENSOR,
        "Tiny GPT, TP 2 by columns",
        "no layer split by rows: outputs are gathered, twice the bytes",
        _tiny(tp=2, tensor_split="columns"),
    ),
    Preset(
        "tp2-sp",
        TENSOR,
        "Tiny GPT, TP 2 + sequence parallel",
        "norms, dropout and residual sums split by tokens, too",
        _tiny(tp=2, sequence=True),
    ),
    Preset(
        "naive2",
        PIPELINE,
        "Tiny GPT, naive layer-wise",
        "two stages, one busy at a time",
        _tiny(pp=2, schedule="naive"),
    ),
    Preset(
        "pp2-gpipe-ar",
        PIPELINE,
        "Tiny GPT, GPipe + AR",
        "two stages, activations recomputed",
        _pipelined("gpipe", recompute="full"),
    ),
    Preset("pp2", PIPELINE, "Tiny GPT, PP 2 (1F1B)", "two stages, 8 micro-batches", _pipelined("1f1b")),
    Preset(
        "pp2-early",
        PIPELINE,
        "Tiny GPT, 1F1B, early gradients",
        "gradients are sent on before those of the stage's weights are computed",
        _pipelined("1f1b", early_gradients=True),
    ),
    Preset(
        "pp2-tied",
        PIPELINE,
        "Tiny GPT, 1F1B, tied embeddings",
        "first and last stage sum the gradient of one matrix",
        _pipelined("1f1b") | {"model": {**TINY, "tied": True}},
    ),
    Preset(
        "pp2-interleaved",
        PIPELINE,
        "Tiny GPT, interleaved 1F1B",
        "two stages on each rank, half the bubble",
        _pipelined("interleaved"),
    ),
    Preset(
        "pp2-looped-bfs",
        PIPELINE,
        "Tiny GPT, looped BFS",
        "two stages on each rank, all micro-batches through one before the next",
        _pipelined("looped-bfs"),
    ),
    Preset(
        "pp2-zb-h1",
        PIPELINE,
        "Tiny GPT, zero bubble (ZB-H1)",
        "weight gradients put off into the bubble",
        _pipelined("zb-h1"),
    ),
    Preset(
        "pp2-zb-h2",
        PIPELINE,
        "Tiny GPT, zero bubble (ZB-H2)",
        "more micro-batches in flight, and no bubble but the flush",
        _pipelined("zb-h2"),
    ),
    Preset(
        "pp2-zb-v",
        PIPELINE,
        "Tiny GPT, zero bubble (ZB-V)",
        "four stages laid as a V on two ranks",
        _pipelined("zb-v"),
    ),
    Preset(
        "pp2-v-half", PIPELINE, "Tiny GPT, V-Half", "the V with about half of the activations", _pipelined("v-half")
    ),
    Preset(
        "pp2-v-min", PIPELINE, "Tiny GPT, V-Min", "the V with about a third of the activations", _pipelined("v-min")
    ),
    Preset(
        "pp2-dualpipe-v",
        PIPELINE,
        "Tiny GPT, DualPipe-V",
        "forward of one micro-batch with backward of another",
        _pipelined("dualpipe-v"),
    ),
    Preset(
        "pp2-own",
        PIPELINE,
        "Tiny GPT, own schedule",
        "a CSV in PyTorch's spelling, to change",
        _tiny(pp=2, schedule="custom", micro_batches=4, program=EXAMPLE),
    ),
    Preset(
        "pp2-no-stash",
        STREAM,
        "Tiny GPT, 1F1B, no stash",
        "backward with newer weights than forward: what stashing prevents",
        _streamed("1f1b-naive"),
    ),
    Preset(
        "pp2-stash",
        STREAM,
        "Tiny GPT, PipeDream (1F1B, stashed)",
        "no flush; older weights kept for what is under way",
        _streamed("1f1b-stash"),
    ),
    Preset(
        "pp2-vertical",
        STREAM,
        "Tiny GPT, PipeDream, vertical sync",
        "no flush; one version of the weights on all stages",
        _streamed("1f1b-vertical"),
    ),
    Preset(
        "pp2-2bw",
        STREAM,
        "Tiny GPT, PipeDream-2BW",
        "no flush, two weight versions, one update a step",
        _streamed("1f1b-2bw"),
    ),
    Preset(
        "replicas21",
        STREAM,
        "Tiny GPT, PipeDream 2-1",
        "two replicas of the first stage, one of the second",
        _streamed("1f1b-stash", replicas=(2, 1)),
    ),
    Preset("dp2tp2", PRODUCT, "Tiny GPT, DP 2 × TP 2", "four devices", _tiny(dp=2, tp=2)),
    Preset(
        "meshes",
        PRODUCT,
        "Tiny GPT, 2 × 1 then 1 × 2",
        "two replicas of the first stage, two tensor ranks of the second",
        _tiny(pp=2, replicas=(2, 1), widths=(1, 2), micro_batches=4),
    ),
    Preset(
        "llama", OTHERS, "Tiny Llama, DP 2", "RoPE, RMSNorm, SwiGLU, grouped-query attention, no biases", _llama(dp=2)
    ),
    Preset(
        "mlp", OTHERS, "MLP on digits, DP 2", "four layers of 512", _digits("mlp", {"hidden": 512}, {"lr": 1e-3}, dp=2)
    ),
    Preset("vgg16", OTHERS, "VGG-16 on digits, PP 2", "two stages, SGD with momentum", VGG16),
    Preset(
        "resnet50", OTHERS, "ResNet-50 on digits, DP 2", "batch norm over both replicas, SGD with momentum", RESNET50
    ),
    Preset("gnmt", OTHERS, "GNMT on Django, PP 2", "Django's messages, English to German; LSTMs in two stages", GNMT),
    Preset(
        "gpt2-small", OTHERS, "GPT-2 small, 1 GPU", "124 M parameters, 12 × 768", _gpt2(GPT2_SMALL, micro_batches=2)
    ),
    Preset(
        "gpt2-medium",
        OTHERS,
        "GPT-2 medium, PP 2 on GPUs",
        "355 M parameters, 24 × 1024, recomputed",
        _gpt2(GPT2_MEDIUM, pp=2, micro_batches=4, recompute="full"),
    ),
)
BY_KEY = {preset.key: preset for preset in PRESETS}
