"""The callbacks of a Trainer that come from outside the program."""

from __future__ import annotations

from importlib import metadata

from core import Callback
from core_lightning.utilities.lists import as_list

_FACTORIES = "lightning.pytorch.callbacks_factory"


def callbacks_of_packages() -> list[Callback]:
    """The callbacks that installed packages add to every Trainer, by entry points that make one or
    several.
    """
    made: list[Callback] = []
    for factory in metadata.entry_points(group=_FACTORIES):
        made += as_list(factory.load()())
    return made
