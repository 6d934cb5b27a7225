"""The dtype of computations that a 16-bit model does in fp32."""

from __future__ import annotations

from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """Returns `x` in fp32 where it has 16 bits, otherwise `x` itself; sums of exponentials need the precision."""
    return x.float() if x.dtype.itemsize < 4 else x
