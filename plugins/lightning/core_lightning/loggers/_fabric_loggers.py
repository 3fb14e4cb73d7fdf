"""The loggers of Fabric, whose first argument is `root_dir`."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from core_lightning.loggers import _loggers as loggers


@cache
def __getattr__(name: str) -> type:
    """The Trainer's logger of that name, whose files lie in `root_dir`; other arguments are the
    same.
    """
    if name not in ("CSVLogger", "TensorBoardLogger"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base: Any = getattr(loggers, name)

    def __init__(
        self: Any, root_dir: str | os.PathLike[str] = ".", *others: Any, **options: Any
    ) -> None:
        base.__init__(self, root_dir, *others, **options)

    return type(
        name, (base,), {"__init__": __init__, "__doc__": base.__doc__, "__module__": __name__}
    )
