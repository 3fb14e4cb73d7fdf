"""The meaning of the arguments `callbacks`, `logger` and `profiler`, and their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from core.contract import ConfigurationError, Logger, UnknownAliasError
from core.registry import LOGGER_REGISTRY
from core_training import callbacks as known
from core_training.hooks.callback import Callback

if TYPE_CHECKING:
    from core.contract import PathLike
    from core_training.profilers import Profiler

# Named rather than imported: who switches one off, and brings no callbacks, waits for none of them.
_DEFAULTS = {
    "enable_progress_bar": ("ProgressBar", "RichProgressBar"),
    "enable_model_summary": ("ModelSummary", "ModelSummary"),
    "enable_checkpointing": ("ModelCheckpoint", "ModelCheckpoint"),
}
"""The callbacks that each argument of the Trainer is about, and the one that a trainer has if the
user brings none.
"""

_PROFILERS = {
    "simple": "SimpleProfiler",
    "advanced": "AdvancedProfiler",
    "pytorch": "PyTorchProfiler",
}


def make_callbacks(
    callbacks: str | Callback | Sequence[str | Callback] | None,
    *,
    default: bool,
    **enabled: bool | None,
) -> list[Callback]:
    """The user's callbacks; a progress bar, a summary of the model and checkpoints, unless there
    are some already.

    Checkpoints come last, whatever the order, so that they hold the state that all others have
    reached.

    Args:
        callbacks: the Trainer's argument.
        default: what None in `enabled` means.
        enabled: `enable_progress_bar`, `enable_model_summary` and `enable_checkpointing`.

    Raises:
        ConfigurationError: neither a callback nor the name of installed event hooks; two with one
            state key; a callback of a kind that was switched off.
    """
    given = [callbacks] if isinstance(callbacks, str | Callback) else list(callbacks or ())
    chosen = [_make_callback(item) for item in given]
    for argument, value in enabled.items():
        if value is None:
            value = default
        if chosen or value:
            kind, kind_made = (getattr(known, name) for name in _DEFAULTS[argument])
            present = [callback for callback in chosen if isinstance(callback, kind)]
            if present and not value:
                raise ConfigurationError(
                    f"{argument}=False, and callbacks has a {type(present[0]).__name__}. Leave one "
                    "of them out."
                )
            if value and not present:
                chosen.append(kind_made())
    refuse_equal_keys(chosen)
    return sorted(chosen, key=lambda callback: callback.found_as == "checkpoint_callback")


def _make_callback(item: object) -> Callback:
    if isinstance(item, str):
        from core.registry import load_hooks
        from core_training.callbacks.adapters import hook_callback
        from core_training.hooks.event_hooks import EventHooks

        try:
            return hook_callback(item, load_hooks(item, EventHooks))
        except UnknownAliasError as error:
            advice = "Callbacks are passed as instances, such as EarlyStopping('val_loss')."
            raise UnknownAliasError(
                f"{error} {advice}", kind=error.kind, alias=error.alias, near=error.near
            ) from None
    if isinstance(item, Callback):
        return item
    what = repr(item)
    if isinstance(item, type):
        what = f"the class {item.__name__} (did you mean {item.__name__}()?)"
    raise ConfigurationError(
        f"callbacks has {what}; expected instances of core.Callback, or names of installed event "
        "hooks."
    )


def refuse_equal_keys(callbacks: Sequence[Callback]) -> None:
    """Refuse callbacks whose states could not be told apart.

    Raises:
        ConfigurationError: two with one state key.
    """
    keys = [callback.state_key for callback in callbacks if callback.keeps_state]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigurationError(
                f"Two callbacks have the state key {key!r}, so their states can't be told apart in "
                "a checkpoint. Override state_key in one of them."
            )


def make_loggers(
    logger: str | Logger | Iterable[str | Logger] | bool | None, root: PathLike | None
) -> list[Logger]:
    """The user's loggers; the CSV logger if nothing else was asked for, whatever is installed.

    Raises:
        ConfigurationError: not a logger.
        UnknownAliasError: no such logger.
    """
    if logger is False:
        return []
    if logger is None or logger is True:
        logger = "csv"
    given = [logger]
    if isinstance(logger, Iterable) and not isinstance(logger, str | Logger):
        given = list(logger)
    loggers = []
    for item in given:
        if isinstance(item, str):
            offer, options = LOGGER_REGISTRY.offer(item), {}
            parameters = inspect.signature(LOGGER_REGISTRY.get(offer)).parameters
            if root is not None and "save_dir" in parameters:
                options["save_dir"] = root
            item = LOGGER_REGISTRY.create(offer, **options)
        if not isinstance(item, Logger):
            raise ConfigurationError(
                f"logger has {item!r}; expected aliases ({', '.join(LOGGER_REGISTRY)}) or "
                "instances of core.Logger, one or several; True or None for the CSV logger; False "
                "for none."
            )
        loggers.append(item)
    return loggers


def make_profiler(profiler: object) -> Profiler | None:
    """The user's profiler; None is none.

    Raises:
        ConfigurationError: neither a name of ours nor a profiler.
    """
    if profiler is None:
        return None
    from core_training import profilers

    if isinstance(profiler, str) and profiler in _PROFILERS:
        profiler = getattr(profilers, _PROFILERS[profiler])()
    if isinstance(profiler, profilers.Profiler):
        return profiler
    raise ConfigurationError(
        f"profiler={profiler!r}: expected {', '.join(map(repr, _PROFILERS))}, an instance of "
        "core.profilers.Profiler, or None to measure nothing."
    )
