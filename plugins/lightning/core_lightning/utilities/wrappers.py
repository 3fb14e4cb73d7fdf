"""The objects that Fabric returns for those of a program."""

from __future__ import annotations

from typing import Any

from core.data import map_leaves
from core.fabric import FabricDataLoader, FabricModule, FabricOptimizer

_WRAPPERS: dict[type, str] = {
    FabricModule: "module",
    FabricOptimizer: "optimizer",
    FabricDataLoader: "loader",
}
"""The classes that Fabric returns, each with the attribute that is the program's own object."""


def _unwrap_objects(collection: Any) -> Any:
    """Nested collections with the program's own objects in the place of what Fabric has returned
    for them.
    """

    def own(value: Any) -> Any:
        for kind, attribute in _WRAPPERS.items():
            if isinstance(value, kind):
                return getattr(value, attribute)
        return value

    return map_leaves(own, collection)


def is_wrapped(obj: object) -> bool:
    """True if `Fabric.setup` or `setup_dataloaders` has returned it."""
    return isinstance(obj, tuple(_WRAPPERS))
