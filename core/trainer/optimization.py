"""What `configure_optimizers` may return, brought into one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from core.contract import ModuleError

_FORMS = (
    "an Optimizer; a list of them; (optimizers, schedulers); a dict with 'optimizer' and perhaps 'lr_scheduler'; "
    "a list of such dicts; or None to train without one"
)


@dataclass(slots=True)
class Scheduler:
    """A learning-rate scheduler, and when to step it.

    Attributes:
        scheduler: anything with `step`, `state_dict` and `load_state_dict`.
        interval: after every optimizer step, or after every epoch.
        frequency: step it every so many intervals.
        monitor: name of the logged metric that is handed to `step`, for ReduceLROnPlateau.
        strict: whether a metric that isn't there is an error, or only skipped.
        name: for the learning-rate monitor.
    """

    scheduler: Any
    interval: Literal["step", "epoch"] = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's own state."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.scheduler.load_state_dict(state)


def parse_optimizers(configured: Any) -> tuple[list[Optimizer], list[Scheduler]]:
    """Understand what the user's `configure_optimizers` returned.

    Raises:
        ModuleError: it is of no known form.
    """
    match configured:
        case None:
            return [], []
        case Optimizer():
            return [configured], []
        case Mapping():
            return _parse_dicts([configured])
        case [[*optimizers], [*schedulers]] if all(isinstance(item, Optimizer) for item in optimizers):
            return list(optimizers), [_parse_scheduler(item) for item in schedulers]
        case [*items] if items and all(isinstance(item, Mapping) for item in items):
            return _parse_dicts(items)
        case [*items] if items and all(isinstance(item, Optimizer) for item in items):
            return list(items), []
    raise ModuleError(f"configure_optimizers returned {_describe(configured)}; expected {_FORMS}.")


def _parse_dicts(items: Sequence[Mapping[str, Any]]) -> tuple[list[Optimizer], list[Scheduler]]:
    optimizers, schedulers = [], []
    for item in items:
        if unknown := sorted(item.keys() - {"optimizer", "lr_scheduler", "monitor", "lr_scheduler_config"}):
            raise ModuleError(
                f"configure_optimizers returned a dict with {unknown[0]!r}; "
                "expected 'optimizer', 'lr_scheduler' and 'monitor'."
            )
        if not isinstance(item.get("optimizer"), Optimizer):
            raise ModuleError(
                f"configure_optimizers returned a dict whose 'optimizer' is {_describe(item.get('optimizer'))}; "
                "expected an Optimizer."
            )
        optimizers.append(item["optimizer"])
        scheduler = item.get("lr_scheduler", item.get("lr_scheduler_config"))
        if scheduler is not None:
            schedulers.append(_parse_scheduler(scheduler, monitor=item.get("monitor")))
    return optimizers, schedulers


def _parse_scheduler(item: Any, monitor: str | None = None) -> Scheduler:
    options: Mapping[str, Any] = item if isinstance(item, Mapping) else {"scheduler": item}
    known = {"scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau"}
    if unknown := sorted(options.keys() - known):
        raise ModuleError(f"A scheduler's dict has {unknown[0]!r}; expected some of {sorted(known)}.")
    chosen = {key: value for key, value in options.items() if key != "reduce_on_plateau"}
    if not callable(getattr(chosen.get("scheduler"), "step", None)):
        raise ModuleError(
            f"configure_optimizers returned {_describe(chosen.get('scheduler'))} as a scheduler; "
            "expected an LRScheduler, or a dict with 'scheduler', 'interval', 'frequency', 'monitor'."
        )
    parsed = Scheduler(**{"monitor": monitor, **chosen})
    _check_scheduler(parsed)
    return parsed


def _check_scheduler(scheduler: Scheduler) -> None:
    if scheduler.interval not in ("step", "epoch"):
        raise ModuleError(f"A scheduler's interval is {scheduler.interval!r}; expected 'step' or 'epoch'.")
    if scheduler.frequency < 1:
        raise ModuleError(f"A scheduler's frequency is {scheduler.frequency}; expected at least 1.")
    if isinstance(scheduler.scheduler, ReduceLROnPlateau) and scheduler.monitor is None:
        raise ModuleError(
            "ReduceLROnPlateau needs a metric to watch: return "
            "{'optimizer': ..., 'lr_scheduler': ..., 'monitor': 'val_loss'} from configure_optimizers."
        )


def takes_metric(scheduler: Scheduler) -> bool:
    """Whether `step` wants the monitored metric: torch's plateau scheduler does, its others don't."""
    if isinstance(scheduler.scheduler, ReduceLROnPlateau):
        return True
    return scheduler.monitor is not None and not isinstance(scheduler.scheduler, LRScheduler)


def _describe(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of ({', '.join(type(item).__name__ for item in value)})"
    return f"{type(value).__name__} {value!r}"[:120]
