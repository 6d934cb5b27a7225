"""Imports traces of jobs that did not run here as SPAN rows: torch.profiler (Kineto) files, one per rank, and steps
exported by another Trainyard, all ranks in one file.

    stream -> collect -> kineto -> clocks -> job_trace
           -> trainyard_export -> exported_job

Files are read as streams, in bounded memory. What is broken or missing is reported; the rest is shown.
"""
