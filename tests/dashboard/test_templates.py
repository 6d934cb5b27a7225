"""Every template can be read: a tag or filter that one does not load is no error of its page alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.template.loader import get_template

TEMPLATES = Path(settings.BASE_DIR) / "templates"


@pytest.mark.parametrize("name", sorted(str(p.relative_to(TEMPLATES)) for p in TEMPLATES.rglob("*") if p.is_file()))
def test_every_template_can_be_read(name: str) -> None:
    assert get_template(name), "a template that cannot be read raises"
