"""Several loaders as one, which a program iterates over as it does under Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Self

from core import CombinedLoader as CoreCombinedLoader
from core.data import map_leaves


def _of_each(name: str, doc: str) -> Any:
    return property(
        lambda self: self._filled(getattr(each, name, None) for each in self.flattened), doc=doc
    )


class CombinedLoader(CoreCombinedLoader):
    """See `core.CombinedLoader`. Iterated over by the program itself, it gives triples.

    A triple is the batch, its number, and the number of its loader; the last one is 0, unless the
    mode is `sequential`.
    """

    def __init__(self, iterables: Any, mode: Any = "min_size") -> None:
        super().__init__(iterables, mode)
        self._reader: Iterator[tuple[Any, int, int]] | None = None

    iterables = property(attrgetter("loaders"), doc="The loaders as they were given.")
    sampler = _of_each("sampler", "The samplers of the loaders, in their structure.")
    batch_sampler = _of_each(
        "batch_sampler", "The batch samplers of the loaders, in their structure."
    )

    @property
    def flattened(self) -> list[Any]:
        """The loaders, in the order in which they are read."""
        return [loader for _, loader in self.leaves]

    def _filled(self, leaves: Iterator[Any]) -> Any:
        own = set(map(id, self.flattened))
        return map_leaves(
            lambda _: next(leaves), self.loaders, is_leaf=lambda item: id(item) in own, of_all=True
        )

    def __iter__(self) -> Self:
        if self.mode == "sequential":
            self._reader = (
                (batch, number, index)
                for index, loader in enumerate(self.flattened)
                for number, batch in enumerate(loader)
            )
        else:
            together = _READERS[self.mode](self.flattened)
            self._reader = (
                (self._filled(iter(batches)), number, 0) for number, batches in enumerate(together)
            )
        return self

    def __next__(self) -> tuple[Any, int, int]:
        if self._reader is None:
            raise RuntimeError("Call iter() on the CombinedLoader before next().")
        return next(self._reader)

    def reset(self) -> None:
        """Forget the position."""
        self._reader = None


def _read_in_cycles(loaders: Sequence[Any]) -> Iterator[list[Any]]:
    readers, ended = [iter(loader) for loader in loaders], [False] * len(loaders)
    while True:
        batches = []
        for index, loader in enumerate(loaders):
            try:
                batch = next(readers[index])
            except StopIteration:
                ended[index] = True
                if all(ended):
                    return
                readers[index] = iter(loader)
                batch = next(readers[index])
            batches.append(batch)
        yield batches


_READERS: dict[str, Callable[[Sequence[Any]], Iterator[Sequence[Any]]]] = {
    "min_size": lambda loaders: zip(*loaders, strict=False),
    "max_size": lambda loaders: zip_longest(*loaders),
    "max_size_cycle": _read_in_cycles,
}
