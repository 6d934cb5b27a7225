"""Scripts read only attributes that some page writes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.__main__ import ROOT

SCRIPTS = sorted((ROOT / "dashboard" / "static" / "js").glob("*.js"))
PLAIN, TAKEN = re.compile(r"\bdataset\.(\w+)"), re.compile(r"\{([^{}]*)\}\s*=\s*[\w.()]*\bdataset\b")


def read_by(script: str) -> set[str]:
    """Names of the attributes that it reads from a `dataset`, as scripts spell them."""
    taken = (name for names in TAKEN.findall(script) for name in names.split(","))
    return {*PLAIN.findall(script), *(re.split("[:=]", name)[0].strip() for name in taken)}


def attribute(name: str) -> str:
    return "data-" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name)


def text_of(folder: Path, pattern: str) -> str:
    return "".join(path.read_text() for path in folder.rglob(pattern))


def test_what_a_script_reads_of_an_element_is_written_by_a_page_or_a_script() -> None:
    """One that was taken for unused left pages of generated text without their text."""
    pages = text_of(ROOT / "templates", "*.html") + text_of(ROOT / "dashboard", "*.py")
    scripts = {path.name: path.read_text() for path in SCRIPTS}
    every = "".join(scripts.values())
    missing = [
        f"{script} reads {attribute(name)}"
        for script, text in scripts.items()
        for name in sorted(read_by(text))
        if attribute(name) not in pages and not re.search(rf"\bdataset\.{name}\s*=[^=]", every)
    ]
    assert not missing
    assert len({name for text in scripts.values() for name in read_by(text)}) > 20
