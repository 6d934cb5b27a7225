"""The command line of the engine: one module a command, or a few that belong together; `common` is what they share."""

from parallel_core.cli.entry import main

__all__ = ["main"]
