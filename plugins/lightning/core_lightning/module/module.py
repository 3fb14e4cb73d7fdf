"""The module and the data module, with Lightning's names and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from core import DataModule, Module
from core_lightning.checkpoints.trusted_reads import TRUSTS, as_path, objects_for
from core_lightning.checkpoints.whole_checkpoint import WholeCheckpoint, give_whole, plain_part
from core_lightning.module.exporting import Exports
from core_lightning.module.hyperparameters import HyperparametersMixin
from core_lightning.module.mode_hooks import MODE_HOOKS, ModeHooks
from core_lightning.module.under_fabric import UnderFabric


class LightningModule(HyperparametersMixin, ModeHooks, Exports, UnderFabric):
    """An `nn.Module` that knows how it is trained; see `core.Module`."""

    other_hooks = MODE_HOOKS
    CHECKPOINT_HYPER_PARAMS_KEY = "hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "hparams_type"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        give_whole(cls, LightningModule)

    def log(  # type: ignore[override]  # Lightning's order
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool | None = None,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Record a value under a name; see `core.Module.log`.

        `enable_graph`, `sync_dist_group` and `metric_attribute` change nothing here. Under Fabric
        the value goes to its loggers as it is.
        """
        if self.fabric is not None:
            return self.log_dict({name: value}, logger=logger)
        metrics = self.trainer.run.metrics
        if not add_dataloader_idx and metrics is not None and metrics.dataloader_idx is not None:
            vars(self.trainer).setdefault("loaders_of", {}).setdefault(name, set()).add(
                metrics.dataloader_idx
            )
        super().log(
            name,
            value,
            prog_bar,
            logger is not False,
            on_step,
            on_epoch,
            reduce_fx,
            sync_dist,
            batch_size,
            add_dataloader_idx,
            rank_zero_only,
        )

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or the list of them; False gives the program's own, whose `step` the
        strategy doesn't see.
        """
        if use_pl_optimizer or self.fabric is not None:
            return super().optimizers()
        own = self.trainer.optimizers
        return own[0] if len(own) == 1 else own

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the module needs besides its weights. Meant to be overridden."""
        if not isinstance(checkpoint, WholeCheckpoint):  # nothing overrides it
            checkpoint.update(plain_part(self, {}))

    on_gpu = property(
        lambda self: self.device.type == "cuda", doc="True if the module is on a CUDA device."
    )

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        trusted: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make the module again, with its hyperparameters and weights; see
        `core.Module.load_from_checkpoint`.

        Args:
            checkpoint_path: what a Trainer has saved, of core or of Lightning; or an open file with
                it.
            map_location: the device for the module; None is the CPU.
            hparams_file: hyperparameters in a file, in place of those of the checkpoint.
            strict: whether the weights must fit exactly.
            weights_only: taken for Lightning's sake; only `trusted` lets anything in the file be
                executed.
            trusted: you know who wrote the file: objects in it, which `PickledObjects` or Lightning
                has put there, are unpickled, which executes what it says. None is what `install`
                was given, or else no.
            kwargs: arguments of `__init__`, which count most.
        """
        is_trusted = bool(TRUSTS) if trusted is None else trusted
        with (
            as_path(checkpoint_path) as path,
            objects_for(cls, path, is_trusted=is_trusted) as hparams,
        ):
            return super().load_from_checkpoint(  # type: ignore[no-any-return]
                path, map_location, strict, hparams_file=hparams_file, **{**hparams, **kwargs}
            )


class LightningDataModule(DataModule):
    """All that concerns a run's data in one object; see `core.DataModule`."""

    name: str | None = None
    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "datamodule_hparams_type"

    def __init__(self) -> None:
        super().__init__()

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's arguments
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make the data module again; see `core.DataModule.load_from_checkpoint`. Nothing in the
        file is executed.
        """
        return super().load_from_checkpoint(checkpoint_path, hparams_file=hparams_file, **kwargs)


# TorchScript compiles what a class has, but for these.
LightningModule.__jit_unused_properties__ = [  # type: ignore[attr-defined]
    name
    for name in dir(LightningModule)
    if isinstance(getattr(LightningModule, name, None), property)
]
LightningModule.__jit_ignored_attributes__ = [  # type: ignore[attr-defined]
    name
    for base in LightningModule.__mro__
    if issubclass(base, Module)
    for name in base.__annotations__
]


def _load_from_checkpoint(cls: type[Any], checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
    """See `LightningModule.load_from_checkpoint`: packages with a `load_from_checkpoint` of their
    own call it so.
    """
    return LightningModule.load_from_checkpoint.__func__(cls, checkpoint_path, *args, **kwargs)  # type: ignore[attr-defined]
