"""The results that `configure_optimizers` may return, brought into one form."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from core.contract import Capability, ConfigurationError, ModuleError
from core_training.hooks.events import overrides
from core_training.module.module import has_method, require_method
from core_training.settings.warn_at import warn_at

if TYPE_CHECKING:
    from torch import nn

    from core.contract import Strategy
    from core_training.logging.metric_values import Origin
    from core_training.run import Run

_FORMS = (
    "an Optimizer; a list of them; (optimizers, schedulers); a dict with 'optimizer' and perhaps "
    "'lr_scheduler'; a list of such dicts; or None to train without one"
)


@dataclass(slots=True)
class Scheduler:
    """A learning-rate scheduler, and when to step it.

    Attributes:
        scheduler: anything with `step`, `state_dict` and `load_state_dict`.
        interval: after every optimizer step, or after every epoch.
        frequency: step it every so many intervals.
        monitor: name of the logged metric that is handed to `step`, for ReduceLROnPlateau.
        strict: True to make a missing metric an error, False to skip the step.
        name: for the learning-rate monitor.
        reduce_on_plateau: hand the metric to `step` of a scheduler that isn't torch's
            ReduceLROnPlateau.
        is_waiting: a step is due, and the metric that it takes hasn't been renewed since the step
            before.
        renewed_by: what has ended since then: `"validation"`, and the training `"epoch"`.
        origin: the event that renews its metric, as the ranks agreed when it was last there; None
            before.
    """

    scheduler: Any
    interval: Literal["step", "epoch"] = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    reduce_on_plateau: bool = False
    is_waiting: bool = field(default=False, init=False)
    renewed_by: set[str] = field(default_factory=set, init=False)
    origin: Origin | None = field(default=None, init=False)

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's own state."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.scheduler.load_state_dict(state)


def parse_optimizers(configured: object) -> tuple[list[Optimizer], list[Scheduler]]:
    """Understand what the user's `configure_optimizers` returned.

    Raises:
        ModuleError: it is of no known form.
    """
    optimizers, schedulers = _parse(configured)
    known = {id(optimizer) for optimizer in optimizers}
    for item in schedulers:
        own = getattr(item.scheduler, "optimizer", None)
        if own is not None and id(own) not in known:
            raise ModuleError(
                f"configure_optimizers returned a {type(item.scheduler).__name__} of an optimizer "
                "that it did not return, so that it would change nothing. Return that optimizer, "
                "or make the scheduler of the one that is returned."
            )
    return optimizers, schedulers


def check_optimizers(run: Run, optimizers: Sequence[Optimizer]) -> None:
    """All ranks. Refuse optimizers that automatic optimization can't step, and warn if there are
    none.

    Args:
        run: whose module they are of.
        optimizers: as `configure_optimizers` returned them.

    Raises:
        ModuleError: several, which can't step together.
        ConfigurationError: an optimizer that evaluates the loss repeatedly, or none at all, with
            options that need another.
    """
    module, options, window = run.module, run.options, run.accumulate_grad_batches
    name = type(module).__name__
    if not getattr(module, "automatic_optimization", True):
        return
    if len(optimizers) > 1:
        from core_training.module.optimizer_errors import check_several  # most have one

        check_several(module, optimizers)
    if not optimizers and options.max_steps >= 0 and options.max_epochs is None:
        raise ConfigurationError(
            f"max_steps={options.max_steps} counts optimizer steps, and "
            f"{name}.configure_optimizers returned no optimizer, so that training would not end. "
            "Pass max_epochs."
        )
    if not optimizers and run.strategy.is_global_zero:
        warn_at(
            getattr(type(module), "configure_optimizers", None),
            f"{name}.configure_optimizers returned no optimizer: training without one, no "
            "parameter will change.",
        )
    if window > 1 and optimizers and evaluates_loss(optimizers[0]):
        raise ConfigurationError(
            f"accumulate_grad_batches={window}, and {type(optimizers[0]).__name__} evaluates "
            "the loss several times in a step, for one batch. Use larger batches, or another "
            "optimizer."
        )


def evaluates_loss(optimizer: Any) -> bool:
    """True if `step` needs a closure, as that of LBFGS does: torch says so by a `closure` without a
    default.
    """
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _parse(configured: Any) -> tuple[list[Optimizer], list[Scheduler]]:
    match configured:
        case None | [] | [[], []]:
            return [], []
        case Optimizer():
            return [configured], []
        case Mapping():
            return _parse_dicts([configured])
        # Two lists come before one: patterns take lists and tuples alike.
        case [[*optimizers], [*schedulers]] if all(
            isinstance(item, Optimizer) for item in optimizers
        ):
            return list(optimizers), [_parse_scheduler(item) for item in schedulers]
        case [*items] if items and all(isinstance(item, Mapping) for item in items):
            return _parse_dicts(items)
        case [*items] if items and all(isinstance(item, Optimizer) for item in items):
            return list(items), []
    raise ModuleError(f"configure_optimizers returned {_describe(configured)}; expected {_FORMS}.")


def _parse_dicts(items: Sequence[Mapping[str, Any]]) -> tuple[list[Optimizer], list[Scheduler]]:
    optimizers = []
    schedulers = []
    for item in items:
        _refuse_unknown(
            "configure_optimizers returned a dict",
            item,
            {"optimizer", "lr_scheduler", "monitor", "lr_scheduler_config"},
        )
        optimizer = item.get("optimizer")
        if not isinstance(optimizer, Optimizer):
            raise ModuleError(
                "configure_optimizers returned a dict whose 'optimizer' is "
                f"{_describe(optimizer)}; expected an Optimizer there."
            )
        optimizers.append(optimizer)
        scheduler = item.get("lr_scheduler", item.get("lr_scheduler_config"))
        if scheduler is not None:
            schedulers.append(_parse_scheduler(scheduler, monitor=item.get("monitor")))
    return optimizers, schedulers


def _refuse_unknown(what: str, given: Mapping[str, Any], known: set[str]) -> None:
    for name in sorted(given.keys() - known):
        raise ModuleError(f"{what} with {name!r}; expected some of {sorted(known)}.")


def _parse_scheduler(item: Any, monitor: str | None = None) -> Scheduler:
    options: Mapping[str, Any] = {"scheduler": item}
    if isinstance(item, Mapping):
        options = item
    _refuse_unknown(
        "configure_optimizers returned a scheduler's dict",
        options,
        {"scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau"},
    )
    scheduler = options.get("scheduler")
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        raise ModuleError(
            f"configure_optimizers returned {_describe(scheduler)} as a scheduler; "
            "expected an LRScheduler, or a dict with 'scheduler', 'interval', 'frequency', "
            "'monitor'."
        )
    parsed = Scheduler(**{"monitor": monitor, **options})
    if parsed.interval not in ("step", "epoch"):
        raise ModuleError(
            f"A scheduler's interval is {parsed.interval!r}; expected 'step' or 'epoch'."
        )
    if type(parsed.frequency) is not int or parsed.frequency < 1:
        raise ModuleError(
            f"A scheduler's frequency is {parsed.frequency!r}; expected an integer of at least 1."
        )
    if takes_metric(parsed) and parsed.monitor is None:
        raise ModuleError(
            f"{type(parsed.scheduler).__name__} needs a metric to watch: return "
            "{'optimizer': ..., 'lr_scheduler': ..., 'monitor': 'val_loss'} from "
            "configure_optimizers."
        )
    return parsed


def takes_metric(scheduler: Scheduler) -> bool:
    """True if `step` takes the monitored metric: that of torch's plateau scheduler does, the others
    don't.
    """
    if scheduler.reduce_on_plateau or isinstance(scheduler.scheduler, ReduceLROnPlateau):
        return True
    return scheduler.monitor is not None and not isinstance(scheduler.scheduler, LRScheduler)


def _describe(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of ({', '.join(type(item).__name__ for item in value)})"
    if isinstance(value, type):
        return f"the class {value.__name__}, and no {value.__name__}(...)"
    return f"{type(value).__name__} {value!r:.120}"


def check_schedulers(
    module: nn.Module, strategy: Strategy, schedulers: Sequence[Scheduler]
) -> None:
    """All ranks. Refuse a scheduler that can't be stepped as the loop does it.

    Raises:
        ModuleError: its `step` takes something else.
        ConfigurationError: it would have to be stepped between the updates of one batch.
    """
    if strategy.updates_per_batch > 1 and any(item.interval == "step" for item in schedulers):
        raise ConfigurationError(
            "configure_optimizers returned a scheduler with interval='step', and "
            f"{type(strategy).__name__} makes {strategy.updates_per_batch} updates in each batch, "
            "all with one learning rate. Use interval='epoch', or let the strategy make one update "
            "in a batch."
        )
    if (
        not getattr(module, "automatic_optimization", True)
        or overrides(module, "lr_scheduler_step")
        or Capability.OWNS_SCHEDULER in strategy.capabilities
    ):
        return
    for item in schedulers:
        name = type(item.scheduler).__name__
        metric = []
        if takes_metric(item):
            metric.append("metric")
        try:
            inspect.signature(item.scheduler.step).bind(*metric)
        except TypeError as error:
            raise ModuleError(
                f"The loop calls {name}.step({', '.join(metric)}), which can't be: {error}. Step "
                "it yourself: define lr_scheduler_step(self, scheduler, metric) in the module, "
                "such as scheduler.step(self.current_epoch + 1)."
            ) from None
        except ValueError:  # a method of native code
            pass


def require_optimizers(module: nn.Module, strategy: Strategy) -> None:
    """Main process. Refuse a module without optimizers, or with some beside those that the strategy
    makes.

    Raises:
        ModuleError: with what to do.
    """
    if Capability.MAKES_OPTIMIZERS not in strategy.capabilities:
        require_method(module, "configure_optimizers", "fit")
    elif has_method(module, "configure_optimizers"):
        raise ModuleError(
            f"{type(module).__name__} has configure_optimizers(), and the configuration that "
            f"{type(strategy).__name__} was given names an optimizer too. Leave one of them out."
        )
