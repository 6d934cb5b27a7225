"""Hints and error messages of fields, which a screen reader says only where the field refers to them."""

from __future__ import annotations

import re

import pytest
from django.test import Client

NAME = re.compile(r'<(?:input|select|textarea)\b[^>]*?\bname="([^"]*)"')
ID = re.compile(r'<p class="(?:hint|error)" id="((?:help|error)-[^"]+)"')
DESCRIBED = re.compile(r'\baria-describedby="([^"]*)"')


@pytest.mark.parametrize(
    "address",
    [
        "/planner/",
        "/planner/crossover/",
        "/planner/judge/",
        "/partition/graph/",
        "/accounts/tokens/",
        "/accounts/password/",
        "/studies/new/",
        "/runs/new/",
    ],
)
def test_every_field_refers_to_its_hint_and_its_error(member: Client, address: str) -> None:
    text = member.get(address).content.decode()
    names, told = set(NAME.findall(text)), {one for ids in DESCRIBED.findall(text) for one in ids.split()}
    wanted = {one for one in ID.findall(text) if one.split("-", 1)[1] in names}
    assert len(wanted) >= 3 and wanted <= told
    assert all(f'id="{one}"' in text for one in told), "each refers to what is there"
