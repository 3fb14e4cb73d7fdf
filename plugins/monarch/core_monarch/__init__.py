"""Ranks in Monarch's actors, for `core`: `Trainer(strategy="ddp", devices=2, plugins="monarch")`.

Names are imported when they are asked for, and Monarch itself when processes are about to be made.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_monarch._version import __version__

if TYPE_CHECKING:
    from core_monarch.environment import MonarchEnvironment
    from core_monarch.launcher import MonarchLauncher

__all__ = ["MonarchEnvironment", "MonarchLauncher", "__version__"]

__getattr__, __dir__ = lazy_exports(__name__)
