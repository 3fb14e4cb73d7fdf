"""The first values of a model that was built on meta: those of one device, and never all of them on
one rank.

Every rank draws the values of one submodule after the other, children first, each by its
`reset_parameters()` and then by the `_init_weights` of a module around it, as models of
transformers have one. It keeps what is its own.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core import ModuleError
from core.checkpoint import collect_random_state, restore_random_state
from core_fsdp import first_draws
from core_parallel.modules.absent import is_absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core import Strategy


def is_needed(module: nn.Module, strategy: Strategy) -> bool:
    """All ranks. True if anything was built on meta.

    Args:
        module: the user's.
        strategy: of these ranks.

    Raises:
        ModuleError: ranks differ in what they have built there.
    """
    named = (*module.named_parameters(), *module.named_buffers())
    empty = [name for name, one in named if _is_empty(one)]
    if not strategy.reduce_boolean_decision(empty == strategy.broadcast(empty)):
        raise ModuleError(
            f"{type(module).__name__} was built on the meta device on some ranks, and with values "
            "on others. Build it alike on all, such as in configure_model, under "
            "torch.device('meta')."
        )
    return bool(empty)


def fill(
    module: nn.Module, strategy: Strategy, is_own: Callable[[Tensor], bool]
) -> list[first_draws.Lacking]:
    """All ranks. Give values to what is on meta and this rank's own; the rest stays on meta.

    Args:
        module: the user's, alike on all ranks.
        strategy: of these ranks.
        is_own: whether this rank is to have a tensor.

    Returns:
        The tensors to which nothing gave values.
    """
    parts = {part for part in module.modules() if any(map(_is_empty, _tensors_of(part).values()))}
    done: tuple[set[int], set[int]] = set(), set()
    unknown: list[nn.Module] = []
    with _random_state_of_rank_zero(strategy):
        for part, draw, is_second in first_draws.draws(module, parts, unknown):
            _draw(part, draw, is_own, done[is_second])
    return first_draws.lacking(module, unknown)


def _draw(
    part: nn.Module, draw: Callable[[], Any], is_own: Callable[[Tensor], bool], done: set[int]
) -> None:
    """Draw a part's own tensors, whole, and keep those that are this rank's.

    Args:
        part: one submodule.
        draw: gives values to its tensors.
        is_own: whether this rank is to have a tensor.
        done: tensors that another part shares and has drawn: this one draws all the same, and
            doesn't count.
    """
    before = {
        name: one for name, one in _tensors_of(part).items() if one.is_meta or id(one) in done
    }
    for name, one in before.items():
        _set(part, name, _empty_like(one))
    try:
        draw()
        drawn = _tensors_of(part)
    finally:
        for name, one in before.items():
            _set(part, name, one)
    for name, one in before.items():
        if id(one) not in done and is_own(one):
            torch.utils.swap_tensors(one, drawn[name])  # keeps identities
    done |= {id(one) for one in _tensors_of(part).values()}


def _is_empty(tensor: Tensor) -> bool:
    return tensor.is_meta and not is_absent(tensor)


def _tensors_of(part: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module, without those of its children."""
    own = {**part._parameters, **part._buffers}
    return {name: one for name, one in own.items() if one is not None}


def _set(part: nn.Module, name: str, tensor: Any) -> None:
    own: dict[str, Any] = part._buffers
    if name in part._parameters:
        own = part._parameters
    own[name] = tensor


def _empty_like(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


@contextmanager
def _random_state_of_rank_zero(strategy: Strategy) -> Iterator[None]:
    """A context in which all ranks draw what rank 0 draws; others than rank 0 have their own random
    state afterwards.

    Those that had the same go on from what was drawn, as on one device.
    """
    mine = collect_random_state(strategy.accelerator, strategy.root_device)
    before = torch.get_rng_state()
    restore_random_state(strategy.broadcast(mine), strategy.accelerator, strategy.root_device)
    was_common = torch.equal(before, torch.get_rng_state())
    yield
    if not was_common:
        restore_random_state(mine, strategy.accelerator, strategy.root_device)
