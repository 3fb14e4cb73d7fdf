"""The check of the arguments of ModelCheckpoint."""

from __future__ import annotations

from typing import Any

from core.contract import ConfigurationError
from core.trainer.callbacks.arguments import check_int


def check_arguments(
    given: dict[str, int | None], interval: Any, monitor: str | None, save_top_k: int, save_last: bool | str
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
            check_int("ModelCheckpoint", name, value, least=0, meaning="a positive number, 0 or None for never")
    rhythms = [name for name, value in {**given, "train_time_interval": interval}.items() if value]
    if len(rhythms) > 1:
        raise ConfigurationError(
            f"ModelCheckpoint got {' and '.join(rhythms)}; expected one of them. Use a ModelCheckpoint for each rhythm."
        )
    check_int("ModelCheckpoint", "save_top_k", save_top_k, least=-1, meaning="a number, or -1 for all")
    if monitor is None and save_top_k not in (-1, 0, 1):
        raise ConfigurationError(
            f"ModelCheckpoint(save_top_k={save_top_k}) can't tell which are best without monitor. Name a logged metric "
            "(or monitor='step', mode='max' for the newest), or use -1, 0 or 1."
        )
    if save_last not in (True, False, "link"):
        raise ConfigurationError(f"ModelCheckpoint(save_last={save_last!r}): expected True, False or 'link'.")
