"""The average of the weights at the ends of the last epochs."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from core.contract import ConfigurationError
from core_training.averaging.weight_averaging import WeightAveraging
from core_training.settings.callback_arguments import check_choice

if TYPE_CHECKING:
    import torch
    from torch.optim.swa_utils import SWALR

    from core_training.trainer import Trainer


class StochasticWeightAveraging(WeightAveraging):
    """Averages the weights at the ends of the last epochs, while the learning rate is high and
    constant.

    From `swa_epoch_start` on, the module's schedulers rest, and torch's SWALR leads the learning
    rate to `swa_lrs`. When fit ends, the module gets the average, and the statistics of its
    BatchNorm layers are computed anew, by one pass of `forward` over the training data (each batch,
    or its first element).

    Averaging Weights Leads to Wider Optima and Better Generalization,
    https://arxiv.org/abs/1803.05407
    """

    def __init__(
        self,
        swa_lrs: float | list[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: Literal["cos", "linear"] = "cos",
        *,
        update_batch_norm: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        """Create the callback.

        Args:
            swa_lrs: the learning rate, or one for each parameter group.
            swa_epoch_start: the first epoch whose end is averaged, counted from 0, or its place in
                all epochs (0 to 1).
            annealing_epochs: epochs in which the learning rate gets there.
            annealing_strategy: along a cosine, or a line.
            update_batch_norm: compute statistics of BatchNorm layers anew at the end.
            device: where the average is kept, for example `"cpu"`; None is the model's.

        Raises:
            ConfigurationError: arguments that can't be.
        """
        super().__init__(None, device=device)
        is_fraction = isinstance(swa_epoch_start, float)
        if swa_epoch_start < 0 or (is_fraction and swa_epoch_start > 1):
            raise ConfigurationError(
                f"StochasticWeightAveraging(swa_epoch_start={swa_epoch_start!r}): expected an "
                "epoch (int, from 0) or a fraction of all epochs (float, 0.0 to 1.0)."
            )
        check_choice(
            "StochasticWeightAveraging", "annealing_strategy", annealing_strategy, ("cos", "linear")
        )
        self.swa_lrs = swa_lrs
        self.swa_epoch_start = swa_epoch_start
        self.annealing_epochs = annealing_epochs
        self.annealing_strategy = annealing_strategy
        self.update_batch_norm = update_batch_norm
        self._schedulers: list[SWALR] = []
        self._restored: list[dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_schedulers": []}

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse to begin at an unknown time.

        Raises:
            ConfigurationError: a fraction of an unknown number of epochs.
        """
        super().check_fit(trainer, module)
        if isinstance(self.swa_epoch_start, float) and trainer.options.max_epochs is None:
            raise ConfigurationError(
                f"StochasticWeightAveraging(swa_epoch_start={self.swa_epoch_start}) is a fraction "
                "of max_epochs, which the trainer doesn't have. Name an epoch (int), or set "
                "Trainer(max_epochs=...)."
            )

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Make room for the average, and see that the end will work.

        Raises:
            ConfigurationError: BatchNorm layers, and no `forward`.
            UnsupportedError: the strategy spreads the weights over ranks in a way of its own.
        """
        super().on_fit_start(trainer, module)
        self._schedulers = []
        self._restored = None
        if self._has_batch_norm(module) and type(module).forward is nn.Module.forward:
            raise ConfigurationError(
                "StochasticWeightAveraging computes the statistics of BatchNorm layers anew by "
                f"calling forward, which {type(module).__name__} doesn't define. Define it, or "
                "pass update_batch_norm=False."
            )

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Go on where a checkpoint within the last epochs ended."""
        if self._restored is not None:
            self._begin(trainer)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Begin, when the time has come."""
        first = self.swa_epoch_start
        if isinstance(first, float):
            assert trainer.options.max_epochs is not None  # check_fit has seen to it
            first = int(first * trainer.options.max_epochs)
        if trainer.current_epoch >= first and not self._schedulers:
            self._begin(trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Update the average with the epoch's weights."""
        if self._schedulers:
            self.update()
            for scheduler in self._schedulers:
                scheduler.step()

    def on_fit_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Give the module its average, and its BatchNorm layers statistics that fit."""
        averaged = self.num_averaged
        super().on_fit_end(trainer, module)
        if averaged and self._has_batch_norm(module):
            self._compute_statistics(trainer, module)

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Add the average and the learning rate's course."""
        super().on_save_checkpoint(trainer, module, checkpoint)
        # Up to torch 2.9 a state holds its function too, which a new one has from
        # annealing_strategy.
        checkpoint["schedulers"] = [
            {name: value for name, value in each.state_dict().items() if not callable(value)}
            for each in self._schedulers
        ]

    def before_restore(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Within the last epochs the module's own schedulers are gone, in the checkpoint too."""
        if checkpoint.get("schedulers"):
            trainer.strategy.lr_schedulers = []

    def on_load_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the average and the learning rate schedulers."""
        super().on_load_checkpoint(trainer, module, checkpoint)
        self._restored = checkpoint["schedulers"] or None

    def _begin(self, trainer: Trainer) -> None:
        from torch.optim.swa_utils import SWALR

        self._schedulers = [
            SWALR(optimizer, self.swa_lrs, self.annealing_epochs, self.annealing_strategy)  # type: ignore[arg-type]
            for optimizer in trainer.strategy.optimizers
        ]
        for scheduler, state in zip(self._schedulers, self._restored or (), strict=False):
            scheduler.load_state_dict(state)
        self._restored = None
        trainer.strategy.lr_schedulers = []

    def _has_batch_norm(self, module: nn.Module) -> bool:
        return self.update_batch_norm and any(
            isinstance(child, BatchNorm) for child in module.modules()
        )

    def _compute_statistics(self, trainer: Trainer, module: nn.Module) -> None:
        from torch.optim.swa_utils import update_bn

        # this rank's shard of one epoch, on the device
        loaders = trainer.loaders
        transfer = trainer.make_transfer() or (lambda batch: batch)
        loaders.begin_epoch(trainer.current_epoch)
        limit = None
        if loaders.num_train_batches != float("inf"):
            limit = int(loaders.num_train_batches)
        batches = map(transfer, islice(loaders.open_train(), limit))
        with trainer.strategy.forward_context() or nullcontext():
            update_bn(batches, module)
        for child in module.modules():
            if isinstance(child, BatchNorm):
                for statistic in (child.running_mean, child.running_var):
                    # Each rank has the statistics of its own shard.
                    if statistic is not None:
                        statistic.copy_(trainer.strategy.reduce(statistic, reduce_op="mean"))
