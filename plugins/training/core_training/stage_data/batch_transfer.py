"""The transfer of a batch to the device: by hooks of module or data module, or as usual. Decided
once a stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.data import make_transfer, map_leaves
from core_training.hooks.events import overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from core.contract import Strategy

    _Step: TypeAlias = Callable[[Any], Any]


def batch_transfer(strategy: Strategy, owners: Sequence[Any], dataloader_idx: int) -> _Step | None:
    """All ranks. The function that brings a loader's batches to the device; None if there is
    nothing to do.

    Args:
        strategy: has precision and device.
        owners: may have hooks; those of the first come before those of the next. None is left out.
        dataloader_idx: handed to the hooks.
    """
    precision, device = strategy.precision_plugin, strategy.root_device
    convert = precision.convert_input if precision.converts_input else None
    usual = [make_transfer(device, convert)]
    own = _find(owners, "transfer_batch_to_device", device, dataloader_idx)
    if own is not None:
        # A user's own transfer knows nothing of the precision: what it brings is cast afterwards.
        usual = [own, _converter(convert)]
    before = _find(owners, "on_before_batch_transfer", dataloader_idx)
    after = _find(owners, "on_after_batch_transfer", dataloader_idx)
    return _chain([step for step in (before, *usual, after) if step is not None])


def _find(owners: Sequence[object], name: str, *arguments: object) -> _Step | None:
    """The first owner's hook, called with these arguments after the batch."""
    for owner in owners:
        if owner is not None and overrides(owner, name):
            hook: Callable[..., object] = getattr(owner, name)
            return lambda batch: hook(batch, *arguments)
    return None


def _converter(convert: Callable[[Tensor], Tensor] | None) -> _Step | None:
    if convert is None:
        return None

    def cast(leaf: Any) -> Any:
        return convert(leaf) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return lambda batch: map_leaves(cast, batch)


def _chain(steps: list[_Step]) -> _Step | None:
    if len(steps) < 2:
        return steps[0] if steps else None

    def transfer(batch: object) -> object:
        for step in steps:
            batch = step(batch)
        return batch

    return transfer
