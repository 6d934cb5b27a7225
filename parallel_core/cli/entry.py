"""The parser of the engine's command line, and its smallest commands: calibrate and bench."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence

from parallel_core.analysis.quantities import plural_text
from parallel_core.atomic_file import NO_SPACE
from parallel_core.cli import fields, fit, images, models, order, partition, plan, profile, schedule, train
from parallel_core.cli.common import PROGRAM, CommandError, add_command
from parallel_core.cli.numbers import target, whole
from parallel_core.cli.output import drop_unread, say
from parallel_core.launch import ServerLost
from parallel_core.observe.cores import cores
from parallel_core.observe.gpus import AmbiguousGpus

EXIT_STATUS = """exit status:
  0    done
  1    a run failed, no plan of `plan` fits, or no layers do in `fit`
  2    the command, a spec, a file or a setting of the environment cannot be used: stderr says why
  130  interrupted: Ctrl-C, SIGTERM or a lost terminal
  141  nobody reads what it prints any more, as after `| head`

`COMMAND --help` explains a command; docs/command-line.md has more, and docs/engine.md how to do it from Python."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0 done, 1 the run failed, 2 command, spec or a
    setting of the environment invalid, 130 interrupted, 141 nobody reads what it prints."""
    parser = _parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)
        return 2
    options = parser.parse_args(arguments)
    try:
        code = int(options.run(options))
        if sys.stdout is not None:  # it was closed from the beginning
            sys.stdout.flush()  # at the end of the process a closed pipe would be reported as an exception
        return code
    except KeyboardInterrupt:
        say("stopped; no process is left", error=True)
        return 130
    except (CommandError, AmbiguousGpus) as error:
        say(str(error), error=True)
        return 2
    except ServerLost as error:
        say(str(error), error=True)
        return 1
    except BrokenPipeError:
        drop_unread()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None and error.errno not in NO_SPACE:  # not about a file that the user named: our bug
            raise
        say(f"{error.filename or 'a file cannot be written'}: {error.strerror}", error=True)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="The training engine, on its own.",
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    train.add(commands)
    fields.add(commands)
    schedule.add(commands)
    calibrate = add_command(
        commands,
        "calibrate",
        "find the model whose step takes 50-200 ms on a device of this host; print it as JSON",
        "",
    )
    calibrate.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="kind of device (default: cpu)")
    calibrate.add_argument("--index", type=whole(0), default=0, help="number of the device (default: 0)")
    calibrate.set_defaults(run=_calibrate)
    profile.add(commands)
    order.add(commands)
    plan.add(commands)
    partition.add(commands)
    fit.add(commands)
    models.add(commands)
    images.add(commands)
    models.add_generate(commands)
    bench = add_command(
        commands, "bench", "measure this engine against PyTorch's own, and what it costs itself", "list", "ddp predict"
    )
    bench.add_argument("names", nargs="*", metavar="name", help="which benchmarks (default: all; 'list' names them)")
    bench.add_argument(
        "--rounds", type=whole(1), default=20, help="turns that each contestant gets, at least (default: 20)"
    )
    bench.add_argument("--json", type=target, metavar="FILE", help="write the results to this file, too")
    bench.set_defaults(run=_bench)
    return parser


def _calibrate(options: argparse.Namespace) -> int:
    from parallel_core.calibrate import CalibrationFailed, calibrate

    if options.device == "cpu" and options.index >= (count := len(cores())):
        raise CommandError(
            f"--index {options.index}: this host has {plural_text(count, 'CPU device')}, numbered from 0"
        )
    try:
        print(json.dumps(calibrate(options.device, options.index)))
    except CalibrationFailed as error:
        print(f"calibration failed: {error}", file=sys.stderr)
        return 1
    return 0


def _bench(options: argparse.Namespace) -> int:
    from parallel_core import bench

    return bench.run(options.names, options.rounds, options.json)
