"""The transfer of a batch to the device: by hooks of module or data module, or as usual. Decided
once a stage.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.contract import ModuleError
from core.data import make_transfer, map_leaves
from core_training.hooks.events import overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.contract import Strategy


def batch_transfer(
    strategy: Strategy, owners: Sequence[Any], dataloader_idx: int
) -> Callable[[Any], Any] | None:
    """All ranks. The function that brings a loader's batches to the device; None if there is
    nothing to do.

    Args:
        strategy: has precision and device.
        owners: may have hooks; those of the first come before those of the next. None is left out.
        dataloader_idx: handed to the hooks.

    Raises:
        ModuleError: a hook can't be called with what it gets.
    """
    precision, device = strategy.precision_plugin, strategy.root_device
    convert = precision.convert_input if precision.converts_input else None
    before, own, after = (
        _find(owners, name, num_arguments)
        for name, num_arguments in (
            ("on_before_batch_transfer", 2),
            ("transfer_batch_to_device", 3),
            ("on_after_batch_transfer", 2),
        )
    )
    steps: list[Callable[[Any], Any] | None] = [
        partial(_call_last, before, (dataloader_idx,)) if before is not None else None,
        make_transfer(device, convert)
        if own is None
        else partial(_call_last, own, (device, dataloader_idx)),
        # A user's own transfer knows nothing of the precision: what it brings is cast afterwards.
        _converter(convert) if own is not None and convert is not None else None,
        partial(_call_last, after, (dataloader_idx,)) if after is not None else None,
    ]
    return _chain([step for step in steps if step is not None])


def _find(owners: Sequence[object], name: str, num_arguments: int) -> Callable[..., object] | None:
    for owner in owners:
        if owner is not None and overrides(owner, name):
            hook: Callable[..., object] = getattr(owner, name)
            _check_signature(hook, num_arguments)
            return hook
    return None


def _check_signature(hook: Callable[..., object], num_arguments: int) -> None:
    signature = inspect.signature(hook)
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        names = (
            ("batch", "device", "dataloader_idx")
            if num_arguments == 3
            else ("batch", "dataloader_idx")
        )
        raise ModuleError(
            f"{hook.__qualname__}{signature} can't be called; it gets ({', '.join(names)})."
        ) from None


def _call_last(hook: Callable[..., object], arguments: tuple[object, ...], batch: object) -> object:
    return hook(batch, *arguments)


def _converter(convert: Callable[[Tensor], Tensor]) -> Callable[[object], object]:
    def cast(leaf: Any) -> Any:
        return convert(leaf) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return lambda batch: map_leaves(cast, batch)


def _chain(steps: list[Callable[[object], object]]) -> Callable[[object], object] | None:
    if len(steps) < 2:
        return steps[0] if steps else None

    def transfer(batch: object) -> object:
        for step in steps:
            batch = step(batch)
        return batch

    return transfer
