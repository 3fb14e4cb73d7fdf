"""Arguments of callbacks, checked, and the names of files that ModelCheckpoint's describe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_mode(who: str, mode: str) -> None:
    """Refuse a direction that isn't one.

    Raises:
        ConfigurationError: it is neither `"min"` nor `"max"`.
    """
    if mode not in ("min", "max"):
        raise ConfigurationError(
            f"{who}(mode={mode!r}): expected 'min' if less is better, or 'max' if more is."
        )


def check_int(who: str, name: str, value: Any, *, least: int, meaning: str) -> None:
    """Refuse what isn't a whole number of at least so much.

    Args:
        who: the callback.
        name: of the argument.
        value: what the user gave.
        least: smallest good value.
        meaning: what the message says that it expected.

    Raises:
        ConfigurationError: it isn't.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{who}({name}={value!r}): expected {meaning}.")


def check_arguments(
    given: dict[str, int | None],
    interval: object,
    monitor: str | None,
    save_top_k: int,
    save_last: bool | str,
) -> None:
    """Refuse numbers that can't be, and arguments that contradict each other.

    Args:
        given: numbers of steps and epochs, by the names of their arguments.
        interval: `train_time_interval`.
        monitor: or None.
        save_top_k: number of checkpoints to keep.
        save_last: True, False or `"link"`.

    Raises:
        ConfigurationError: with what is expected.
    """
    for name, value in given.items():
        if value is not None:
            check_int(
                "ModelCheckpoint",
                name,
                value,
                least=0,
                meaning="a positive number, 0 or None for never",
            )
    rhythms = [name for name, value in {**given, "train_time_interval": interval}.items() if value]
    if len(rhythms) > 1:
        raise ConfigurationError(
            f"ModelCheckpoint got {' and '.join(rhythms)}; expected one of them. Use a "
            "ModelCheckpoint for each rhythm."
        )
    check_int(
        "ModelCheckpoint", "save_top_k", save_top_k, least=-1, meaning="a number, or -1 for all"
    )
    if monitor is None and save_top_k not in (-1, 0, 1):
        raise ConfigurationError(
            f"ModelCheckpoint(save_top_k={save_top_k}) can't tell which are best without monitor. "
            "Name a logged metric (or monitor='step', mode='max' for the newest), or use -1, 0 or "
            "1."
        )
    if save_last not in (True, False, "link"):
        raise ConfigurationError(
            f"ModelCheckpoint(save_last={save_last!r}): expected True, False or 'link'."
        )


def replaces_another(path: str) -> ConfigurationError:
    """The error for two callbacks with one file."""
    return ConfigurationError(
        f"ModelCheckpoint(enable_version_counter=False) would write {path!r}, where another one, "
        "or save_last, has its own: each would replace what the other keeps. Give each a folder or "
        "filename of its own, or count versions."
    )


_FIELD = re.compile(r"\{([^{}:]*)(:[^{}]*)?\}")


def format_name(pattern: str, values: Mapping[str, float], *, equals: str | None = "=") -> str:
    """Fill a pattern with values: `{epoch}-{val_loss:.2f}` becomes `epoch=3-val_loss=0.12`.

    Args:
        pattern: fields are names of logged metrics, `epoch` and `step`, each with a format if
            wanted.
        values: number by name.
        equals: stands between the name and the value; None writes the value alone. A `/` in a name
            becomes `_`: it would make a folder.

    Raises:
        ConfigurationError: a name was not logged, or its format doesn't fit a number.
    """

    def insert(field: re.Match[str]) -> str:
        name, form = field[1], field[2] or ""
        if name not in values:
            raise ConfigurationError(
                f"The checkpoint's filename {pattern!r} has the field {name!r}, which was not "
                "logged; known are "
                f"{', '.join(map(repr, sorted(values)))}.{did_you_mean(name, values)} Log it, or "
                "leave it out."
            )
        text = _format_value(pattern, name, values[name], form[1:])
        return text if equals is None else f"{name.replace('/', '_')}{equals}{text}"

    return _FIELD.sub(insert, pattern)


def _format_value(pattern: str, name: str, value: float, form: str) -> str:
    number = int(value) if name in ("epoch", "step") and "f" not in form else value
    try:
        return format(number, form)
    except ValueError as error:
        raise ConfigurationError(
            f"The checkpoint's filename {pattern!r} formats {name!r} by {form!r}, and {error}. "
            "Expected a Python format for numbers, such as '.2f' or '03d'."
        ) from None
