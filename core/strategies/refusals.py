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
    halves = torch.frombuffer(bytearray(digest), dtype=torch.int32).to(torch.int64)
    # The largest of each half, and of the negative ones that of the smallest: equal if all ranks
    # have the same.
    highest, lowest = strategy.reduce(torch.stack([halves, -halves]), reduce_op="max")
    if not torch.equal(highest, -lowest):
        gathered = strategy.gather_objects(rows)
        raise ModuleError(strategy.broadcast(gathered and describe_difference(gathered)))


def describe_difference(rows_of_ranks: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The message: the first tensor in which ranks differ, and which have what.

    Args:
        rows_of_ranks: one a rank: name and form of each tensor, in order.
    """
    for place, rows in enumerate(zip_longest(*rows_of_ranks, fillvalue=("no tensor", "missing"))):
        ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank, row in enumerate(rows):
            ranks[row].append(rank)
        if len(ranks) > 1:
            lines = [
                f"  {name!r}, {form} on rank{'s' * (len(own) > 1)} {spans(own)}"
                for (name, form), own in ranks.items()
            ]
            return (
                "The ranks have built different modules, whose collectives would mix what doesn't "
                "belong together, or fail. Build and freeze by what all ranks know alike. Tensor "
                f"{place} of them is:\n" + "\n".join(lines)
            )
    return "The ranks have built different modules."


def _rows(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, parameter in module.named_parameters():
        yield name, _form(parameter) + ", frozen" * (not parameter.requires_grad)
    for name, buffer in module.named_buffers():
        yield name, _form(buffer) + ", a buffer"


def _form(tensor: Tensor) -> str:
    shape = "of no shape yet"
    if not is_lazy(tensor):
        shape = str(tuple(tensor.shape))
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
