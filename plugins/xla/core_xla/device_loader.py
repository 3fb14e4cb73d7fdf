"""A loader whose batches are on their way to the device before the step asks for them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class DeviceLoader:
    """Places the batches of a loader, some of them ahead. A transfer to a device of XLA doesn't
    wait.

    Attributes:
        loader: the user's, sharded.
        place: brings one batch to the devices.
        num_ahead: batches that are placed before they are asked for.
        compare: looks at the first batch of each iteration before it is placed; None looks at none.
    """

    compare: Callable[[Any], None] | None = None

    def __init__(self, loader: Any, place: Callable[[Any], Any], num_ahead: int) -> None:
        self.loader, self.place, self.num_ahead = loader, place, num_ahead

    def __iter__(self) -> Iterator[Any]:
        placed: deque[Any] = deque()
        for number, batch in enumerate(self.loader):
            if self.compare is not None and number == 0:
                self.compare(batch)
            placed.append(self.place(batch))
            if len(placed) > self.num_ahead:
                yield placed.popleft()
        # The loader has ended, and its last batches are still here.
        yield from placed

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def num_ahead_of(loader: Any, wanted: int) -> int:
    """Number of batches to ask for ahead: none where that would change what is drawn, or a position
    that is kept.

    A loader without workers makes its batches in this process, with the random numbers of this
    process.
    """
    keeps_position = callable(getattr(loader, "state_dict", None))
    return wanted if getattr(loader, "num_workers", 0) and not keeps_position else 0
