"""The pause between two looks at a store, for a rank that waits for others."""

from __future__ import annotations

import time

_LONGEST_PAUSE_S = 0.25


def pause(waited_s: float) -> None:
    """Sleep a tenth of what was waited so far: a short wait ends soon, and a long one costs the
    store few questions.
    """
    # Not in the store's own wait, which keeps the exception of a signal from coming.
    time.sleep(min(max(waited_s / 10, 0.001), _LONGEST_PAUSE_S))
