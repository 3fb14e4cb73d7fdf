"""A LightningModule in a loop of the user's own, where what it asks its Trainer for is its
Fabric's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from core import Fabric, Logger, Module
from core.data import map_leaves

_OWN = ("_fabric", "_fabric_optimizers")


class UnderFabric(Module):
    """A module that a Fabric or a Trainer runs: the one that it was given to last."""

    _fabric: Fabric | None = None
    _fabric_optimizers: Sequence[Any] = ()

    def run_by(self, fabric: Fabric | None, optimizers: Sequence[Any] = ()) -> None:
        """Attach the module to a Fabric, with the optimizers that it was set up with, or detach
        it.
        """
        # Past nn.Module's own bookkeeping, as the trainer is; a copy of the module has neither, see
        # __getstate__.
        vars(self).update(_fabric=fabric, _fabric_optimizers=list(optimizers))

    fabric: Any = property(
        lambda self: self._fabric, run_by, doc="The Fabric that has set this module up, or None."
    )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key not in _OWN}

    @property
    def trainer(self) -> Any:
        """The Trainer that runs this module, or the Fabric, for what both have."""
        return super().trainer if self._fabric is None else self._fabric

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self.run_by(None)
        Module.trainer.fset(self, trainer)  # type: ignore[attr-defined]

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return super().logger if self._fabric is None else self._fabric.logger

    @property
    def loggers(self) -> Sequence[Logger]:
        """All loggers."""
        return super().loggers if self._fabric is None else self._fabric.loggers

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """Record several values; see `core.Module.log_dict`. Under Fabric they go to its loggers as
        they are.
        """
        if self._fabric is None:
            super().log_dict(values, **options)
        elif options.get("logger") is not False:
            self._fabric.log_dict(values)

    def optimizers(self) -> Any:
        """The optimizer, or the list of them, whose `step` goes through the strategy."""
        if self._fabric is None:
            return super().optimizers()
        return (
            self._fabric_optimizers[0]
            if len(self._fabric_optimizers) == 1
            else self._fabric_optimizers
        )

    def manual_backward(self, loss: Any, **kwargs: Any) -> None:
        """Backward through the strategy, which scales and exchanges gradients."""
        if self._fabric is None:
            super().manual_backward(loss, **kwargs)
        else:
            self._fabric.backward(loss, **kwargs)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:  # type: ignore[override]
        """All ranks. Stack tensors, also nested ones, over ranks, or over those of a group of
        `torch.distributed`.
        """
        if group is not None:
            strategy = self.trainer.strategy
            return map_leaves(
                lambda leaf: (
                    strategy.all_gather(leaf, group, sync_grads)
                    if isinstance(leaf, Tensor)
                    else leaf
                ),
                data,
            )
        if self._fabric is None:
            return super().all_gather(data, sync_grads=sync_grads)
        return self._fabric.all_gather(data, sync_grads=sync_grads)
