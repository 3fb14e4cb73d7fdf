"""The one place that imports the vendor's library."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from core import DeviceError

LIBRARY = "habana_frameworks.torch"


@functools.cache
def load(name: str) -> Any:
    """A module of the library: `"core"`, `"hpu"` or `"distributed.hccl"`.

    Raises:
        DeviceError: it can't be imported.
    """
    try:
        return importlib.import_module(f"{LIBRARY}.{name}")
    except Exception as error:  # the library compares versions with `assert`, and loads shared libraries
        raise DeviceError(
            f"Gaudi devices need {LIBRARY}.{name}, and its import raised {error!r}. Install the vendor's PyTorch "
            "packages for this release of torch and of the driver: "
            "https://docs.habana.ai/en/latest/Installation_Guide/index.html"
        ) from error
