"""README and docs name what there is: rules, faults, commands, files and headings. Nothing is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dashboard.charts.theme import LEGEND
from parallel_core.analysis.diagnosis import RULES
from parallel_core.bench import BENCHES
from parallel_core.cli import main
from parallel_core.faults import KINDS as FAULTS
from parallel_core.outline import KINDS as MODELS
from parallel_core.plan.cluster import accuracy
from parallel_core.plan.cluster.fit import FREE
from parallel_core.plan.cluster.zero_bubble import bubble_rows, models
from parallel_core.schedule.traits import TRAITS

ROOT = Path(__file__).parents[1]
CODE = ("parallel_core", "dashboard", "workers", "tests")
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES[ROOT / "README.md"]
EXTEND = PAGES[ROOT / "docs/extend.md"]
COMMAND_LINE = PAGES[ROOT / "docs/command-line.md"]
CHARTS = PAGES[ROOT / "docs/charts.md"]


def test_the_table_of_rules_has_each_of_them_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", CHARTS, re.MULTILINE)
    wrong = sorted(set(rows) ^ set(RULES)) or sorted({row for row in rows if rows.count(row) > 1})
    assert not wrong, f"the table under Findings in docs/charts.md lacks, or has too many: {', '.join(wrong)}"


def test_faults_are_those_that_there_are() -> None:
    named = README[README.index("--inject straggler") : README.index("each is a small file in `parallel_core/faults/`")]
    wrong = sorted(set(re.findall(r"`(\w+)`", named)) ^ set(FAULTS))
    assert not wrong, f"the list of faults in README.md lacks, or has too many: {', '.join(wrong)}"


def test_models_and_schedules_are_those_that_there_are() -> None:
    """The words of the README's table for each; one that is added needs its word here and there."""
    rows = dict(re.findall(r"^\| ([\w ,-]+) \| (.*) \|$", README, re.MULTILINE))
    models = {"gpt": "GPT", "mlp": "MLP", "vgg16": "VGG-16", "resnet50": "ResNet-50", "gnmt": "a GNMT-like LSTM"}
    unlike = sorted(models.keys() ^ MODELS.keys()) or sorted({*models.values()} ^ {*rows["models"].split(", ")})
    assert not unlike, f"{', '.join(unlike)}: name it in `models` here, and in the README's table by that word"
    words = {
        "classic pipelines": {
            "naive": "naive layer-wise",
            "gpipe": "GPipe",
            "1f1b": "1F1B",
            "interleaved": "interleaved",
            "looped-bfs": "looped BFS",
        },
        "zero bubble and V-shaped pipelines": {
            "zb-h1": "zero bubble H1",
            "zb-h2": "H2 and V",
            "zb-v": "H2 and V",
            "v-half": "V-Half",
            "v-min": "V-Min",
            "dualpipe-v": "DualPipe-V",
        },
        "pipelines without a flush": {
            **dict.fromkeys(("1f1b-naive", "1f1b-stash", "1f1b-vertical"), "PipeDream"),
            "1f1b-2bw": "PipeDream-2BW",
        },
        "your own pipeline": {"custom": "a schedule as CSV or JSON"},
    }
    unlike = sorted({name for row in words.values() for name in row} ^ {*TRAITS})
    assert not unlike, f"{', '.join(unlike)}: name it in `words` here, and in the README's table by that word"
    for row, of in words.items():
        assert set(rows[row].split(", ")) == set(of.values()), row


@pytest.mark.parametrize("page", [README, CHARTS], ids=["README", "charts"])
def test_the_legend_is_that_of_the_charts(page: str) -> None:
    table = page[page.index("| legend entry") :].split("\n\n")[0]
    assert re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:] == [words for _, words in LEGEND]


def test_the_map_of_the_source_has_every_package() -> None:
    tree = README[README.index("\nparallel_core/   ") : README.index("\ntests/  ")]
    engine, _, rest = tree.partition("\nworkers/")
    for top, part in (("parallel_core", engine), ("dashboard", rest.partition("\ndashboard/")[2])):
        packages = {path.parent.name for path in (ROOT / top).glob("*/__init__.py")}
        assert len(packages) > 10 and packages <= set(re.findall(r"\w+", part)), top


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_are_there(path: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", PAGES[path]):
        target = (path.parent / link[0]).resolve() if link[0] else path
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if link[1] else []
        assert not link[1] or link[1] in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, link


@pytest.mark.parametrize("name", ["api", "deploy", "engine", "extend", "planning"])
def test_a_table_of_contents_has_every_section(name: str) -> None:
    """Else a reader takes it for all that the page has."""
    top, *sections = re.split(r"^## ", PAGES[ROOT / f"docs/{name}.md"], flags=re.MULTILINE)
    listed = set(re.findall(r"\]\(#([\w-]+)\)", top))
    slugs = [re.sub(r"[^\w -]", "", one.splitlines()[0].lower()).replace(" ", "-") for one in sections]
    assert not [slug for slug in slugs if slug not in listed]


def test_every_work_that_is_cited_is_among_the_sources() -> None:
    """And no other one. Letters tell two works of the same authors and year apart."""
    listed = set(re.findall(r"^\| ([^|]*\d[ab]?) \|", PAGES[ROOT / "docs/sources.md"], re.MULTILINE))
    code = (path for top in CODE for kind in ("py", "json") for path in (ROOT / top).rglob(f"*.{kind}"))
    scripts = (ROOT / "dashboard/static/js").glob("*.js")
    pages = [*scripts, *(ROOT / "templates").rglob("*.html"), *(path for path in PAGES if path.name != "sources.md")]
    text = " ".join(re.sub(r"\s+(?:# )?", " ", path.read_text()) for path in (*code, *pages))
    cited = set(re.findall(r"\b[A-Z][\w-]+ (?:et al\.|and [A-Z][\w-]+),? \d{4}\b[ab]?|", text)) - {""}
    assert not (unknown := sorted(cited - listed)), f"give {', '.join(unknown)} a row in docs/sources.md"
    assert not (unused := sorted(name for name in listed if name not in text)), f"nothing cites {', '.join(unused)}"


def of_published(key: str) -> list[str]:
    """Rows, mean error and worst of the row of the README's table that begins so."""
    table = README[README.index("| compared with | rows | mean error | worst |") :].split("\n\n")[0]
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {key}")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_table_of_published_results_has_what_the_page_accuracy_computes() -> None:
    times, figure = accuracy.step_times(), accuracy.figure_1()
    for key, rows in (
        ("step times of Korthikanti", [row for row in times if not row.fitted]),
        ("the same, the rows that three constants were fitted on", [row for row in times if row.fitted]),
    ):
        found = accuracy.summary(rows)
        each = [f"{100 * found.mean:.1f} %", f"{100 * found.worst:.1f} %"]
        assert of_published(key) == [str(len(rows)), *each]
    assert len(FREE) == 3
    assert of_published("memory") == [str(len(figure)), "0", "0"] and accuracy.summary(figure).worst < 1e-12


@pytest.mark.full
def test_the_table_has_the_bubble_rates_that_the_page_accuracy_computes() -> None:
    rows = [row for model in models() for row in bubble_rows(model)]
    points = [abs(row.points(name)) for row in rows for name in row.predicted]
    words = [str(len(points)), f"{sum(points) / len(points):.1f}", f"{max(points):.1f}"]
    assert of_published("bubble rates") == words


def test_what_an_extender_is_sent_to_is_there() -> None:
    """Each file, named by the end of its path, and each name that is said to be `in` or `of` a file."""
    sources = {path.relative_to(ROOT).as_posix(): path for top in CODE for path in (ROOT / top).rglob("*.py")}
    ends = set(re.findall(r"`([\w/]+\.py)`", EXTEND))
    found = {end: [path for name, path in sources.items() if f"/{name}".endswith(f"/{end}")] for end in ends}
    assert [end for end, paths in found.items() if not paths] == []
    named = re.findall(r"(?<!uses of )`(\w+)`[^`]{0,30}?\s(?:in|of)\s+`([\w/]+\.py)`", EXTEND)
    assert len(named) > 30, "the pattern finds them"
    made = {end: "\n".join(path.read_text() for path in paths) for end, paths in found.items()}
    here = r"^\s*(?:(?:def|class) {0}\b|{0}\b[^=\n]*=)"
    gone = [(name, end) for name, end in named if not re.search(here.format(name), made[end], re.MULTILINE)]
    assert gone == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_that_is_named_is_there(path: Path) -> None:
    known = re.findall(
        r'add_command\(\s*commands,\s*"([\w-]+)"', "".join(p.read_text() for p in ROOT.glob("parallel_core/cli/*.py"))
    )
    assert set(re.findall(r"-m parallel_core ([a-z][\w-]*)", PAGES[path])) <= set(known)
    assert set(re.findall(r"`(?:\S+ -m parallel_core )?bench ([a-z][\w-]*)", PAGES[path])) <= {*BENCHES, "list"}


def test_the_page_of_the_command_line_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = set(re.findall(r"^    ([a-z][\w-]*)", capsys.readouterr().out, re.MULTILINE)) - {"command"}
    rows = re.findall(r"^\| (`.*?) \|", COMMAND_LINE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == known
