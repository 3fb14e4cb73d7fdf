"""The batches of ranks that share them, compared: data that was made without a seed is another on
each rank.
"""

from __future__ import annotations

import zlib
from collections import Counter
from functools import wraps
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from core import ConfigurationError
from core.data import map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = 100  # batches; between two comparisons nothing is read or sent
_PLAIN = (str, bytes, int, float, bool, type(None))
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_AT_ONCE = 1 << 20  # elements, which are widened to 64 bits
_MIXED_IN = 0x9E3779B1


class SameBatches:
    """Compares a hash of the bytes of what the ranks of a group are given, at the first of every
    `EVERY` calls.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def around(
        self, name: str, call: Callable[..., Any], group: Any, device: torch.device
    ) -> Callable[..., Any]:
        """All ranks of the group. A step that compares its arguments first.

        Args:
            name: of the step; each is counted apart, anew for each stage.
            call: the step.
            group: of the ranks that share their batches; None if there are no others.
            device: on which the group exchanges tensors.
        """
        if group is None:
            return call
        self._calls[name] = 0

        @wraps(call)
        def compared(*args: Any, **kwargs: Any) -> Any:
            self.check(name, (args, kwargs), group, device)
            return call(*args, **kwargs)

        return compared

    def check(self, name: str, given: Any, group: Any, device: torch.device) -> None:
        """All ranks of the group. Compare what they were given, if it is its turn.

        Raises:
            ConfigurationError: with the ranks, and with what differs first.
        """
        number = self._calls[name]
        self._calls[name] += 1
        if group is None or number % EVERY:
            return
        own = _hash_of(given).to(device).reshape(1)
        found = [torch.empty_like(own) for _ in range(group.size())]
        dist.all_gather(found, own, group=group)
        if len(set(torch.cat(found).tolist())) == 1:
            return
        described: list[Any] = [None] * group.size()
        contents = [(_shown(leaf), int(_leaf_hash(leaf))) for leaf in leaves(given)]
        dist.all_gather_object(described, contents, group=group)
        raise ConfigurationError(
            _message(name, number, described, dist.get_process_group_ranks(group))
        )


def _message(
    name: str, number: int, described: list[list[tuple[str, int]]], ranks: list[int]
) -> str:
    first = described[0]
    place, other = next((place, one) for place, one in enumerate(described) if one != first)
    pairs = enumerate(zip_longest(first, other, fillvalue=("nothing", 0)))
    leaf, (one, another) = next((leaf, pair) for leaf, pair in pairs if pair[0] != pair[1])
    shown = (
        f"{one[0]}, with other contents" if one[0] == another[0] else f"{one[0]} and {another[0]}"
    )
    return (
        f"Ranks {ranks[0]} and {ranks[place]} share their data, and were given different batches "
        f"in call {number} of {name}: the first value that differs is number {leaf}, {shown} "
        "(counted from 0, through lists and dicts). Data that is made in the script without a "
        "seed, an unseeded numpy.random.default_rng() in a dataset, or the order of a set is "
        "another on each rank. Call seed_everything(...) before data is made, give generators a "
        "seed, and sort what comes from a set."
    )


def leaves(given: Any) -> list[Any]:
    """The leaves of a batch, through lists, dicts and the like."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(note, given)
    return found


def _shown(leaf: Any) -> str:
    if isinstance(leaf, Tensor) or hasattr(leaf, "dtype"):
        return (
            f"a {type(leaf).__name__} of shape {tuple(getattr(leaf, 'shape', ()))} and {leaf.dtype}"
        )
    return f"{leaf!r:.40}" if isinstance(leaf, _PLAIN) else f"a {type(leaf).__name__}"


def _hash_of(given: Any) -> Tensor:
    total = torch.zeros((), dtype=torch.int64)
    for leaf in leaves(given):
        one = _leaf_hash(leaf)
        total = total.to(one.device) * _MIXED_IN + one
    return total


def _leaf_hash(leaf: Any) -> Tensor:
    """A number that differs, but for an accident, where shape, format or bytes do: sums of words
    times odd numbers.
    """
    start = torch.tensor(zlib.crc32(_shown(leaf).encode()))
    if isinstance(leaf, str | bytes):
        return torch.tensor(
            zlib.crc32(leaf if isinstance(leaf, bytes) else leaf.encode(errors="surrogatepass"))
        )
    if not isinstance(leaf, Tensor):
        content = (
            leaf.tobytes() if type(leaf).__module__ == "numpy" and not leaf.dtype.hasobject else b""
        )
        return start + zlib.crc32(content)
    if (
        leaf.layout is not torch.strided
        or leaf.is_nested
        or leaf.is_meta
        or isinstance(leaf, DTensor)
    ):
        return start
    with torch.no_grad():
        plain = (
            torch.view_as_real(leaf.detach().resolve_conj()) if leaf.is_complex() else leaf.detach()
        )
        words = plain.resolve_neg().contiguous().flatten().view(_WORDS[plain.element_size()])
        total = start.to(leaf.device)
        for index, part in enumerate(words.split(_AT_ONCE)):
            odd = torch.arange(1, 2 * len(part), 2, device=part.device)
            total = total + (part.to(torch.int64) * odd).sum() * (2 * index + 1)
    return total
