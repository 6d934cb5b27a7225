"""Every command in the README and in docs/command-line.md is listed here and run; a new one fails the test until it is
added. What the pages say is checked in test_docs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from parallel_core.cli import main
from parallel_core.spec import RunSpec
from tests.parallel_core.tables import table
from tests.parallel_core.test_llama import put, tensors
from tests.yard_process import ROOT, YardProcess, wait_for

README = (ROOT / "README.md").read_text()
COMMAND_LINE = (ROOT / "docs/command-line.md").read_text()
TABLE = re.findall(r"^\| `(\./run[^`]*)` \|", README, re.MULTILINE)


def fenced(page: str) -> list[str]:
    """Lines of the fenced code blocks, with continued lines joined."""
    blocks = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def commands() -> list[str]:
    """Commands of the fenced blocks and of the table; the block with the folder tree contains none."""
    known = ("./run", "python ", "curl ", "docker ")
    return [" ".join(line.split()) for line in [*fenced(README), *TABLE] if line.startswith(known)]


ENGINE = [c for c in commands() if c.startswith("python ")]
LONG = {
    f"python -m parallel_core {command}"
    for command in (
        "profile examples/pp2.json --out costs",
        "calibrate",
        "bench",
        "train examples/pp2.json --inject straggler:rank=1,factor=3 --out broken",
    )
}
"""Run by `./run test --full` only, because they take half a minute; the code behind them has tests of its own."""
CURL = [c for c in commands() if c.startswith("curl ")]
ELSEWHERE = {
    "./run test": "this very run",
    "./run bench": "bench/test_bench.py",
    "./run compact": "dashboard/test_compact.py",
    "./run version": "test_run_script.py",
    "docker compose up -d": "test_deployment.py and faults/test_services.py",
    "docker compose --profile gpu up -d": "test_deployment.py",
}
IN_THE_YARD = {"./run", "./run password", "./run setup"}


def test_no_command_is_left_out() -> None:
    left = set(commands()) - set(ENGINE) - set(CURL) - ELSEWHERE.keys() - IN_THE_YARD
    assert not left, f"run {', '.join(sorted(left))} in this file, or name the test that does in ELSEWHERE"
    assert len(ENGINE) == 12 and len(CURL) == 3 and set(ENGINE) >= LONG


@pytest.mark.parametrize("command", [pytest.param(c, marks=pytest.mark.full) if c in LONG else c for c in ENGINE])
def test_engine_command(command: str, tmp_path: Path) -> None:
    words = re.sub(r"--out (\w+)", rf"--out {tmp_path}/\1", command.replace("python", sys.executable, 1)).split()
    if words[-1] == "bench":
        words += ["single", "--rounds", "1"]
    if "profile" in words:
        words += ["--quick", "--ranks", "2", "--seconds", "0.1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def given(folder: Path) -> None:
    """What docs/command-line.md starts from: the examples, Llama weights, tokens and images, all small."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    change(folder / "examples/pp2.json", steps=4)
    # a vocabulary of bytes, so any text will do
    put(folder / "weights", tensors(torch.float32, vocab=256), vocab_size=256)
    (np.arange(5000) % 1000).astype("<u2").tofile(folder / "tokens.bin")
    labels = np.arange(14) % 7
    images = np.broadcast_to(labels[:, None, None, None], (14, 8, 8, 3)).astype(np.uint8)
    np.savez(folder / "pets.npz", images=images, labels=labels)
    written = re.findall(r"(?:^ {4}.*\n)+", COMMAND_LINE, re.MULTILINE)
    (spec,) = (block for block in written if "images:pets" in block)
    (folder / "pets.json").write_text(spec)
    change(folder / "pets.json", steps=2, warmup_steps=0, global_batch=2)
    (folder / "book.txt").write_text("It was a dark and stormy night.\n" * 100)


def change(spec: Path, **train: int) -> None:
    """Changes fields of `train` in a spec file, as a user would with an editor."""
    values = json.loads(spec.read_text())
    values["train"] |= train
    spec.write_text(json.dumps(values))


@pytest.mark.full
def test_the_page_of_the_command_line_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = fenced(COMMAND_LINE)
    assert len(lines) == 15
    for line in lines:
        if " profile " in line:  # the README's command, which is run above; here its cost table is made up
            assert line in ENGINE
            model = RunSpec.model_validate_json(Path("examples/pp2.json").read_text()).model
            Path("costs").write_text(table(model).model_dump_json())
            continue
        if "folder/spec.json" in line:  # the page tells the reader to edit the spec first
            change(Path("folder/spec.json"), steps=2, warmup_steps=0, global_batch=2, checkpoint_every=2)
        assert main(shlex.split(line)[3:]) == 0, (line, capsys.readouterr().err)
        assert capsys.readouterr().out.strip(), line
    assert {path.name for path in Path("exported").iterdir()} == {path.name for path in Path("weights").iterdir()}
    assert RunSpec.model_validate_json(Path("best.json").read_text()).parallel.pp == 2


@pytest.fixture(scope="module")
def yard() -> Iterator[YardProcess]:
    with closing(YardProcess(TRAINYARD_STARTER="0", TRAINYARD_VENV=sys.prefix)) as subject:
        subject.command = ("./run",)
        yield subject.up()


def test_run_prints_the_address_and_the_password_command_repeats_it(yard: YardProcess) -> None:
    assert yard.url in yard.output()
    done = subprocess.run(["./run", "password"], cwd=ROOT, env=yard.env, capture_output=True, text=True, check=False)
    assert yard.password in done.stdout
    assert yard.password in yard.output()


def test_setup_of_an_up_to_date_environment_does_nothing(yard: YardProcess) -> None:
    done = subprocess.run(["./run", "setup"], cwd=ROOT, env=yard.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def token_of(yard: YardProcess) -> str:
    """Makes a token of the admin that may submit."""
    make = (
        "import django; django.setup()\n"
        "from datetime import timedelta\n"
        "from django.contrib.auth import get_user_model\n"
        "from django.utils import timezone\n"
        "from dashboard.api.models import ApiToken\n"
        "user, until = get_user_model().objects.get(), timezone.now() + timedelta(days=1)\n"
        "print(ApiToken.make(user=user, name='readme', scope='submit', expires_at=until)[1])\n"
    )
    return yard.shell(make).stdout.split()[-1]


def test_the_curl_commands_submit_and_list(yard: YardProcess) -> None:
    env = {**os.environ, "TOKEN": token_of(yard)}
    for command in sorted(CURL, key=len, reverse=True):
        line = command.replace("http://127.0.0.1:8000", yard.url)
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        expected = "blob:" if command.endswith("/corpora") else '"two stages"'
        assert expected in done.stdout, done.stdout
    with yard.client() as client:
        wait_for("the end of the run", lambda: yard.run_of(client, 1)["state"] == "succeeded", 120)


def test_the_example_of_a_script_compares_two_splits_and_saves_the_numbers(yard: YardProcess, tmp_path: Path) -> None:
    script, path = str(ROOT / "examples/api_client.py"), tmp_path / "spec.json"
    model = {"layers": 2, "hidden": 16, "heads": 2, "seq": 16}
    path.write_text(json.dumps({"model": model, "parallel": {"pp": 2}, "train": {"steps": 6, "global_batch": 4}}))

    def client(token: str, *line: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TOKEN": token}
        command = [sys.executable, script, *line]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    done = client(token_of(yard), yard.url, str(path))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[\d.]+ and [\d.]+ ms a step: [\d.]+x", done.stdout.splitlines()[-1])
    series = sorted(tmp_path.glob("run-*.csv"))
    assert [file.read_text().splitlines()[0] for file in series] == ["series,rank,step,time,value"] * 2
    assert len((tmp_path / "study.csv").read_text().splitlines()) == 3
    refused = client("ty_wrong", yard.url, str(path))
    assert refused.returncode == 1 and "This token is unknown, expired or revoked" in refused.stderr
    path.write_text('{"train": {"stepz": 3}}')
    refused = client(token_of(yard), yard.url, str(path))
    assert "train.stepz: There is no such field; use train.steps." in refused.stderr
