"""The attributes of modules and data modules that settings are taken from, and written to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core_training.hparams.hyperparameters import hparams_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_attribute(who: str, owners: Sequence[Any], names: Sequence[str]) -> str:
    """The first of some names that an owner has as an attribute, or in its `hparams`.

    Raises:
        ConfigurationError: no owner has any of them.
    """
    for name in names:
        if any(hasattr(owner, name) or name in hparams_of(owner) for owner in owners):
            return name
    kinds = " or ".join(type(owner).__name__ for owner in owners)
    raise ConfigurationError(
        f"{who} found no attribute {' or '.join(map(repr, names))} in {kinds}, nor in its hparams, "
        "to write its result to. Define it, and use it where the optimizer or loader is made."
    )


def write_attribute(owners: Sequence[Any], name: str, value: Any) -> None:
    """Set it wherever it is: attributes, and items of `hparams`."""
    for owner in owners:
        if hasattr(owner, name):
            setattr(owner, name, value)
        if name in hparams_of(owner):
            hparams_of(owner)[name] = value
