"""Learning rates in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError
from core_training.callbacks import Callback
from core_training.monitors.arguments import require_logger

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from core_training.trainer import Trainer


class LearningRateMonitor(Callback):
    """Logs the learning rate of each optimizer and parameter group, under the step that it was used
    for.

    The name is that of the scheduler (`"name"` in its dict) or `lr-` and the optimizer's class,
    with `/pg1`, `/pg2`, ... for several groups, or `/` and a group's own `"name"`.
    """

    leaves_traces = True

    def __init__(
        self,
        logging_interval: Literal["step", "epoch"] | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ) -> None:
        """Create the callback.

        Args:
            logging_interval: with the other metrics of steps, every `log_every_n_steps`, or once an
                epoch. None: by step if any scheduler steps so, else by epoch.
            log_momentum: log momentum too, or Adam's first beta.
            log_weight_decay: log weight decay too.

        Raises:
            ConfigurationError: an unknown interval.
        """
        if logging_interval not in (None, "step", "epoch"):
            raise ConfigurationError(
                f"LearningRateMonitor(logging_interval={logging_interval!r}): expected 'step', "
                "'epoch' or None."
            )
        self.logging_interval = logging_interval
        self.log_momentum, self.log_weight_decay = log_momentum, log_weight_decay
        self.reset_for_fit()

    def reset_for_fit(self) -> None:
        """Nothing was logged yet."""
        self._logged_step = -1

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse to work without a logger.

        Raises:
            ConfigurationError: the trainer has no logger.
        """
        require_logger("LearningRateMonitor", trainer)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Give each optimizer its name."""
        schedulers = trainer.strategy.lr_schedulers
        self._interval = self.logging_interval or (
            "step" if any(item.interval == "step" for item in schedulers) else "epoch"
        )
        self._names = _name_optimizers(trainer.strategy.optimizers, schedulers)
        self._every = trainer.options.log_every_n_steps

    def on_train_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """Log what the coming step will use, if the metrics of that step are logged."""
        step = trainer.global_step + 1
        if self._interval == "step" and step % self._every == 0 and step != self._logged_step:
            self._log(trainer, step)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Log what the epoch begins with."""
        if self._interval == "epoch":
            self._log(trainer, trainer.global_step)

    def _log(self, trainer: Trainer, step: int) -> None:
        values: dict[str, float] = {}
        for name, optimizer in zip(self._names, trainer.strategy.optimizers, strict=True):
            for suffix, group in _name_groups(optimizer):
                values |= self._read(name, suffix, group)
        self._logged_step = step
        trainer.logged.take(values)
        trainer.log_metrics(values, step)

    def _read(self, name: str, suffix: str, group: dict[str, Any]) -> dict[str, float]:
        values = {name + suffix: float(group["lr"])}
        if self.log_momentum:
            values[f"{name}-momentum{suffix}"] = float(
                group.get("momentum", group.get("betas", (0.0,))[0])
            )
        if self.log_weight_decay:
            values[f"{name}-weight_decay{suffix}"] = float(group.get("weight_decay", 0.0))
        return values


def _name_optimizers(optimizers: list[Optimizer], schedulers: list[Any]) -> list[str]:
    """A name for each: its scheduler's, or one made of its class; several of one name are
    numbered.
    """
    given = {
        id(getattr(item.scheduler, "optimizer", None)): item.name
        for item in schedulers
        if item.name
    }
    names = [
        given.get(id(optimizer)) or f"lr-{type(optimizer).__name__}" for optimizer in optimizers
    ]
    return [
        name if names.count(name) == 1 else f"{name}-{names[:index].count(name)}"
        for index, name in enumerate(names)
    ]


def _name_groups(optimizer: Optimizer) -> list[tuple[str, dict[str, Any]]]:
    groups = optimizer.param_groups
    if len(groups) == 1 and "name" not in groups[0]:
        return [("", groups[0])]
    return [
        (f"/{group.get('name', f'pg{number}')}", group)
        for number, group in enumerate(groups, start=1)
    ]
