"""The first values of a model that was built on meta: those of one device, and never all of them on one rank.

Every rank draws the values of one submodule after the other, children first, each by its `reset_parameters()` and then
by the `_init_weights` of a module around it, as models of transformers have one. It keeps what is its own.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core import ModuleError
from core.checkpoint import collect_random_state, restore_random_state
from core_parallel.modules.absent import is_absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from core import Strategy


def is_needed(module: nn.Module, strategy: Strategy) -> bool:
    """All ranks. True if anything was built on meta.

    Args:
        module: the user's.
        strategy: of these ranks.

    Raises:
        ModuleError: ranks differ in what they have built there.
    """
    empty = [name for name, one in _named_tensors(module) if _is_empty(one)]
    if not strategy.reduce_boolean_decision(empty == strategy.broadcast(empty)):
        raise ModuleError(
            f"{type(module).__name__} was built on the meta device on some ranks, and with values on others. Build it "
            "alike on all, such as in configure_model, under torch.device('meta')."
        )
    return bool(empty)


def fill(module: nn.Module, strategy: Strategy, is_own: Callable[[Tensor], bool]) -> None:
    """All ranks. Give values to what is on meta and this rank's own; the rest stays on meta.

    Args:
        module: the user's, alike on all ranks.
        strategy: of these ranks.
        is_own: whether this rank is to have a tensor.
    """
    drawn = {id(one) for _, one in _named_tensors(module) if _is_empty(one)}
    reset: set[int] = set()
    initialized: set[int] = set()
    known: set[nn.Module] = set()
    parts = []
    with _random_state_of_rank_zero(strategy):
        for part in _children_first(module):
            if any(id(one) in drawn for one in _tensors_of(part).values()):
                parts.append(part)
                _draw(part, _reset_of(part), is_own, reset)
            if (initialize := getattr(part, "_init_weights", None)) is not None:
                inside = set(part.modules())
                # A model in a model has done it for its own.
                for child in (one for one in parts if one in inside and one not in known):
                    _draw(child, partial(initialize, child), is_own, initialized)
                    known.add(child)
    _warn_of_unknown(module, [part for part in parts if _reset_of(part) is None and part not in known])


def _draw(part: nn.Module, draw: Callable[[], Any] | None, is_own: Callable[[Tensor], bool], done: set[int]) -> None:
    """Draw a part's own tensors, whole, and keep those that are this rank's.

    Args:
        part: one submodule.
        draw: gives values to its tensors; None fills them with NaN.
        is_own: whether this rank is to have a tensor.
        done: tensors that another part shares and has drawn: this one draws all the same, and doesn't count.
    """
    before = {name: one for name, one in _tensors_of(part).items() if one.is_meta or id(one) in done}
    for name, one in before.items():
        _set(part, name, _empty_like(one))
    try:
        (draw or partial(_fill_with_nan, part))()
        drawn = _tensors_of(part)
    finally:
        for name, one in before.items():
            _set(part, name, one)
    for name, one in before.items():
        if id(one) not in done and is_own(one):
            torch.utils.swap_tensors(one, drawn[name])  # keeps identities
    done |= {id(one) for one in _tensors_of(part).values()}


def _warn_of_unknown(module: nn.Module, unknown: list[nn.Module]) -> None:
    if unknown:
        names = {part: name or type(part).__name__ for name, part in module.named_modules()}
        warnings.warn(
            f"{len(unknown)} submodules were built on the meta device and have no reset_parameters() that could give "
            f"them values: {', '.join(names[part] for part in unknown[:8])}. They hold NaN until a checkpoint is "
            "loaded.",
            stacklevel=2,
        )


def _is_empty(tensor: Tensor) -> bool:
    return tensor.is_meta and not is_absent(tensor)


def _children_first(module: nn.Module) -> Iterable[nn.Module]:
    found: list[nn.Module] = []
    module.apply(found.append)
    return dict.fromkeys(found)  # once each, also with several parents


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _tensors_of(part: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module, without those of its children."""
    return {name: one for name, one in (*part._parameters.items(), *part._buffers.items()) if one is not None}


def _set(part: nn.Module, name: str, tensor: Any) -> None:
    (part._parameters if name in part._parameters else part._buffers)[name] = tensor


def _empty_like(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _reset_of(part: nn.Module) -> Callable[[], Any] | None:
    for name in ("reset_parameters", "_reset_parameters"):  # the second is that of nn.MultiheadAttention
        if callable(method := getattr(part, name, None)):
            return method  # type: ignore[no-any-return]
    return None


def _fill_with_nan(part: nn.Module) -> None:
    with torch.no_grad():
        for tensor in _tensors_of(part).values():
            tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0)


@contextmanager
def _random_state_of_rank_zero(strategy: Strategy) -> Iterator[None]:
    """A context in which all ranks draw what rank 0 draws; others than rank 0 have their own random state afterwards.

    Those that had the same go on from what was drawn, as on one device.
    """
    mine = collect_random_state(strategy.accelerator, strategy.root_device)
    before = torch.get_rng_state()
    restore_random_state(strategy.broadcast(mine), strategy.accelerator, strategy.root_device)
    was_common = torch.equal(before, torch.get_rng_state())
    yield
    if not was_common:
        restore_random_state(mine, strategy.accelerator, strategy.root_device)
