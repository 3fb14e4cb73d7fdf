"""Fabric, whose loaders stay untouched on one device, and which its modules know, as Lightning's
do.
"""

from __future__ import annotations

import inspect
from typing import Any

from core import Fabric as CoreFabric
from core.fabric import FabricOptimizer
from core_lightning.checkpoints.checkpoint_io import has_checkpoint_io
from core_lightning.module.module import LightningModule
from core_lightning.strategies._environments import listed
from core_lightning.strategies._precisions import replace_half_on_cpu
from core_lightning.utilities.lists import as_list
from core_lightning.utilities.seeding import seed_everything

_NAMES = list(inspect.signature(CoreFabric).parameters)
_WHOLE = ("auto", "ddp", "single_device")
"""Strategies whose checkpoints are one file under Lightning."""


class Fabric(CoreFabric):
    """Your loop on any strategy; see `core.Fabric`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        replace_half_on_cpu(options)
        given = dict(zip(_NAMES, arguments, strict=False)) | options
        given["plugins"] = listed(given.get("plugins"))
        is_whole = given.get("strategy", "auto") in _WHOLE
        if is_whole and not has_checkpoint_io(given["plugins"]):
            given["plugins"].append("torch")
        super().__init__(**given)
        self._waiting: list[FabricOptimizer] = []

    def setup_module(self, module: Any, *given: Any, **options: Any) -> Any:
        """All ranks. Set up a module, and optimizers that have waited for it; see
        `core.Fabric.setup_module`.
        """
        made = super().setup_module(module, *given, **options)
        waiting, self._waiting = self._waiting, []
        for optimizer in waiting:
            vars(optimizer).update(vars(super().setup_optimizers(optimizer.optimizer)))
        return made

    def setup_optimizers(self, *optimizers: Any) -> Any:
        """All ranks. Set up optimizers; before any module, they wait for it. See
        `core.Fabric.setup_optimizers`.
        """
        if self.strategy.session.handles:
            return super().setup_optimizers(*optimizers)
        waiting = [FabricOptimizer.__new__(FabricOptimizer) for _ in optimizers]
        for shell, optimizer in zip(waiting, optimizers, strict=True):
            vars(shell).update(optimizer=optimizer)
        self._waiting += waiting
        return waiting[0] if len(waiting) == 1 else tuple(waiting)

    def setup(self, module: Any, *optimizers: Any, **options: Any) -> Any:
        """All ranks. Set up a module, and the optimizers of its parameters; see
        `core.Fabric.setup`.

        A LightningModule has this Fabric as its `fabric` from then on, and its hooks are among
        those that `call` calls.
        """
        made = super().setup(module, *optimizers, **options)
        wrapped, *others = as_list(made)
        own = wrapped.module
        if isinstance(own, LightningModule):
            own.run_by(self, others[: len(optimizers)])
            if own not in self.callbacks:
                self.callbacks.append(own)
        return made

    def setup_dataloaders(
        self,
        *dataloaders: Any,
        use_distributed_sampler: bool = True,
        move_to_device: bool = True,
        **options: Any,
    ) -> Any:
        """All ranks. Give each rank its share of the data; see `core.Fabric.setup_dataloaders`.

        One device needs none: its loaders shuffle as they do under Lightning, but for a
        `global_batch_size`, which needs core's own order of the data.
        """
        shares = self.world_size > 1 or options.get("global_batch_size") is not None
        return super().setup_dataloaders(
            *dataloaders,
            use_distributed_sampler=use_distributed_sampler and shares,
            move_to_device=move_to_device,
            **options,
        )

    def clip_gradients(
        self,
        module: Any,
        optimizer: Any,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Any:
        """All ranks. Clip gradients; see `core.Fabric.clip_gradients`. A norm that isn't finite is
        an error.
        """
        return super().clip_gradients(
            module, optimizer, clip_val, max_norm, norm_type, error_if_nonfinite
        )

    def load_raw(
        self, path: Any, obj: Any, strict: bool = True, weights_only: bool | None = None
    ) -> None:
        """All ranks. Load what `torch.save(obj.state_dict(), path)` wrote; nothing in it is
        executed in any case.
        """
        super().load_raw(path, obj, strict=strict)

    def to_device(self, obj: Any) -> Any:
        """All ranks. Bring a module, a tensor or nested data to the rank's device; see
        `core.Fabric.to_device`.
        """
        return super().to_device(obj)

    @staticmethod
    def seed_everything(  # type: ignore[override]
        seed: int | None = None, workers: bool | None = None, verbose: bool = True
    ) -> int:
        """Seed all generators; see `core_lightning.utilities.seeding.seed_everything`."""
        return seed_everything(seed, bool(workers), verbose)
