"""`--help` of each command: what it does, what each option means, its default, and an example that is taken."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from parallel_core.cli import main
from parallel_core.cli.common import PROGRAM
from parallel_core.cli.entry import _parser


def commands() -> dict[str, argparse.ArgumentParser]:
    (choices,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    return choices


@pytest.mark.parametrize("name", commands())
def test_each_option_says_what_it_is_and_its_default(name: str) -> None:
    for action in commands()[name]._actions:
        said = action.help or ""
        assert said, f"{action.dest} has no help"
        if action.default not in (None, False, "", argparse.SUPPRESS, []):
            assert "(default: " in said, f"{action.dest}: {action.default} is not named as its default"
            told = re.search(r"\(default: ([^,)]*)", said % {"default": action.default})
            assert told is not None and told[1] == str(action.default).removesuffix(".0")


@pytest.mark.parametrize("name", commands())
def test_the_help_ends_with_examples_that_are_taken(name: str) -> None:
    lines = [line.strip() for line in commands()[name].format_help().partition("\nexample")[2].splitlines()[1:]]
    assert lines
    for line in lines:
        assert line.startswith(f"{PROGRAM} {name}")
        _parser().parse_args(shlex.split(line.removeprefix(PROGRAM)))


def test_the_list_of_commands_says_what_an_exit_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["--help"])
    said = capsys.readouterr().out
    assert [int(code) for code in re.findall(r"^  (\d+) ", said, re.MULTILINE)] == [0, 1, 2, 130, 141]


def test_without_a_command_all_of_them_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and all(f"\n    {name} " in err or f"\n    {name}\n" in err for name in commands())
