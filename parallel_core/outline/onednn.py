"""Memory that oneDNN, whose CPU kernel runs an LSTM as one operation, saves from forward for backward."""

from __future__ import annotations

GATES = 4
_FP32 = 4
_LINE, _PAGE, _WAYS = 64, 4096, 256


def lstm_bytes(inputs: int, width: int, positions: int, samples: int, size: int) -> int:
    """Returns the bytes of its workspace for one layer in one direction, with numbers of `size` bytes.

    For each position and one more: the layer's input and output, each with a gradient in fp32, states and cells; for
    each position gates, and states again. Each of these parts is aligned to a page.
    """
    enters = max(inputs, width)
    once_more = (
        2 * _row(enters, size),
        2 * _row(enters, _FP32),
        2 * _row(enters, _FP32),
        2 * width * size,
        2 * width * _FP32,
    )
    parts = [(positions + 1) * row for row in once_more]
    parts += [positions * _row(GATES * width, size), positions * _row(width, size)]
    return sum(-(-samples * part // _PAGE) * _PAGE for part in parts)


def _row(numbers: int, size: int) -> int:
    """Returns the bytes from one row to the next: a multiple of a cache line, but not of 256 numbers, so that rows do
    not all map to the same cache lines."""
    row = -(-numbers * size // _LINE) * _LINE
    return row if row // size % _WAYS else row + _LINE
