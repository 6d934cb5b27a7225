"""Trainyard's training engine, without the dashboard.

    python -m parallel_core --help                     # its commands
    from parallel_core.spec import RunSpec             # what is trained, and how it is split
    from parallel_core.local import LocalRunner        # trains it on this host
    from parallel_core.outcome import Outcome          # reads what a run has recorded
    from parallel_core import schedule                 # what each rank of a pipeline does

docs/engine.md ("As a library") has examples. Nothing is imported here: most of the engine does without torch.
"""
