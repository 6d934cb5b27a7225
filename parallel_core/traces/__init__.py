"""Traces of jobs that were not launched here: torch.profiler (Kineto) files, one a rank, as this engine's SPAN rows.

    stream -> collect -> kineto -> together

A file is read as a stream, in bounded memory. What is broken or missing is said; the rest is shown.
"""

EXIT_MEMORY = 3
"""How the process that reads ends where its memory does."""
