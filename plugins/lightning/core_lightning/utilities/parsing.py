"""Hyperparameters, as Lightning's `utilities.parsing` has them."""

from __future__ import annotations

import pickle
from typing import Any


class AttributeDict(dict[str, Any]):
    """A dict whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"There is no {name!r}; there are {sorted(map(str, self))}."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def is_picklable(obj: object) -> bool:
    """True if `pickle` takes it."""
    try:
        pickle.dumps(obj)
    except (pickle.PickleError, AttributeError, RuntimeError, TypeError):
        return False
    return True
