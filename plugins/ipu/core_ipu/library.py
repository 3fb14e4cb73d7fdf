"""The one place that imports PopTorch."""

from __future__ import annotations

import importlib
from typing import Any

from core import PluginLoadError

HOW_TO_INSTALL = (
    "It is a wheel of Graphcore's Poplar SDK, on no package index: install that, and enable the SDK by its script"
)


def load() -> Any:
    """PopTorch.

    Raises:
        PluginLoadError: it isn't installed, or can't be imported.
    """
    try:
        return importlib.import_module("poptorch")
    except Exception as error:  # a release for another torch asserts, a missing SDK is an ImportError
        raise PluginLoadError(
            f"core-ipu needs PopTorch, which can't be imported: {type(error).__name__}: {error}. {HOW_TO_INSTALL}."
        ) from error
