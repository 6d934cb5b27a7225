"""Texts of the Strategies page on each way to split a model, with the publication that introduced it.

n devices, Psi parameters of b bytes each (parameter, gradient and optimizer state together), a model of L layers, width
h, sequences of s tokens, micro-batches of size B in elements of 2 or 4 bytes, m micro-batches, p stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Card:
    """A strategy. `split` = its ParallelSpec on four devices, {} = one device, None = nothing that one run could show.

    `seen` = beginnings of the labels of runs that used it (whole labels of schedules); `preset` = the preset that opens
    New run with it.
    """

    key: str
    title: str
    idea: str
    holds: str
    sends: str
    waits: str
    memory: str
    traffic: str
    source: str
    good: str
    bad: str
    split: dict[str, Any] | None = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    seen: tuple[str, ...] = ()
    preset: str = ""


CARDS: tuple[Card, ...] = (
    Card(
        "naive",
        "Naive layer-wise",
        "Layers are dealt out to devices; the whole batch goes through one device after the other.",
        "Each device holds its layers alone, and the activations of the whole batch for them.",
        "Activations to the next device, gradients back: one boundary tensor each way.",
        "All but one device wait at any time.",
        "Ψ b / n",
        "2 B s h a boundary",
        "Huang et al. 2019, section 2.3: the starting point that GPipe improves on",
        "A model that does not fit on one device, and nothing else to try.",
        "Speed: n devices do the work of one.",
        {"pp": 4, "schedule": "naive"},
        seen=("Naive layer-wise",),
        preset="naive2",
    ),
    Card(
        "dp",
        "Data parallel",
        "Every device holds the whole model and works on its share of the batch.",
        "Everything: parameters, gradients and optimizer state; activations of its share of the batch.",
        "Gradients, summed over all devices once a step.",
        "For the slowest device, and for what of the all-reduce backward does not hide.",
        "Ψ b + activations / n",
        "2 (n − 1)/n Ψ gradient elements a device and step",
        "Li et al. 2020, section 3.2; ring: Patarasuk and Yuan 2009",
        "A model that fits, many samples a step, a fast network.",
        "Large models: n devices hold the same state n times.",
        {"dp": 4},
        seen=("DP",),
        preset="dp2",
    ),
    Card(
        "zero",
        "ZeRO-1 and 2",
        "Data parallel, but each replica keeps only its part of the optimizer's state (ZeRO-1) and gradients (ZeRO-2).",
        "Whole parameters; 1/n of optimizer states and master weights; gradients whole, or 1/n and two buckets.",
        "Gradients are scattered as sums (ZeRO-2: once a micro-batch), updated parameters gathered.",
        "As data parallel; the gather comes after the optimizer.",
        "ZeRO-1: Ψ (2 + 2 + 12/n) bytes in mixed precision; ZeRO-2: Ψ (2 + 14/n)",
        "2 (n − 1)/n Ψ elements, as plain data parallel; ZeRO-2: (m + 1)(n − 1)/n Ψ",
        "Rajbhandari et al. 2020, sections 5.1 and 7.2",
        "Adam's state is the largest part of memory.",
        "Activations: it saves none.",
        {"dp": 4, "zero": 1},
        seen=tuple(f"DP{n} + ZeRO-{stage}" for stage in (1, 2) for n in ("", " 2", " 4")),
        preset="dp2-zero1",
    ),
    Card(
        "zero3",
        "ZeRO-3",
        "Data parallel, but nothing is held twice: a layer's parameters are gathered when it works, then let go.",
        "1/n of parameters, gradients, optimizer states and master weights; the layer that works whole.",
        "Each layer's parameters before its forward and its backward, its gradients once a micro-batch.",
        "For each layer's gather, inside forward and backward.",
        "Ψ (16/n) bytes in mixed precision",
        "3 m (n − 1)/n Ψ elements, half as much again as plain data parallel at m = 1",
        "Rajbhandari et al. 2020, sections 5.3 and 7.2.2",
        "A model whose parameters alone do not fit; long sequences or many samples a micro-batch.",
        "Many micro-batches: every one gathers all parameters twice.",
        {"dp": 4, "zero": 3},
        seen=tuple(f"DP{n} + ZeRO-3{by}" for n in ("", " 2", " 4") for by in ("", " (fully_shard)")),
        preset="dp2-zero3",
    ),
    Card(
        "tp",
        "Tensor parallel",
        "Each matrix is cut: columns of the first of a pair, rows of the second, so that a pair needs one sum.",
        "1/n of nearly all matrices; norms and the tensors between layers whole.",
        "An all-reduce of B s h for each attention and MLP, forward and backward; by columns more, as below.",
        "In every layer, for the slowest of the group.",
        "Ψ b / n + activations that are not split",
        "4 L all-reduces of B s h a micro-batch: 8 L B s h (n − 1)/n elements on a ring",
        "Shoeybi et al. 2019 (arXiv 1909.08053), section 3: pairs need no synchronisation between two matrices",
        "Devices with very fast links, wide layers, small batches.",
        "Slow links: it talks 4 times a layer and nothing hides it.",
        {"tp": 4},
        seen=("TP",),
        preset="tp2",
    ),
    Card(
        "tp-columns",
        "Tensor parallel by columns",
        "Every matrix is cut by columns, so that the second of two must gather what the first one made.",
        "1/n of nearly all matrices, as in pairs; what second matrices take, whole.",
        "A gather before and after each second matrix; back, a scatter for each, and an all-reduce a layer.",
        "As tensor parallel, twice as often.",
        "As tensor parallel, and (B s h + B s f)(1 − 1/n) elements a block",
        "(8 + 2 f/h) L B s h (n − 1)/n elements a micro-batch on a ring: twice those of pairs where f = 4 h",
        "Shoeybi et al. 2019 (arXiv 1909.08053), section 3, what their pairs avoid",
        "Seeing what the pairs are for: run both, and compare their timelines.",
        "Everything else: the same sums, more bytes and more memory.",
        {"tp": 4, "tensor_split": "columns"},
        seen=("TP by columns", "TP 2 by columns", "TP 4 by columns"),
        preset="tp2-columns",
    ),
    Card(
        "sp",
        "Sequence parallel",
        "Beside tensor parallel: between the cut matrices each device keeps some rows only.",
        "As tensor parallel, and 1/n of inputs, norms and dropout masks.",
        "A reduce-scatter and a gather where tensor parallel has an all-reduce: the same bytes.",
        "As tensor parallel.",
        "34 s B h / n bytes a layer in 16 bits, without the attention matrix",
        "As tensor parallel, and one gather more in each backward",
        "Korthikanti et al. 2022, section 4.2.2, table 2",
        "Activations are what does not fit, in addition to tensor parallel.",
        "Nothing, where the links are fast enough for tensor parallel at all.",
        {"tp": 4, "sequence": True},
        seen=("TP + SP", "TP 2 + SP", "TP 4 + SP"),
        preset="tp2-sp",
    ),
    Card(
        "gpipe",
        "GPipe",
        "Stages in a line; all micro-batches forward, then all backward, then one update.",
        "Its stage; activations of all m micro-batches.",
        "A boundary tensor a micro-batch each way.",
        "At fill and drain: (p − 1)/(m + p − 1) of the step.",
        "Ψ b / p + m micro-batches of activations",
        "2 m B s h a boundary",
        "Huang et al. 2019, sections 2.2 and 2.3",
        "Slow links, many micro-batches, recomputation to pay for their memory.",
        "Memory: it keeps every micro-batch.",
        {"pp": 4, "schedule": "gpipe", "micro_batches": 8},
        seen=("PP-GPipe",),
        preset="pp2-gpipe-ar",
    ),
    Card(
        "1f1b",
        "1F1B",
        "As soon as a micro-batch comes back, its backward goes first: one forward, one backward.",
        "Its stage; at most p − i micro-batches on stage i.",
        "As GPipe.",
        "As GPipe: the same bubble.",
        "Ψ b / p + at most p micro-batches of activations",
        "2 m B s h a boundary",
        "Narayanan et al. 2019 (PipeDream), section 3.2; with a flush: 2021b, section 2.2",
        "Deep models over slow links; the default of large runs.",
        "Few micro-batches: (p − 1)/m of the work is idle time.",
        {"pp": 4, "micro_batches": 8},
        seen=("PP-1F1B",),
        preset="pp2",
    ),
    Card(
        "pipedream",
        "PipeDream",
        "1F1B without a flush: each stage updates after every backward, and keeps the weights that a forward has seen.",
        "Its stage, and a version of its weights for each micro-batch under way.",
        "As 1F1B.",
        "Nobody, once the pipeline is full.",
        "Ψ b / p + (p − i − 1) more copies of the weights of stage i",
        "2 m B s h a boundary",
        "Narayanan et al. 2019, sections 3.1 to 3.3; two versions at most: Narayanan et al. 2021a (PipeDream-2BW)",
        "Few micro-batches, where a flush would cost most.",
        "Gradients are of older weights: p − i − 1 updates old on stage i; the loss may need more samples.",
        {"pp": 4, "schedule": "1f1b-stash", "micro_batches": 8},
        train={"clip": "stage"},
        seen=("PP-1F1B async, stashed", "PP-1F1B async, no stash", "PP-1F1B async, vertical sync", "PP-2BW"),
        preset="pp2-stash",
    ),
    Card(
        "interleaved",
        "Interleaved 1F1B",
        "Each device holds v smaller stages, so fill and drain are v times shorter.",
        "v stages of 1/(v p) of the layers.",
        "v times the messages of 1F1B, the last stage of a round back to the first device.",
        "(p − 1)/(v m) of the work.",
        "Ψ b / p + a little more than 1F1B",
        "2 v m B s h a device",
        "Narayanan et al. 2021b (PTD-P), section 2.2.2",
        "Fast links between stages and few micro-batches.",
        "Slow links: the bubble shrinks, the messages grow.",
        {"pp": 4, "schedule": "interleaved", "micro_batches": 8},
        seen=("PP-Interleaved", "PP-Looped BFS"),
        preset="pp2-interleaved",
    ),
    Card(
        "zero-bubble",
        "Zero bubble",
        "Backward is two operations; gradients of weights wait for nobody, so they fill the drain.",
        "As 1F1B (H1); ZB-V lays two stages a device as a V and keeps as much.",
        "As 1F1B (H1); ZB-V, drawn here, twice as many: two stages a device.",
        "H1: (p − 1) forwards; ZB-V: nothing but the optimizer's barrier, if the three times are equal.",
        "Ψ b / p + p micro-batches of activations",
        "2 m B s h a boundary",
        "Qi et al. 2024a, sections 2 and 3; 2024b, section 3",
        "Pipelines whose drain is long.",
        "Where B and W are not alike, or one fused backward is faster than two halves.",
        {"pp": 4, "schedule": "zb-v", "micro_batches": 8},
        seen=("PP-ZB-H1", "PP-ZB-H2", "PP-ZB-V", "PP-V-Half", "PP-V-Min", "PP-DualPipe-V"),
        preset="pp2-zb-v",
    ),
    Card(
        "ar",
        "Activation recomputation",
        "A block keeps its input alone and runs forward again before its backward; or only the attention core does.",
        "One input a block instead of everything inside; selective: all but the attention core.",
        "As without; tensor parallel repeats its forward sums.",
        "Nobody waits: each device works up to a third longer.",
        "Full: 2 s B h a layer in 16 bits; selective: 34 s B h",
        "As without",
        "Chen et al. 2016; Korthikanti et al. 2022, section 5",
        "Activations do not fit, or a larger micro-batch pays for the extra forward.",
        "Memory is free: then it only costs time.",
        {"recompute": "full"},
        {"attention": "plain"},
        seen=("Single + AR", "Single + selective AR"),
        preset="selective",
    ),
    Card(
        "3d",
        "DP × TP × PP",
        "Tensor parallel inside a host, pipeline across hosts, data parallel over what is left.",
        "1/(t p) of the model; its share of the batch.",
        "Layer sums in the host, boundaries between hosts, gradients over replicas.",
        "As each of the three.",
        "Ψ b / (t p)",
        "Each of the three over its own links",
        "Narayanan et al. 2021b (PTD-P), sections 3 and 5",
        "Models of tens of billions of parameters and more.",
        "Small ones: three kinds of overhead at once.",
        {"tp": 2, "pp": 2, "micro_batches": 8},
        seen=("DP 2 x", "TP 2 x", "DP 4 x"),
        preset="dp2tp2",
    ),
    Card(
        "alpa",
        "Alpa",
        "No strategy of its own: a search over stages, their devices and, inside a stage, how each matrix is cut. "
        "Drawn is one such plan: two replicas of stage 0, two tensor ranks of stage 1.",
        "What the plan says; stages may differ in their degrees.",
        "What the plan says.",
        "As little as the search finds.",
        "A limit of the search, not its result",
        "A cost of the search",
        "Zheng et al. 2022, sections 4 and 5",
        "Models whose layers differ much from each other.",
        "Uniform transformers, where the even split is near the best.",
        {"pp": 2, "replicas": [2, 1], "widths": [1, 2], "micro_batches": 8},
        seen=("PP-1F1B 2-1 x TP", "PP-1F1B 1-2 x TP", "TP 2-1", "TP 1-2"),
        preset="meshes",
    ),
)
