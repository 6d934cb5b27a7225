"""Mean and deviation by channel of images that come in parts."""

from __future__ import annotations

import numpy as np


class Moments:
    """Adds up parts [n, C, H, W] without keeping them: each part's mean and squares about it are joined to those
    before (Chan et al. 1983), so that values far from 0 lose no digits."""

    def __init__(self) -> None:
        self.images = 0
        self.mean: np.ndarray = np.zeros(0)
        self._squares: np.ndarray = np.zeros(0)

    def add(self, part: np.ndarray) -> None:
        """Adds the images of a part [n, C, H, W]; n may be 0."""
        new = len(part)
        if not new:
            return
        mean = part.mean((0, 2, 3), dtype=np.float64)
        squares = part.var((0, 2, 3), dtype=np.float64) * new
        if not self.images:
            self.images, self.mean, self._squares = new, mean, squares
            return
        share = new / (self.images + new)
        apart = mean - self.mean
        self._squares = self._squares + squares + apart**2 * self.images * share
        self.mean = self.mean + apart * share
        self.images += new

    @property
    def deviation(self) -> np.ndarray:
        """Deviation of each channel [C]; 1 where it is 0 in f4, so that pixels can be divided by it."""
        found = np.sqrt(self._squares / max(self.images, 1))
        return np.where(found > np.finfo(np.float32).tiny, found, 1.0)
