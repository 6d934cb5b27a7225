"""`python -m parallel_core schedule`: what every pipeline rank does in one step."""

from __future__ import annotations

import argparse

from parallel_core.cli.common import CommandError, Subparsers, add_command, add_spec, read_spec, require_few

MOST_PRINTED = 131_072
"""Most operations of a schedule that is printed, which takes some seconds."""
STREAMED = 3
"""Steps shown of a pipeline that never flushes: one to fill it, one that is full, one to drain it."""


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    command = add_command(commands, "schedule", "print what every pipeline rank does in one step", "examples/pp2.json")
    add_spec(command)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="compute alone, one row a rank, as PyTorch spells it")
    form.add_argument("--json", action="store_true", help="every operation of every rank")
    command.set_defaults(run=_schedule)


def _schedule(options: argparse.Namespace) -> int:
    from parallel_core import schedule
    from parallel_core.schedule import table, text
    from parallel_core.schedule.check import check
    from parallel_core.simulate.picture import caption, picture

    spec = read_spec(options.spec)
    require_few(spec, MOST_PRINTED, "print")
    made = schedule.build(spec, 1 if spec.parallel.flushes else STREAMED)
    check(made)
    if options.csv or options.json:
        try:
            print((table.to_csv if options.csv else table.to_json)(made).rstrip())
        except table.TableError as error:
            raise CommandError(f"--csv: {error}") from error
    else:
        print(f"{picture(made)}\n{caption(made)}\n\n{text.grid(made)}")
    return 0
