"""Images of handwritten digits, enlarged to the side that a model needs.

`digits.csv.gz` is scikit-learn's copy (sklearn/datasets/data, BSD-3-Clause) of the test set of "Optical Recognition
of Handwritten Digits" (Alpaydin and Kaynak 1998, UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0):
1797 rows of 8 x 8 pixels from 0 to 16 and the digit.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np

from parallel_core.data.content import fingerprint
from parallel_core.data.held_out import HeldOut, last_samples

SIDE, WHITE = 8, 16.0


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns pixels [1797, 8, 8] f4, with mean 0 and deviation 1, and digits [1797] i8."""
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    pixels = (rows[:, :-1] / WHITE).astype(np.float32).reshape(-1, SIDE, SIDE)
    return (pixels - pixels.mean()) / pixels.std(), rows[:, -1]


def enlarging(side: int, of: int = SIDE) -> np.ndarray:
    """Returns a matrix [side, of] f4 of linear interpolation between pixel centres; each row sums to 1."""
    at = (np.arange(side) + 0.5) * of / side - 0.5
    return np.stack([np.interp(at, np.arange(of), unit) for unit in np.eye(of)], 1).astype(np.float32)


def enlarged(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns images [.., side, side] of images [.., of, of], with the `weights` of `enlarging`."""
    return np.asarray(weights @ images @ weights.T)


class Images:
    """The digits as images of `side` x `side` pixels, grey in all `channels`; digit d is of class d modulo `classes`.

    Runs train on them with one channel and at least ten classes (`rules.train.check_corpus`); a profile, to which
    values do not matter, reads any number of both.
    """

    def __init__(self, side: int, channels: int = 1, classes: int = 10) -> None:
        self._pixels, self._digits = digits()
        self._enlarge, self._channels, self._classes = enlarging(side), channels, classes
        self.length = len(self._digits)

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns images [n, channels, side, side] f4 and their classes [n] i8."""
        images = enlarged(self._pixels[numbers], self._enlarge)[:, None]
        return images.repeat(self._channels, 1), self._digits[numbers] % self._classes

    def count(self, numbers: np.ndarray) -> int:
        """Returns one target per image."""
        return len(numbers)

    def content(self) -> str:
        return fingerprint(*map(np.ascontiguousarray, digits()))

    def hold_out(self, samples: int) -> HeldOut:
        return last_samples(self.length, samples, "images")
