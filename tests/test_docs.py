"""README and docs name what there is: rules, faults, commands, files and headings. Nothing is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parallel_core.analysis.diagnosis import RULES
from parallel_core.bench import BENCHES
from parallel_core.cli import main
from parallel_core.faults import KINDS as FAULTS

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES[ROOT / "README.md"]
COMMAND_LINE = PAGES[ROOT / "docs/command-line.md"]
CHARTS = PAGES[ROOT / "docs/charts.md"]


def test_the_table_of_rules_has_each_of_them_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", CHARTS, re.MULTILINE)
    assert sorted(rows) == sorted(RULES), "the table under Findings in docs/charts.md names every rule"


def test_faults_are_those_that_there_are() -> None:
    named = README[README.index("--inject straggler") : README.index("each is a small file in `parallel_core/faults/`")]
    wrong = sorted(set(re.findall(r"`(\w+)`", named)) ^ set(FAULTS))
    assert not wrong, f"the list of faults in README.md lacks, or has too many: {', '.join(wrong)}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_are_there(path: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", PAGES[path]):
        target = (path.parent / link[0]).resolve() if link[0] else path
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if link[1] else []
        assert not link[1] or link[1] in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, link


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_that_is_named_is_there(path: Path) -> None:
    known = re.findall(
        r'add_parser\(\s*"([\w-]+)"', "".join(p.read_text() for p in ROOT.glob("parallel_core/cli/*.py"))
    )
    assert set(re.findall(r"-m parallel_core ([a-z][\w-]*)", PAGES[path])) <= set(known)
    assert set(re.findall(r"`(?:\S+ -m parallel_core )?bench ([a-z][\w-]*)", PAGES[path])) <= {*BENCHES, "list"}


def test_the_page_of_the_command_line_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = set(re.findall(r"^    ([a-z][\w-]*)", capsys.readouterr().out, re.MULTILINE)) - {"command"}
    rows = re.findall(r"^\| (`.*?) \|", COMMAND_LINE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == known
