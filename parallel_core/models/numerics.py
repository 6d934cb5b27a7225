"""Where a 16-bit model computes in fp32."""

from __future__ import annotations

from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """`x` in fp32 where it has 16 bits, else `x` itself: sums of exponentials need the digits."""
    return x.float() if x.dtype.itemsize < 4 else x
