"""Flags of which packages are installed, as programs ask for them."""

from __future__ import annotations

import platform
import sys
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec

from packaging.requirements import Requirement

from core import rank_zero_warn


class InstalledPackage:
    """True if a package is installed in a wanted version, as in `"rich>=10.2"`; as text, the advice
    to install it.
    """

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted

    @cached_property
    def _is_installed(self) -> bool:
        requirement = Requirement(self.wanted)
        try:
            return requirement.specifier.contains(
                metadata.version(requirement.name), prereleases=True
            )
        except metadata.PackageNotFoundError:
            return False

    def __bool__(self) -> bool:
        return self._is_installed

    def __str__(self) -> str:
        said = f"Requirement {self.wanted!r} is"
        if self:
            return f"{said} met."
        return f"{said} not met. Install it: pip install '{self.wanted}'."


def package_available(name: str) -> bool:
    """True if a package can be found."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


module_available = package_available


def _try_import_module(module_name: str) -> bool:
    """True if a module can be imported; else a warning has the error."""
    try:
        __import__(module_name)
    except (ImportError, AttributeError) as error:
        rank_zero_warn(f"{module_name} can't be imported: {error}")
        return False
    return True


_OMEGACONF_AVAILABLE = package_available("omegaconf")
_TORCHVISION_AVAILABLE = InstalledPackage("torchvision")
_RICH_AVAILABLE = InstalledPackage("rich>=10.2.2")
_NUMPY_AVAILABLE = InstalledPackage("numpy")
_IS_WINDOWS = platform.system() == "Windows"
_IS_INTERACTIVE = hasattr(sys, "ps1") or bool(sys.flags.interactive)


def __getattr__(name: str) -> object:
    """Compare versions: `_TORCH_GREATER_EQUAL_2_6`, `_TORCHMETRICS_GREATER_EQUAL_1_0_0` and their
    like.
    """
    for prefix, package in (
        ("_TORCH_GREATER_EQUAL_", "torch"),
        ("_TORCHMETRICS_GREATER_EQUAL_", "torchmetrics"),
    ):
        if name.startswith(prefix):
            return InstalledPackage(f"{package}>={name.removeprefix(prefix).replace('_', '.')}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
