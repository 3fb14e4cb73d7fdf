"""The range in which values have been of late, robust against outliers."""

from __future__ import annotations

from collections import deque
from statistics import median

_NORMAL = 1.4826
"""The standard deviation of a normal distribution, in units of its median absolute deviation."""
_LEAST = 0.1
"""The least deviation, as a share of the median: where values hardly differ, a small change is no
outlier.
"""


class RecentRange:
    """The last values, and a bound above and below: so many deviations from the median.

    The deviation is the median absolute deviation (MAD) from the median, scaled as for normally
    distributed values, and at least a tenth of the median.
    """

    def __init__(self, size: int, least: int, above: float | None, below: float | None) -> None:
        """Begin without values.

        Args:
            size: values that count.
            least: values that are needed before any is out of range.
            above: deviations to the upper bound; None for none.
            below: likewise to the lower one.
        """
        self.values: deque[float] = deque(maxlen=size)
        self._least, self._above, self._below = least, above, below

    def bounds(self) -> tuple[float, float]:
        """The lower and the upper bound now."""
        none = float("inf")
        if len(self.values) < self._least or (self._above is None and self._below is None):
            return -none, none
        middle = median(self.values)
        deviation = max(
            _NORMAL * median(abs(value - middle) for value in self.values), _LEAST * abs(middle)
        )
        if not deviation:  # zeros say nothing of the size of what comes
            return -none, none
        lower = -none if self._below is None else middle - self._below * deviation
        return lower, none if self._above is None else middle + self._above * deviation
