"""Models and optimizers that a strategy can't take."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from core.contract import ModuleError, Strategy
from core.strategies.fingerprint import spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.optim import Optimizer


_MOST_SHOWN = 8
_HALF = 1 << 31


def refuse_unlike_modules(
    strategy: Strategy, module: nn.Module, ignored: Sequence[str] = ()
) -> None:
    """All ranks. Compare names, shapes and formats of parameters and buffers, in their order, and
    what is frozen.

    Costs one `reduce` of four numbers. Only where ranks differ, rank 0 gathers what each has.

    Args:
        strategy: of these ranks.
        module: as this rank has built it.
        ignored: names in which ranks may differ.

    Raises:
        ModuleError: on all ranks: which have what.
    """
    if strategy.world_size == 1:
        return
    rows = [row for row in _rows(module) if row[0] not in ignored]
    digest = hashlib.blake2b(repr(rows).encode(), digest_size=8).digest()
    halves = [int.from_bytes(half, "big") - _HALF for half in (digest[:4], digest[4:])]
    # The largest of each half, and of the negative ones that of the smallest: equal if all ranks
    # have the same.
    highest = strategy.reduce(
        torch.tensor([*halves, *(-half for half in halves)]), reduce_op="max"
    ).tolist()
    if highest[:2] != [-half for half in highest[2:]]:
        gathered = strategy.gather_objects(rows)
        raise ModuleError(strategy.broadcast(gathered and describe_difference(gathered)))


def describe_difference(rows_of_ranks: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The message: which ranks have what.

    Args:
        rows_of_ranks: one a rank: name and form of each tensor.
    """
    forms = [dict(rows) for rows in rows_of_ranks]
    names = dict.fromkeys(name for rows in forms for name in rows)
    lines = []
    for name in names:
        ranks = defaultdict(list)
        for rank, rows in enumerate(forms):
            ranks[rows.get(name, "missing")].append(rank)
        if len(ranks) > 1:
            lines.append(
                f"  {name!r}: "
                + "; ".join(f"{form} on {_ranks(own)}" for form, own in ranks.items())
            )
    if not lines:
        lines = _another_order(rows_of_ranks)
    more = [f"  and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return (
        "The ranks have built different modules, whose collectives would mix what doesn't belong "
        "together, or fail. Build and freeze by what all ranks know "
        "alike.\n" + "\n".join(lines[:_MOST_SHOWN] + more)
    )


def _another_order(rows_of_ranks: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    orders = defaultdict(list)
    for rank, rows in enumerate(rows_of_ranks):
        orders[tuple(name for name, _ in rows)].append(rank)
    place = next(place for place, names in enumerate(zip_longest(*orders)) if len(set(names)) > 1)
    return [
        f"  tensor {place} is {names[place]!r} on {_ranks(ranks)}"
        for names, ranks in orders.items()
    ]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"


def _rows(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, parameter in module.named_parameters():
        yield name, _form(parameter) + ("" if parameter.requires_grad else ", frozen")
    for name, buffer in module.named_buffers():
        yield name, _form(buffer) + ", a buffer"


def _form(tensor: Tensor) -> str:
    shape = "of no shape yet" if is_lazy(tensor) else str(tuple(tensor.shape))
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"


def refuse_sparse_layers(strategy: Strategy, module: nn.Module) -> None:
    """Refuse a module of which a layer gives sparse gradients. For `setup_module`, before anything
    is moved.

    Raises:
        ModuleError: the layer, and what to write.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ModuleError(
                f"{name!r} of {type(module).__name__} gives sparse gradients, and "
                f"{type(strategy).__name__} takes dense ones. Build it with sparse=False."
            )


def needs_whole_matrices(optimizer: Optimizer) -> bool:
    """True if an optimizer's step is wrong where it sees a part of a matrix: torch's Muon, and what
    is made of it.

    Another class says so by an attribute `needs_whole_matrices = True`.
    """
    return (
        isinstance(optimizer, torch.optim.Muon)
        or getattr(optimizer, "needs_whole_matrices", False) is True
    )
