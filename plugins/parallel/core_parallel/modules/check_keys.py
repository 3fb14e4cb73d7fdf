"""When what was looked at is looked at again: at new keys, and from time to time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from core_parallel.modules.own_state import OF_EVERY_MODULE

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import nn

EVERY = 1000
"""After so many calls it is looked at again, whatever the key; before that after 4, 16, 64 and
256.
"""

_EARLY = frozenset({1, 4, 16, 64, 256})
_KINDS = frozenset({bool, int, float, str, type(None)})
_WORDS = frozenset({bool, str, type(None)})
_MOST_VALUES = 20


class CheckKeys:
    """The keys for which something was looked at.

    A key is what the caller says, such as shapes, whether each module trains, arguments that are a
    bool, a str or None, and the attributes of modules that are one of these, an int or a float. An
    attribute with a new value in three calls in a row, as a counter has, is no part of it; nor is
    one with many values.

    Args:
        module: whose attributes count, with all in it.
        group: of the ranks that look together: if one has a new key, all do. None for one rank.
        device: of that group.
    """

    def __init__(
        self, module: nn.Module, group: Any = None, device: torch.device | None = None
    ) -> None:
        self._module, self._group, self._device = module, group, device
        self._num_calls = 0
        self._seen: set[int] = set()
        self._sizes: list[tuple[dict[str, Any], int]] = []
        self._places: list[tuple[dict[str, Any], str]] = []
        self._last: list[Any] = []
        self._values: dict[tuple[int, str], tuple[set[Any], int, int]] = {}
        self._words: set[Any] = set()

    def is_due(self, *further: Hashable, given: Any = ()) -> bool:
        """All ranks of the group, once a call. True if it is to be looked at now."""
        return agreed(self._group, self._device, self.is_new(*further, given=given))[0]

    def is_new(self, *further: Hashable, given: Any = ()) -> bool:
        """This rank, once a call. True if it is to be looked at now, as far as this rank
        knows.

        Args:
            further: of the key.
            given: arguments of the call: each that is a bool, a str or None is of the key, while
                these don't have many values.
        """
        self._num_calls += 1
        words = tuple(leaf for leaf in tree_leaves(given) if type(leaf) in _WORDS)
        if len(self._words) <= _MOST_VALUES:
            self._words.add(words)
        key = hash(
            (further, tuple(self._attributes()), words if len(self._words) <= _MOST_VALUES else ())
        )
        is_new = key not in self._seen or is_in_turn(self._num_calls)
        self._seen.add(key)
        return is_new

    def _attributes(self) -> list[Any]:
        if (
            self._num_calls % EVERY == 0
            or not self._sizes
            or any(len(own) != size for own, size in self._sizes)
        ):
            self._find()
        values = [own.get(name) for own, name in self._places]
        found = [one if type(one) in _KINDS else None for one in values]
        if found != self._last:
            for index, value in enumerate(found):
                if index >= len(self._last) or value != self._last[index]:
                    self._note(index, value)
            self._places = [
                one for one in self._places if one[1] == "training" or not self._is_changing(one)
            ]
            kept = [own.get(name) for own, name in self._places]
            found = [one if type(one) in _KINDS else None for one in kept]
            self._last = found
        return found

    def _find(self) -> None:
        owners = [vars(part) for part in self._module.modules()]
        self._sizes = [(own, len(own)) for own in owners]
        places = [
            (own, name)
            for own in owners
            for name in own
            if name not in OF_EVERY_MODULE or name == "training"
        ]
        self._places = [one for one in places if one[1] == "training" or not self._is_changing(one)]
        self._last = []

    def _note(self, index: int, value: Any) -> None:
        own, name = self._places[index]
        values, in_a_row, newest = self._values.get((id(own), name), (set(), 0, 0))
        if value not in values:
            values.add(value)
            in_a_row = in_a_row + 1 if newest == self._num_calls - 1 else 1
            newest = self._num_calls
        self._values[id(own), name] = values, in_a_row, newest

    def _is_changing(self, place: tuple[dict[str, Any], str]) -> bool:
        values, in_a_row, _ = self._values.get((id(place[0]), place[1]), ((), 0, 0))
        return in_a_row > 3 or len(values) > _MOST_VALUES


def is_in_turn(num_calls: int) -> bool:
    """True if a call is looked at whatever its key."""
    return num_calls in _EARLY or num_calls % EVERY == 0


def is_without_values(module: nn.Module) -> bool:
    """True for a module of fake tensors, by which a run is planned: nothing can be compared."""
    return is_fake(next(module.parameters(), None))


def is_fake(value: object) -> bool:
    """True for a tensor without values."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(
        getattr(value, "_local_tensor", value), fakes.FakeTensor
    )


def agreed(group: Any, device: torch.device | None, *marks: bool) -> list[bool]:
    """All ranks of a group, None for one rank. The marks that any of them has set, in one
    message.
    """
    if group is None:
        return list(marks)
    numbers = torch.tensor([float(one) for one in marks], device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX, group=group)
    return [bool(one) for one in numbers.tolist()]
