"""The check that all ranks run the same plugins, before the first collective would hang or give
nonsense.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from core.contract.errors import FingerprintError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from core.contract.spec import Fingerprint


class Store(Protocol):
    """The part of torch's `Store` that is needed."""

    def set(self, key: str, value: str, /) -> None:
        """Write."""

    def get(self, key: str, /) -> bytes:
        """Read a value; wait until another rank has written it."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which begins at 0; returns what it is then."""


def compare(fingerprints: Sequence[Fingerprint], hosts: Sequence[str] = ()) -> None:
    """Check that all are equal.

    Args:
        fingerprints: one a rank, in the order of ranks.
        hosts: name of each rank's node, in the same order; may be left out.

    Raises:
        FingerprintError: they aren't; a table says which ranks, on which nodes, have what.
    """
    ranks: dict[Fingerprint, list[int]] = defaultdict(list)
    for rank, rows in enumerate(fingerprints):
        ranks[rows].append(rank)
    if len(ranks) > 1:
        raise FingerprintError(_message(ranks, hosts))


def exchange(
    store: Store, rank: int, world_size: int, mine: Fingerprint, *, prefix: str = "core/fingerprint"
) -> None:
    """Compare over a store, all ranks. Each counts itself among its like; the last to come
    publishes the result.

    So no rank reads what every other one has written, unless there is a difference to tell.

    Args:
        store: a `torch.distributed.Store`, or what has its `set`, `get` and `add`. A key is used
            once, so each call needs a store or a prefix of its own.
        rank: of this process.
        world_size: number of processes.
        mine: (kind, alias, provider, version) of every choice made here.
        prefix: of the keys.

    Raises:
        FingerprintError: on all ranks, if one differs.
    """
    rows = json.dumps(mine)
    kind = hashlib.blake2b(rows.encode(), digest_size=8).hexdigest()
    store.set(f"{prefix}/{rank}", json.dumps([socket.gethostname(), kind]))
    if store.add(f"{prefix}/of/{kind}", 1) == 1:  # the first of its kind says what that is
        store.set(f"{prefix}/rows/{kind}", rows)
    # To add nothing is to read a counter.
    if store.add(f"{prefix}/come", 1) == world_size:
        are_alike = store.add(f"{prefix}/of/{kind}", 0) == world_size
        store.set(f"{prefix}/verdict", "" if are_alike else _verdict(store, prefix, world_size))
    if verdict := store.get(f"{prefix}/verdict").decode():
        raise FingerprintError(verdict)


def _verdict(store: Store, prefix: str, world_size: int) -> str:
    answers = [json.loads(store.get(f"{prefix}/{rank}")) for rank in range(world_size)]
    rows = {
        kind: _rows(store.get(f"{prefix}/rows/{kind}")) for kind in {kind for _, kind in answers}
    }
    try:
        compare([rows[kind] for _, kind in answers], [host for host, _ in answers])
    # Caught here: the others wait for a verdict, and all raise the same.
    except FingerprintError as difference:
        return str(difference)
    return ""


def _rows(content: bytes) -> Fingerprint:
    # JSON has made lists of the tuples, which can't be compared or hashed.
    return tuple(
        (kind, alias, provider, version) for kind, alias, provider, version in json.loads(content)
    )


def _message(ranks: dict[Fingerprint, list[int]], hosts: Sequence[str]) -> str:
    table = [("kind", "ranks", "nodes", "alias", "provider")]
    for kind in _differing(ranks):
        for rows, members in ranks.items():
            chosen = [row for row in rows if row[0] == kind]
            aliases = ", ".join(alias for _, alias, _, _ in chosen) or "none"
            providers = (
                ", ".join(f"{provider} {version}".rstrip() for _, _, provider, version in chosen)
                or "-"
            )
            nodes = ", ".join(dict.fromkeys(hosts[rank] for rank in members)) if hosts else "?"
            table.append((kind, spans(members), nodes, aliases, providers))
    return (
        "The ranks of this run don't use the same plugins, so they would wait for each other for "
        "ever. Install the same versions on every node, and start every rank with the same "
        "arguments.\n" + _drawn(table)
    )


def _differing(ranks: Iterable[Fingerprint]) -> list[str]:
    versions: dict[str, set[tuple[tuple[str, ...], ...]]] = defaultdict(set)
    rows_of_all = list(ranks)
    for kind in sorted({row[0] for rows in rows_of_all for row in rows}):
        versions[kind] = {tuple(row for row in rows if row[0] == kind) for rows in rows_of_all}
    return [kind for kind, chosen in versions.items() if len(chosen) > 1]


def spans(ranks: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `"0-2, 5"`."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _drawn(table: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
    return "\n".join(f"  {row}".rstrip() for row in rows)
