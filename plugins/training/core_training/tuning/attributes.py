"""The attributes of modules and data modules that settings are taken from, and written to."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_attribute(who: str, owners: Sequence[Any], names: Sequence[str]) -> str:
    """The first of some names that an owner has as an attribute, or in its `hparams`.

    Raises:
        ConfigurationError: no owner has any of them.
    """
    found = next((name for name in names if any(_has(owner, name) for owner in owners)), None)
    if found is None:
        kinds, wanted = (
            " or ".join(type(owner).__name__ for owner in owners),
            " or ".join(map(repr, names)),
        )
        raise ConfigurationError(
            f"{who} found no attribute {wanted} in {kinds}, nor in its hparams, to write its "
            "result to. Define it, and use it where the optimizer or loader is made."
        )
    return found


def write_attribute(owners: Sequence[Any], name: str, value: Any) -> None:
    """Set it wherever it is: attributes, and items of `hparams`."""
    for owner in owners:
        if hasattr(owner, name):
            setattr(owner, name, value)
        if name in (hparams := _hparams_of(owner)):
            hparams[name] = value


def _has(owner: Any, name: str) -> bool:
    return hasattr(owner, name) or name in _hparams_of(owner)


def _hparams_of(owner: Any) -> MutableMapping[str, Any]:
    """The `hparams` of a module or data module of whatever class; empty if it has none."""
    hparams = getattr(owner, "hparams", None)
    if isinstance(hparams, Namespace):
        hparams = vars(hparams)
    return hparams if isinstance(hparams, MutableMapping) else {}
