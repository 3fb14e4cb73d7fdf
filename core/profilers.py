"""The profilers, which belong to the Trainer; this is their public module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core.trainer import profilers as _profilers

if TYPE_CHECKING:
    from core.trainer.profilers import *  # noqa: F403  (all that is public there)

__all__ = _profilers.__all__

__getattr__, __dir__ = lazy_exports(__name__, open_to_plugins=True)
