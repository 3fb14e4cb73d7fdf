"""The check that all ranks run the same plugins, before the first collective would hang or give
nonsense.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections import defaultdict
from typing import TYPE_CHECKING

from core.contract.errors import FingerprintError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.contract.spec import Fingerprint
    from core.strategies.rendezvous.store import RendezvousStore


def exchange(
    store: RendezvousStore,
    rank: int,
    world_size: int,
    mine: Fingerprint,
    *,
    prefix: str = "core/fingerprint",
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
    kind = hashlib.blake2b(repr(mine).encode(), digest_size=8).hexdigest()
    store.set(f"{prefix}/{rank}", json.dumps([socket.gethostname(), mine]))
    store.add(f"{prefix}/of/{kind}", 1)
    # To add nothing is to read a counter.
    if store.add(f"{prefix}/come", 1) == world_size:
        verdict = ""
        if store.add(f"{prefix}/of/{kind}", 0) != world_size:
            texts = [store.get(f"{prefix}/{each}") for each in range(world_size)]
            verdict = describe_difference(list(map(json.loads, texts)))
        store.set(f"{prefix}/verdict", verdict)
    verdict = store.get(f"{prefix}/verdict").decode()
    if verdict:
        raise FingerprintError(verdict)


def describe_difference(answers: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """A table of which ranks, on which nodes, have what.

    Args:
        answers: of each rank, in the order of ranks: name of its node, and its fingerprint.
    """
    ranks: dict[tuple[tuple[str, ...], ...], list[int]] = defaultdict(list)
    for rank, (_, rows) in enumerate(answers):
        # JSON has made lists of the tuples, which can't be hashed
        ranks[tuple(map(tuple, rows))].append(rank)
    table = [("kind", "ranks", "nodes", "alias", "provider")]
    for kind in sorted({row[0] for rows in ranks for row in rows}):
        chosen = {rows: tuple(row for row in rows if row[0] == kind) for rows in ranks}
        if len({*chosen.values()}) > 1:
            for rows, members in ranks.items():
                aliases = ", ".join(alias for _, alias, _, _ in chosen[rows])
                providers = ", ".join(
                    f"{name} {version}".rstrip() for _, _, name, version in chosen[rows]
                )
                nodes = ", ".join(dict.fromkeys(answers[rank][0] for rank in members))
                table.append((kind, spans(members), nodes, aliases or "none", providers or "-"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "The ranks of this run don't use the same plugins, so they would wait for each other for "
        "ever. Install the same versions on every node, and start every rank with the same "
        "arguments."
    ]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def spans(ranks: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `"0-2, 5"`."""
    found: list[list[int]] = []
    for rank in ranks:
        if not found or rank != found[-1][-1] + 1:
            found.append([])
        found[-1].append(rank)
    return ", ".join("-".join(map(str, sorted({span[0], span[-1]}))) for span in found)
