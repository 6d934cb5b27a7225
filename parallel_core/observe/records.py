"""The records that a rank emits: what each kind of them holds. `observe.record_files` writes and reads them.

Every header has `kind`, `rank` and `t` (unix seconds, float). Kinds and their other keys:

    hello    pid, start_ticks, device, sharing (ranks on this GPU), number (that only ranks on this device of the host
             have; null where it is not bound to one), host, stage, replica, tensor, torch, version (of Trainyard; no
             such key in earlier ones), params (number of this rank's parameters), units [names], waits: true where the
             rank emits `waits`; from rank 0 of a run that trains also reads: {corpus: 16 hexadecimal digits of its
             content, weights: those of the weights, no such key where it begins from none}; of one that generates text
             {weights} or {checkpoint}
    phase    phase: building | warmup | timed | done, step
    points   series: [[name, count], ...]; blob = the POINT rows of the series one after another
    spans    step, count, total (a rank may keep only `count` of `total` spans); blob = `count` SPAN rows;
             clock_within: ns by which its times may differ from those of rank 0 (only on other hosts than rank 0's).
             waits: true where the rank emits `waits`, else no such key.
             In a benchmark with turns: step, contestant (its name), without count and total
    omitted  end (offset in the stream at which the next frame begins); blob = OMITTED rows: the steps whose spans
             have been dropped; also in place of `waits`, which have no rows
    waits    steps: number of steps; blob = as many STEP_SUM rows, then WAIT rows (analysis.step_waits); times as in
             spans, with clock_within. Those of the newest steps may come with a later record
    memory   step, peak: {category: bytes at the instant of the peak}, peak_total, rss_delta, final: {category: bytes};
             blob = MEMORY rows (the curve), may be empty
    fault    type, message, traceback, step, op, cause: user_code | out_of_memory | not_finite
    early    done, steps, minutes, saved (whether there is a checkpoint after `done` steps): the run left at its time
             limit (parallel_core.early_end)
    exit     code: the exit code with which the rank is about to end (see launch); its last record unless it is killed
    checkpoint  step (steps done), bytes, seconds (to write it, during training), blocked (seconds for which training
             stopped), kept: [steps of the run's checkpoints that exist], held_out (loss, or null); only from rank 0.
             Emitted again where held_out became known after the save
    left_out  step (steps done), why: a checkpoint that found no room, so that there is none; last: true where the run
             ends there, as it was asked to or has done every step (no such key in earlier versions); only from rank 0
    generated  first (number of tokens of a sample in earlier records), tokens (the new ones of each sample), prefill
             (seconds until the first token), seconds (of each new token except the very first), collective and p2p
             (of those seconds, the ones in tensor-parallel collectives and in messages between stages; no such keys in
             earlier versions), kv_bytes (of this rank): emitted a few times a second, after hello, by ranks that
             generate text
    links    software, device (cpu | cuda), links: rows of profile.curves.Link; from rank 0 of a run that times messages
             between two hosts
    profile  step, part, of, size; blob = piece `part` of `of` of the rank's gzipped Chrome trace of that step (`size`
             bytes in all); of = 0: it was too large to keep
    profile  of a profiling rank (profile.ranks), by `about`:
             device: name, torch; layers: row (profile.table.Layers), reference, paces; bytes: rows;
             fixed: busy, curves, reference; crowd: tp, ratio; own_shards: row, busy, reference;
             link: row (profile.curves.Link); fully_sharded: row
    snapshot  step, part, of, size as for profile; blob = piece of the CUDA allocator's history over that step
             (observe.snapshot)
    turns    seconds, cpu: {contestant: [seconds of each timed step]}, losses: {contestant: [that of each step, null
             where this rank does not know it]}, live: {contestant: bytes}; from the ranks of a benchmark with turns
             (bench.turns)
    summary  steps, timed: {median, p10, p90, mean, n} (seconds a step, this rank), cpu_others (share 0..1 of the
             device time of the timed steps that processes other than the ranks of this run used), other_processes
             (how many such processes were on one of the run's GPUs as the timed steps began or ended; null where the
             driver does not tell, and on CPUs), params_total,
             fingerprint: {step, checks, seconds (median of a check), parameters, samples} (see engine.fingerprint; the
             last two are 16 hexadecimal digits; no such key where nothing was compared),
             staleness: {mean, max} (updates by which this stage's gradients were late; no such key under flush),
             reference: {seconds, times, company, alone} (processor seconds of the reference work between the timed
             steps, and how often it was done; its time with all ranks at work relative to that on this rank's device
             alone, and how often that was measured: engine.reference_probe; no such keys where they were not),
             peak: {flops_per_s (of all devices of the run), source (of this rank's peak), devices (how many were
             counted: ranks that share a GPU or a core count as one; no such key in earlier versions, which summed over
             ranks)}, null without timed steps;
             of a rank that generates text only cpu_others and other_processes, over prefill and tokens, of its own
             device
"""

from __future__ import annotations

import numpy as np

POINT = np.dtype([("step", "<i4"), ("time", "<f8"), ("value", "<f8")])
"""One metric point: step, unix seconds, value."""

SPAN = np.dtype(
    [
        ("kind", "u1"),  # schedule.ir.Kind
        ("lane", "u1"),  # LANES
        ("stage", "<i2"),
        ("micro_batch", "<i4"),
        ("replica", "<i2"),
        ("version", "<i4"),
        ("start", "<i8"),  # ns, CLOCK_MONOTONIC of rank 0's host
        ("end", "<i8"),
        ("bytes", "<i8"),
    ]
)
OMITTED = np.dtype([("step", "<i4"), ("total", "<i4")])
"""A traced step of a rank without its spans: how many the rank had recorded."""

LANES = ("compute", "p2p", "collective", "host")

STEP_SUM = np.dtype(
    [
        ("step", "<i4"),
        ("count", "<u4"),  # WAIT rows of this step
        ("time", "<f8"),  # unix seconds at the end of the step
        ("total", "<i8"),  # ns, as all below
        ("waiting", "<i8"),  # in blocking collectives and RECVs: bubble or communication
        ("exposed", "<i8"),  # other communication that nothing hides
        ("recompute", "<i8"),
    ]
)
"""What a rank knows of its step without the others, see analysis.step_waits."""
WAIT = np.dtype([("kind", "u1"), ("stage", "<i2"), ("micro_batch", "<i4"), ("start", "<i8"), ("end", "<i8")])
"""A span in which a rank met another: a send, a receive or a blocking collective, and the flight before one behind
computation. Fields as in SPAN."""

CATEGORIES = ("params", "grads", "optimizer", "activations", "buffers")
"""Memory by category, in the order charts stack them."""

MEMORY = np.dtype([("t", "<i8"), *[(name, "<i8") for name in CATEGORIES]])
"""One point of the memory curve: ns on the span clock, then live bytes of each category."""


# Names of the metric series. Only rank 0 emits the run-level ones; every rank emits RANK_SERIES. Loss scale and skipped
# steps (the number so far) exist only in fp16; mfu and hfu (see analysis.meters) from the first timed step on;
# staleness (mean of the step, in updates) only if the pipeline does not flush. Then each stage has its own loss scale
# and skips its own updates, and the run-level ones are those of the first stage, which overflows of later ones reach.
# cpu_others, a few times a second: the share of this rank's device that other processes used in the timed steps of this
# attempt so far, as that of the summary at its end; an attempt that is cut off has no summary. eval_loss and eval_time
# (seconds, of no step): of the evaluations of held-out samples, after the steps in which there was one.
RUN_SERIES = (
    *("loss", "grad_norm", "step_time", "lr", "tokens_per_s", "tflops", "mfu", "hfu"),
    *("loss_scale", "skipped_steps"),
    *("eval_loss", "eval_time"),
)
SPARSE_SERIES = ("eval_loss", "eval_time")
"""Series that have points in a few steps alone."""
SHARE_SERIES = ("bubble_share", "exposed_share", "recompute_share")
"""Series that no rank emits: computed from what all ranks recorded of a step (analysis.meters). One point for each step
with `waits` records of all ranks; without such records, for each traced step."""
RANK_SERIES = (
    *("rank_step_time", "reference_time", "memory", "cpu_others"),
    *("staleness", "stage_loss_scale", "stage_skipped"),
)
REFERENCE_UNCOUNTED = 2
"""Repeats of the reference work before the one whose time is in `reference_time` (see observe.reference)."""
