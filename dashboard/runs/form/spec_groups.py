"""The fields of New run in their groups: an `Entry` for each leaf of RunSpec, with its label and a hint."""

from __future__ import annotations

from dashboard.runs.form import break_it
from dashboard.runs.form.entry import Entry, Group

GROUPS = (
    Group(
        "model",
        "Model",
        (
            Entry("model.kind", "Model"),
            Entry("model.layers", "Layers", "of a GPT: blocks of attention and MLP"),
            Entry("model.hidden", "Hidden size"),
            Entry("model.heads", "Attention heads", "divides the hidden size"),
            Entry("model.seq", "Sequence length", "tokens"),
            Entry("model.vocab", "Vocabulary", "256 reads bytes"),
            Entry("model.width", "Channels at first", "64 in the papers"),
            Entry("model.image", "Image side", "pixels; empty: the least the model takes"),
            Entry("model.channels", "Image channels", "1: grey, 3: coloured"),
            Entry("model.classes", "Classes", "digits have 10"),
        ),
    ),
    Group(
        "architecture",
        "Architecture in detail",
        (
            Entry("model.tied", "Tie embedding and head"),
            Entry("model.kv_heads", "Key and value heads", "divides the heads; empty: as many"),
            Entry("model.ffn", "MLP width", "empty: 4 × hidden, 8/3 × for SwiGLU"),
            Entry("model.positions", "Positions"),
            Entry("model.rope_base", "RoPE base"),
            Entry("model.activation", "Activation"),
            Entry("model.norm", "Normalisation"),
            Entry("model.attention", "Attention"),
            Entry("model.bias", "Biases in linear layers"),
            Entry("model.dropout", "Dropout"),
        ),
        folded=True,
    ),
    Group(
        "parallel",
        "Parallelism",
        (
            Entry("parallel.dp", "Data parallel", "replicas; divides the batch"),
            Entry("parallel.tp", "Tensor parallel", "divides heads and vocabulary"),
            Entry("parallel.tensor_split", "Tensor split", "of a block: pairs send least, columns gather every output"),
            Entry("parallel.sequence", "Sequence parallel: norms and dropout are split by tokens, too"),
            Entry("parallel.pp", "Pipeline stages"),
            Entry("parallel.schedule", "Pipeline schedule"),
            Entry(
                "parallel.early_gradients", "Early gradients: sent on before those of the stage's weights are computed"
            ),
            Entry("parallel.replicas", "Replicas of each stage", "where they differ, e.g. 2, 1; empty: data parallel"),
            Entry("parallel.widths", "Tensor ranks of each stage", "where they differ, e.g. 1, 2"),
            Entry("parallel.micro_batches", "Micro-batches", "for each replica"),
            Entry("parallel.chunks", "Model chunks", "stages on each rank; empty: the schedule's own"),
            Entry(
                "parallel.program",
                "Own schedule",
                "CSV as PyTorch spells it, a row for each rank; or JSON of the Schedules page",
            ),
            Entry("parallel.recompute", "Activation recomputation"),
            Entry("parallel.recompute_layers", "Layers that recompute", "e.g. 0, 1; empty: all"),
            Entry("parallel.zero", "ZeRO stage"),
            Entry("parallel.zero_backend", "Parameters are sharded by", "of untied models"),
            Entry(
                "parallel.cuts",
                "Stage cuts",
                "first part of each later stage, e.g. 3, 6 (Layout lists the parts); empty: balanced by FLOPs",
            ),
        ),
    ),
    Group(
        "train",
        "Training",
        (
            Entry("train.device", "Device kind"),
            Entry("train.corpus", "Corpus", "files in workers' data folders are offered, too"),
            Entry("train.weights", "Begin from", "Llama weights of a worker"),
            Entry("train.global_batch", "Global batch", "samples a step"),
            Entry("train.steps", "Steps"),
            Entry("train.warmup_steps", "Warm-up steps", "not timed"),
            Entry("train.lr", "Learning rate"),
            Entry("train.precision", "Precision"),
            Entry("train.seed", "Seed"),
        ),
    ),
    Group(
        "fine",
        "Optimizer and tracing",
        (
            Entry("train.lr_schedule", "Learning-rate schedule"),
            Entry("train.lr_warmup_steps", "Steps of rate warm-up", "the learning rate rises over them"),
            Entry("train.lr_final", "Rate at the end", "share of the learning rate to which it falls"),
            Entry("train.optimizer", "Optimizer"),
            Entry("train.momentum", "Momentum", "of SGD; 0 keeps no state"),
            Entry("train.weight_decay", "Weight decay", "of SGD added to the gradient, as in torch.optim.SGD"),
            Entry("train.beta1", "AdamW β₁"),
            Entry("train.beta2", "AdamW β₂"),
            Entry("train.eps", "AdamW ε"),
            Entry("train.clip_norm", "Clip gradient norm", "empty: no clipping"),
            Entry("train.clip", "Norm that is clipped"),
            Entry("train.loss_scale", "First loss scale"),
            Entry("train.loss_scale_window", "Loss scale grows after", "good steps in a row"),
            Entry("train.loss_scale_growth", "Loss scale growth"),
            Entry("train.loss_scale_backoff", "Loss scale back-off", "when gradients overflow"),
            Entry("train.deterministic", "Deterministic algorithms"),
            Entry("train.eval_every", "Evaluate held-out loss every", "steps; 0 never does"),
            Entry("train.eval_samples", "Held-out samples", "the last of the corpus, never trained on"),
            Entry(
                "train.checkpoint_every", "Checkpoint every", "steps; 0 saves only when stopped or at its time limit"
            ),
            Entry("train.keep", "Checkpoints kept", "the newest, and that of the lowest held-out loss"),
            Entry("train.max_minutes", "Time limit", "minutes of training, then it saves and ends; 0: none"),
            Entry("train.other_data", "Go on although the corpus has changed: its file was exchanged on purpose"),
            Entry("train.stop_on_nan", "End it when the loss stays NaN: broken weights are not saved"),
            Entry("trace.trace_every", "Trace every", "steps; 0 traces one step only"),
            Entry("trace.fingerprint_every", "Compare replicas every", "steps, bit by bit; 0 never does"),
            Entry("trace.memory_cap", "Memory cap, MiB a rank", "empty: the device's own limit"),
            Entry("trace.memory", "Measure memory"),
            Entry(
                "trace.reference",
                "Measure the devices' pace",
                "a fixed computation between the steps, 4 % of their time",
            ),
            Entry("trace.profile_steps", "Steps for torch.profiler", "e.g. 12, 20; they take longer; empty: none"),
            Entry("trace.profile_ranks", "Ranks for torch.profiler", "e.g. 0, 1; empty: all"),
        ),
        folded=True,
    ),
    break_it.group(),
)
