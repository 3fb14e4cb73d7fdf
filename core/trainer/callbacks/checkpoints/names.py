"""Names of checkpoint files, with values in them: `{epoch}-{val_loss:.2f}`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELD = re.compile(r"\{([^{}:]*)(:[^{}]*)?\}")


def format_name(pattern: str, values: Mapping[str, float], *, equals: str | None = "=") -> str:
    """Fill a pattern with values: `{epoch}-{val_loss:.2f}` becomes `epoch=3-val_loss=0.12`.

    Args:
        pattern: fields are names of logged metrics, `epoch` and `step`, each with a format if wanted.
        values: number by name.
        equals: stands between the name and the value; None writes the value alone. A `/` in a name becomes `_`: it
            would make a folder.

    Raises:
        ConfigurationError: a name was not logged, or its format doesn't fit a number.
    """

    def insert(field: re.Match[str]) -> str:
        name, form = field[1], field[2] or ""
        if name not in values:
            raise ConfigurationError(
                f"The checkpoint's filename {pattern!r} has the field {name!r}, which was not logged; known are "
                f"{', '.join(map(repr, sorted(values)))}. Log it, or leave it out."
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
