"""Traces of jobs that were not launched here as SPAN rows: files of torch.profiler (Kineto), one a rank, and steps that
another yard exported, all ranks in one.

    stream -> collect -> kineto -> together
           -> own -> own_job

A file is read as a stream, in bounded memory. What is broken or missing is said; the rest is shown.
"""

EXIT_MEMORY = 3
"""How the process that reads ends where its memory does."""
