"""The stylesheet's colours: phases distinguishable with colour blindness, text readable in both themes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dashboard.charts.theme import LEGEND

CSS = (Path(__file__).parents[2] / "dashboard/static/css/trainyard.css").read_text()
PAIR = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
COLOURS = {name: {"light": light, "dark": dark} for name, light, dark in PAIR.findall(CSS)}
THEMES = ("light", "dark")
NOTICES = ("accent", "warn", "bad")
"""Their soft shades are grounds of notices."""
PHASES = [phase for phase, _ in LEGEND if phase != "other"]

# Matrices of Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
SIGHT = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
JUST_CLEAR = 14.0
"""Required CIE76 distance between two adjacent fills, about six times a just noticeable difference."""


def linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    first, second = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (a, b))
    return (second + 0.05) / (first + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHT)
def test_phases_are_told_apart(theme: str, sight: str) -> None:
    seen = {p: lab(SIGHT[sight] @ linear(COLOURS[f"phase-{p}"][theme])) for p in PHASES}
    distances = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in itertools.combinations(PHASES, 2)}
    assert {pair: round(d, 1) for pair, d in distances.items() if d < JUST_CLEAR} == {}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ("bg", "surface", "sunken"))
@pytest.mark.parametrize("text", ("ink", "ink-2", "accent", "good", "warn", "bad"))
def test_text_can_be_read(theme: str, ground: str, text: str) -> None:
    assert contrast(COLOURS[text][theme], COLOURS[ground][theme]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("text", "ground"),
    (
        ("on-accent", "accent"),
        ("accent", "accent-soft"),
        ("ink", "warn-soft"),
        ("ink", "bad-soft"),
        ("ink-2", "accent-soft"),
        ("bad", "bad-soft"),
        ("on-forward", "phase-forward"),
        ("on-backward", "phase-backward"),
        ("on-weight", "phase-weight"),
    ),
)
def test_text_on_colour_can_be_read(theme: str, text: str, ground: str) -> None:
    assert contrast(COLOURS[text][theme], COLOURS[ground][theme]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", [name for name in COLOURS if f"{name}-soft" in COLOURS and name not in NOTICES])
def test_what_is_predicted_is_told_from_what_was_measured(theme: str, name: str) -> None:
    """Its fill lets its number be read and is far from the full colour, which is its outline."""
    shade, full = COLOURS[f"{name}-soft"][theme], COLOURS[name][theme]
    assert contrast(COLOURS["ink"][theme], shade) >= 4.5
    assert np.linalg.norm(lab(linear(shade)) - lab(linear(full))) >= JUST_CLEAR


def test_every_fill_of_a_bar_has_a_shade_for_predictions() -> None:
    fills = [name for name in COLOURS if re.fullmatch(r"(phase|memory)-\w+", name) and name != "phase-idle"]
    assert {name for name in [*fills, "line-strong"] if f"{name}-soft" not in COLOURS} == set()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    "line", ("line-single", "line-dp", "line-tp", "line-pp", "line-combined", "line-strong", "bar")
)
def test_lines_stand_out_from_the_surface(theme: str, line: str) -> None:
    assert contrast(COLOURS[line][theme], COLOURS["surface"][theme]) >= 3.0


def test_phases_colour_nothing_but_phases() -> None:
    assert not [line for line in CSS.splitlines() if line.startswith("[data-host=") and "--phase-" in line]


def test_the_marks_of_all_states_are_of_one_height() -> None:
    """A badge's word stands where the lower edge of its mark is, so one with a lower mark would leave its line."""
    rules = re.findall(r"^\.badge[^{]*::before \{([^}]*)\}", CSS, flags=re.M)
    assert len(rules) > 5 and [rule for rule in rules if re.search(r"(?<!-)height:", rule)] == rules[:1]
