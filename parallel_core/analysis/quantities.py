"""Formats numbers for readers: bytes, times, ratios, shares. Used by every sentence and table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_EXACT = 1e15
"""Below it a float tells whole numbers apart."""
_PERCENT = 100 * (1 + 1e-12)
"""A hair above 100: formatting sends a half to the even neighbour, readers expect it to go up."""
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
LOSS_DIGITS = 4
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def significant(value: float, digits: int = 3, zeros: bool = False) -> str:
    """`value` rounded to `digits` significant digits, without exponent or needless zeros: 0.0123, 4.5, 1230. With
    `zeros`, for a column of a table, where 17 below 16.5 would look less exact: 17.0."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    rounded = _rounded(value, digits)
    text = f"{rounded:.{max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)}f}"
    return text if zeros or "." not in text else text.rstrip("0").rstrip(".")


def _rounded(value: float, digits: int = 3) -> float:
    """`value` to so many significant digits. By it, not by `value`, a unit is chosen: 999.9 ms are written as 1 s."""
    return round(value, digits - 1 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else value


def _largest(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The first of `units`, the largest first, of which there is at least one, as it is written; else the last one."""
    written = abs(_rounded(value))
    return next((unit for unit in units if written >= unit[0]), units[-1])


def loss_text(value: float) -> str:
    """A loss of a run among others, in sentences as in columns: `2.940`, so that it has one spelling on a page."""
    return significant(value, LOSS_DIGITS, zeros=True)


def bytes_text(count: float, digits: int = 2, zeros: bool = False) -> str:
    """Bytes in the largest binary unit of which there is at least one: `9.2 GiB`, `31 MiB`; more `digits` where a small
    difference is to be seen: `11.69 MiB`; `zeros` as in `significant`."""
    if not math.isfinite(count):
        return f"{significant(count)} B"
    power = min(int(math.log2(abs(count)) // 10), len(_BINARY) - 1) if abs(count) >= 1 else 0
    text = _in_unit(count / 1024**power, digits, zeros)
    if abs(float(text)) >= 1024 and power + 1 < len(_BINARY):  # 1023.6 KiB are written as 1 MiB
        power += 1
        text = _in_unit(count / 1024**power, digits, zeros)
    return f"{text} {_BINARY[power]}"


def _in_unit(value: float, digits: int, zeros: bool) -> str:
    """So many of a unit: at least `digits` digits, all of those before the point."""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else significant(value, digits, zeros)


def bytes_beside(count: float, other: float, digits: int = 2) -> str:
    """Bytes next to others of nearly as many: in as many digits, from `digits` to 5, as both differ in."""
    differ = (most for most in range(digits, 6) if bytes_text(count, most) != bytes_text(other, most))
    return bytes_text(count, next(differ, digits))


def seconds_text(seconds: float, zeros: bool = False) -> str:
    """A duration: below a minute to three digits (`48.2 ms`), above as `3 min 20 s`, `2 h 5 min` or `2 h`; `zeros` as
    in `significant`: `2 h 0 min`, too."""
    if seconds >= 3600:
        return _two_units(int(seconds // 60), ("h", "min"), zeros)
    if _rounded(seconds) >= 60:
        return _two_units(int(max(seconds, 60)), ("min", "s"), zeros)
    scale, unit = _largest(seconds, _TIMES)
    return minus_text(f"{significant(seconds / scale, zeros=zeros)} {unit}")


def _two_units(count: int, units: tuple[str, str], zeros: bool) -> str:
    """So many of the smaller unit, of which 60 are one of the larger."""
    larger, smaller = divmod(count, 60)
    rest = f" {smaller} {units[1]}" if smaller or zeros else ""
    return f"{larger} {units[0]}{rest}"


def ns_text(nanoseconds: float, zeros: bool = False) -> str:
    """`seconds_text` of nanoseconds."""
    return seconds_text(nanoseconds / 1e9, zeros)


def range_text(low: float, high: float) -> str:
    """Two durations: `95.1 ms to 1.2 s`."""
    return f"{seconds_text(low)} to {seconds_text(high)}"


def flops_text(flops_per_s: float) -> str:
    """A rate in the largest unit of which there is at least one: `159 GFLOP/s`, `1.2 TFLOP/s`."""
    scale, unit = _largest(flops_per_s, _RATES)
    return f"{significant(flops_per_s / scale)} {unit}FLOP/s"


def ratio_text(ratio: float) -> str:
    """A factor with two decimals, from ten on to three digits, zeros among them: `1.58x`, `13.0x`, `106x`."""
    return f"{ratio:.2f}x" if abs(ratio) < 9.995 else f"{significant(ratio, zeros=True)}x"


def count_text(count: int) -> str:
    """A whole number with its thousands separated: `2 222`."""
    return f"{count:,}".replace(",", "\N{NO-BREAK SPACE}")


def step_text(step: int) -> str:
    """A step by its number, written as all counts are: `step 2 546`."""
    return f"step {count_text(step)}"


def steps_text(count: int) -> str:
    """So many steps, written as all counts are: `1 step`, `2 546 steps`."""
    return f"{count_text(count)} step{'s' * (count != 1)}"


def large_text(count: float, zeros: bool = False) -> str:
    """A count, or a rate, to three digits, with the largest of k, M, B (10^9) and T of which there is one: `175 B`,
    `812 k`, `0.4`; `zeros` as in `significant`."""
    units = ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k"), (1, ""))
    scale, unit = _largest(count, units)
    return f"{significant(count / scale, zeros=zeros)}{unit}"


def bound_text(value: float) -> str:
    """A limit in full precision, a whole one with its thousands separated: what a message names is itself allowed. A
    large power of two or ten as `2^100`: rounded digits could be above it."""
    if value >= _EXACT:
        powers = ((base, round(math.log(value, base))) for base in (10, 2))
        for base, exponent in powers:
            if float(base**exponent) == value:
                return f"{base}^{exponent}"
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < _EXACT)
    return count_text(int(value)) if whole else significant(value, 12)


def figure_text(value: float) -> str:
    """A number without a unit: three digits, from a thousand on whole with its thousands separated: `4.5`, `2 222`."""
    return count_text(round(value)) if _rounded(value) >= 1000 else significant(value)


def percent_text(share: float) -> str:
    """A share 0 .. 1 as whole percent, a half away from nothing: `13 %` of 1/8 as `38 %` of 3/8; `under 1 %` where
    rounding would hide it."""
    return "under 1 %" if 0 < share < 0.005 else f"{share * _PERCENT:.0f} %"


def most_percent_text(share: float) -> str:
    """The most that a share is: `at most 13 %`, `under 1 %`."""
    text = percent_text(share)
    return text if text.startswith("under ") else f"at most {text}"


def signed_percent_text(share: float, decimals: int = 1) -> str:
    """A relative error with its sign: `+1.9 %`, `−0.3 %`; without one, as `0.0 %`, where it rounds to nothing."""
    text = f"{share * _PERCENT:+.{decimals}f}"
    return minus_text(f"{text if float(text) else text[1:]} %")


def minus_text(number: str) -> str:
    """A number as text with a minus sign instead of a hyphen, which line breaking and screen readers would split."""
    return number.replace("-", "\N{MINUS SIGN}", 1) if number.startswith("-") else number


def slower_text(share: float) -> str:
    """A relative slowdown (0 or more): `+12 %`, `under 1 %`, '' if negligible."""
    if share <= 0.0005:
        return ""
    return f"+{percent_text(share)}" if share >= 0.005 else percent_text(share)


def difference_text(difference: float) -> str:
    """A relative difference to one or two digits: `2e-07`; from a hundredth on in per cent: `17 %`."""
    if difference == 0:
        return "0"
    if 0.01 <= difference < math.inf:
        return f"{significant(100 * difference, 2)} %"
    return "infinity" if math.isinf(difference) else f"{difference:.1e}".replace(".0e", "e")


def listed_text(parts: Sequence[str]) -> str:
    """A list in words: 'a, b and c'."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def rate_text(rate: float, target: str = "tokens", zeros: bool = False) -> str:
    """A rate with its unit, to three digits: `18.2 k tokens/s`, `0.4 tokens/s`; `zeros` as in `significant`."""
    units = ((1e6, " M"), (1e3, " k"), (1, ""))
    scale, unit = _largest(rate, units)
    return f"{significant(rate / scale, zeros=zeros)}{unit} {target}/s"


def apart_text(parts: Sequence[str]) -> str:
    """Joined parts: 'a, b, c'; 'a, b; c' if a part contains a comma."""
    return ("; " if any("," in part for part in parts) else ", ").join(parts)


def plural_text(count: int, what: str) -> str:
    """`1 update`, `2 updates`, `3 micro-batches`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('h') else 's'}"


def finished_text(done: int, every: int) -> str:
    """How many runs have finished, as a sentence without its full stop: `2 of 3 runs have finished`."""
    if every == 1:
        return "The only run has finished" if done else "The only run has no result"
    return f"{done} of {every} runs {'has' if done == 1 else 'have'} finished"


def last_samples(sizes: Sequence[int]) -> str:
    """`the last 64 samples`, `the last sample`, `the last 16 and 64 samples`."""
    return "the last sample" if list(sizes) == [1] else f"the last {listed_text(list(map(str, sizes)))} samples"


def one_of(devices: int) -> str:
    """`one of its devices`, or `its device` of a run that has only one."""
    return "one of its devices" if devices > 1 else "its device"


_WORD = re.compile(r"[a-z](?:[a-z'’]*[a-z])?[,;.]?(?:\s|$)")
"""A plain word at the beginning of a text, as opposed to a literal (`zero=3`, `looped-bfs`, `1f1b`)."""


def sentence_text(text: str) -> str:
    """A message as a sentence of its own: its first word capitalised unless it is a literal."""
    return f"{text[0].upper()}{text[1:]}" if _WORD.match(text) else text


def short_text(text: str, most: int) -> str:
    """The text in at most `most` characters, the last of them an ellipsis if it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def few_text(numbers: Sequence[int]) -> str:
    """Joins up to eight of the numbers as text."""
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks by their numbers: `rank 3`, `ranks 0, 1`; at most eight of them."""
    return f"rank{'s' * (len(ranks) > 1)} {few_text(ranks)}"
