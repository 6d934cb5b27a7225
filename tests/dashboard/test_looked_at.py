"""Every page that a link of the side bar or a tab of Planner leads to is opened in a browser by tests/browser."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from django.test import Client

from dashboard.plans.tabs import TABS


def test_where_the_links_of_every_page_lead_is_looked_at_in_a_browser(member: Client) -> None:
    everywhere = pytest.importorskip("tests.browser.test_everywhere", reason="needs playwright")
    rail = member.get("/fleet/").content.decode().partition("<nav")[2].partition("</nav>")[0]
    links = set(re.findall(r'href="([^"]+)"', rail))
    assert len(links) >= 6
    without = sorted((links | {tab.address for tab in TABS}) - set(everywhere.addresses(defaultdict(lambda: 1))))
    assert not without, f"add to addresses() in tests/browser/test_everywhere.py: {', '.join(without)}"
