"""Learning rates in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from core_training.monitors.step_monitor import StepMonitor
from core_training.settings.callback_arguments import check_choice

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from core_training.trainer import Trainer


class LearningRateMonitor(StepMonitor):
    """Logs the learning rate of each optimizer and parameter group, under the step that it was used
    for.

    The name is that of the scheduler (`"name"` in its dict) or `lr-` and the optimizer's class,
    with `/pg1`, `/pg2`, ... for several groups, or `/` and a group's own `"name"`.
    """

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
        check_choice(
            "LearningRateMonitor", "logging_interval", logging_interval, ("step", "epoch", None)
        )
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self.reset_for_fit()

    def reset_for_fit(self) -> None:
        """Nothing was logged yet."""
        self._logged_step = -1

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Give each optimizer its name."""
        super().on_train_start(trainer, module)
        schedulers = trainer.strategy.lr_schedulers
        self._interval = self.logging_interval
        if self._interval is None:
            self._interval = "epoch"
            if any(item.interval == "step" for item in schedulers):
                self._interval = "step"
        self._names = _name_optimizers(trainer.strategy.optimizers, schedulers)

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
                values[name + suffix] = float(group["lr"])
                if self.log_momentum:
                    momentum = group.get("momentum", group.get("betas", (0.0,))[0])
                    values[f"{name}-momentum{suffix}"] = float(momentum)
                if self.log_weight_decay:
                    decay = group.get("weight_decay", 0.0)
                    values[f"{name}-weight_decay{suffix}"] = float(decay)
        self._logged_step = step
        trainer.logged.take(values)
        trainer.log_metrics(values, step)


def _name_optimizers(optimizers: list[Optimizer], schedulers: list[Any]) -> list[str]:
    """A name for each: its scheduler's, or one made of its class; several of one name are
    numbered.
    """
    names = {id(optimizer): f"lr-{type(optimizer).__name__}" for optimizer in optimizers}
    for item in schedulers:
        if item.name:
            names[id(getattr(item.scheduler, "optimizer", None))] = item.name
    wanted = [names[id(optimizer)] for optimizer in optimizers]
    return [
        name if wanted.count(name) == 1 else f"{name}-{wanted[:index].count(name)}"
        for index, name in enumerate(wanted)
    ]


def _name_groups(optimizer: Optimizer) -> list[tuple[str, dict[str, Any]]]:
    groups = optimizer.param_groups
    if len(groups) == 1 and "name" not in groups[0]:
        return [("", groups[0])]
    return [
        (f"/{group.get('name', f'pg{number}')}", group)
        for number, group in enumerate(groups, start=1)
    ]
