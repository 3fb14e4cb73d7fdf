"""The hooks of this process: set for the first owner, taken back when the last one is gone."""

from __future__ import annotations

import os
import weakref

from core.display import tracebacks, warnings_once

VARIABLE = "CORE_DISPLAY"
"""The environment variable that leaves the hooks of this process alone, if its value is `plain`."""

_owners: set[int] = set()


def install_for(owner: object) -> None:
    """Set the hooks of this process until the owner is gone; idempotent.

    They are `sys.excepthook` and `warnings.showwarning`. One that other code has replaced stays. An
    uncaught error keeps its owner alive, by the frames of its traceback, until it is shown.

    Args:
        owner: an object that can be referenced weakly.
    """
    if os.environ.get(VARIABLE, "").strip().lower() == "plain":
        return
    if id(owner) not in _owners:
        _owners.add(id(owner))
        weakref.finalize(owner, _release, id(owner)).atexit = False
    tracebacks.install()
    warnings_once.install()


def _release(owner: int) -> None:
    _owners.discard(owner)
    if not _owners:
        tracebacks.remove()
        warnings_once.remove()
