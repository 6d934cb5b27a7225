"""Every template can be read: a tag or filter that one does not load is no error of its page alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.template.loader import get_template

TEMPLATES = Path(settings.BASE_DIR) / "templates"
OFFERS = ("parts/table_csv.html", "data-table-csv", "runs:export-csv", "plans:csv")
"""What saves the numbers of a table as CSV."""
OTHERWISE = {
    "studies/parts/table.html": "the pages that show it offer it",
    "studies/parts/fit_table.html": "the page of such a study does",
    "studies/parts/generation_table.html": "the page of such a study does",
    "runs/page_spec.html": "the spec is a file of JSON",
}
NO_NUMBERS = {
    "accounts/token_table.html",
    "api/reference.html",
    "fleet/set_aside.html",
    "parts/events.html",
    "runs/page_checkpoints.html",
    "runs/page_events.html",
    "runs/texts.html",
    "traces/list.html",
}


@pytest.mark.parametrize("name", sorted(str(p.relative_to(TEMPLATES)) for p in TEMPLATES.rglob("*") if p.is_file()))
def test_every_template_can_be_read(name: str) -> None:
    assert get_template(name), "a template that cannot be read raises"


def test_every_table_of_numbers_can_be_saved_as_csv() -> None:
    texts = {str(path.relative_to(TEMPLATES)): path.read_text() for path in TEMPLATES.rglob("*.html")}
    tables = {name: text.count('<table class="table') for name, text in texts.items() if '<table class="table' in text}
    offered = {name: sum(texts[name].count(one) for one in OFFERS) for name in tables}
    without = {name for name, count in tables.items() if offered[name] < count} - OTHERWISE.keys() - NO_NUMBERS
    assert not without, f"include parts/table_csv.html behind each table of {', '.join(sorted(without))}"
    assert OTHERWISE.keys() | NO_NUMBERS <= tables.keys(), "these have no table any more"
    for page in ("studies/page.html", "studies/compare.html", "studies/own_page.html"):
        assert any(one in texts[page] for one in (*OFFERS, "studies:csv")), page
