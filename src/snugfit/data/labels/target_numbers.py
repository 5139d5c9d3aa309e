"""Numbers that are learned, of which models keep 32 bits: what these cannot hold is told before a run. To import it loads no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from snugfit.data.bad_rows import BadRow
from snugfit.errors import DataError

_MOST = 1e18
"""The largest magnitude, so that squares of errors are 32-bit numbers too."""
_DIGITS = 24
"""Bits that tell 32-bit numbers of about one size apart."""
_FEWEST_STEPS = 64
"""Of 32-bit numbers, in the deviation of what is learned."""
_SMALLEST = math.ldexp(1.0, -149)
"""The least 32-bit number above zero, by which those next to it differ too."""


def check_size(number: float, column: str) -> float:
    """Return a number to learn.

    Raises:
        BadRow: it is too large.
    """
    if abs(number) > _MOST:
        raise BadRow(
            "number too large", f"{column} is {number:g}, and {_MOST:g} is the most: give it in a larger unit"
        )
    return number


def check_differences(numbers: Sequence[float], column: str) -> None:
    """See that numbers to learn differ, also as 32-bit numbers.

    Raises:
        DataError: they do not.
    """
    values = np.asarray(numbers, dtype=np.float64)
    if values.min() == values.max():
        raise DataError("data.label", f"column '{column}' has one value alone", "Name the column to predict.")
    step = max(math.ldexp(1.0, math.frexp(float(np.abs(values).max()))[1] - _DIGITS), _SMALLEST)
    if values.std() < _FEWEST_STEPS * step:
        raise DataError(
            "data.label",
            f"the numbers of column '{column}' lie around {values.mean():g}, where 32 bits tell none apart that differ by less than {step:g}",
            "Subtract what they have in common, or give them in a smaller unit.",
        )
