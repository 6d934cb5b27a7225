"""The predicted size of what oneDNN's LSTM saves equals what the kernel allocates."""

from __future__ import annotations

import itertools

import pytest
import torch

from parallel_core.outline.onednn import GATES, lstm_bytes
from tests.parallel_core.metered import no_kernel


def _kept(inputs: int, width: int, positions: int, samples: int, dtype: torch.dtype) -> int:
    """Bytes of the workspace that the kernel returns."""
    shapes = ((GATES * width, inputs), (GATES * width, width), (GATES * width,), (GATES * width,))
    weights = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    first, cells = (torch.zeros(1, samples, width, dtype=dtype) for _ in range(2))
    x = torch.zeros(positions, samples, inputs, dtype=dtype)
    lstm = 2
    own, back, bias, more_bias = weights
    *_, workspace = torch.mkldnn_rnn_layer(
        x, own, back, bias, more_bias, first, cells, False, [], lstm, width, 1, True, False, False, True
    )
    return int(workspace.untyped_storage().nbytes())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_lstm_keeps_what_is_said_to_the_byte(dtype: torch.dtype) -> None:
    if no_kernel("gnmt", "bf16" if dtype is torch.bfloat16 else "fp32"):
        pytest.skip("this CPU has no kernel for LSTMs in bf16")
    size = dtype.itemsize
    for shape in itertools.product((32, 64, 256), (16, 48, 64, 256), (24, 33), (2, 8)):
        assert lstm_bytes(*shape, size) == _kept(*shape, dtype), shape
