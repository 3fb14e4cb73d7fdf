"""Which batches each update was made of, and which are left out."""

from __future__ import annotations

from collections import deque
from itertools import chain


class LeftOutBatches:
    """Batches by epoch and number, which are the same on all ranks.

    Order of calls: `take` for each batch, then `end_window` where an accumulation window ends; or
    `leave_out`, and `forget_after` in the state to which the run goes back.

    Attributes:
        left_out: batches that aren't shown to the module any more.
    """

    def __init__(self, undo: int, max_in_a_row: int) -> None:
        """Begin with none.

        Args:
            undo: updates before a bad one that are undone with it.
            max_in_a_row: times that this may happen before another update is made.
        """
        self.left_out: set[tuple[int, int]] = set()
        self._undo = undo
        self._made: deque[tuple[int, list[tuple[int, int]]]] = deque(
            maxlen=undo * (max_in_a_row + 1)
        )
        self._window: list[tuple[int, int]] = []

    def take(self, epoch: int, batch_idx: int) -> None:
        """A batch of the window comes."""
        self._window.append((epoch, batch_idx))

    @property
    def has_left_out(self) -> bool:
        """True if the batch that came last is left out."""
        return self._window[-1] in self.left_out

    @property
    def num_undone(self) -> int:
        """Updates that are undone if the window is a bad one."""
        return min(self._undo, len(self._made))

    def end_window(self, step: int, *, is_made: bool) -> None:
        """The window is over.

        Args:
            step: optimizer steps so far.
            is_made: its update was.
        """
        if is_made:
            self._made.append((step, self._window))
        self._window = []

    def leave_out(self) -> None:
        """The window is a bad one: leave its batches out, and those of the updates that are
        undone.
        """
        undone = list(self._made)[len(self._made) - self.num_undone :]
        self.left_out.update(self._window, chain.from_iterable(batches for _, batches in undone))

    def forget_after(self, step: int) -> None:
        """Forget the window, and updates after this step: they are to come."""
        while self._made and self._made[-1][0] > step:
            self._made.pop()
        self._window = []
