"""The one place that imports PopTorch."""

from __future__ import annotations

from typing import Any

from core.registry import import_library

HOW_TO_INSTALL = (
    "It is a wheel of Graphcore's Poplar SDK, on no package index: install that, and "
    "enable the SDK by its script"
)


def load() -> Any:
    """PopTorch; see `import_library`. A release for another torch asserts, a missing SDK is an
    ImportError.
    """
    return import_library("poptorch", user="core-ipu", install=f"{HOW_TO_INSTALL}.")
