"""Absurd numbers and paths on the command line: the message says what is wrong and what is valid; no stack trace."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest

from parallel_core import local
from parallel_core.checkpoint.manifest import Manifest
from parallel_core.cli import main, models
from parallel_core.cli.common import CommandError
from parallel_core.limits import NO_PROGRESS_S
from parallel_core.observe.cores import cores
from parallel_core.spec import RunSpec


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train s.json --devices -1", "--devices: numbers from 0 on with commas between are needed, as 0,1; got '-1'"),
        ("train s.json --devices 0,x", "got '0,x'"),
        ("bench ddp --rounds 0", "--rounds: a whole number from 1 on is needed; got '0'"),
        ("bench ddp --rounds 1e9", "got '1e9'"),
        ("calibrate --index -2", "--index: a whole number from 0 on"),
        ("fit s.json --cap 0", "--cap: a whole number from 1 on"),
        ("fit s.json --cap 9 --no-progress 0", "--no-progress: a number above 0 is needed; got '0'"),
        ("generate c --prompt x --no-progress -1", "--no-progress: a number above 0 is needed; got '-1'"),
        ("generate c --prompt x --new x", "--new: a whole number from 1 on is needed; got 'x'"),
        ("generate c --prompt x --temperature hot", "--temperature: a number is needed; got 'hot'"),
        ("order s.json --keep nan", "--keep: a number above 0 is needed; got 'nan'"),
        ("order s.json --effort -5", "--effort: a whole number from 1 on"),
        ("plan --devices 0", "--devices: a whole number from 1 on"),
        ("plan --adapters -1", "--adapters: a whole number from 0 on"),
        ("profile s.json --seconds inf", "--seconds: a number above 0 is needed; got 'inf'"),
        ("profile s.json --ranks two", "--ranks: a whole number from 1 to 16384 is needed; got 'two'"),
        ("profile s.json --ranks 20000", "--ranks: a whole number from 1 to 16384 is needed; got '20000'"),
        ("train s.json --text a --corpora b", "--corpora: not allowed with argument --text"),
        ("profile s.json --out nowhere/costs", "--out: there is no folder nowhere to write costs into"),
        ("predict s.json --table t --cut nowhere/s.json", "--cut: there is no folder nowhere"),
        ("order s.json --out /", "--out: a file to write is needed; / is a folder"),
        ("bench ddp --json nowhere/b.json", "--json: there is no folder nowhere"),
        ("import-llama w --out o --seq 0", "--seq: a whole number from 1 on"),
        (f"pack-tokens t --vocab {10**23} --name x --out o", "--vocab: a whole number from 2 to 4194304 is needed"),
    ],
)
def test_a_wrong_number_is_told_what_is_right(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("line", ["fit spec.json --cap 9", "generate saved --prompt x"])
def test_a_run_of_every_command_has_the_limit_that_it_is_given(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    class Runner(nullcontext["Runner"]):
        """In place of a fork server, which takes seconds to begin."""

        def __enter__(self) -> Runner:
            return self

        def run(self, *_: Any, no_progress_s: float, **__: Any) -> NoReturn:
            given.append(no_progress_s)
            raise CommandError("seen")

    spec = RunSpec.model_validate({"model": {"layers": 1, "hidden": 16, "heads": 2, "seq": 128}})
    saved = Manifest(1, 0, 0, spec.model_dump(mode="json"), {}, {})
    for module in (local, models):
        monkeypatch.setattr(module, "LocalRunner", Runner)
    monkeypatch.setattr(models, "checkpoint_of", lambda path: (path, saved))
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(spec.model_dump_json())
    for more in ((), ("--no-progress", "4")):
        assert main([*line.split(), *more]) == 2
    assert given == [NO_PROGRESS_S, 4.0]


@pytest.mark.parametrize("out", ["/proc/none", "spec.json"])
def test_a_folder_that_cannot_be_made_is_named(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text("{}")
    assert main(["train", "spec.json", "--out", out]) == 2
    assert out in (said := capsys.readouterr().err) and "Traceback" not in said


def test_tokens_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["pack-tokens", str(tmp_path / "none.bin"), "--vocab", "9", "--name", "web", "--out", str(tmp_path)]
    assert main(line) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'none.bin'}: No such file or directory\n"


def test_more_ranks_than_a_host_can_bear_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text('{"parallel": {"dp": 16384}, "train": {"global_batch": 16384}}')
    assert main(["train", str(spec), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "parallel.dp x tp x pp makes 16,384 ranks" in said and "at most; use fewer" in said
    assert not (tmp_path / "out").exists()


def test_a_cpu_device_that_is_not_there_is_not_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    count = len(cores())
    assert main(["calibrate", "--index", str(count)]) == 2
    assert f"--index {count}: this host has {count} CPU device" in capsys.readouterr().err


def test_more_ranks_than_a_host_can_bear_are_not_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "examples/pp2.json", "--ranks", "16384"]) == 2
    assert "--ranks makes 16,384 ranks, and the " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--table costs", "--table is of a spec's model; give that spec, too, with --spec"),
        ("--spec examples/pp2.json --json", "--spec takes --table, --cluster, --devices; leave out --json"),
        ("--spec examples/pp2.json --model gpt-1.3b --top 3", "leave out --model, --top"),
        (
            "--spec examples/pp2.json --table t --cluster a100-40",
            "--table takes --spec, --devices; leave out --cluster",
        ),
        ("--serve 8:8 --batch 3", "--serve takes --model, --cluster, --devices; leave out --batch"),
        ("--accuracy --json", "--accuracy takes no other option; leave out --json"),
        ("--json --ask all", "leave out --ask"),
    ],
)
def test_options_of_plan_that_would_change_nothing_are_refused(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *line.split()]) == 2
    told = capsys.readouterr()
    assert said in told.err and not told.out


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (None, "", "s.json cannot be read: No such file or directory"),
        ("[]", "--inject straggler", "An object with named fields is needed."),
        ('{"inject": 5}', "--inject straggler", "inject: A list is needed; got 5."),
        ("{}", "--inject nosuch", "--inject: there is no fault 'nosuch'; there are straggler, "),
        ("{", "", "s.json is no spec: "),
        ('{"train": {"lr": 1, "lr": 2}}', "", "s.json is no spec: 'lr' stands twice in one object"),
    ],
)
def test_what_is_wrong_is_named_the_file_its_content_or_the_option(
    text: str | None, more: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "s.json"
    if text is not None:
        spec.write_text(text)
    assert main(["train", str(spec), *more.split()]) == 2
    assert said in (told := capsys.readouterr().err) and "Errno" not in told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("predict examples/pp2.json --table {odd}", "odd is no cost table:"),
        ("pack-tokens {none} --vocab 10 --name x --out {out}", "none: No such file or directory"),
        ("pack-tokens {empty} --vocab 10 --name x --out {out}", "empty is empty: it has no tokens."),
        ("import-llama {none} --out {out}", "config.json cannot be read: No such file or directory"),
    ],
)
def test_a_file_of_another_kind_ends_no_command_with_a_trace(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("odd", "none", "empty", "out")}
    files["odd"].write_bytes(b"\x89PNG")
    files["empty"].touch()
    assert main([word.format(**files) for word in line.split()]) == 2
    assert said in (told := capsys.readouterr().err) and "Errno" not in told
