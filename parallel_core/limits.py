"""Upper bounds of numbers set by users, in one place so that form, API and spec use the same ones."""

from __future__ import annotations

MAX_STEPS = 10_000_000
MAX_MICRO_BATCHES = 4_096
MAX_GLOBAL_BATCH = 1_048_576
MAX_HELD_OUT = 65_536
MAX_NAME = 120
MAX_LAYERS = 1_024
MAX_HIDDEN = 131_072
MAX_SEQ = 1_048_576
MAX_VOCAB = 4_194_304
MAX_WIDTH = 1_024
MAX_IMAGE = 1_024
MAX_CHANNELS = 64
MAX_CLASSES = 65_536
MAX_DEGREE = 16_384
MAX_KEPT = 1_000
MAX_LOSS_SCALE = 2.0**100
"""Largest initial loss scale; fp32, in which the loss is scaled, holds numbers up to 2.0**128."""
MAX_STAGES = MAX_LAYERS + 2
"""Most entries of a list by stage or by layer: embedding and head count as layers."""
MAX_MINUTES = 366 * 24 * 60
"""Longest time limit of a run, in minutes: a year."""
NOT_FINITE_STEPS = 5
"""Number of steps in a row whose loss is not finite after which a run ends (`train.stop_on_nan`)."""
NO_PROGRESS_S = 60.0
"""Default number of seconds without progress of any rank after which a run is considered stuck."""
MAX_BYTES = 1 << 60
"""Upper bound of any number of bytes."""
MAX_CORPUS_BYTES = 200 * 1024 * 1024
"""Largest corpus that may be uploaded, in bytes."""
MAX_TRACE_BYTES = 1024 * 1024 * 1024
"""Most bytes of the files of one uploaded trace."""
MAX_PROFILED = 16
"""Most steps, and most ranks given by number, that torch.profiler records in a run."""
MAX_PROFILE_BYTES = 32 * 1024 * 1024
"""Largest compressed trace of a step of a rank that is kept, in bytes."""
MAX_PROMPT = 100_000
"""Longest prompt of a run that generates text, in tokens."""
MAX_FAULTS = 16
"""Most faults injected into a run."""
DROPOUT_STEPS = 2**16
"""Dropout probabilities are multiples of 1 / this: masks are drawn from 16-bit integers (models.dropout)."""
MAX_PROGRAM = 512 * 1024
"""Longest custom schedule, in characters of CSV."""
SPOOL_BYTES = 2 << 30
"""Bytes that records may take on a host's disk unless it is told otherwise; above them spans go (observe.spool)."""
