"""The time of a rank's own work in each phase of a step: without that in which it waits for other
ranks.
"""

from __future__ import annotations

import threading
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from core_resilience.clocks import Clock

    Wait = tuple[Any, Any]

PHASES = ("data", "forward", "backward", "optimizer", "hooks")
"""The phases of a step, in the order of time; `hooks` is what comes between backward and the next
batch's data.
"""
_MEAN = {"data"}
"""Phases whose time comes in bursts, as that of data workers does: a median would miss it."""


class OwnTime:
    """Measures phases, one after the other, in the thread that has made it.

    Attributes:
        clocks: of the phases that are measured; to be set while none is.
        phase: that is running; None where nothing is measured.
    """

    def __init__(self) -> None:
        self.clocks: Mapping[str, Clock] = {}
        self.phase: str | None = None
        self._thread = threading.get_ident()
        self._since: Any = None
        self._waits: list[Wait] = []
        self._spans: dict[str, list[tuple[Any, Any, Sequence[Wait]]]] = {
            phase: [] for phase in PHASES
        }
        self._watched: list[tuple[object, str]] = []
        self._is_waiting = False

    def begin(self, phase: str | None) -> None:
        """The running phase ends, and another one begins; None: none."""
        if self.phase is not None:
            end = self.clocks[self.phase].mark()
            self._spans[self.phase].append((self._since, end, self._waits))
        self.drop()
        if phase is not None and (clock := self.clocks.get(phase)) is not None:
            self.phase, self._since, self._waits = phase, clock.mark(), []

    def drop(self) -> None:
        """The running phase ends, and isn't counted."""
        self.phase = None

    def leave_out(self, target: object, names: Sequence[str]) -> None:
        """From now on, leave out the time within these methods of an object, in which ranks wait
        for each other.
        """
        for name in names:
            setattr(target, name, self._left_out(getattr(target, name)))
            self._watched.append((target, name))

    def leave_out_of(self, target: object, name: str, names: Sequence[str]) -> None:
        """Likewise these methods of what a method of an object returns from now on."""
        make = getattr(target, name)

        def made(*args: Any, **kwargs: Any) -> Any:
            found = make(*args, **kwargs)
            self.leave_out(found, names)
            return found

        setattr(target, name, made)
        self._watched.append((target, name))

    def release(self) -> None:
        """Restore these objects."""
        self.drop()
        while self._watched:
            delattr(*self._watched.pop())

    def take(self, num_batches: int) -> list[float]:
        """Seconds of a batch in each phase since the last call, for `num_batches`."""
        taken = []
        for phase, spans in self._spans.items():
            values = [self._seconds(self.clocks[phase], *span) for span in spans]
            spans.clear()
            average = fmean if phase in _MEAN else median
            typical = average(values) if values else 0.0
            taken.append(typical if phase in _MEAN else typical * len(values) / num_batches)
        return taken

    def _seconds(self, clock: Clock, begin: Any, end: Any, waits: Sequence[Wait]) -> float:
        return max(0.0, clock.seconds(begin, end) - sum(clock.seconds(*wait) for wait in waits))

    def _left_out(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            phase = self.phase
            if phase is None or self._is_waiting or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            clock, waits, self._is_waiting = self.clocks[phase], self._waits, True
            begin = clock.mark()
            try:
                return function(*args, **kwargs)
            finally:
                self._is_waiting = False
                waits.append((begin, clock.mark()))

        return call
