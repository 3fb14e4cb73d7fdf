"""The protocol of strategies that know for which ranks one of them waits, for the watch over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Awaited:
    """A message, or several, for which a rank waits.

    Attributes:
        what: in words, as in `"the output of stage 0 for microbatch 3"`.
        ranks: the global ranks that it comes from, or that are to take it.
    """

    what: str
    ranks: tuple[int, ...]


@runtime_checkable
class AwaitsRanks(Protocol):
    """A strategy in which a rank waits for some of the others, as the stages of a pipeline do.

    The watch asks for it while a rank stands still. Its report then has what each rank waits for; and where all ranks
    wait, it names those that others wait for and that wait for nobody.
    """

    def awaited(self) -> Awaited | None:
        """Any thread, at any time, without a collective. The messages for which this rank waits; None if unknown.

        It is asked only of a rank whose thread waits, and may be what it waited for last while it doesn't.
        """
