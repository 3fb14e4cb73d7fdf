"""Plugins that exchange statistics of layers between ranks."""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from core import Callback, Capability, ModuleError, Trainer


class LayerSync(abc.ABC):
    """Replaces layers by others whose ranks talk to each other. Meant to be subclassed."""

    @abc.abstractmethod
    def apply(self, model: nn.Module) -> nn.Module:
        """The model with such layers."""

    @abc.abstractmethod
    def revert(self, model: nn.Module) -> nn.Module:
        """The model with plain layers again."""


class TorchSyncBatchNorm(LayerSync):
    """Statistics of batch norms over all ranks, by torch's SyncBatchNorm."""

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with SyncBatchNorm layers."""
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return]

    def revert(self, model: nn.Module) -> nn.Module:
        """The model with batch norms that take inputs of any number of dimensions."""
        if isinstance(model, nn.SyncBatchNorm):
            return _plain(model)
        for name, child in model.named_children():
            setattr(model, name, self.revert(child))
        return model


class _AnyBatchNorm(BatchNorm):
    """A batch norm for inputs of any number of dimensions."""

    def _check_input_dim(self, inputs: Tensor) -> None:
        """Accept them: SyncBatchNorm doesn't know what it has replaced."""


def _plain(layer: nn.SyncBatchNorm) -> nn.Module:
    plain = _AnyBatchNorm(
        layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
    )
    with torch.no_grad():
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(plain, name, getattr(layer, name))
    return plain.train(layer.training)


class SyncsLayers(Callback):
    """Applies a `LayerSync` for `fit` on several ranks, and reverts it afterwards."""

    def __init__(self, plugin: LayerSync) -> None:
        self.plugin = plugin
        self._is_applied = False

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Replace the layers; the module itself has to stay."""
        if stage != "fit" or Capability.COLLECTIVES not in trainer.strategy.capabilities:
            return
        if self.plugin.apply(module) is not module:
            raise ModuleError(
                f"{type(self.plugin).__name__}.apply returned another module than "
                f"{type(module).__name__}: a LayerSync is expected to replace layers within it."
            )
        self._is_applied = True

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Replace them again."""
        if self._is_applied:
            self._is_applied = False
            self.plugin.revert(module)
