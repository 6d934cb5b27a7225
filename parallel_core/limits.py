"""Upper bounds of user-set numbers, in one place so that form, API and spec show the same ones."""

from __future__ import annotations

MAX_STEPS = 10_000_000
MAX_MICRO_BATCHES = 4_096
MAX_GLOBAL_BATCH = 1_048_576
MAX_NAME = 120
MAX_LAYERS = 1_024
MAX_HIDDEN = 131_072
MAX_SEQ = 1_048_576
MAX_VOCAB = 4_194_304
MAX_WIDTH = 1_024
MAX_IMAGE = 1_024
MAX_DEGREE = 16_384
MAX_KEPT = 1_000
MAX_STAGES = MAX_LAYERS + 2
"""Most entries of a list by stage or by layer: embedding and head are layers, too."""
MAX_BYTES = 1 << 60
"""Largest number of bytes that anything is capped at."""
MAX_CORPUS_BYTES = 200 * 1024 * 1024
"""Largest corpus that may be uploaded, in bytes."""
MAX_TRACE_BYTES = 1024 * 1024 * 1024
"""Most bytes of the files of one uploaded trace."""
MAX_PROFILED = 16
"""Most steps, and most named ranks, of a run that torch.profiler looks at."""
MAX_PROFILE_BYTES = 32 * 1024 * 1024
"""Largest trace of a step of a rank that is kept, packed."""
MAX_PROMPT = 100_000
"""Longest prompt of a run that generates text, in tokens."""
MAX_FAULTS = 16
"""Most faults that a run is broken with."""
MAX_PROGRAM = 512 * 1024
"""Longest schedule of one's own, in characters of CSV."""
